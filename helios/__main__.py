"""``python -m helios`` is the command ``helios``."""

from helios.cli.main import main

main()
