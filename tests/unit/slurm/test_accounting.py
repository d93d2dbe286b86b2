"""Bounded windows of the accounting, whole or not at all."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from helios.errors import ClusterUnavailable, UsageError
from helios.ingest import open_trace
from helios.model import NODE_EVENTS
from helios.slurm.accounting import LONGEST_WINDOW, Accounting
from helios.slurm.shell import Shell
from tests.unit.slurm.test_commands import Program, program, show_config

__all__ = ["program"]  # a fixture

START = datetime(2026, 11, 21, 9, tzinfo=UTC)
END = START + timedelta(hours=2)
LINES = """
d=$(printf '%s\\n' "$@" | sed -n 's/^--delimiter=//p')
for word in JobIDRaw JobID User State Submit Start End Elapsed JobName; do printf '%s%s' "$word" "$d"; done; echo
set -- 1 1 alice COMPLETED 1795255120 1795255121 1795255181 00:01:00 train
for word in "$@"; do printf '%s%s' "$word" "$d"; done; echo
"""


def test_a_window_is_asked_for_in_utc_and_read_by_ingest(program: Program, tmp_path: Path) -> None:
    folder = program("sacct", f'echo "$@" > {tmp_path}/asked; {LINES}')
    path = tmp_path / "window.txt"
    berlin = timezone(timedelta(hours=1))
    Accounting(shell=Shell(folder=str(folder))).sacct_window(START.astimezone(berlin), END, path=path)
    asked = (tmp_path / "asked").read_text()
    assert "--starttime=2026-11-21T09:00:00 --endtime=2026-11-21T11:00:00" in asked
    assert "--duplicates" in asked
    assert asked.strip().endswith("JobName")
    (batch,) = open_trace(path, timezone="Asia/Shanghai").read()
    assert batch.jobs["started_at"].tolist() == [datetime.fromtimestamp(1_795_255_121, UTC)]


@pytest.mark.parametrize("steps", [True, False])
def test_what_jobs_used_is_asked_for_with_their_steps(program: Program, tmp_path: Path, steps: bool) -> None:
    folder = program("sacct", f'echo "$@" > {tmp_path}/asked; {LINES}')
    Accounting(shell=Shell(folder=str(folder))).use_window(START, END, path=tmp_path / "use.txt", steps=steps)
    asked = (tmp_path / "asked").read_text()
    assert ("--allocations" in asked) is not steps
    assert "--duplicates" in asked and asked.strip().endswith("MaxRSS,JobName,AdminComment")


FORGED = "x\n2|2|bob|COMPLETED|1795255120|1795255121|1795255122|00:00:01|y"
AS_SACCT = """
d=$(printf '%s\\n' "$@" | sed -n 's/^--delimiter=//p')
for word in JobIDRaw JobID User State Submit Start End Elapsed JobName; do printf '%s%s' "$word" "$d"; done; echo
set -- 1 1 alice COMPLETED 1795255120 1795255121 1795255181 00:01:00 "$(cat {name})"
for word in "$@"; do printf '%s%s' "$word" "$d"; done
echo
"""


def test_a_name_that_is_a_whole_record_is_a_name(program: Program, tmp_path: Path) -> None:
    (tmp_path / "name").write_text(FORGED)
    folder = program("sacct", AS_SACCT.replace("{name}", str(tmp_path / "name")))
    accounting, path = Accounting(shell=Shell(folder=str(folder))), tmp_path / "window.txt"
    accounting.sacct_window(START, END, path=path)
    (batch,) = open_trace(path, timezone="UTC", tracks_gpus=True).read()
    assert batch.jobs[["job_id", "user", "name"]].values.tolist() == [["1", "alice", FORGED]]
    assert not batch.notes and not len(batch.rejects)


def test_the_delimiter_is_another_one_in_every_call(program: Program, tmp_path: Path) -> None:
    folder = program("sacct", f'echo "$@" >> {tmp_path}/asked; {LINES}')
    accounting = Accounting(shell=Shell(folder=str(folder)))
    for _ in range(2):
        accounting.sacct_window(START, END, path=tmp_path / "window.txt")
    words = re.findall(r"--parsable --delimiter=(\|[0-9a-f]{24}\|) ", (tmp_path / "asked").read_text())
    assert len(set(words)) == 2


def test_a_window_that_fails_leaves_nothing_behind(program: Program, tmp_path: Path) -> None:
    folder = program("sacct", f'{LINES} echo "Unable to connect" >&2; exit 1')
    target = tmp_path / "windows"
    target.mkdir()
    with pytest.raises(ClusterUnavailable):
        Accounting(shell=Shell(folder=str(folder))).sacct_window(START, END, path=target / "window.txt")
    assert list(target.iterdir()) == []


def test_a_window_that_takes_too_long_leaves_nothing_behind(program: Program, tmp_path: Path) -> None:
    folder = program("sacct", f"{LINES} exec sleep 600")
    target = tmp_path / "windows"
    target.mkdir()
    with pytest.raises(ClusterUnavailable, match=r"within 0\.3 s"):
        Accounting(shell=Shell(folder=str(folder)), timeout_s=0.3).sacct_window(START, END, path=target / "w.txt")
    assert list(target.iterdir()) == []


@pytest.mark.parametrize("end", [START, START - timedelta(hours=1), START + LONGEST_WINDOW + timedelta(seconds=1)])
def test_a_window_without_or_beyond_bounds_is_not_asked_for(end: datetime, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="window"):
        Accounting(shell=Shell(folder=str(tmp_path))).sacct_window(START, end, path=tmp_path / "w.txt")


def test_node_events_are_read_with_reasons_of_several_lines(program: Program) -> None:
    events = "|1795255035|Unknown||Cluster Registered TRES\\nn3|1795256457|1795256500|DRAIN|a fan|is\\nloud\\n"
    folder = program("sacctmgr", f'printf "{events}n1|1795255100|Unknown|DOWN*|Not responding\\n"')
    program("scontrol", show_config("ClusterName             = lab"))
    found = NODE_EVENTS.check(Accounting(shell=Shell(folder=str(folder))).node_events(START, END))
    assert found["node"].tolist() == ["n1", "n3"]
    assert found["reason"].tolist() == ["Not responding", "a fan|is\nloud"]
    assert found["ended_at"].isna().tolist() == [True, False]


def test_no_events_are_a_frame_of_none(program: Program) -> None:
    folder = program("sacctmgr", "true")
    program("scontrol", show_config("ClusterName             = lab"))
    assert len(NODE_EVENTS.check(Accounting(shell=Shell(folder=str(folder))).node_events(START, END))) == 0


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("NONE", None),
        ("12 months", timedelta(days=360)),
        ("30 days*", timedelta(days=30)),
        ("48 hours", timedelta(hours=48)),
        ("2", timedelta(days=60)),
    ],
)
def test_the_purge_window_is_read(program: Program, said: str, kept: timedelta | None) -> None:
    folder = program("sacctmgr", f"echo 'PurgeJobAfter          = {said}'")
    assert Accounting(shell=Shell(folder=str(folder))).keeps_jobs() == kept


USED = """
echo "$@" >> {asked}
d=$(printf '%s\\n' "$@" | sed -n 's/^--delimiter=//p')
had=billing=4,cpu=4,gres/gpu=1,mem=4096M,node=1
record() {{ for word in "$@"; do printf '%s%s' "$first" "$word"; first=$d; done; echo; first=; }}
record 1 alice gpu COMPLETED 9 $had 00:04.038 "" "" "" "$(cat {name})"
record 1.batch "" "" COMPLETED 9 $had 00:04.038 1 324276224 cpu=00:00:03,mem=324276224 batch
"""


def test_use_is_asked_for_in_windows_and_each_job_counts_once(program: Program, tmp_path: Path) -> None:
    (tmp_path / "name").write_text("x\n2|bob|gpu|COMPLETED|9|cpu=4|00:04|1|9|mem=9|y")
    folder = program("sacct", USED.format(asked=tmp_path / "asked", name=tmp_path / "name"))
    accounting = Accounting(shell=Shell(folder=str(folder)))
    found = accounting.used_by_jobs(START, START + 2 * LONGEST_WINDOW, users=("alice", "bob"))
    assert found[["job_id", "user", "cpus", "cpu_s", "used_memory_mib"]].values.tolist() == [
        ["1", "alice", 4.0, 4.0, pytest.approx(324276224 / 1024**2)]
    ]
    asked = (tmp_path / "asked").read_text().splitlines()
    assert len(asked) == 2
    assert all("--user=alice,bob" in line and "--allocations" not in line for line in asked)
    accounting.used_by_jobs(START, END, users=())
    assert "--allusers" in (tmp_path / "asked").read_text().splitlines()[-1]


def test_jobs_that_ended_are_those_of_the_accounting_and_the_controller(program: Program, tmp_path: Path) -> None:
    program("sacct", f'echo "$@" > {tmp_path}/asked; printf "1|COMPLETED\\n2|CANCELLED by 0\\n3|RUNNING\\n"')
    folder = program("squeue", 'printf "3|RUNNING\\n4|FAILED\\n5|PENDING\\n6|TIMEO"')
    accounting = Accounting(shell=Shell(folder=str(folder)))
    assert accounting.ended_jobs(START, END) == {"1", "2", "4"}
    assert "--starttime=2026-11-21T08:59:00 --endtime=2026-11-21T11:01:00" in (tmp_path / "asked").read_text()
    program("sacct", "exit 1")
    assert accounting.ended_jobs(START, END) == {"4"}


def test_jobs_that_ended_are_asked_for_a_day_at_most(program: Program, tmp_path: Path) -> None:
    folder = program("sacct", f'echo "$@" > {tmp_path}/asked')
    assert Accounting(shell=Shell(folder=str(folder))).ended_jobs(START - timedelta(days=40), END) == frozenset()
    assert "--starttime=2026-11-20T10:59:00" in (tmp_path / "asked").read_text()
