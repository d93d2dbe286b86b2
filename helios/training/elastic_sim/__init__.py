"""Elastic training in simulation, from measured profiles of models."""
