"""``python -m helios`` is the command ``helios``."""

import sys


def main() -> None:
    """Run the command line.

    Importing it takes .2 s, in which Ctrl-C ends it as later: without a traceback.
    """
    try:
        from helios.cli.main import main as run  # noqa: PLC0415 - where an interrupt is caught
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
