"""Type a command as a person would: a process of its own, a folder of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
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


def shell(folder: Path, *, alone: bool = False, **environment: str) -> Helios:
    """Return a function that runs ``helios ARGUMENTS`` in ``folder``, with a warehouse of its own there.

    Commands are forks of a process that has imported the libraries, unless they are to be ``alone``: with a hash seed
    of their own, for what must be the same each time.
    """
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith("HELIOS_")}
    surroundings["HELIOS_DATABASE_URL"] = f"sqlite:///{folder / 'helios.db'}"
    surroundings.update(environment)

    def helios(*arguments: object, code: int = 0) -> Answer:
        words = [*map(str, arguments)]
        with TemporaryDirectory(prefix="helios-says-") as said:
            out, err = Path(said, "out"), Path(said, "err")
            if alone or not same_early_variables(surroundings):
                with out.open("w") as to_out, err.open("w") as to_err:
                    returned = subprocess.run(
                        [sys.executable, "-m", "helios", *words],
                        cwd=folder,
                        env=surroundings,
                        stdin=subprocess.DEVNULL,
                        stdout=to_out,
                        stderr=to_err,
                        check=False,
                    ).returncode
            else:
                returned = PREPARED.run(words, folder=folder, environment=surroundings, out=out, err=err)
            answer = Answer(code=returned, out=out.read_text(), err=err.read_text())
        assert answer.code == code, f"exit {answer.code}\n{answer.out}\n{answer.err}"
        assert "Traceback" not in answer.err, answer.err
        return answer

    return helios
