"""Command-line interface, with one module for each group of commands.

:mod:`helios.cli.main` lists the commands and imports the module of the one that was typed.
"""
