"""A shell that answers from a recording."""

from __future__ import annotations

from pathlib import Path

from helios.slurm.shell import CommandResult, Shell
from tests.golden.record import NONCE, PLACEHOLDER, slug

GOLDEN = Path(__file__).parents[2] / "golden"
RELEASES = sorted(folder.name for folder in GOLDEN.glob("slurm-*"))


class RecordedShell(Shell):
    """Answers what was recorded; of ``squeue``, with the word that the caller just made up."""

    __slots__ = ()

    def answer(self, program: str, *words: str, stdin: bytes = b"", timeout_s: float | None = None) -> CommandResult:
        output = (Path(self.folder) / f"{slug(program, words)}.txt").read_bytes()
        for nonce in NONCE.findall(" ".join(words).encode()):
            output = output.replace(PLACEHOLDER, nonce)
        return CommandResult(output=output, error_output="", status=0)


def recorded(release: str) -> RecordedShell:
    """Return the shell that answers as a cluster of ``release`` did, as ``slurm-22.05``."""
    return RecordedShell(folder=str(GOLDEN / release))
