"""Prediction of run times and node demand."""
