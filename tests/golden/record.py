"""Record what a real cluster answers, byte for byte but for names of the machine it runs on.

python -m tests.golden.record FOLDER [--commands FOLDER] [--hide WORD=OTHER ...]

Run it where Slurm's commands reach the cluster, as a user who may see all jobs. It changes nothing there. FOLDER is
named for the release, as tests/golden/slurm-22.05; what the answers should be read as is written beside them, to be
looked through by a person before it is believed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

from helios.slurm.commands import CommandsBackend, Sprio
from helios.slurm.shell import CommandResult, Shell

NONCE = re.compile(rb"\x1e[0-9a-f]{16}")
PLACEHOLDER = b"\x1e<nonce>"
"""Stands in a recording for the word that ends a record and is new for each call."""


def slug(program: str, words: Sequence[str]) -> str:
    """Return the name of the file that holds the answer to a command."""
    nouns = [word for word in words if re.fullmatch(r"[a-z]+", word)]
    return "-".join([program, *nouns])


class Recorder(Shell):
    """A shell that writes down what it hears."""

    __slots__ = ()
    folder_of_answers = Path()
    hidden: tuple[tuple[bytes, bytes], ...] = ()

    def answer(self, program: str, *words: str, given: bytes = b"", timeout_s: float | None = None) -> CommandResult:
        heard = super().answer(program, *words, given=given, timeout_s=timeout_s)
        output = NONCE.sub(PLACEHOLDER, heard.output)
        for word, other in Recorder.hidden:
            output = re.sub(rb"(?<![\w-])" + re.escape(word) + rb"(?![\w-])", other, output)
        (Recorder.folder_of_answers / f"{slug(program, words)}.txt").write_bytes(output)
        return heard


def record(folder: Path, *, commands: str, hidden: Sequence[tuple[str, str]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    Recorder.folder_of_answers = folder
    Recorder.hidden = tuple((word.encode(), other.encode()) for word, other in hidden)
    backend = CommandsBackend(commands_folder=commands)
    backend.shell = Recorder(folder=commands, environment=dict(os.environ))
    backend.configuration()
    jobs, nodes, factors = backend.queue(), backend.nodes(), Sprio(shell=backend.shell)()
    read = {
        "jobs": sorted(jobs, key=lambda job: int(job["job_id"])),
        "nodes": sorted(nodes, key=lambda node: node["name"]),
        "site_factors": {job_id: [factor.value, factor.direct] for job_id, factor in factors.items()},
    }
    (folder / "read-as.json").write_text(json.dumps(read, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--commands", default="")
    parser.add_argument("--hide", action="append", default=[], metavar="WORD=OTHER")
    options = parser.parse_args()
    record(options.folder, commands=options.commands, hidden=[tuple(pair.split("=", 1)) for pair in options.hide])
