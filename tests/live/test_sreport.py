"""Hours of two federated clusters in one accounting database, held against Slurm's own ``sreport`` and ``sacct``.

Real jobs run for seconds. Then their times in the database are stretched to hours of the days before, because slurmdbd
rolls up whole hours only. Both programs report the same windows of that.
"""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tests.live.rig import Rig, roomy_folder, skip_without_slurm
from tests.story.shell import run_command

STRETCH = 1801
"""What a second of the jobs becomes, s; a prime, so that no run begins or ends with an hour by chance."""
AGREE = 0.001
"""Largest relative difference of equal hours."""
HOUR = timedelta(hours=1)
PARTITIONS = """\
PartitionName=gpu Nodes=ALL Default=YES MaxTime=7-0 DefMemPerCPU=100 PriorityJobFactor=1 PriorityTier=10 PreemptMode=off
PartitionName=low Nodes=ALL MaxTime=7-0 DefMemPerCPU=100 PriorityTier=1 PreemptMode=requeue"""
CONF = "AccountingStorageTRES=gres/gpu,gres/shard\nPreemptType=preempt/partition_prio\nPreemptMode=REQUEUE"
EAST = {"NAME": "east", "NODES": "3", "SHARDS": "32", "PARTITIONS": PARTITIONS, "CONF": CONF}
MOVED = {
    "job": ("time_submit", "time_eligible", "time_start", "time_end"),
    "step": ("time_start", "time_end"),
    "suspend": ("time_start", "time_end"),
    "event": ("time_start", "time_end"),
}
"""Times in each table of slurmdbd. A job's ``time_suspended`` is the length of its suspensions, once they are over."""
REVOKED = 1 << 19
"""State of a job that ran on another cluster of its federation (slurm.h JOB_REVOKED)."""

RESOURCES = {"cpu": ("cpu", 1), "gres/gpu": ("gpu", 1), "gres/shard": ("gpu", 1 / 4)}
"""What Helios counts a TRES as, and how many of it: a node of ``EAST`` has 4 shards for each of its 8 GPUs."""

Window = tuple[datetime, datetime]
Held = dict[tuple[str, str], float]
"""Seconds held by name and resource, ``cpu`` or ``gpu``, without those that held nothing."""


