"""What jobs used, read with the accounting of a live cluster."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from helios.app.sync import AccountingSource, SyncResult, sync_history
from helios.errors import ClusterUnavailable
from helios.model import NODE_EVENTS
from helios.warehouse import Warehouse
from tests.unit.app.sites import put_empty_database
from tests.use_files import comment, of_node, summary

MIDNIGHT = datetime(2026, 3, 1, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
JOBS = "JobIDRaw|Cluster|User|State|Submit|Start|End|ElapsedRaw|ReqTRES|JobName\n"
USE = "JobIDRaw|Submit|Start|End|State|AllocTRES|NTasks|MaxRSS|AdminComment\n"
TRES = "cpu=4,gres/gpu=1,mem=8G,node=1"


class Site:
    """A job each six hours, an hour long, whose use the accounting has."""

    def __init__(self) -> None:
        self.asked: list[datetime] = []
        self.answers = 100

    def rows(self, start: datetime, end: datetime) -> list[tuple[int, str]]:
        begins = ((n, MIDNIGHT + n * 6 * HOUR) for n in range(12))
        return [
            (n, f"{begin:%Y-%m-%dT%H:%M:%S}|{begin + HOUR:%Y-%m-%dT%H:%M:%S}")
            for n, begin in begins
            if start <= begin < end
        ]

    def jobs(self, start: datetime, end: datetime, path: Path) -> None:
        found = (f"{n}|dev|ann|COMPLETED|{at[:19]}|{at}|3600|{TRES}|x\n" for n, at in self.rows(start, end))
        path.write_text(JOBS + "".join(found))

    def use(self, start: datetime, end: datetime, path: Path, steps: bool) -> None:
        if not self.answers:
            raise ClusterUnavailable("slurmdbd does not answer")
        self.answers -= 1
        self.asked.append(start)
        text = comment(summary(of_node()))
        found = (
            f"{n}|{at[:19]}|{at}|COMPLETED|{TRES}|||{text}\n"
            + f"{n}.batch|{at[:19]}|{at}|COMPLETED|{TRES}|1|1G|\n" * steps
            for n, at in self.rows(start, end)
        )
        path.write_text(USE + "".join(found))

    def read(self, url: str, *sources: str, now: datetime = MIDNIGHT + 3 * DAY, again: bool = False) -> SyncResult:
        accounting = AccountingSource(jobs=self.jobs, node_events=lambda *_: NODE_EVENTS.empty(), use=self.use)
        return sync_history(
            accounting,
            url=url,
            cluster="dev",
            now=now,
            start=MIDNIGHT,
            window=DAY,
            overlap=timedelta(0),
            job_use=sources,
            again=again,
        )


@pytest.fixture
def url(tmp_path: Path) -> str:
    return put_empty_database(tmp_path / "helios.db")


def stored(url: str) -> list[tuple[str, str]]:
    with Warehouse.open(url) as warehouse:
        use = warehouse.job_use("dev")
    return sorted(zip(use["job_id"].astype(int), use["source"], strict=True))


def test_use_is_read_only_where_the_site_says_so(url: str) -> None:
    site = Site()
    site.read(url)
    assert site.asked == [] and stored(url) == []


def test_use_of_the_history_before_is_read_when_it_is_switched_on(url: str) -> None:
    site = Site()
    site.read(url, now=MIDNIGHT + 2 * DAY)
    result = site.read(url, "jobstats", "sacct")
    assert stored(url) == [(n, source) for n in range(12) for source in ("jobstats", "sacct")]
    assert site.asked == [MIDNIGHT, MIDNIGHT + DAY, MIDNIGHT + 2 * DAY]
    assert "24 of 24 records stored" in result.line()


def test_a_reading_goes_on_where_it_was_interrupted(url: str) -> None:
    site = Site()
    site.answers = 2
    with pytest.raises(ClusterUnavailable):
        site.read(url, "jobstats")
    assert len(stored(url)) == 8
    site.answers = 100
    site.read(url, "jobstats")
    days = [MIDNIGHT, MIDNIGHT + DAY, MIDNIGHT + 2 * DAY]
    assert site.asked == days
    assert stored(url) == [(n, "jobstats") for n in range(12)]
    site.read(url, "jobstats", again=True)
    assert site.asked == [*days, *days]
