"""The nightly check of the queue order: what is kept of it, what follows, and what is proposed."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from helios.app.history import LoadedHistory
from helios.app.nightly_order import FRESH, NoGpuMachine, PastCheck, check_tonight, order_checks, proposal, size_orders
from helios.app.predictions import LivePredictions
from helios.errors import NotEnoughHistory
from helios.model import JOBS
from helios.report.verdict import CheckedOrder
from helios.testing import NOON, a_node, a_pending_job, a_snapshot
from tests.builders import a_batch, a_job
from tests.unit.app.sites import FakeSite

NODES = a_snapshot(nodes=[a_node(name=f"n{number}", partitions="gpu,night", gpus=8) for number in range(2)]).nodes


def past(best: CheckedOrder, *, days: float = 0) -> PastCheck:
    return PastCheck(at=NOON - timedelta(days=days), best=best, sentences=("it was so",))


def a_fake_site(folder: Path, *, every_s: int = 1_200) -> FakeSite:
    """Return a site whose history is a fortnight in which large jobs keep small ones waiting."""
    fake_site = FakeSite(folder)
    rng = np.random.default_rng(0)
    began = pd.Timestamp(fake_site.cluster.now) - timedelta(days=14)
    rows = []
    for number in range(14 * 86_400 // every_s):
        is_large = rng.random() < 0.2
        rows.append(
            a_job(
                job_id=f"{number}",
                user=f"user{number % 5}",
                partition="night" if number % 2 else "gpu",
                submitted_at=began + timedelta(seconds=every_s * number),
                started_at=began + timedelta(seconds=every_s * number),
                gpus=16 if is_large else 1,
                run_time_s=4_000.0 if is_large else 60.0,
                time_limit_s=7_200.0,
            )
        )
    with fake_site.warehouse() as warehouse:
        warehouse.load([a_batch(*rows)], cluster="dev", path="x", sha256="x", format="sacct", timezone="UTC")
    fake_site.read()
    return fake_site


def checked(fake_site: FakeSite) -> PastCheck:
    with fake_site.warehouse() as warehouse:
        jobs = warehouse.jobs("dev")
    history = LoadedHistory(cluster="dev", jobs=jobs, timezone="UTC")
    return check_tonight(history, NODES, settings=fake_site.settings, now=fake_site.cluster.now)


def test_a_check_is_kept_and_what_follows_reaches_the_live_queue(tmp_path: Path) -> None:
    fake_site = a_fake_site(tmp_path)
    found = checked(fake_site)
    assert found.best is CheckedOrder.SIZE and found.sentences[0].startswith("Order by size here")
    with fake_site.warehouse() as warehouse:
        assert order_checks(warehouse, "dev") == [found]
    look = LivePredictions(url=fake_site.url, cluster="dev", last_jobs=10_000)
    queue = [a_pending_job(job_id="9001", submitted_at=fake_site.cluster.now - timedelta(minutes=5))]
    now, later = (
        a_snapshot(pending=queue, nodes=[], taken_at=fake_site.cluster.now + age) for age in (FRESH / 2, FRESH)
    )
    assert look(now).size_orders
    assert not look(later).size_orders, "a check of last week says nothing of today"


def test_old_checks_are_forgotten_and_one_of_the_same_night_replaces_none(tmp_path: Path) -> None:
    fake_site = a_fake_site(tmp_path)
    first = checked(fake_site)
    fake_site.cluster.tick(timedelta(days=1))
    second = checked(fake_site)
    with fake_site.warehouse() as warehouse:
        assert [check.at for check in order_checks(warehouse, "dev")] == [first.at, second.at]
    fake_site.cluster.tick(timedelta(weeks=5))
    with pytest.raises(NotEnoughHistory):
        checked(fake_site)


def test_without_gpus_there_is_nothing_to_check(tmp_path: Path) -> None:
    fake_site = FakeSite(tmp_path)
    history = LoadedHistory(cluster="dev", jobs=JOBS.empty(), timezone="UTC")
    nodes = a_snapshot(nodes=[a_node(partitions="cpu", gpus=0)]).nodes
    with pytest.raises(NoGpuMachine, match="no GPU nodes"):
        check_tonight(history, nodes, settings=fake_site.settings, now=fake_site.cluster.now)


@pytest.mark.parametrize(
    ("checks", "orders"),
    [
        ([], False),
        ([past(CheckedOrder.SIZE)], True),
        ([past(CheckedOrder.SIZE, days=1), past(CheckedOrder.PREDICTIONS)], False),
        ([past(CheckedOrder.PREDICTIONS, days=1), past(CheckedOrder.SIZE)], True),
        ([past(CheckedOrder.SIZE, days=8)], False),
    ],
)
def test_size_orders_where_the_last_check_is_fresh_and_said_so(checks: list[PastCheck], orders: bool) -> None:
    assert size_orders(checks, NOON) is orders


def test_shadow_mode_is_proposed_when_nothing_was_better_for_four_weeks() -> None:
    nights = [past(CheckedOrder.OWN, days=days) for days in range(28, -1, -1)]
    assert "helios mode qssf shadow" in proposal(nights, NOON)
    assert proposal(nights[1:], NOON) == ""
    assert proposal([past(CheckedOrder.SIZE, days=29), *nights], NOON) == proposal(nights, NOON)
    assert proposal([*nights[:-1], past(CheckedOrder.SIZE)], NOON) == ""
    assert proposal([], NOON) == ""