class Federation:
    """The clusters east and west with one slurmdbd, and a warehouse that Helios has read them into.

    Attributes
    ----------
    began, paused_until, ended : datetime
        Full hours: before all jobs, after the end of the one that was suspended, and after the end of all but those
        that still run.
    """

    began: datetime
    paused_until: datetime
    ended: datetime

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.east = Rig(folder / "east", settings=EAST)
        self.west = Rig(folder / "west", settings=EAST | {"NAME": "west"})
        self.rigs = {"east": self.east, "west": self.west}
        self._answers: dict[tuple[str, ...], str] = {}
        for rig in self.rigs.values():
            rig.environment["TZ"] = "UTC"  # slurmdbd's days are those of its own zone

    def up(self) -> None:
        """Bring both up; the second has a controller and nodes of its own, and the daemons of the first otherwise."""
        east, west = self.east, self.west
        east.control("up")
        for name in ("conf", "run", "log", "state", "spool"):
            (west.folder / name).mkdir(parents=True)
        moved = int(west.settings["PORT"]) - int(east.settings["PORT"])
        lines = []
        for line in (east.folder / "conf" / "slurm.conf").read_text().splitlines():
            own = line if "munge.socket" in line else line.replace(str(east.folder), str(west.folder))
            own = own.replace("ClusterName=east", "ClusterName=west")
            lines.append(re.sub(r"(SlurmctldPort=| Port=)(\d+)", lambda port: f"{port[1]}{int(port[2]) + moved}", own))
        (west.folder / "conf" / "slurm.conf").write_text("\n".join([*lines, ""]))
        for name in ("gres.conf", "cgroup.conf"):
            shutil.copy(east.folder / "conf" / name, west.folder / "conf" / name)
        self.administer("add", "cluster", "west")
        self.administer("add", "account", "vision,speech", "cluster=west")
        for user, account in (("alice", "vision"), ("bob", "speech"), ("carol", "vision")):
            self.administer("add", "user", user, f"account={account}", "cluster=west")
        self.administer("add", "user", "alice", "account=speech", "cluster=east")
        west.control("start", "slurmctld")
        west.control("start", "slurmd")
        self.administer("add", "federation", "fed", "clusters=east,west")
        for rig in self.rigs.values():
            rig.until(partial(_is_federated, rig))

    def down(self) -> None:
        """End both."""
        self.west.control("wipe")
        self.east.control("wipe")
        shutil.rmtree(self.folder)

    def administer(self, *words: str) -> None:
        """Run sacctmgr."""
        self.east.run("sacctmgr", "-i", *words)

    def sql(self, *statements: str) -> list[list[str]]:
        """Return the rows of the last statement."""
        socket = self.east.folder / "mysql" / "mysql.sock"
        words = ("mariadb", "--no-defaults", f"--socket={socket}", "-N", "-B", "slurm_acct_db", "-e")
        return [line.split("\t") for line in self.east.lines(*words, ";".join(statements))]

    def helios(self, cluster: str, *words: str) -> str:
        """Run helios beside a cluster."""
        environment = self.rigs[cluster].environment | {
            "HELIOS_DATABASE_URL": f"sqlite:///{self.folder / 'helios.db'}",
            "HELIOS_HISTORY_START": self.began.isoformat(),
        }
        done = run_command(words, folder=self.folder, environment=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def report(self, cluster: str, group: str, window: Window) -> Held:
        """Return what ``helios report usage --by`` counts, asked once for all tests."""
        start, end = (moment.isoformat() for moment in window)
        words = ("report", "usage", "--by", group, "--cluster", cluster, "-S", start, "-E", end, "--json")
        answer = self._answers.get(words) or self._answers.setdefault(words, self.helios(cluster, *words))
        return sums(
            (row["group"], resource, row[f"{resource}_hours"] * 3600)
            for row in json.loads(answer)["rows"]
            for resource in ("cpu", "gpu")
        )

    def sreport(self, cluster: str, *words: str, window: Window, tres: str = ",".join(RESOURCES)) -> list[list[str]]:
        """Return the rows of ``sreport``, whose times are on the clock of whoever runs it."""
        start, end = (f"{moment:%Y-%m-%dT%H:%M:%S}" for moment in window)
        asked = ("sreport", "-n", "-P", "-t", "seconds", "-T", tres, *words, f"clusters={cluster}")
        lines = self.east.lines("env", f"TZ={window[0].tzinfo}", *asked, f"start={start}", f"end={end}")
        return [line.split("|") for line in lines]


def _is_federated(rig: Rig) -> bool:
    return "Synced:Yes" in rig.run("scontrol", "show", "federation")


def sums(rows: Iterable[tuple[str, str, float]]) -> Held:
    """Return the sums by name and resource."""
    found = Counter[tuple[str, str]]()
    for name, resource, seconds in rows:
        found[name, resource] += seconds  # type: ignore[assignment]  # because a Counter is typed as one of int
    return {key: seconds for key, seconds in found.items() if seconds}


def by_user(federation: Federation, cluster: str, window: Window) -> Held:
    rows = federation.sreport(cluster, "cluster", "AccountUtilizationByUser", window=window)
    return sums((user, *_counted(tres, used)) for _, _, user, _, tres, used in rows if user)


def by_account(federation: Federation, cluster: str, window: Window) -> Held:
    rows = federation.sreport(cluster, "cluster", "AccountUtilizationByUser", window=window)
    return sums((name, *_counted(tres, used)) for _, name, user, _, tres, used in rows if not user and name != "root")


def by_top_user(federation: Federation, cluster: str, window: Window) -> Held:
    rows = federation.sreport(cluster, "user", "TopUsage", window=window)
    return sums((user, *_counted(tres, used)) for _, user, _, _, tres, used in rows)


def by_partition(federation: Federation, cluster: str, window: Window) -> Held:
    """Return the CPU seconds; of a suspended job this report takes GPUs off, too, against the others."""
    # The rollup knows no partitions; this report adds up jobs, in columns by their size, with a share at the end.
    words = ("job", "SizesByAccount", "FlatView")
    return sums(
        (name, "cpu", int(seconds))
        for name in ("gpu", "low")
        for row in federation.sreport(cluster, *words, f"Partitions={name}", window=window, tres="cpu")
        for seconds in row[2:-1]
    )


def _counted(tres: str, seconds: str) -> tuple[str, float]:
    resource, each = RESOURCES[tres]
    return resource, int(seconds) * each


def work(federation: Federation) -> str:
    """Run jobs of every kind that the programs might count differently; return the one that was suspended."""
    east, west = federation.east, federation.west

    def submit(rig: Rig, *options: str, seconds: float = 6000, **asked: Any) -> str:
        """Submit a job that runs on one cluster only."""
        return rig.submit(f"--clusters={rig.name}", *options, seconds=seconds, **asked).partition(";")[0]

    def has_run(rig: Rig, job: str, seconds: int) -> bool:
        shown = rig.show_job(job)
        return shown["JobState"] == "RUNNING" and _seconds(shown["RunTime"]) >= seconds

    def run_for(rig: Rig, *jobs: str, seconds: int = 0) -> None:
        """Wait until jobs have run for so long."""
        for job in jobs:
            rig.until(partial(has_run, rig, job, seconds))

    def has_left(rig: Rig, jobs: set[str]) -> bool:
        return not jobs & {*rig.lines("squeue", "--local", "-a", "-h", "-o", "%F")}

    def run_again(job: str) -> None:
        """Have a job that was thrown out run again, at once and not in two minutes as Slurm would."""
        east.until(lambda: east.job_state(job) == "PENDING" and east.show_job(job)["Restarts"] == "1")
        east.until(lambda: not east.run("scontrol", "update", f"JobId={job}", "StartTime=now", check=False))
        run_for(east, job, seconds=1)

    submit(east, "-w", "n1", gpus=1, user="carol")  # these two run on
    submit(west, "-c", "2", gpus=1)
    paused = submit(east, "-w", "n1", "-c", "6", gpus=2)
    on_west = submit(west, "-c", "2", gpus=3, user="bob")
    run_for(east, paused, seconds=1)
    east.run("scontrol", "suspend", paused)
    preempted = submit(east, "-w", "n3", gpus=8, partition="low")
    requeued = submit(east, "-w", "n1", gpus=2, user="bob")
    failing = submit(east, "-w", "n2", "-c", "4", gpus=2)
    run_for(east, preempted, requeued, failing, seconds=1)
    east.run("scontrol", "resume", paused)
    run_for(east, paused)
    east.run("scancel", paused)
    winner = submit(east, "-w", "n3", gpus=8, seconds=2, user="carol")
    never = submit(east, "-w", "n3", gpus=8, partition="low", user="bob")
    east.run("scontrol", "requeue", requeued)
    east.run("scontrol", "update", "NodeName=n2", "State=DOWN", "Reason=a fan")
    short = [submit(rig, "--gres=shard:3", "-w", "n1", gpus=0, seconds=3, user="carol") for rig in (east, west)]
    short.append(submit(east, "-w", "n1", "--array=0-2", "-c", "3", "--account=speech", gpus=0, seconds=3))
    # Free to run on either, so that the other has a REVOKED sibling.
    short += [rig.submit("-w", "n1", "-c", "5", gpus=0, seconds=3, user="bob") for rig in (east, west, east, west)]
    east.run("scancel", never)
    east.run("scontrol", "update", "NodeName=n2", "State=RESUME", check=False)  # unless it has registered again before
    for job in (requeued, failing, preempted):
        run_again(job)
    for rig in federation.rigs.values():
        rig.until(partial(has_left, rig, {*short, winner}))
    east.run("scancel", requeued, failing, preempted)
    west.run("scancel", on_west)
    # Three of the ended jobs ran twice, and one is an array of three.
    east.until(lambda: _recorded(federation, ended="> 0") == 19 and _recorded(federation, ended="= 0") == 2)
    return paused


def _recorded(federation: Federation, *, ended: str) -> int:
    """Return how many runs slurmdbd knows of both clusters, without the siblings that ran on the other."""
    asked = [
        f"select count(*) from {cluster}_job_table where state != {REVOKED} and time_end {ended}"
        for cluster in federation.rigs
    ]
    return sum(int(count) for (count,) in federation.sql(" union all ".join(asked)))


def _seconds(shown: str) -> int:
    days, _, clock = shown.rpartition("-")
    hours, minutes, seconds = map(int, clock.split(":"))
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def stretch(federation: Federation, paused: str) -> None:
    """Make hours before last midnight of the seconds of all jobs, and have slurmdbd roll them up."""
    (first, now) = federation.sql("select min(time_submit), unix_timestamp() from east_job_table")[0]
    midnight = int(now) // 86_400 * 86_400
    begin = midnight - (int(now) - int(first) + 1) * STRETCH
    statements = []
    for cluster in federation.rigs:
        for table, names in MOVED.items():
            moved = ", ".join(f"{name} = if({name}, {begin} + ({name} - {first}) * {STRETCH}, 0)" for name in names)
            nodes = "where node_name != ''" if table == "event" else ""
            statements.append(f"update {cluster}_{table}_table set {moved} {nodes}")
        statements.append(f"update {cluster}_job_table set time_suspended = time_suspended * {STRETCH}")
        # slurmdbd rolls up from the first registration of the cluster on, where it does not know how far it is.
        statements.append(f"update {cluster}_event_table set time_start = {begin - 86_400} where node_name = ''")
        statements.append(f"delete from {cluster}_last_ran_table")
    ended = f"select max(time_end) from east_job_table where id_job = {paused}"
    ((paused_until,),) = federation.sql(*statements, ended)
    federation.east.control("restart", "slurmdbd")
    rolled = [f"select least(hourly_rollup, daily_rollup) from {cluster}_last_ran_table" for cluster in federation.rigs]
    federation.east.until(
        lambda: [int(until) >= midnight for (until,) in federation.sql(" union all ".join(rolled))] == [True, True]
    )
    federation.began = datetime.fromtimestamp(begin // 3600 * 3600, UTC)
    federation.paused_until = datetime.fromtimestamp(-(-int(paused_until) // 3600) * 3600, UTC)
    federation.ended = datetime.fromtimestamp(midnight, UTC)


@pytest.fixture(scope="module")
def federation() -> Iterator[Federation]:
    skip_without_slurm()
    federation = Federation(roomy_folder())
    try:
        federation.up()
        stretch(federation, work(federation))
        federation.administer("delete", "user", "carol", "cluster=west")
        for cluster in federation.rigs:
            federation.helios(cluster, "trace", "sync")
        yield federation
    finally:
        federation.down()


WINDOWS = ("all", "days", "cut", "zone")


def the_window(federation: Federation, name: str) -> Window:
    """Return a window by its name."""
    # One that cuts the run of a suspended job differs in CPU hours: sacct does not tell when that was.
    begin, end = federation.paused_until, federation.paused_until + 2 * HOUR
    new_york = ZoneInfo("America/New_York")
    return {
        "all": (federation.began, federation.ended),
        "days": (federation.began.replace(hour=0), federation.ended),
        "cut": (begin, end),
        "zone": (begin.astimezone(new_york), end.astimezone(new_york)),
    }[name]


def of_cpus(held: Held) -> Held:
    return {key: seconds for key, seconds in held.items() if key[1] == "cpu"}


@pytest.mark.parametrize("cluster", ["east", "west"])
@pytest.mark.parametrize(
    ("group", "sreport", "window"),
    [
        *(("user", by_user, window) for window in WINDOWS),
        ("user", by_top_user, "all"),
        ("account", by_account, "all"),
        ("account", by_account, "cut"),
    ],
)
def test_hours_equal_those_of_sreport(
    federation: Federation,
    cluster: str,
    group: str,
    sreport: Callable[[Federation, str, Window], Held],
    window: str,
) -> None:
    asked = the_window(federation, window)
    expected = sreport(federation, cluster, asked)
    assert expected, "who held hours in a cut window is left to chance"
    assert federation.report(cluster, group, asked) == pytest.approx(expected, rel=AGREE)


@pytest.mark.parametrize("cluster", ["east", "west"])
@pytest.mark.parametrize("window", ["all", "cut"])
def test_cpu_hours_of_partitions_equal_those_of_sreport(federation: Federation, cluster: str, window: str) -> None:
    asked = the_window(federation, window)
    expected = by_partition(federation, cluster, asked)
    assert of_cpus(federation.report(cluster, "partition", asked)) == pytest.approx(expected, rel=AGREE)


@pytest.mark.parametrize("cluster", ["east", "west"])
def test_all_hours_equal_the_utilization_of_the_cluster(federation: Federation, cluster: str) -> None:
    asked = the_window(federation, "all")
    rows = federation.sreport(cluster, "cluster", "Utilization", window=asked)
    expected = sums(("all", *_counted(tres, allocated)) for _, tres, allocated, *_ in rows)
    counted = federation.report(cluster, "user", asked).items()
    assert sums(("all", resource, held) for (_, resource), held in counted) == pytest.approx(expected, rel=AGREE)


@pytest.mark.parametrize("cluster", ["east", "west"])
def test_cpu_hours_equal_the_sum_over_sacct(federation: Federation, cluster: str) -> None:
    asked = the_window(federation, "cut")
    start, end = (f"{moment:%Y-%m-%dT%H:%M:%S}" for moment in asked)
    words = ("sacct", "--local", "-a", "-D", "-X", "-n", "-P", "--truncate", "-o", "User,CPUTimeRAW")
    rows = (line.split("|") for line in federation.rigs[cluster].lines(*words, "-S", start, "-E", end))
    expected = sums((user, "cpu", int(seconds)) for user, seconds in rows)
    assert of_cpus(federation.report(cluster, "user", asked)) == pytest.approx(expected, rel=AGREE)


def test_sreport_rounds_the_ends_of_a_window_to_hours(federation: Federation) -> None:
    begin, end = the_window(federation, "cut")
    rounded = by_user(federation, "east", (begin - timedelta(minutes=30), end + timedelta(minutes=29)))
    assert federation.report("east", "user", (begin, end)) == pytest.approx(rounded, rel=AGREE)
