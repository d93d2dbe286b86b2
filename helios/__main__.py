"""``python -m helios`` is the command ``helios``."""

from helios.cli import main

main()
