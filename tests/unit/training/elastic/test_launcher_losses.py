"""Workers that are lost in other ways than by death, and signals before it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.training.elastic.runs import Run
from tests.waiting import until

HUNG_S = 20.0
"""After which a worker is lost here, s: those that live make all their steps in less, also on a loaded machine."""
STUCK_S = 5.0
"""After which one that waits in a group that others have left is lost, s; the others leave it within a moment."""


@pytest.fixture(scope="module")
def lossy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A run that loses four of its five workers, each in another way."""
    with Run(tmp_path_factory.mktemp("lossy"), 5, "--epochs", "100000", hung_s=HUNG_S, stuck_s=STUCK_S) as run:
        run.wait_for_steps()
        run.process.send_signal(signal.SIGUSR1)
        os.kill(run.worker(4), signal.SIGKILL)
        run.wait_for_losses(1)
        run.order(1, "end")
        run.wait_for_losses(2)
        run.order(2, "hang")
        run.wait_for_losses(3)
        os.kill(run.worker(1), signal.SIGSTOP)
        run.wait_for_losses(4)
        run.request("resize", number=1, devices=[{}, {"TORCH": "1.0"}])
        assert "refused" in run.answer(1), run.log
        assert run.end("stop") == 0, run.log
        yield run


@pytest.mark.parametrize(
    ("number", "loss"),
    [
        pytest.param(0, {"devices": 4, "lost": "worker 4 ended with -9", "kept": [0, 1, 2, 3]}, id="after a signal"),
        pytest.param(1, {"devices": 3, "lost": "worker 1 ended with 0", "kept": [0, 2, 3]}, id="before the others"),
        pytest.param(2, {"devices": 2, "lost": f"worker 3 did not go on for {HUNG_S:g} s", "kept": [0, 1]}, id="hung"),
        pytest.param(3, {"devices": 1, "lost": f"worker 2 did not go on for {HUNG_S:g} s", "kept": [0]}, id="stopped"),
    ],
)
def test_a_worker_that_is_lost_is_reported(lossy: Run, number: int, loss: dict[str, object]) -> None:
    assert lossy.losses()[number] == loss


def test_losses_leave_no_step_out(lossy: Run) -> None:
    assert sorted(lossy.steps()) == list(range(1, lossy.last() + 1))


def test_losses_leave_all_workers_in_the_same_state(lossy: Run) -> None:
    differing = [step for step, workers in lossy.steps().items() if len({each["digest"] for each in workers}) > 1]
    assert differing == []


def test_a_worker_of_another_torch_is_refused(lossy: Run) -> None:
    assert lossy.answer(1)["refused"].startswith("worker 5 differs, version of torch is 1.0 and not")


def test_a_worker_that_waits_in_a_broken_group_is_lost(tmp_path: Path) -> None:
    # Of two: which of several are freed by the end of another depends on what gloo notices.
    with Run(tmp_path, 2, "--epochs", "100000", stuck_s=STUCK_S) as run:
        run.wait_for_steps()
        run.order(1, "wait")
        until(lambda: not (run.out / "order-1").exists())
        os.kill(run.worker(0), signal.SIGKILL)
        until(lambda: run.process.poll() is not None)
        assert run.process.returncode == 128 + signal.SIGKILL, run.log
