"""What a person types: one module for each noun; :mod:`helios.cli.main` finds the command."""
