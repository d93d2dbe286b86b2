from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helios.app.controller_state import hold_lock, read_until
from helios.app.history import ingest
from helios.app.operations import SYNC_LOCK, Operations
from helios.app.sync import AccountingSource, GpuAccounting, SyncResult, missing, sync_history
from helios.errors import ClusterUnavailable, HeliosError
from helios.model import NODE_EVENTS
from helios.model.gpu_parts import NodeGpus, SiteGpus
from helios.warehouse import Warehouse
from tests.unit.app.sites import FakeSite, put_empty_database

MIDNIGHT = datetime(2026, 3, 1, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
HEADER = "JobIDRaw|Cluster|User|State|Submit|Eligible|Start|End|ElapsedRaw|Timelimit|ReqTRES|JobName\n"


class Site:
    """An accounting database of one job an hour, each half an hour long, that answers as sacct does."""

    def __init__(self, *, first: datetime = MIDNIGHT, hours: int = 200) -> None:
        self.jobs = [(number, first + number * HOUR) for number in range(1, hours + 1)]
        self.asked: list[tuple[datetime, datetime]] = []
        self.answers = 10**6

    def write(self, start: datetime, end: datetime, path: Path) -> None:
        if self.answers == 0:
            raise ClusterUnavailable("slurmdbd does not answer")
        self.answers -= 1
        self.asked.append((start, end))
        rows = [self.row(job, began, end) for job, began in self.jobs if began < end and began + HOUR / 2 > start]
        path.write_text(HEADER + "".join(rows))

    def row(self, job: int, began: datetime, now: datetime) -> str:
        ended = began + HOUR / 2
        over = ended <= now
        times = "|".join(f"{at:%Y-%m-%dT%H:%M:%S}" for at in (began, began, began))
        last = f"{ended:%Y-%m-%dT%H:%M:%S}|1800" if over else "Unknown|60"
        state = "COMPLETED" if over else "RUNNING"
        return f"{job}|dev|alice|{state}|{times}|{last}|01:00:00|cpu=1,gres/gpu=1|train\n"

    def events(self, start: datetime, end: datetime) -> pd.DataFrame:
        return NODE_EVENTS.empty()

    def accounting(self) -> AccountingSource:
        return AccountingSource(jobs=self.write, node_events=self.events)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return put_empty_database(tmp_path / "helios.db")


def read(site: Site, url: str, now: datetime, **overrides: object) -> SyncResult:
    options: dict[str, object] = {"start": MIDNIGHT, "window": DAY, "overlap": HOUR}
    return sync_history(site.accounting(), url=url, cluster="dev", now=now, **(options | overrides))  # type: ignore[arg-type]  # because the options are named


def ended(url: str) -> set[str]:
    with Warehouse.open(url) as warehouse:
        jobs = warehouse.jobs("dev")
    return set(jobs.loc[jobs["ended_at"].notna(), "job_id"])


def test_no_interval_is_longer_than_the_window(url: str) -> None:
    site = Site()
    read(site, url, MIDNIGHT + 5 * DAY + HOUR)
    assert max(end - start for start, end in site.asked) == DAY
    assert len(site.asked) == 6


def test_a_second_reading_asks_for_the_overlap_and_what_is_new_only(url: str) -> None:
    site = Site()
    read(site, url, MIDNIGHT + DAY)
    site.asked.clear()
    read(site, url, MIDNIGHT + DAY + HOUR)
    assert site.asked == [(MIDNIGHT + DAY - HOUR, MIDNIGHT + DAY + HOUR)]


def test_a_job_that_was_running_is_known_to_have_ended_later(url: str) -> None:
    site = Site()
    half_way = MIDNIGHT + 10 * HOUR + HOUR / 4
    read(site, url, half_way)
    assert "10" not in ended(url)
    assert read(site, url, half_way + HOUR).jobs_updated == 1
    assert "10" in ended(url)


class Quiet(Site):
    """A site whose first job holds a GPU, or none is recorded, and that runs CPU jobs on its GPU partition."""

    def __init__(self, *, tracks: bool) -> None:
        super().__init__()
        self.tracks = tracks
        self.nodes = ""

    def row(self, job: int, began: datetime, now: datetime) -> str:
        row = super().row(job, began, now).replace("alice", f"alice|gpu|{self.nodes}")
        return row if self.tracks and job == 1 else row.replace(",gres/gpu=1", "")

    def write(self, start: datetime, end: datetime, path: Path) -> None:
        super().write(start, end, path)
        path.write_text(path.read_text().replace("User|", "User|Partition|NodeList|", 1))


@pytest.mark.parametrize("tracks", [True, False])
def test_a_day_without_gpu_jobs_is_no_sign_of_untracked_gpus(url: str, tracks: bool) -> None:
    site = Quiet(tracks=tracks)
    read(site, url, MIDNIGHT + DAY)
    notes = read(site, url, MIDNIGHT + 2 * DAY).notes
    assert any("no row names gres/gpu, though partition gpu looks" in note for note in notes) is not tracks


@pytest.mark.parametrize(("tracked", "gpus"), [(True, 0.0), (False, 4.0)])
def test_a_live_cluster_tells_whether_it_accounts_for_gpus(url: str, tracked: bool, gpus: float) -> None:
    site = SiteGpus(source="live", nodes={"n1": NodeGpus.of_node({"a100": 4}, cpus=1)}, exclusive=frozenset({"gpu"}))
    quiet, found = Quiet(tracks=False), GpuAccounting(site=site, is_tracked=tracked)
    quiet.nodes = "n1"
    accounting = replace(quiet.accounting(), gpus=lambda: found)
    sync_history(accounting, url=url, cluster="dev", now=MIDNIGHT + 2 * HOUR, start=MIDNIGHT, window=DAY, overlap=HOUR)
    with Warehouse.open(url) as warehouse:
        assert warehouse.jobs("dev")["gpus"].tolist() == [gpus]


def test_a_day_without_gpu_jobs_before_the_first_one_holds_none(url: str) -> None:
    site = Quiet(tracks=True)
    site.jobs = [(number, began) for number, began in site.jobs if number > 1] + [(1, MIDNIGHT + DAY + HOUR)]
    read(site, url, MIDNIGHT + 2 * DAY)
    with Warehouse.open(url) as warehouse:
        assert sorted(warehouse.jobs("dev")["gpus"].unique()) == [0, 1]


def test_reading_twice_changes_nothing(url: str) -> None:
    site = Site()
    read(site, url, MIDNIGHT + DAY)
    again = read(site, url, MIDNIGHT + DAY)
    assert (again.jobs_new, again.jobs_updated) == (0, 0)


@pytest.mark.parametrize("answers", range(6))
def test_interrupted_anywhere_the_next_reading_does_what_was_left(url: str, answers: int) -> None:
    site, now = Site(), MIDNIGHT + 6 * DAY
    site.answers = answers
    with pytest.raises(ClusterUnavailable):
        read(site, url, now)
    site.answers = 100
    site.asked.clear()
    read(site, url, now)
    assert site.asked[0][0] >= MIDNIGHT + max(answers * DAY - HOUR, timedelta(0))
    assert ended(url) == {str(number) for number in range(1, 144)}


def test_a_job_that_was_forged_is_corrected_and_told(url: str, tmp_path: Path) -> None:
    site = Site()
    site.jobs[9:10] = []  # not begun yet
    read(site, url, MIDNIGHT + 10 * HOUR)
    forged = tmp_path / "forged.txt"
    forged.write_text(HEADER + site.row(10, MIDNIGHT + 10 * HOUR, MIDNIGHT + DAY).replace("alice", "mallory"))
    ingest(forged, url=url, cluster="dev")
    found = read(Site(), url, MIDNIGHT + 12 * HOUR)
    assert found.jobs_updated == 1
    assert "1 jobs that had ended were corrected by this reading, such as '10' (was: 'mallory'" in found.line()
    with Warehouse.open(url) as warehouse:
        assert set(warehouse.jobs("dev")["user"]) == {"alice"}
    ingest(forged, url=url, cluster="dev")
    again = tmp_path / "again.txt"
    again.write_text(forged.read_text() + "\n")
    assert "contradict" in ingest(again, url=url, cluster="dev").notes[-1]


def as_an_older_helios(url: str, statement: str) -> None:
    """Change stored rows into what an older Helios would have stored."""
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection, connection:
        connection.execute(statement)


MISREAD = "UPDATE jobs SET ended_at = NULL, run_time_s = NULL WHERE job_id IN ('7', '30')"


def test_what_was_read_wrongly_is_read_anew(url: str) -> None:
    read(Site(), url, MIDNIGHT + 3 * DAY)
    as_an_older_helios(url, MISREAD)
    assert read(Site(), url, MIDNIGHT + 3 * DAY).jobs_updated == 0, "the days are known, and their answers are the same"
    found = read(Site(), url, MIDNIGHT + 3 * DAY, again=True)
    assert (found.jobs_new, found.jobs_updated) == (0, 2)
    assert ended(url) == {str(number) for number in range(1, 72)}


def test_what_is_read_anew_is_named_by_column_with_an_example(url: str) -> None:
    read(Site(), url, MIDNIGHT + 3 * DAY)
    as_an_older_helios(url, MISREAD)
    line = read(Site(), url, MIDNIGHT + 3 * DAY, again=True).line()
    assert "ended_at of 2, such as '7' (unknown -> 2026-03-01 07:30:00); run_time_s of 2" in line


def test_a_second_reading_anew_changes_nothing(url: str) -> None:
    read(Site(), url, MIDNIGHT + 3 * DAY)
    for _ in range(2):
        found = read(Site(), url, MIDNIGHT + 3 * DAY, again=True)
        assert (found.jobs_new, found.jobs_updated, found.changes) == (0, 0, {})


def test_a_reading_anew_that_is_interrupted_says_where_to_go_on(url: str) -> None:
    site = Site()
    read(site, url, MIDNIGHT + 3 * DAY)
    as_an_older_helios(url, MISREAD)
    site.answers = 1
    with pytest.raises(ClusterUnavailable) as interrupted:
        read(site, url, MIDNIGHT + 3 * DAY, again=True)
    assert "2026-03-02 00:00" in interrupted.value.hint
    assert read(Site(), url, MIDNIGHT + 3 * DAY, again=True, start=MIDNIGHT + DAY).jobs_updated == 1


class Requeued(Site):
    """A site whose job 7 was requeued after 20 minutes."""

    def row(self, job: int, began: datetime, now: datetime) -> str:
        row = super().row(job, began, now)
        if job != 7:
            return row
        again = began + HOUR / 3
        first = row.replace("COMPLETED", "REQUEUED").replace(
            f"{began + HOUR / 2:%H:%M:%S}|1800", f"{again:%H:%M:%S}|1200"
        )
        return first + row.replace(f"{began:%Y-%m-%dT%H:%M:%S}", f"{again:%Y-%m-%dT%H:%M:%S}").replace(
            "|1800|", "|600|"
        )


def test_runs_that_were_stored_without_a_number_get_one(url: str) -> None:
    read(Requeued(), url, MIDNIGHT + DAY)
    as_an_older_helios(url, "UPDATE jobs SET restart = 0 WHERE job_id = '7'")
    as_an_older_helios(url, "DELETE FROM requeues")
    found = read(Requeued(), url, MIDNIGHT + DAY, again=True)
    assert found.changes["restart"].jobs == 1
    with Warehouse.open(url) as warehouse:
        assert warehouse.requeued_runs("dev", "7")["restart"].tolist() == [0, 1]


def test_a_job_that_runs_for_years_is_a_runaway_in_every_window(url: str) -> None:
    site = Site(hours=3)
    site.row = lambda job, began, now: Site.row(site, job, began, began).replace("|01:00:00|", "|UNLIMITED|")  # type: ignore[method-assign]  # because one site is enough
    read(site, url, MIDNIGHT + 500 * DAY, window=31 * DAY)
    assert read(site, url, MIDNIGHT + 500 * DAY, window=31 * DAY, again=True).changes == {}
    assert ended(url) == {"1", "2", "3"}


def test_a_reading_anew_is_refused_during_another_reading(tmp_path: Path) -> None:
    fake_site = FakeSite(tmp_path)
    operations = Operations(
        fake_site.settings, open_cluster=lambda _: fake_site.live_cluster(), clock=lambda: fake_site.cluster.now
    )
    with hold_lock(operations.state_folder / SYNC_LOCK), pytest.raises(HeliosError, match="is reading the accounting"):
        operations.read_again(fake_site.cluster.now - DAY)


def test_a_gap_left_by_days_without_helios_is_filled(url: str) -> None:
    site = Site()
    read(site, url, MIDNIGHT + DAY)
    read(site, url, MIDNIGHT + 6 * DAY)
    assert ended(url) == {str(number) for number in range(1, 144)}


def test_an_earlier_start_is_read_too(url: str) -> None:
    site = Site(first=MIDNIGHT - 2 * DAY)
    read(site, url, MIDNIGHT + DAY)
    site.asked.clear()
    read(site, url, MIDNIGHT + DAY, start=MIDNIGHT - 2 * DAY)
    assert site.asked[0] == (MIDNIGHT - 2 * DAY, MIDNIGHT - DAY)
    assert len(ended(url)) == 71


def test_what_is_known_is_said(url: str) -> None:
    read(Site(), url, MIDNIGHT + DAY)
    with Warehouse.open(url) as warehouse:
        assert read_until(warehouse, "dev") == MIDNIGHT + DAY


def test_a_first_reading_of_nothing_is_suspicious(url: str) -> None:
    assert "not one job" in read(Site(hours=0), url, MIDNIGHT + 2 * DAY).line()


minutes = st.integers(0, 300)


@given(st.lists(st.tuples(minutes, minutes), max_size=6), st.integers(1, 100), st.integers(0, 60))
def test_intervals_fill_every_gap_and_ask_for_little_else(
    spans: list[tuple[int, int]], window: int, overlap: int
) -> None:
    covered = _union({m for start, length in spans for m in range(start, min(start + length, 300))})
    at = [(MIDNIGHT + timedelta(minutes=a), MIDNIGHT + timedelta(minutes=b)) for a, b in covered]
    now = MIDNIGHT + timedelta(minutes=300)
    asked = list(
        missing(at, begin=MIDNIGHT, now=now, window=timedelta(minutes=window), overlap=timedelta(minutes=overlap))
    )
    minutes_asked = {m for start, end in asked for m in range(_minute(start), _minute(end))}
    already = {m for a, b in covered for m in range(a, b)}
    assert minutes_asked >= set(range(300)) - already
    again = set(range(max(0, max(already, default=-1) + 1 - overlap), max(already, default=-1) + 1))
    assert minutes_asked >= again
    assert minutes_asked & already <= again
    assert all(timedelta(0) < end - start <= timedelta(minutes=window) for start, end in asked)


def _minute(moment: datetime) -> int:
    return int((moment - MIDNIGHT) / timedelta(minutes=1))


def _union(minutes: set[int]) -> list[tuple[int, int]]:
    return list(_runs(sorted(minutes)))


def _runs(ordered: list[int]) -> Iterator[tuple[int, int]]:
    start: int | None = None
    for minute in ordered:
        start = minute if start is None else start
        if minute + 1 not in ordered:
            yield start, minute + 1
            start = None
