"""Statements of a study, with their intervals."""
