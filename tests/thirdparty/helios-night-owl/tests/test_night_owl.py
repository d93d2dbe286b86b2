from datetime import timedelta

import pytest
from helios_night_owl import NightOwl

from helios.changes import to_job_changes
from helios.testing import NOON, FakeCluster, a_pending_job, a_snapshot, check_service

MIDNIGHT = NOON + timedelta(hours=12)


def test_it_is_a_service() -> None:
    check_service(NightOwl)


def test_by_day_it_has_nothing_to_say() -> None:
    owl = NightOwl(NightOwl.Options())
    assert list(owl.decide(a_snapshot(pending=[a_pending_job(gpus=64)], taken_at=NOON))) == []


def test_at_night_the_largest_job_stands_first() -> None:
    cluster = FakeCluster(now=MIDNIGHT)
    for job_id, gpus in {"1": 1, "2": 8, "3": 2, "4": 64}.items():
        cluster.submit(job_id=job_id, gpus=gpus)
    actions = list(NightOwl(NightOwl.Options()).decide(cluster.snapshot()))
    cluster.apply(to_job_changes(actions).changes)
    assert cluster.queue == ["4", "2", "1", "3"]


@pytest.mark.parametrize(("hour", "night"), [(21, False), (22, True), (0, True), (5, True), (6, False)])
def test_the_night_spans_midnight(hour: int, night: bool) -> None:
    assert NightOwl(NightOwl.Options()).is_night(NOON.replace(hour=hour)) == night


def test_the_night_is_the_sites_own() -> None:
    shanghai = NightOwl(NightOwl.Options(timezone="Asia/Shanghai"))
    assert shanghai.is_night(NOON.replace(hour=16))
