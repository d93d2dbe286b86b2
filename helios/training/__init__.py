"""Training pools, and trials trained as one program."""
