"""Services in a replay: quick, asked no more than they want, suspended when they fail."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from helios.actions import Action, Place, Reorder, Result, SoftLimit
from helios.app.gain_check import SoftLimitGain, soft_limit_gain
from helios.app.history import LoadedHistory, read_file
from helios.app.scenarios import CONTROLS
from helios.app.service_replay import (
    ReplayedService,
    ServiceReplay,
    replay_acting,
    replay_services,
)
from helios.app.whatif import WhatIfRequest, whatif
from helios.cli.replays import requested_services
from helios.config import Settings
from helios.errors import ServiceInvalid, ServiceUnknown, UsageError
from helios.model import Snapshot
from helios.report.whatif import Run
from helios.services.qssf import Qssf, shortest_service_first
from helios.services.soft_limits import SoftLimits
from helios.simulate import Backfill, SimCluster, Workload, replay
from helios.simulate.ageing import first_in_first_out
from tests.builders import a_job, jobs_frame
from tests.run_times import in_columns
from tests.traces import TRACES, needs_traces
from tests.unit.simulate.builders import a_shape, a_workload, jobs_of

START = pd.Timestamp("2020-01-01", tz="UTC")
AT_ONCE = timedelta(0)


class Oracle:
    """Knows every run time, and says so as a model would."""

    def __init__(self, workload: Workload) -> None:
        self.run_time_s = workload.run_time_s.astype(float)
        self.source = np.full(len(workload), -1, dtype=np.int16)
        self.sources = ["oracle"]
        self.told: list[tuple[int, int]] = []

    def ended(self, jobs: NDArray[np.int64], ended_s: NDArray[np.int64]) -> None:
        self.told += zip(jobs.tolist(), ended_s.tolist(), strict=True)

    def submitted(self, jobs: NDArray[np.int64], now_s: int) -> NDArray[np.float64]:
        assert all(ended_s <= now_s for _, ended_s in self.told)
        self.source[jobs] = 0
        return in_columns(np.repeat(self.run_time_s[jobs, None], 3, axis=1))


@dataclass
class Toy:
    """A service that answers as told, and remembers what it saw."""

    answer: Any = ()
    every: timedelta = timedelta(seconds=30)

    def __post_init__(self) -> None:
        self.seen: list[Snapshot] = []

    def decide(self, snapshot: Snapshot) -> Iterable[Action]:
        self.seen.append(snapshot)
        answer: Iterable[Action] = self.answer(snapshot) if callable(self.answer) else self.answer
        return answer

    @property
    def asked_at(self) -> list[float]:
        return [snapshot.taken_at.timestamp() for snapshot in self.seen]


def broken(_: Snapshot) -> Iterable[Action]:
    raise ZeroDivisionError("of all things")


def last_first(snapshot: Snapshot) -> Iterable[Action]:
    """Reorder so that who came last goes first."""
    ids = snapshot.pending.sort_values("submitted_at", ascending=False)["job_id"].tolist()
    places = tuple(Place(job_id=job_id, urgency=1 - n / 50, reason="late") for n, job_id in enumerate(ids))
    return [Reorder(partition="a", order=places, reason="late")]


def active(service: Any, *, every: timedelta | None = None, name: str = "toy") -> ReplayedService:
    return ReplayedService(name=name, service=service, every=service.every if every is None else every)


def played(
    rows: list[tuple[int, ...]], *active_services: ReplayedService, nodes: int = 1, backfill: Backfill = Backfill.EASY
) -> list[int]:
    """Replay rows with the services, backfill planning with true run times; return the starts."""
    workload, shape = a_workload(rows), a_shape((nodes, 8), (nodes, 8))
    jobs = jobs_of(workload, shape, time_limit_s=1e7)
    cluster = SimCluster(workload, shape, jobs, estimates_s=workload.run_time_s, backfill=backfill)
    replay_services(cluster, active_services, predictor=Oracle(workload))
    starts: list[int] = cluster.started_s.tolist()
    return starts


def compiled(rows: list[tuple[int, ...]], order: Any, *, nodes: int = 1, backfill: Backfill) -> list[int]:
    workload, shape = a_workload(rows), a_shape((nodes, 8), (nodes, 8))
    true = workload.run_time_s
    result = replay(workload, shape, backfill=backfill, order=order, run_time_s=true.astype(float), estimate_s=true)
    starts: list[int] = result.started_s.tolist()
    return starts


def crowded_rows(seed: int, jobs: int = 80) -> list[tuple[int, ...]]:
    """Return jobs of 1 to 8 GPUs in two partitions whose services are 84 to 840,000 GPU-seconds, a decade apart."""
    rng = np.random.default_rng(seed)
    gpus = rng.choice([1, 2, 3, 4, 6, 7], size=jobs)
    service = 84 * 10 ** rng.integers(0, 5, size=jobs)
    submitted = np.sort(rng.integers(0, 66_000, size=jobs))
    rows = zip(submitted, service // gpus, gpus, rng.integers(0, 2, size=jobs), strict=True)
    return [tuple(int(value) for value in row) for row in rows]


@pytest.mark.parametrize("backfill", [Backfill.NONE, Backfill.EASY])
@pytest.mark.parametrize("seed", range(2))
def test_qssf_asked_at_every_moment_with_true_times_equals_compiled_qssf(seed: int, backfill: Backfill) -> None:
    rows = crowded_rows(seed)
    qssf = Qssf(Qssf.Options(order="service", promote_after_s=float("inf")))
    starts = played(rows, active(qssf, every=AT_ONCE), backfill=backfill)
    assert starts == compiled(rows, shortest_service_first, backfill=backfill)
    assert starts != compiled(rows, first_in_first_out, backfill=backfill)


@dataclass
class Framed:
    """A service that is shown frames made beforehand, as a live cycle makes them."""

    service: Qssf

    def __post_init__(self) -> None:
        self.every = self.service.every

    def decide(self, snapshot: Snapshot) -> Iterable[Action]:
        seen = {name: getattr(snapshot, name) for name in ("taken_at", "cluster", "pending", "running", "nodes")}
        return self.service.decide(Snapshot(**seen))


@pytest.mark.parametrize("seed", range(3))
def test_qssf_decides_on_a_replay_as_on_frames_of_a_live_cycle(seed: int) -> None:
    rows = crowded_rows(seed, jobs=120)
    quick, framed = (Toy(made.decide) for made in (a_hasty_qssf(), Framed(a_hasty_qssf())))
    assert played(rows, active(quick, every=AT_ONCE)) == played(rows, active(framed, every=AT_ONCE))
    answers = [[list(toy.answer(snapshot)) for snapshot in toy.seen] for toy in (quick, framed)]
    assert answers[0] == answers[1]
    assert any("long enough to go first" in place.reason for (*_, order) in answers[0] for place in order.order)


def a_hasty_qssf() -> Qssf:
    return Qssf(Qssf.Options(promote_after_s=3_600.0))


def test_a_service_that_proposes_nothing_leaves_first_in_first_out() -> None:
    rows = crowded_rows(7)
    assert played(rows, active(Toy())) == compiled(rows, first_in_first_out, backfill=Backfill.EASY)


def test_a_service_is_asked_before_anything_starts() -> None:
    toy = Toy(last_first)
    assert played([(0, 10, 8), (1, 10, 8), (2, 10, 8)], active(toy, every=AT_ONCE)) == [0, 20, 10]
    assert toy.asked_at == [10, 20]


def test_a_service_is_asked_again_at_its_time_and_not_before() -> None:
    # Asked at 10, it may not be asked before 40. Job 4 comes at 15 and would delay job 3; at 40 it goes before it.
    toy = Toy(last_first)
    starts = played([(0, 10, 8), (1, 100, 7), (2, 3, 1), (14, 40, 8), (15, 200, 1)], active(toy))
    assert toy.asked_at[:2] == [10, 40]
    assert starts == [0, 10, 10, 240, 40]


def test_all_services_of_a_moment_see_the_same_snapshot() -> None:
    first, second = Toy(last_first), Toy()
    played([(0, 10, 8), (1, 10, 8), (2, 10, 8)], active(first), active(second))
    assert first.seen[0] is second.seen[0]
    assert first.seen[0].pending["urgency"].tolist() == [0, 0]


def test_predictions_stand_in_the_snapshot_and_only_those_of_jobs_that_came() -> None:
    toy = Toy()
    played([(0, 10, 8), (1, 77, 8), (2, 99, 8), (1_000, 5, 8)], active(toy))
    (snapshot, *_) = toy.seen
    assert snapshot.pending[["p50_s", "source"]].to_numpy().tolist() == [[77.0, "oracle"], [99.0, "oracle"]]


def test_a_replay_goes_on_after_a_service_is_suspended() -> None:
    rows = crowded_rows(3)
    place = active(Toy(broken), every=AT_ONCE)
    other = active(Toy(), every=AT_ONCE)
    assert played(rows, place, other) == compiled(rows, first_in_first_out, backfill=Backfill.EASY)
    assert (place.asked, place.suspended, dict(place.problems)) == (3, True, {"ZeroDivisionError: of all things": 3})
    assert other.asked > 3


def test_a_service_that_recovers_is_not_suspended() -> None:
    def answer(_: Snapshot) -> Iterable[Action]:
        if len(toy.seen) % 3:
            raise ZeroDivisionError
        return []

    toy = Toy(answer)
    place = active(toy, every=AT_ONCE)
    played(crowded_rows(3), place)
    assert not place.suspended
    assert place.asked > 9


@pytest.mark.parametrize("answer", [None, ["start job 7"]])
def test_an_answer_that_is_no_list_of_actions_is_a_failure(answer: Any) -> None:
    place = active(Toy(answer), every=AT_ONCE)
    played(crowded_rows(3), place)
    assert place.suspended


def test_what_becomes_of_proposals_is_counted() -> None:
    ahead = Reorder(partition="a", order=(Place(job_id="2", urgency=0.5, reason="why"),), reason="why")
    place = active(Toy([ahead]), every=AT_ONCE)
    played([(0, 10, 8), (1, 10, 8), (2, 10, 8), (3, 10, 8)], place)
    assert place.outcomes == {Result.DONE: 1, Result.GONE: 2}


def a_history(jobs: int = 60, **overrides: Any) -> LoadedHistory:
    """Return jobs of 8 GPUs every minute that take 30 s and 100 s in turn on one node: a queue grows."""
    rows = [
        a_job(
            job_id=str(n),
            submitted_at=START + timedelta(minutes=n),
            started_at=None,
            ended_at=None,
            gpus=8,
            run_time_s=100.0 if n % 2 else 30.0,
            user="slow" if n % 2 else "fast",
            **overrides,
        )
        for n in range(1, jobs + 1)
    ]
    return LoadedHistory(cluster="venus", jobs=jobs_frame(*rows), timezone="UTC")


def simulated(history: LoadedHistory, services: dict[str, Any], **options: Any) -> ServiceReplay:
    asked = {name: options.pop(name) for name in ("since", "until", "warm_up") if name in options}
    return replay_acting(history, a_request(**asked), services, **options)


def a_request(**asked: Any) -> WhatIfRequest:
    return WhatIfRequest(scenarios=[CONTROLS[0]], nodes={"gpu": 1}, gpus_per_node=8, **asked)


def plain(history: LoadedHistory, request: WhatIfRequest | None = None) -> Run:
    return whatif(history, request or a_request()).runs[0]


def test_a_service_replay_is_measured_as_the_policies_are() -> None:
    found, fifo = simulated(a_history(), {"toy": Toy()}).run, plain(a_history())
    assert found.label == "toy + EASY (limit)"
    assert found.summary == fifo.summary
    assert found.wait_s.tolist() == fifo.wait_s.tolist()


def test_qssf_simulated_on_predictions_shortens_the_mean_wait() -> None:
    result = simulated(a_history(100), {"qssf": Qssf(Qssf.Options(promote_after_s=float("inf")))})
    assert result.run.summary.mean_wait_s < 0.9 * plain(a_history(100)).summary.mean_wait_s
    (report,) = result.active_services
    assert report.asked > 0
    assert report.outcomes["done"] > 0


def test_jobs_of_the_warm_up_are_replayed_but_not_counted() -> None:
    result = simulated(a_history(), {"toy": Toy()}, since=START + timedelta(minutes=31), warm_up=timedelta(minutes=10))
    assert len(result.run.wait_s) == 30


def test_a_suspended_service_is_said_aloud() -> None:
    result = simulated(a_history(), {"toy": Toy(broken)})
    assert any("toy raised 3 times in a row and was suspended" in note for note in result.notes)
    assert result.to_json()[0]["problems"] == {"ZeroDivisionError: of all things": 3}


def days_of_jobs(days: int, run_time_s: float) -> LoadedHistory:
    """Return, every day at midnight, a blocked head, and behind it a job whose limit is ten times its run time."""
    rows = []
    for day in range(days):
        for n, (gpus, run_s, limit_s) in enumerate([(7, 10_000, 10_000), (8, 100, 100), (1, run_time_s, 50_000)]):
            at = START + timedelta(days=day, seconds=n)
            rows.append(
                a_job(job_id=str(10 * day + n + 1), submitted_at=at, started_at=None, ended_at=None)
                | {"gpus": gpus, "run_time_s": float(run_s), "time_limit_s": float(limit_s)}
            )
    return LoadedHistory(cluster="venus", jobs=jobs_frame(*rows), timezone="UTC")


def limit_the_small(seconds: float) -> Any:
    def answer(snapshot: Snapshot) -> Iterable[Action]:
        small = snapshot.pending[(snapshot.pending["gpus"] == 1) & snapshot.pending["soft_limit_s"].isna()]
        return [
            SoftLimit(job_id=job_id, run_time=timedelta(seconds=seconds), reason="small") for job_id in small["job_id"]
        ]

    return answer


def gain_of(history: LoadedHistory, service: Any) -> SoftLimitGain:
    request = WhatIfRequest(scenarios=(), nodes={"gpu": 1}, gpus_per_node=8)
    return soft_limit_gain(history, request, service, every=AT_ONCE)


def test_soft_limits_that_let_small_jobs_pass_are_a_gain() -> None:
    gain = gain_of(days_of_jobs(8, 5_000.0), Toy(limit_the_small(6_000)))
    assert gain.is_clear
    assert gain.mean_wait_with_s < gain.mean_wait_s
    assert gain.saved_s[0] > 0
    assert gain.sentence.startswith("A gain: on 24 jobs of 8 days")


def test_soft_limits_that_delay_the_head_are_no_gain() -> None:
    gain = gain_of(days_of_jobs(8, 40_000.0), Toy(limit_the_small(6_000)))
    assert not gain.is_clear
    assert "the longest wait grows" in gain.sentence


def test_soft_limits_that_nobody_sets_are_no_gain() -> None:
    gain = gain_of(days_of_jobs(8, 5_000.0), SoftLimits(SoftLimits.Options()))
    assert gain.saved_s == (0.0, 0.0)
    assert not gain.is_clear


def test_other_services_act_with_soft_limits_and_without() -> None:
    beside, softly = Toy(last_first), Toy()
    request = WhatIfRequest(scenarios=(), nodes={"gpu": 1}, gpus_per_node=8)
    soft_limit_gain(days_of_jobs(2, 5_000.0), request, softly, beside={"order": beside}, every=AT_ONCE)
    assert len(beside.seen) == 2 * len(softly.seen) > 0


def test_a_few_days_are_too_few_to_tell() -> None:
    gain = gain_of(days_of_jobs(4, 5_000.0), Toy(limit_the_small(6_000)))
    assert gain.mean_wait_with_s < gain.mean_wait_s
    assert "4 days are too few" in gain.sentence


def test_a_saving_on_one_day_of_many_may_be_chance() -> None:
    ordinary, odd = days_of_jobs(20, 5_000.0).jobs, days_of_jobs(21, 5_000.0).jobs.iloc[-3:]
    calm = ordinary[ordinary["gpus"] == 8]
    history = LoadedHistory(
        cluster="venus", jobs=jobs_frame(*pd.concat([calm, odd]).to_dict("records")), timezone="UTC"
    )
    gain = gain_of(history, Toy(limit_the_small(6_000)))
    assert gain.mean_wait_with_s < gain.mean_wait_s
    assert not gain.is_clear
    assert "may be chance" in gain.sentence


@needs_traces
def test_on_a_real_trace_a_service_that_proposes_nothing_changes_nothing() -> None:
    history = read_file(TRACES / "KTH-SP2-1996-2.1-cln.swf.gz")
    since, until = history.jobs["submitted_at"].iloc[[1_000, 1_250]]
    request = WhatIfRequest(scenarios=[CONTROLS[0]], nodes={"all": 100}, gpus_per_node=1, since=since, until=until)
    toy = Toy()
    result = replay_acting(history, request, {"toy": toy})
    assert result.run.started_s.tolist() == plain(history, request).started_s.tolist()
    assert len(toy.seen) > 20
    assert (toy.seen[-1].nodes["cpus"] == 1).all()


def settings_with(**services: Any) -> Settings:
    return Settings(services=services)


def test_given_options_of_a_service_win_over_the_configured_ones() -> None:
    settings = settings_with(qssf={"levels": 5, "every_s": 77})
    services, _ = requested_services(
        settings, names=["qssf"], options=["qssf.levels=7", "qssf.promote_after_s = 3600.0"]
    )
    options: Any = services["qssf"]
    assert (options.options.levels, options.options.every_s, options.options.promote_after_s) == (7, 77, 3600.0)


def test_only_named_services_act_in_the_order_given() -> None:
    settings = settings_with(soft_limits={}, qssf={})
    assert requested_services(settings, names=[], options=[]) == ({}, [])
    assert list(requested_services(settings, names=["qssf, soft_limits"], options=[])[0]) == ["qssf", "soft_limits"]


def test_options_of_policies_are_handed_on() -> None:
    texts = ["qssf.levels=7", "fifo.patience=12h"]
    assert requested_services(settings_with(), names=["qssf"], options=texts)[1] == ["fifo.patience=12h"]


@pytest.mark.parametrize(
    ("names", "options", "error", "said"),
    [
        (["qsff"], [], ServiceUnknown, "Installed are:.*qssf"),
        (["qssf"], ["qssf"], UsageError, "is not SERVICE.OPTION=VALUE"),
        (["qssf"], ["qssf.=3"], UsageError, "is not SERVICE.OPTION=VALUE"),
        (["qssf"], ["qssf.levels=many"], UsageError, "not a TOML value"),
        (["qssf"], ["qssf.level=3"], ServiceInvalid, "levels: int"),
        (["ces"], [], UsageError, "helios whatif energy"),
    ],
)
def test_what_cannot_be_simulated_is_refused_with_what_can(
    names: list[str], options: list[str], error: type[UsageError], said: str
) -> None:
    with pytest.raises(error, match=said):
        requested_services(settings_with(), names=names, options=options)
