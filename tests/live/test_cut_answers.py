"""Less output of a real squeue with exit status 0: nothing is done, unless the jobs are known to have ended."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from helios.app.operations import Operations
from helios.errors import HeliosError
from tests.live.rig import Rig
from tests.live.test_acting import Helios, helios

__all__ = ["helios"]  # a fixture

WRAPPER = """#!{python} -S
import re, subprocess, sys
answer = subprocess.run([{real!r}, *sys.argv[1:]], stdout=subprocess.PIPE)
how = open({how!r}).read()
records = re.split(rb"(?<=\\n)", answer.stdout)[:-1]
kept = {{"whole": len(records), "a third": len(records) // 3, "nothing": 0}}[how]
sys.stdout.buffer.write(b"".join(records[:kept]))
sys.exit(answer.returncode)
"""


class Wrapped:
    """Helios with a squeue and a sprio that leave out the end of what they print."""

    def __init__(self, helios: Helios, folder: Path) -> None:
        self.helios, self.rig = helios, helios.rig
        self._folder = folder
        commands = folder / "commands"
        commands.mkdir()
        for name in ("scontrol", "sacct", "sacctmgr", "sdiag", "sinfo"):
            (commands / name).symlink_to(self._real(name))
        for name in ("squeue", "sprio"):
            text = WRAPPER.format(python=sys.executable, real=self._real(name), how=str(folder / f"{name}.how"))
            (commands / name).write_text(text)
            (commands / name).chmod(0o755)
        self.prints("whole")
        self.operations: Operations = helios.another(slurm={"backend": "commands", "commands": str(commands)})

    @staticmethod
    def _real(name: str) -> str:
        found = shutil.which(name)
        assert found
        return found

    def prints(self, how: str, *, sprio: str = "whole") -> None:
        """Say how much ``squeue`` and ``sprio`` print from now on."""
        (self._folder / "squeue.how").write_text(how)
        (self._folder / "sprio.how").write_text(sprio)

    def suspended(self) -> str:
        """Take a cycle, and return why nothing was done in it."""
        return "; ".join(self.helios.cycle(self.operations).suspended)


@pytest.fixture
def wrapped(helios: Helios, tmp_path: Path) -> Iterator[Wrapped]:
    for number in range(12):
        helios.rig.submit(user=("alice", "bob", "carol")[number % 3], gpus=number % 4 + 1, limit="90")
    helios.rig.until(lambda: len(helios.rig.site_factors()) == 15)
    wrapped = Wrapped(helios, tmp_path)
    assert wrapped.suspended() == ""
    yield wrapped
    wrapped.operations.cycles.site.close()


@pytest.mark.parametrize("how", ["a third", "nothing"])
def test_a_cut_queue_is_not_believed_while_sprio_names_more(wrapped: Wrapped, how: str) -> None:
    before = wrapped.rig.site_factors()
    assert any(before.values())
    wrapped.prints(how)
    for _ in range(2):
        assert "pending jobs that squeue did not list" in wrapped.suspended()
    assert wrapped.rig.site_factors() == before
    wrapped.prints("whole")
    assert wrapped.suspended() == ""


def test_a_pause_with_a_cut_queue_is_not_clean(wrapped: Wrapped) -> None:
    wrapped.prints("nothing")
    with pytest.raises(HeliosError, match="squeue did not list"):
        wrapped.operations.revert_everything("a test")
    assert any(wrapped.rig.site_factors().values())


def test_jobs_that_vanish_everywhere_cost_one_cycle(wrapped: Wrapped) -> None:
    before = wrapped.rig.site_factors()
    wrapped.prints("nothing", sprio="nothing")
    said = wrapped.suspended()
    assert "of 19 jobs vanished" in said and "one cycle to settle" in said
    assert wrapped.rig.site_factors() == before
    assert wrapped.suspended() == ""


def test_a_queue_that_is_whole_again_is_acted_on_at_once(wrapped: Wrapped) -> None:
    wrapped.prints("nothing", sprio="nothing")
    assert "vanished" in wrapped.suspended()
    wrapped.prints("whole")
    assert wrapped.suspended() == ""


def test_jobs_that_were_cancelled_together_are_no_reason_to_wait(wrapped: Wrapped) -> None:
    rig: Rig = wrapped.rig
    rig.run("scancel", *rig.lines("squeue", "-h", "-o", "%A"))
    rig.until(lambda: not rig.lines("squeue", "-h", "-o", "%A"))
    assert wrapped.suspended() == ""
