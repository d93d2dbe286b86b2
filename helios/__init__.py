"""Helios, which learns from a Slurm cluster's history and acts on it."""

from importlib.metadata import version

__version__ = version("helios-slurm")
