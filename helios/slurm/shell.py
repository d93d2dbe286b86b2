"""Runner of Slurm's programs, with uniform output.

:class:`Shell` finds a program, limits its time, kills it with its children when it does not answer, and removes the
environment variables by which users change Slurm's output.
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

_FIXED_VARIABLES = {"LC_ALL": "C.UTF-8", "TZ": "UTC", "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}
"""Print times as seconds since the epoch, and array tasks in full instead of ``0,3,6,...``."""
_SLURM_VARIABLE = re.compile(r"(SLURM|SQUEUE|SINFO|SACCT|SACCTMGR|SPRIO|SCONTROL|SDIAG)_")
_KEPT_VARIABLES = (
    "SLURM_CONF",
    "SLURM_CONF_SERVER",
    "SLURM_JWT",
    "SACK_SOCKET",
    "SLURM_SACK_SOCKET",
    "SLURM_DEBUG_FLAGS",
)
"""Slurm's variables that name the cluster or authenticate the user."""

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
_LOST = re.compile(r"slurm_load\w* error|\bfatal:", re.IGNORECASE)
"""Words on standard error after which an answer is incomplete, whatever the exit status."""
_LONGEST_QUOTE = 300
"""Most characters of Slurm's own message in an error."""


_NOT_FOUND_HINT = "Install Slurm's client commands on this host, or say in [slurm] commands which folder they are in."


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """Output, error output and exit status of a program."""

    output: bytes
    error_output: str
    status: int

    def check(self, program: str) -> None:
        """Raise unless ``program`` succeeded.

        A wrapper may lose the exit status, so that standard error is looked at too. A mere warning there is none.

        Raises
        ------
        ClusterUnavailable, ClusterRefused, AnswerNotUnderstood
            As :meth:`Shell.run`.
        """
        words = self.error_output
        if self.status or any(found.search(words) for found in (_LOST, _NO_CONTROLLER, _NO_PRIVILEGE)):
            raise failure(program, words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shell:
    """Runner of Slurm's programs.

    Parameters
    ----------
    folder : str
        Folder of the programs; empty to find them on ``PATH``.
    timeout_s : float
        Longest wait for one program, s.
    environment : mapping
        The process environment. Of Slurm's own variables only those that name the cluster or authenticate the user are
        passed on.
    """

    folder: str = ""
    timeout_s: float = 30.0
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def run(self, program: str, *words: str) -> bytes:
        """Run ``program`` and return its output.

        Raises
        ------
        ClusterUnavailable
            It is not installed, did not answer in time, or could not reach its daemon.
        ClusterRefused
            Slurm denies the calling user the permission.
        AnswerNotUnderstood
            It failed for another reason.
        """
        answer = self.answer(program, *words)
        answer.check(program)
        return answer.output

    def answer(self, program: str, *words: str, stdin: bytes = b"", timeout_s: float | None = None) -> CommandResult:
        """Run ``program`` on ``stdin``, and return its result or failure.

        Raises
        ------
        ClusterUnavailable
            It is not installed, or did not answer in time.
        """
        return self._run(program, words, output=subprocess.PIPE, stdin=stdin, timeout_s=timeout_s or self.timeout_s)

    def write(self, path: Path, program: str, *words: str, timeout_s: float | None = None) -> None:
        """Run ``program``, and write its output to the file ``path``.

        The output is not held in memory.

        Raises
        ------
        ClusterUnavailable, ClusterRefused, AnswerNotUnderstood
            As :meth:`run`. The content of ``path`` is then incomplete.
        """
        with path.open("wb") as output:
            answer = self._run(program, words, output=output, stdin=b"", timeout_s=timeout_s or self.timeout_s)
        answer.check(program)

    def start(self, program: str, *words: str, output: int | IO[bytes]) -> subprocess.Popen[bytes]:
        """Start ``program`` in a new process group.

        The caller ends it with :func:`stop`.

        Raises
        ------
        ClusterUnavailable
            It is not installed, or could not be started.
        """
        try:
            return subprocess.Popen(
                [self.find(program), *words],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.PIPE,
                env=self.environment_for_slurm(),
                start_new_session=True,
            )
        except OSError as reason:
            raise ClusterUnavailable(f"{program} could not be started: {reason}", hint=_NOT_FOUND_HINT) from reason

    def find(self, program: str) -> str:
        """Return the path of ``program``.

        Raises
        ------
        ClusterUnavailable
            It is not there.
        """
        # Relative entries are left out, because they would run programs from the current folder.
        folders = self.environment.get("PATH", os.defpath).split(os.pathsep)
        path = self.folder or os.pathsep.join(place for place in folders if Path(place).is_absolute())
        if (program_path := shutil.which(program, path=path)) is None:
            raise ClusterUnavailable(f"Slurm's command {program} was not found in {path}.", hint=_NOT_FOUND_HINT)
        return program_path

    def environment_for_slurm(self) -> dict[str, str]:
        """Return the environment for Slurm's programs."""
        inherited = {
            name: value
            for name, value in self.environment.items()
            if name in _KEPT_VARIABLES or not (_SLURM_VARIABLE.match(name) or name.startswith(("LC_", "LANG")))
        }
        return inherited | _FIXED_VARIABLES

    def _run(
        self, program: str, words: Sequence[str], *, output: int | IO[bytes], stdin: bytes, timeout_s: float
    ) -> CommandResult:
        process = self.start(program, *words, output=output)
        try:
            output_bytes, error_output = process.communicate(stdin, timeout=timeout_s)
        except subprocess.TimeoutExpired as reason:
            raise ClusterUnavailable(
                f"{program} did not answer within {timeout_s:g} s.",
                hint="Look at the load of slurmctld with sdiag; raise [slurm] timeout_s if the cluster is just slow.",
            ) from reason
        finally:
            stop(process)
        return CommandResult(
            output=output_bytes or b"", error_output=error_output.decode("utf-8", "replace"), status=process.returncode
        )


def quoted(text: str) -> str:
    """Return the end of a program's message on one line."""
    return " ".join(text.split())[-_LONGEST_QUOTE:] or "it said nothing"


def stop(process: subprocess.Popen[bytes]) -> None:
    """Kill a program's process group and close its pipes."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def failure(program: str, error_output: str) -> ClusterUnavailable | ClusterRefused | AnswerNotUnderstood:
    """Return the error for a program's error output."""
    text = f"{program} failed: {quoted(error_output)}"
    if _NO_CONTROLLER.search(error_output):
        hint = "See whether it answers: scontrol ping; sacctmgr ping. SLURM_CONF must name this cluster's slurm.conf."
        return ClusterUnavailable(text, hint=hint)
    if _NO_PRIVILEGE.search(error_output):
        hint = "Give the user that runs Helios the right: sacctmgr modify user NAME set adminlevel=Operator"
        return ClusterRefused(text, hint=hint)
    return AnswerNotUnderstood(text, hint=f"Run {program} by hand as the user that runs Helios.")


def lines(output: bytes) -> Sequence[str]:
    """Return the lines of a program's output, undecodable bytes as surrogate escapes."""
    return output.decode("utf-8", "surrogateescape").split("\n")


def settings(lines: Sequence[str]) -> dict[str, str]:
    """Return the settings in lines like ``KEY = VALUE``."""
    pairs = (line.partition("=") for line in lines if "=" in line)
    return {key.strip(): value.strip() for key, _, value in pairs}
