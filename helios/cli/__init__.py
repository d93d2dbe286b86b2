"""What a person types: one module per noun, and the door through which every error leaves."""

from __future__ import annotations

import sys

from helios.cli.application import application
from helios.cli.screen import complain
from helios.errors import HeliosError


def main() -> None:
    """Run the command line; exit 0 done, 1 failed, 2 misused, 130 interrupted."""
    try:
        application()
    except HeliosError as error:
        complain(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader (head, less) has gone; the interpreter must not complain when it flushes.
        sys.stdout = None
        sys.exit(0)
