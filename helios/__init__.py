"""Helios learns from a Slurm GPU cluster's own history and acts on it, safely."""

from importlib.metadata import version

__version__ = version("helios-slurm")
