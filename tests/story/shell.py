"""Type a command as a person would: a process of its own, a folder of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.story.prepared import Prepared, same_early_variables


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Helios = Callable[..., Answer]


PREPARED = Prepared()


def run_command(
    words: Sequence[object],
    *,
    folder: Path,
    environment: Mapping[str, str],
    alone: bool = False,
    errors: str = "strict",
) -> subprocess.CompletedProcess[str]:
    """Run ``helios WORDS`` in ``folder``.

    It is a fork of a process that has imported the libraries, unless it is to be ``alone``: with a hash seed of its
    own, for what must be the same each time. ``errors`` says what becomes of bytes that are no UTF-8.
    """
    arguments, surroundings = [*map(str, words)], dict(environment)
    with TemporaryDirectory(prefix="helios-says-") as said:
        out, err = Path(said, "out"), Path(said, "err")
        if alone or not same_early_variables(surroundings):
            with out.open("w") as to_out, err.open("w") as to_err:
                returned = subprocess.run(
                    [sys.executable, "-m", "helios", *arguments],
                    cwd=folder,
                    env=surroundings,
                    stdin=subprocess.DEVNULL,
                    stdout=to_out,
                    stderr=to_err,
                    check=False,
                ).returncode
        else:
            returned = PREPARED.run(arguments, folder=folder, environment=surroundings, out=out, err=err)
        texts = (path.read_text(encoding="utf-8", errors=errors) for path in (out, err))
        return subprocess.CompletedProcess(["helios", *arguments], returned, *texts)


def shell(folder: Path, *, alone: bool = False, **environment: str) -> Helios:
    """Return a function that runs ``helios ARGUMENTS`` in ``folder``, with a warehouse of its own there."""
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith("HELIOS_")}
    surroundings["HELIOS_DATABASE_URL"] = f"sqlite:///{folder / 'helios.db'}"
    surroundings.update(environment)

    def helios(*arguments: object, code: int = 0) -> Answer:
        done = run_command(arguments, folder=folder, environment=surroundings, alone=alone)
        answer = Answer(code=done.returncode, out=done.stdout, err=done.stderr)
        assert answer.code == code, f"exit {answer.code}\n{answer.out}\n{answer.err}"
        assert "Traceback" not in answer.err, answer.err
        return answer

    return helios
