"""Services on a simulated Slurm: one that wishes nothing changes nothing, one that orders acts as its SiteFactors."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helios.actions import Action, Place, Reorder, Result
from helios.app.history import LoadedHistory
from helios.app.slurm_whatif import slurm_whatif
from helios.app.slurm_whatif_jobs import SlurmJobs, slurm_jobs
from helios.app.slurm_whatif_services import SlurmServiceReplay, simulate_services_on_slurm
from helios.app.whatif import WhatIfRequest
from helios.model import Snapshot
from helios.ownership import site_factor
from helios.ports import Service
from helios.services.qssf import Qssf
from helios.simulate.slurm import replay_slurm
from helios.slurm.site import read_site
from tests.unit.app.test_slurm_whatif import CONF, a_history

SITE = read_site(CONF + "PriorityWeightPartition=100000\n")
AT_ONCE = timedelta(0)


@pytest.fixture(scope="module")
def jobs() -> SlurmJobs:
    return slurm_jobs(a_history(150, days=1).jobs, SITE)


def simulated(jobs: SlurmJobs, services: Mapping[str, Service], **options: Any) -> SlurmServiceReplay:
    return simulate_services_on_slurm(
        jobs, SITE, services, history=LoadedHistory(cluster="frost", jobs=jobs.jobs.iloc[:0], timezone="UTC"), **options
    )


class AllAlike:
    """A service that names every job, and wishes nothing for it."""

    every = AT_ONCE

    def decide(self, snapshot: Snapshot) -> Iterable[Action]:
        ids = snapshot.pending["job_id"]
        yield Reorder(partition="gpu", order=tuple(Place(job_id=one, urgency=0.0, reason="") for one in ids), reason="")


class SmallFirst(AllAlike):
    """A service that ranks jobs by GPUs, from the first moment that it sees them."""

    def decide(self, snapshot: Snapshot) -> Iterable[Action]:
        queue = zip(snapshot.pending["job_id"], snapshot.pending["gpus"], strict=True)
        ranked = sorted(
            (Place(job_id=one, urgency=urgency(gpus), reason="") for one, gpus in queue), key=lambda p: -p.urgency
        )
        yield Reorder(partition="gpu", order=tuple(ranked), reason="")


def urgency(gpus: int) -> float:
    return 0.5 if gpus == 2 else -0.5


def without_predictions(service: Qssf) -> Any:
    """Have QSSF see no prediction, of which it makes a neutral wish."""
    changes = service.changes

    def blind(jobs: Any, at: Any) -> Any:
        return changes(lambda name: jobs(name) * np.nan if name == "p50_s" else jobs(name), at)

    service.changes = blind  # type: ignore[method-assign]  # because it stands for a predictor that knows nothing
    return service


def a_qssf(**options: Any) -> Qssf:
    return Qssf(Qssf.Options(**({"promote_after_s": float("inf")} | options)))


@pytest.mark.parametrize("jobwise", [True, False])
def test_qssf_that_changes_nothing_changes_nothing(jobs: SlurmJobs, jobwise: bool) -> None:
    found = simulated(jobs, {"qssf": without_predictions(a_qssf(order="service"))}, every=AT_ONCE, jobwise=jobwise)
    assert set(found.active_services[0].outcomes) == {Result.UNCHANGED}
    np.testing.assert_array_equal(found.replay.started_s, replay_slurm(jobs.workload, SITE).started_s)


def test_neither_does_looking_at_everything_at_every_event(jobs: SlurmJobs) -> None:
    found = simulated(jobs, {"alike": AllAlike()})
    assert found.active_services[0].asked > 100
    assert not found.active_services[0].problems
    np.testing.assert_array_equal(found.replay.started_s, replay_slurm(jobs.workload, SITE).started_s)


def test_an_order_by_urgency_starts_jobs_as_its_site_factors_would(jobs: SlurmJobs) -> None:
    factor = np.array([site_factor(urgency(gpus), most=10_000) for gpus in jobs.workload.column("gpus")])
    hooked = replay_slurm(jobs.workload, SITE, site_factor=factor).started_s
    found = simulated(jobs, {"small": SmallFirst()})
    today = replay_slurm(jobs.workload, SITE).started_s
    assert not found.active_services[0].problems
    assert (today != hooked).mean() > 0.2
    np.testing.assert_array_equal(found.replay.started_s, hooked)


@pytest.mark.parametrize("options", [{}, {"promote_after_s": 0.0, "least_s": 60.0}], ids=["no bound", "a bound"])
def test_qssf_asked_about_single_jobs_or_the_whole_queue_is_the_same(jobs: SlurmJobs, options: dict[str, Any]) -> None:
    one_by_one, whole = (
        simulated(jobs, {"qssf": a_qssf(**options)}, every=AT_ONCE, jobwise=jobwise) for jobwise in (True, False)
    )
    assert Result.DONE in whole.active_services[0].outcomes
    np.testing.assert_array_equal(one_by_one.replay.started_s, whole.replay.started_s)


def test_one_user_is_favoured_no_more_than_live(jobs: SlurmJobs) -> None:
    """Of two users one has all the short jobs: with a cap one of them at a time has an urgency above 0."""
    seen: dict[bool, int] = {}

    class Looking(AllAlike):
        def decide(self, snapshot: Snapshot) -> Iterable[Action]:
            ahead = int((snapshot.pending["urgency"] > 0).sum())
            seen[capped] = max(seen.get(capped, 0), ahead)
            return []

    for capped in (True, False):
        share = 0.5 if capped else 1.0
        simulated(jobs, {"qssf": a_qssf(order="service"), "looking": Looking()}, every=AT_ONCE, most_of_one_user=share)
    assert seen[True] < seen[False]
    one_by_one, whole = (
        simulated(jobs, {"qssf": a_qssf()}, every=AT_ONCE, jobwise=jobwise, most_of_one_user=0.5)
        for jobwise in (True, False)
    )
    np.testing.assert_array_equal(one_by_one.replay.started_s, whole.replay.started_s)


def test_services_see_the_longest_own_wait(jobs: SlurmJobs) -> None:
    seen: list[float] = []

    class Watching(AllAlike):
        def decide(self, snapshot: Snapshot) -> Iterable[Action]:
            seen.append(snapshot.longest_own_wait_s)
            return []

    simulated(jobs, {"watching": Watching()})
    assert seen[0] == 0, "within the first hour"
    assert max(seen[len(seen) // 2 :]) > 60


def test_a_third_partys_service_runs_unchanged(jobs: SlurmJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "thirdparty" / "helios-night-owl"))
    from helios_night_owl import NightOwl  # noqa: PLC0415 - found in the line above

    found = simulated(jobs, {"owl": NightOwl(NightOwl.Options(large_gpus=4))})
    sys.modules.pop("helios_night_owl")
    assert not found.active_services[0].problems
    assert found.active_services[0].outcomes[Result.DONE] > 0
    assert not np.array_equal(found.replay.started_s, replay_slurm(jobs.workload, SITE).started_s)


def test_services_have_a_replay_of_their_own_in_the_answer() -> None:
    answer = slurm_whatif(a_history(150, days=1), WhatIfRequest(), SITE, services={"owl": AllAlike()})
    today, _, alike, _ = answer.whatif.runs
    assert alike.policy == "owl, in cycles"
    assert alike.summary == today.summary
    assert any("Service owl was called" in note for note in answer.whatif.notes)
