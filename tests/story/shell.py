"""Type a command as a person would: a process of its own, a folder of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Helios = Callable[..., Answer]


def shell(folder: Path, **environment: str) -> Helios:
    """Return a function that runs ``helios ARGUMENTS`` in ``folder``, with a warehouse of its own there."""
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith("HELIOS_")}
    surroundings["HELIOS_DATABASE_URL"] = f"sqlite:///{folder / 'helios.db'}"
    surroundings.update(environment)

    def helios(*arguments: object, code: int = 0) -> Answer:
        done = subprocess.run(
            [sys.executable, "-m", "helios", *map(str, arguments)],
            cwd=folder,
            env=surroundings,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr
        return Answer(code=done.returncode, out=done.stdout, err=done.stderr)

    return helios
