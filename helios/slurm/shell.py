"""Run Slurm's own programs so that their answers can be read whatever the site or the caller has set.

Everything here that starts a process goes through :class:`Shell`: found once, bounded in time, killed with its
children when it does not answer, and free of the environment variables by which users change Slurm's output.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from helios.errors import AnswerNotUnderstood, ClusterRefused, ClusterUnavailable

_OURS = {"LC_ALL": "C.UTF-8", "TZ": "UTC", "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}
"""Times as seconds since the epoch; array tasks written out in full instead of ``0,3,6,...``."""
_SLURM_VARIABLE = re.compile(r"(SLURM|SQUEUE|SINFO|SACCT|SACCTMGR|SPRIO|SCONTROL|SDIAG)_")
_KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SACK_SOCKET", "SLURM_SACK_SOCKET", "SLURM_DEBUG_FLAGS")
"""Slurm's variables that say where the cluster is and who is asking."""

_NO_PRIVILEGE = re.compile(
    r"access.permission denied|invalid user id|permission denied|not authorized|must be .*(operator|administrator)",
    re.IGNORECASE,
)
_NO_CONTROLLER = re.compile(
    r"unable to contact|connect failure|connection refused|timed out|zero bytes|unable to process configuration"
    r"|configuration source|unexpected message received|unable to establish|authentication|munge"
    r"|problem talking to the database|unable to connect|failed to open persistent",
    re.IGNORECASE,
)
_LONGEST_QUOTE = 300
"""Characters of Slurm's own message that an error repeats."""


def quoted(text: str) -> str:
    """Return the end of what a program said, on one line, short enough for an error message."""
    return " ".join(text.split())[-_LONGEST_QUOTE:] or "it said nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """What a program printed, and how it ended."""

    output: bytes
    complaint: str
    status: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shell:
    """A way to run Slurm's programs.

    Parameters
    ----------
    folder : str
        Where they lie; empty: they are found on ``PATH``.
    timeout_s : float
        Longest wait for one program, s.
    environment : mapping
        The process environment, of which Slurm's own variables are taken over only where they say where the cluster is.
    """

    folder: str = ""
    timeout_s: float = 30.0
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def run(self, program: str, *words: str) -> bytes:
        """Return what ``program`` prints.

        Raises
        ------
        ClusterUnavailable
            It is not installed, did not answer in time, or could not reach the daemon it asks.
        ClusterRefused
            Slurm says that the calling user may not.
        AnswerNotUnderstood
            It failed for another reason.
        """
        answer = self.answer(program, *words)
        if answer.status != 0:
            raise failure(program, answer.complaint)
        return answer.output

    def answer(self, program: str, *words: str, given: bytes = b"", timeout_s: float | None = None) -> CommandResult:
        """Return what ``program`` prints and says when it is given ``given`` to read, however it ends.

        Raises
        ------
        ClusterUnavailable
            It is not installed, or did not answer in time.
        """
        started = self.start(program, *words, output=subprocess.PIPE)
        try:
            output, complaint = started.communicate(given, timeout=timeout_s or self.timeout_s)
        except subprocess.TimeoutExpired as reason:
            raise self._too_slow(program, timeout_s or self.timeout_s) from reason
        finally:
            stop(started)
        return CommandResult(output=output, complaint=complaint.decode("utf-8", "replace"), status=started.returncode)

    def write(self, path: Path, program: str, *words: str, timeout_s: float | None = None) -> None:
        """Let ``program`` print into the file ``path``, without holding its output in memory.

        Raises
        ------
        ClusterUnavailable, ClusterRefused, AnswerNotUnderstood
            As :meth:`run`; what stands in ``path`` then is incomplete.
        """
        with path.open("wb") as output:
            started = self.start(program, *words, output=output)
            try:
                _, complaint = started.communicate(b"", timeout=timeout_s or self.timeout_s)
            except subprocess.TimeoutExpired as reason:
                raise self._too_slow(program, timeout_s or self.timeout_s) from reason
            finally:
                stop(started)
        if started.returncode != 0:
            raise failure(program, complaint.decode("utf-8", "replace"))

    def start(self, program: str, *words: str, output: int | IO[bytes]) -> subprocess.Popen[bytes]:
        """Start ``program`` in a process group of its own; the caller ends it with :func:`stop`."""
        try:
            return subprocess.Popen(
                [self.find(program), *words],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.PIPE,
                env=self.surroundings(),
                start_new_session=True,
            )
        except OSError as reason:
            raise ClusterUnavailable(f"{program} could not be started: {reason}", hint=_WHERE) from reason

    def find(self, program: str) -> str:
        """Return the path of ``program``.

        Raises
        ------
        ClusterUnavailable
            It is not there.
        """
        path = self.folder or self.environment.get("PATH", os.defpath)
        if (found := shutil.which(program, path=path)) is None:
            raise ClusterUnavailable(f"Slurm's command {program} was not found in {path}.", hint=_WHERE)
        return found

    def surroundings(self) -> dict[str, str]:
        """Return the environment that Slurm's programs run in."""
        kept = {
            name: value
            for name, value in self.environment.items()
            if name in _KEPT or not (_SLURM_VARIABLE.match(name) or name.startswith(("LC_", "LANG")))
        }
        return kept | _OURS

    @staticmethod
    def _too_slow(program: str, timeout_s: float) -> ClusterUnavailable:
        return ClusterUnavailable(
            f"{program} did not answer within {timeout_s:g} s.",
            hint="Look at the load of slurmctld with sdiag; raise [slurm] timeout_s if the cluster is just slow.",
        )


_WHERE = "Install Slurm's client commands on this host, or say in [slurm] commands which folder they are in."


def stop(started: subprocess.Popen[bytes]) -> None:
    """End a program and all it started, if it still runs, and let go of its pipes."""
    if started.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()
    for pipe in (started.stdin, started.stdout, started.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def failure(program: str, complaint: str) -> ClusterUnavailable | ClusterRefused | AnswerNotUnderstood:
    """Return the error that a program's complaint stands for."""
    said = f"{program} failed: {quoted(complaint)}"
    if _NO_CONTROLLER.search(complaint):
        hint = "See whether it answers: scontrol ping; sacctmgr ping. SLURM_CONF must name this cluster's slurm.conf."
        return ClusterUnavailable(said, hint=hint)
    if _NO_PRIVILEGE.search(complaint):
        hint = "Give the user that runs Helios the right: sacctmgr modify user NAME set adminlevel=Operator"
        return ClusterRefused(said, hint=hint)
    return AnswerNotUnderstood(said, hint=f"Run {program} by hand as the user that runs Helios.")


def lines(output: bytes) -> Sequence[str]:
    """Return the lines of what a program printed, undecodable bytes as surrogate escapes."""
    return output.decode("utf-8", "surrogateescape").split("\n")
