"""Command line of the launcher."""

from __future__ import annotations

import argparse
import json
import os
import sys

from helios.errors import HeliosError
from helios.training.elastic.launcher import ElasticLauncher, read_settings


def main(words: list[str]) -> int:
    """Train with workers, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m helios.training.elastic", description="Train on several devices.")
    parser.add_argument("--devices", type=int, default=1, help="workers at the start, without a pool")
    parser.add_argument("program", help="Python file that trains")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args(words)
    try:
        settings = read_settings(json.loads(os.environ.get("HELIOS_ELASTIC") or "{}"), given.devices)
        return ElasticLauncher([sys.executable, given.program, *given.arguments], settings).run()
    except HeliosError as reason:
        print(f"{reason.message} {reason.hint}".strip(), file=sys.stderr)  # noqa: T201 - the log
        return reason.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
