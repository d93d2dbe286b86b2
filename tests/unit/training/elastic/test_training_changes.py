"""Workers that come, leave and die are all in the same state, and lose no step."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.training.elastic.runs import Run


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A run that grows, shrinks, has another batch, and loses workers, the first one too."""
    with Run(tmp_path_factory.mktemp("changed"), 1, "--epochs", "100000") as run:
        run.wait_for_steps()
        assert run.resize(3)["devices"] == 3, run.log
        run.wait_for_steps()
        assert run.resize(2, batch=32)["batch"] == 32, run.log
        run.wait_for_steps()
        assert run.resize(4)["devices"] == 4, run.log
        run.wait_for_steps()
        run.kill(1)
        run.kill(0)
        assert run.end("stop") == 0, run.log
        yield run


def test_all_workers_are_in_the_same_state_after_each_step(changed: Run) -> None:
    differing = [step for step, workers in changed.steps().items() if len({each["digest"] for each in workers}) > 1]
    assert differing == []


def test_each_size_trained_with_all_of_its_workers(changed: Run) -> None:
    sizes = {len(workers) for workers in changed.steps().values() if len(workers) == workers[0]["workers"]}
    assert sizes == {1, 2, 3, 4}


def test_no_step_is_left_out(changed: Run) -> None:
    assert sorted(changed.steps()) == list(range(1, changed.last() + 1))


def test_workers_that_died_are_reported(changed: Run) -> None:
    assert [(each["devices"], each["kept"]) for each in changed.losses()] == [(3, [0, 2, 3]), (2, [1, 2])]


def test_the_first_worker_reports_times_and_noise(changed: Run) -> None:
    said = [report["elastic"] for report in changed.reports() if "step_s" in report.get("elastic", {})]
    assert all(0 <= each["sync_s"] <= each["step_s"] for each in said)
    assert any(each["variance"] > 0 for each in said)


def test_each_change_says_how_long_training_stood(changed: Run) -> None:
    answers = [report["elastic"] for report in changed.reports() if report.get("answer") == "resize"]
    assert all(each["pause_s"] > 0 for each in answers)
