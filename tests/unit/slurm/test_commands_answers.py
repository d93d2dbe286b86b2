"""What is read of Slurm and said of it, told whole: every column of a record, every word that a program is given."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from helios.actions import (
    JobSetting,
    KeepAwake,
    NodeAction,
    NodeOutcome,
    NodeSetting,
    PowerDown,
    PowerUp,
    Result,
    RevertNodes,
)
from helios.errors import AnswerNotUnderstood, ClusterRefused, ClusterUnavailable, UsageError
from helios.model import NodePower
from helios.slurm import parse, translate
from helios.slurm.accounting import Accounting
from helios.slurm.commands import CommandsBackend, SiteFactor, Sprio
from helios.slurm.connect import partition_names
from helios.slurm.power import (
    Exclusions,
    NodeSurroundings,
    excluded_reason,
    join_exceptions,
    keep_awake_list,
    kept_awake,
    power,
    same_list,
    why_not_wake,
)
from helios.slurm.power_config import power_config, programs, seconds, topology_racks
from helios.slurm.preflight import FindingLevel, PreflightFinding, controllers_time, power_checks, run_checks
from helios.slurm.shell import Shell, quoted
from helios.slurm.undo_file import JobsUndo, UndoEntry
from tests.changes import asked_of_nodes
from tests.unit.slurm.slurm import START, SleepySlurm, a_raw_job, a_raw_node
from tests.unit.slurm.test_accounting import LINES
from tests.unit.slurm.test_commands import Program, program, show_config
from tests.unit.slurm.test_nodes import asleep, down, nodes_of, only, restore, up

__all__ = ["program"]  # a fixture

NEW, OLD = (25, 11), (22, 5)
NOW = datetime(2026, 11, 21, 10, tzinfo=UTC)


def whole(frame: pd.DataFrame) -> dict[str, Any]:
    """The one row of a frame, what is missing left out, times as seconds since START."""
    (row,) = frame.astype(object).to_dict("records")
    known = {name: value for name, value in row.items() if not pd.isna(value)}
    return {
        name: value.timestamp() - START if isinstance(value, pd.Timestamp) else value for name, value in known.items()
    }


# Frames.


def test_a_pending_job_is_read_with_every_column() -> None:
    job = a_raw_job(
        "7",
        restart=2,
        array_job_id="7",
        array_tasks="0-3",
        tasks=4,
        user="bob",
        group="staff",
        account="lab",
        qos="high",
        partition="gpu,big",
        reason="Resources",
        eligible=START + 1,
        planned_start=START + 2,
        time_limit_s=7200.0,
        time_min_s=420.0,
        nodes=2,
        cpus=8,
        gpus=3,
        gpu_type="a100",
        memory_mib=5.5,
        priority=77,
    )
    undo = JobsUndo()
    undo.add(
        UndoEntry(setting=setting, job_id="7", submitted=START, value=value)
        for setting, value in ((JobSetting.ORDER, 5037), (JobSetting.SOFT_LIMIT, 7))
    )
    queue = translate.pending([job], {"7": SiteFactor(value=5037)}, most=10_000, release=NEW, undo=undo)
    assert whole(queue) == {
        "job_id": "7",
        "restart": 2,
        "array_job_id": "7",
        "array_task_id": "0-3",
        "tasks": 4,
        "name": "train",
        "user": "bob",
        "group": "staff",
        "account": "lab",
        "qos": "high",
        "partition": "gpu,big",
        "state": "PENDING",
        "reason": "Resources",
        "submitted_at": 0,
        "eligible_at": 1,
        "planned_start_at": 2,
        "time_limit_s": 7200.0,
        "nodes": 2,
        "cpus": 8,
        "gpus": 3,
        "gpu_type": "a100",
        "memory_mib": 5.5,
        "priority": 77,
        "urgency": pytest.approx(0.505, abs=0.001),
        "soft_limit_s": 420.0,
    }


def test_a_running_job_is_read_with_every_column() -> None:
    job = a_raw_job(
        "8",
        state="RUNNING",
        reason=None,
        started=START + 9,
        node_list="n[1-2]",
        time_min_s=1800.0,
        het_job_id="5",
        het_job_offset=1,
    )
    assert whole(translate.running([job], release=NEW)) == {
        "job_id": "8",
        "restart": 0,
        "tasks": 1,
        "het_job_id": "5",
        "het_job_offset": 1,
        "name": "train",
        "user": "alice",
        "group": "alice",
        "account": "vision",
        "qos": "normal",
        "partition": "gpu",
        "state": "RUNNING",
        "submitted_at": 0,
        "eligible_at": 0,
        "started_at": 9,
        "time_limit_s": 3600.0,
        "user_soft_limit_s": 1800.0,
        "nodes": 1,
        "cpus": 4,
        "gpus": 1,
        "memory_mib": 100.0,
        "node_list": "n[1-2]",
        "priority": 100_000,
        "urgency": 0.0,
        "excluded_reason": "it is a component of heterogeneous job 5",
    }


def test_a_node_is_read_with_every_column() -> None:
    node = a_raw_node(
        "n1",
        state="MIXED",
        flags="PLANNED",
        cpus_held=4,
        gpus_held=2,
        features="ib,nvlink",
        idle_since=START + 5,
        reason="x",
        weight=5,
    )
    around = NodeSurroundings(exclusions=Exclusions.of({"SuspendExcNodes": "n[1-2]"}), racks={"n1": "r7"})
    assert whole(translate.node_states([node], around)) == {
        "name": "n1",
        "partitions": "gpu",
        "state": "MIXED",
        "flags": "PLANNED",
        "power": "awake",
        "excluded_reason": "Slurm plans to start a job on it",
        "kept_awake": 1,
        "rack": "r7",
        "cpus": 64,
        "cpus_held": 4,
        "gpus": 8,
        "gpus_held": 2,
        "gpu_type": "a100",
        "memory_mib": 512_000.0,
        "weight": 5,
        "features": "ib,nvlink",
        "idle_since": 5,
        "reason": "x",
    }


@pytest.mark.parametrize(
    ("job", "factor", "words"),
    [
        ({"cron": True}, None, "scrontab"),
        ({"reservation": "maint1"}, None, "reservation maint1"),
        ({"het_job_id": "5"}, None, "job 5"),
        ({"priority": 0}, None, "held"),
        ({"reason": "JobHeldAdmin"}, None, "held"),
        ({"reason": "JobHeldUser", "state": "RUNNING"}, None, ""),
        ({"reason": None}, None, ""),
        ({"priority": 42}, SiteFactor(value=0, direct=True), "42"),
        ({}, SiteFactor(value=500), "SiteFactor 500"),
    ],
)
def test_why_a_job_is_left_alone_names_what_was_found(
    job: dict[str, Any], factor: SiteFactor | None, words: str
) -> None:
    why = translate.excluded_reason(a_raw_job("1", **job), factor)
    assert bool(why) == bool(words)
    assert words in why


def test_a_time_min_has_the_mark_on_releases_with_soft_limits() -> None:
    job, undo = a_raw_job("7", time_min_s=420.0), JobsUndo()
    undo.add([UndoEntry(setting=JobSetting.SOFT_LIMIT, job_id="7", submitted=START, value=7)])
    releases = ((23, 2), (23, 11), (26, 5))
    marked = {release: translate.is_helios_time_min(job, undo, release=release) for release in releases}
    assert marked == {(23, 2): False, (23, 11): True, (26, 5): True}
    assert [translate.to_minutes(length) for length in (None, "UNLIMITED", 0.0, 89.0, 91.0)] == [0, 0, 0, 1, 2]


def test_jobs_without_a_priority_or_a_start_come_where_nothing_puts_them() -> None:
    jobs = [a_raw_job("1", priority=None), a_raw_job("2", priority=1)]
    assert translate.pending(jobs, {}, most=10_000, release=NEW)["job_id"].tolist() == ["2", "1"]
    held = [a_raw_job("10", state="RUNNING", started=START), a_raw_job("9", state="RUNNING", started=START)]
    unknown = a_raw_job("11", state="RUNNING", started=None)
    assert translate.running([*held, unknown], release=NEW)["job_id"].tolist() == ["11", "9", "10"]


# Numbers.


@pytest.mark.parametrize("word", ["", "N/A", "(null)", "None", "Unknown", "NONE", "n/a", "none", "INVALID"])
def test_what_slurm_writes_for_nothing_is_nothing(word: str) -> None:
    assert parse.text(word) is None
    assert parse.text(f"x{word}") == f"x{word}"


@pytest.mark.parametrize(
    ("text", "count"),
    [("1M", 1024**2), ("1G", 1024**3), ("1T", 1024**4), ("1P", 1024**5), ("1E", 1024**6), (".", None)],
)
def test_large_counts_are_read(text: str, count: int | None) -> None:
    assert parse.whole(text) == count


@pytest.mark.parametrize(("text", "mib"), [("1P", 1024.0**3), ("1E", 1024.0**4), ("1M", 1.0), ("1 M", None)])
def test_large_memory_is_read(text: str, mib: float | None) -> None:
    assert parse.memory_mib(text) == mib


def test_a_list_of_tres_is_a_mapping_of_what_has_a_value() -> None:
    assert dict(parse.tres("cpu=4,mem=8G,odd,gres/gpu:a100=2,x=a=b")) == {
        "cpu": "4",
        "mem": "8G",
        "gres/gpu:a100": "2",
        "x": "a=b",
    }
    assert dict(parse.tres("")) == {}


def test_untyped_and_typed_gpus_of_several_kinds_are_added() -> None:
    assert parse.gpus("gpu:a100:2,gpu:a100:1") == parse.Gpus(count=3, type="a100")
    assert parse.gpus("gpu:2,gpu:3") == parse.Gpus(count=5, type=None)
    assert parse.gpus("gpu:a100") == parse.Gpus(count=1, type="a100")
    assert parse.gpus("gpu:4(S:0-1), gpu:v100:1(S:2)") == parse.Gpus(count=4, type="v100")


@pytest.mark.parametrize(("text", "count"), [("1-4:2", 2), ("5-5", 1), ("a-b", 1), ("0,x,2", 2), ("3-9:3%1", 3)])
def test_more_array_tasks_are_counted(text: str, count: int) -> None:
    assert parse.tasks(text) == count


def test_a_length_of_days_and_of_bare_minutes() -> None:
    assert parse.length_s("2-00:00:01") == 172_801.0
    assert parse.length_s("45") == 45.0
    assert parse.length_s("1:2:3x") is None


# What sprio says.


def test_what_sprio_prints_is_read_job_by_job(program: Program) -> None:
    rows = ["5|1000|137|0|0|0|0|0|0|0|", " 6 | 11|0|0|0|0|0|0|0|0|", "7|10|0|0|0|0|0|0|0|0|0", "8|99|0|0|0|0|3|0|0|0|"]
    asked = 'echo "$*" > "$0.asked"; '
    folder = program("sprio", asked + "; ".join(f"echo '{row}'" for row in [*rows, "Unable to find jobs matching"]))
    assert Sprio(shell=Shell(folder=str(folder)))() == {
        "5": SiteFactor(value=137),
        "6": SiteFactor(value=0, direct=True),
        "7": SiteFactor(value=0),
        "8": SiteFactor(value=0),
    }
    assert (folder / "sprio.asked").read_text() == "--noheader --format=%i|%Y|%S|%A|%B|%F|%J|%P|%Q|%N|%T\n"


def test_a_line_of_sprio_that_makes_no_sense_is_quoted(program: Program) -> None:
    folder = program("sprio", "echo '5|many|137|0'")
    with pytest.raises(AnswerNotUnderstood, match=r"5\|many\|137"):
        Sprio(shell=Shell(folder=str(folder)))()


def test_sprio_that_fails_is_an_error_of_its_kind(program: Program) -> None:
    folder = program("sprio", "echo 'Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(ClusterUnavailable, match="sprio"):
        Sprio(shell=Shell(folder=str(folder)))()
    program("sprio", "echo 'You are not running a supported priority plugin (priority type basic)' >&2; exit 1")
    with pytest.raises(ClusterRefused) as refused:
        Sprio(shell=Shell(folder=str(folder)))()
    assert "PriorityType=priority/multifactor" in refused.value.hint


# The accounting.


def test_a_window_of_jobs_is_asked_for_with_exact_arguments(program: Program, tmp_path: Path) -> None:
    folder = program("sacct", f'printf "%s\\n" "$@" > {tmp_path}/asked; {LINES}')
    Accounting(shell=Shell(folder=str(folder))).sacct_window(NOW, NOW + timedelta(days=31), path=tmp_path / "w.txt")
    *words, fields = (tmp_path / "asked").read_text().splitlines()
    assert re.fullmatch(r"--delimiter=\|[0-9a-f]{24}\|", words.pop(5))
    assert words == [
        "--local",
        "--allusers",
        "--duplicates",
        "--noconvert",
        "--parsable",
        "--starttime=2026-11-21T10:00:00",
        "--endtime=2026-12-22T10:00:00",
        "--allocations",
    ]
    assert fields.startswith("--format=JobIDRaw,")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["asked", "sacct", "w.txt"]


def test_a_window_is_refused_with_what_to_set(tmp_path: Path) -> None:
    accounting = Accounting(shell=Shell(folder=str(tmp_path)))
    with pytest.raises(UsageError, match="zone"):
        accounting.sacct_window(NOW.replace(tzinfo=None), NOW, path=tmp_path / "w.txt")
    with pytest.raises(UsageError, match="zone"):
        accounting.sacct_window(NOW, NOW.replace(tzinfo=None), path=tmp_path / "w.txt")
    with pytest.raises(UsageError, match="31 days") as refused:
        accounting.sacct_window(NOW, NOW + timedelta(days=31, seconds=1), path=tmp_path / "w.txt")
    assert "window_s" in refused.value.hint
    assert "2026-11-21 10:00" in refused.value.message


def test_node_events_are_asked_for_by_cluster_and_window_and_read_whole(program: Program, tmp_path: Path) -> None:
    lines = r"n3|1795256457|1795256500|DRAIN|a fan\nn1|1795256457|None||\n|1795255035|Unknown||registered\n"
    folder = program("sacctmgr", f'printf "%s\\n" "$@" > {tmp_path}/asked; printf "{lines}"')
    program("scontrol", show_config("ClusterName             = lab"))
    found = Accounting(shell=Shell(folder=str(folder))).node_events(NOW, NOW + timedelta(hours=1))
    assert (tmp_path / "asked").read_text().splitlines() == [
        "--noheader",
        "--parsable2",
        "show",
        "event",
        "Clusters=lab",
        "Start=2026-11-21T10:00:00",
        "End=2026-11-21T11:00:00",
        "format=NodeName,TimeStart,TimeEnd,State,Reason",
    ]
    told = found.astype(object).where(found.notna(), None)
    assert told[["node", "state", "reason"]].to_numpy().tolist() == [["n1", None, None], ["n3", "DRAIN", "a fan"]]
    assert [at.timestamp() for at in found["started_at"]] == [1_795_256_457] * 2
    assert [None if pd.isna(at) else at.timestamp() for at in found["ended_at"]] == [None, 1_795_256_500]


def test_a_configuration_without_a_name_is_not_understood(program: Program) -> None:
    folder = program("scontrol", show_config("ClusterNames = lab"))
    with pytest.raises(AnswerNotUnderstood, match="ClusterName"):
        Accounting(shell=Shell(folder=str(folder))).cluster_name()


# Running programs.


def test_programs_run_in_plain_locale_and_keep_the_cluster_settings(program: Program) -> None:
    given = {
        "PATH": "/usr/bin:/bin",
        "HOME": "/nowhere",
        "SLURM_CONF": "/etc/x.conf",
        "SLURM_JWT": "token",
        "SLURM_TIME_FORMAT": "relative",
        "SQUEUE_FORMAT": "%i",
        "SACCT_FORMAT": "JobID",
        "LC_TIME": "de_DE",
        "LANG": "de_DE",
        "TZ": "Asia/Tokyo",
    }
    assert Shell(environment=given).environment_for_slurm() == {
        "PATH": "/usr/bin:/bin",
        "HOME": "/nowhere",
        "SLURM_CONF": "/etc/x.conf",
        "SLURM_JWT": "token",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "SLURM_TIME_FORMAT": "%s",
        "SLURM_BITSTR_LEN": "0",
    }


def test_a_program_gets_arguments_and_input_and_returns_all_output(program: Program) -> None:
    folder = program("sinfo", 'echo "$*"; cat; echo complaint >&2; exit 3')
    answer = Shell(folder=str(folder)).answer("sinfo", "-a", "b c", stdin=b"input")
    assert (answer.output, answer.error_output, answer.status) == (b"-a b c\ninput", "complaint\n", 3)


def test_what_is_quoted_is_the_end_on_one_line() -> None:
    assert quoted("one\n  two\t three ") == "one two three"
    assert quoted("x" * 400 + "end") == "x" * 297 + "end"
    assert quoted("  \n") == quoted("")
    assert quoted("")


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("Unable to contact slurm controller (connect failure)", ClusterUnavailable),
        ("Problem talking to the database: Connection refused", ClusterUnavailable),
        ("Zero Bytes were transmitted or received", ClusterUnavailable),
        ("Access/permission denied", ClusterRefused),
        ("Only users with ADMIN must be Operator", ClusterRefused),
        ("Invalid user id", ClusterRefused),
        ("slurm_load: Something else", AnswerNotUnderstood),
    ],
)
def test_a_complaint_is_an_error_of_its_kind_that_names_the_program(
    program: Program, said: str, kind: type[Exception]
) -> None:
    folder = program("squeue", f"echo '{said}' >&2; exit 1")
    with pytest.raises(kind, match="squeue"):
        Shell(folder=str(folder)).run("squeue")


# Power.


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("DRAIN", "drained"),
        ("FAIL", "failing"),
        ("MAINT", "maintenance"),
        ("MAINTENANCE", "maintenance"),
        ("INVALID_REG", "slurm.conf"),
        ("REBOOT_REQUESTED", "reboot"),
        ("REBOOT_ISSUED", "rebooting"),
        ("REBOOT^", "rebooting"),
        ("REBOOT@", "reboot"),
        ("DYNAMIC_NORM", "dynamic"),
        ("DYNAMIC_FUTURE", "dynamic"),
        ("POWER_DRAIN", "drained"),
        ("BLOCKED", "another job"),
        ("EXTERNAL", "not Slurm's"),
        ("NEVER_HEARD_OF", "NEVER_HEARD_OF"),
    ],
)
def test_a_node_in_somebodys_hand_says_in_whose_and_why(flags: str, words: str) -> None:
    node = a_raw_node("n1", flags=flags, reason="bad disk [root@2026-11-21T10:00:00]")
    assert words in why_not_wake(node)
    assert why_not_wake(node).endswith("(bad disk)") == (flags != "NEVER_HEARD_OF")
    assert excluded_reason(node) == why_not_wake(node)


@pytest.mark.parametrize("flags", ["CLOUD", "PERFCTRS", "NET", "POWERED_DOWN", "POWERING_UP", None])
def test_a_harmless_flag_keeps_nobody_off(flags: str | None) -> None:
    assert why_not_wake(a_raw_node("n1", flags=flags)) == ""
    assert excluded_reason(a_raw_node("n1", flags=flags)) == ""


@pytest.mark.parametrize(
    ("flags", "words"), [("COMPLETING", "completing"), ("PLANNED", "plans"), ("RESERVED", "reserved")]
)
def test_what_slurm_needs_is_woken_and_not_put_to_sleep(flags: str, words: str) -> None:
    assert why_not_wake(a_raw_node("n1", flags=flags)) == ""
    assert words in excluded_reason(a_raw_node("n1", flags=flags))


def test_states_of_a_node_that_is_nobodys() -> None:
    assert "down (fire)" in why_not_wake(a_raw_node("n1", state="DOWN", reason="fire"))
    assert why_not_wake(a_raw_node("n1", state="FUTURE")).endswith("FUTURE")
    assert power(a_raw_node("n1", state="FUTURE")) is None
    assert power(a_raw_node("n1", flags="NOT_RESPONDING")) is None
    assert power(a_raw_node("n1", flags="NOT_RESPONDING+POWERED_DOWN")) is None
    assert "Slurm never uses it" in why_not_wake(a_raw_node("n1", flags="NOT_RESPONDING+POWERED_DOWN"))
    assert power(a_raw_node("n1", flags="POWER_UP+POWER_DOWN")) is NodePower.FALLING_ASLEEP


def test_exclusions_by_partition_and_state_name_what_they_exclude() -> None:
    excluded = Exclusions.of({"SuspendExcParts": "login, debug", "SuspendExcStates": "mixed,PLANNED"})
    assert excluded.partitions == {"login", "debug"}
    assert excluded.states == {"MIXED", "PLANNED"}
    assert excluded_reason(a_raw_node("n1", partitions="gpu,login"), excluded).endswith("login")
    assert excluded_reason(a_raw_node("n1", state="MIXED"), excluded).endswith("MIXED")
    assert excluded_reason(a_raw_node("n1"), excluded) == ""


def test_a_number_in_a_keep_awake_list_keeps_that_many_nodes() -> None:
    nodes = [a_raw_node("n1", cpus_held=1), asleep("n2"), a_raw_node("n3", flags="DRAIN")]
    nodes += [a_raw_node(f"n{number}") for number in (4, 5, 6)]
    excluded = Exclusions.of({"SuspendExcNodes": "n[1-6]:2,n9"})
    assert kept_awake(nodes, excluded) == {"n4", "n5", "n9"}
    assert [(part.nodes, part.least) for part in keep_awake_list("n[1-2]:1,n3")] == [(("n1", "n2"), 1), (("n3",), None)]
    assert keep_awake_list(" (null) ") == ()


def test_lists_are_the_same_by_what_they_keep() -> None:
    assert same_list("n[1-2],n3", "n3,n1,n2")
    assert not same_list("n[1-2]:1", "n[1-2]:2")
    assert not same_list("n[1-2]:1", "n[1-2]")
    assert same_list("n[1-", " n[1- ")
    assert not same_list("n[1-", "n[2-")


def test_a_list_follows_the_one_of_the_site_without_double_nodes() -> None:
    assert join_exceptions("n[1-2]:1,login1", ["n1", "login1", "n9", "n9"]) == "n[1-2]:1,login1,n1,n9"
    assert join_exceptions(" (null) ", ["n1"]) == "n1"
    assert join_exceptions("", []) == ""


def test_how_a_cluster_powers_its_nodes_is_read_whole() -> None:
    given = {
        "SLURM_VERSION": "25.11.2",
        "SuspendProgram": "/s",
        "ResumeProgram": "/r",
        "SuspendTime": "600 sec",
        "SuspendTimeout": "30 sec",
        "ResumeTimeout": "300 sec",
        "SuspendExcNodes": "(null)",
    }
    found = power_config(given, racks={"n1": "r1"})
    assert (found.release, found.surroundings.racks, found.settings.keep_awake) == (NEW, {"n1": "r1"}, "")
    assert programs(given) == {"SuspendProgram": "/s", "ResumeProgram": "/r"}
    assert programs(given | {"ResumeProgram": "(null)"}) == {"SuspendProgram": "/s"}
    nothing = power_config({}).settings
    assert (nothing.suspend_timeout_s, nothing.resume_timeout_s, nothing.can_sleep) == (0, 0, False)
    unread = power_config(given | {"SuspendExcNodes": "n[1-"}).settings
    assert (unread.can_sleep, unread.can_keep_awake, unread.keep_awake) == (False, False, "n[1-")
    assert {text: seconds(text) for text in ("UNLIMITED", "NONE", "-1", "-1 sec")} == dict.fromkeys(
        ("UNLIMITED", "NONE", "-1", "-1 sec"), float("inf")
    )


def test_the_first_switch_that_names_a_node_is_its_rack() -> None:
    lines = ["SwitchName=a Level=0 Nodes=n1", "SwitchName=b Level=0 Nodes=n[1-2]", "SwitchName=c Level=0", "odd"]
    assert topology_racks(lines) == {"n1": "a", "n2": "b"}


# What is said of nodes.


def told(outcome: NodeOutcome) -> tuple[Any, ...]:
    return (
        outcome.action,
        outcome.setting,
        outcome.node,
        outcome.result,
        outcome.reason,
        outcome.before,
        outcome.after,
    )


def test_every_outcome_on_nodes_names_all_its_fields() -> None:
    slurm = SleepySlurm(*(a_raw_node(f"n{number}", weight=10) for number in (1, 2, 3, 4)), asleep("n5", weight=10))
    weights = restore(NodeSetting.WEIGHT, n3="10", n4="11", gone="1")
    actions: list[NodeAction] = [*down("n1"), *up("n5"), weights, KeepAwake(nodes=("n2", "gone"), reason="soon")]
    outcomes = nodes_of(slurm).steer(asked_of_nodes(actions))
    power_setting, weight, kept = NodeSetting.POWER, NodeSetting.WEIGHT, NodeSetting.KEEP_AWAKE
    sleeping, waking = "IDLE+POWERED_DOWN", "IDLE+POWER_UP+POWERED_DOWN"
    assert [told(outcome) for outcome in outcomes] == [
        ("PowerDown", power_setting, "n1", Result.DONE, "nothing to do", "IDLE", "IDLE+POWER_DOWN"),
        ("PowerUp", power_setting, "n5", Result.DONE, "wanted soon", sleeping, waking),
        ("RevertNodes", weight, "n3", Result.UNCHANGED, "stop", "Weight 10", "Weight 10"),
        ("RevertNodes", weight, "n4", Result.DONE, "stop", "Weight 10", "Weight 11"),
        ("RevertNodes", weight, "gone", Result.GONE, "stop", "", ""),
        ("KeepAwake", kept, "", Result.DONE, "soon", "SuspendExcNodes (null)", "SuspendExcNodes n2"),
    ]
    assert "gone" in outcomes[-1].remark
    assert [bool(outcome.remark) for outcome in outcomes] == [False, False, False, False, True, True]


def test_what_is_refused_or_waits_is_told_with_what_stands() -> None:
    slurm = SleepySlurm(a_raw_node("n1", state="MIXED", cpus_held=1), a_raw_node("n2", flags="POWERING_DOWN"))
    refused, waits = nodes_of(slurm).steer(asked_of_nodes([*down("n1"), *up("n2")]))
    assert told(refused)[2:] == ("n1", Result.REFUSED, "nothing to do", "MIXED", "")
    assert told(waits)[2:] == ("n2", Result.POSTPONED, "wanted soon", "IDLE+POWERING_DOWN", "")
    assert refused.remark and waits.remark
    assert slurm.written == []


def test_a_weight_or_a_list_that_nobody_can_read_is_refused() -> None:
    slurm = SleepySlurm(a_raw_node("n1", weight=10))
    cluster = nodes_of(slurm)
    weight = only(cluster.steer(asked_of_nodes([restore(NodeSetting.WEIGHT, n1="heavy")])))
    assert (weight.result, "heavy" in weight.remark) == (Result.REFUSED, True)
    own = RevertNodes(setting=NodeSetting.KEEP_AWAKE, own=(("", "n[1-"),), reason="stop")
    kept = only(cluster.steer(asked_of_nodes([own])))
    assert (kept.result, bool(kept.remark), slurm.lists) == (Result.REFUSED, True, [])


def test_taking_back_wakes_what_sleeps_and_sets_the_weight_of_before() -> None:
    slurm = SleepySlurm(asleep("n1", weight=10), a_raw_node("n2", weight=30))
    back = [restore(NodeSetting.POWER, n1=""), restore(NodeSetting.WEIGHT, n2="20.0")]
    assert [told(outcome) for outcome in nodes_of(slurm).steer(asked_of_nodes(back))] == [
        (
            "RevertNodes",
            NodeSetting.POWER,
            "n1",
            Result.DONE,
            "stop",
            "IDLE+POWERED_DOWN",
            "IDLE+POWER_UP+POWERED_DOWN",
        ),
        ("RevertNodes", NodeSetting.WEIGHT, "n2", Result.DONE, "stop", "Weight 30", "Weight 20"),
    ]


def test_of_writes_beyond_the_budget_wakes_come_before_lists_and_sleeps() -> None:
    slurm = SleepySlurm(a_raw_node("n1"), asleep("n2"), a_raw_node("n3", weight=1), a_raw_node("n4", weight=1))
    actions: list[NodeAction] = [*down("n1"), KeepAwake(nodes=("n3",), reason="soon"), *up("n2")]
    by_budget = []
    for most in (1, 2, 3):
        fresh = SleepySlurm(*(dict(node) for node in slurm.node.values()))  # type: ignore[arg-type]
        outcomes = nodes_of(fresh, writes_per_cycle=most).steer(asked_of_nodes(actions))
        by_budget.append([outcome.action for outcome in outcomes if outcome.result is Result.DONE])
    assert by_budget == [["PowerUp"], ["KeepAwake", "PowerUp"], ["PowerDown", "KeepAwake", "PowerUp"]]


# What the doctor says.

GOOD = {
    "SLURM_VERSION": "25.11.2",
    "ClusterName": "venus",
    "JobSubmitPlugins": "lua",
    "PriorityType": "priority/multifactor",
    "PriorityWeightPartition": "100000",
    "PriorityWeightAge": "7",
    "SchedulerParameters": "TIME_MIN_AS_SOFT_LIMIT",
    "SlurmUser": "slurm(64030)",
    "SuspendProgram": "/s",
    "ResumeProgram": "/r",
    "SuspendTime": "604800 sec",
    "SuspendTimeout": "30 sec",
    "ResumeTimeout": "300 sec",
    "SuspendRate": "60 nodes/min",
    "ResumeRate": "300 nodes/min",
    "BatchStartTimeout": "60 sec",
    "MessageTimeout": "10 sec",
    "PrivateData": "jobs,usage",
    "AccountingStorageTRES": "cpu,mem,energy,node,billing,fs/disk,vmem,pages,gres/gpu",
}

Examined = Callable[..., dict[str, PreflightFinding]]


@pytest.fixture
def examined(program: Program) -> Examined:
    def run(*, user: str = "helios", purge: str = "12 months", mechanism: str = "sleep", **changed: str) -> Any:
        folder = program("sdiag", f"echo 'sdiag output at Sat Nov 21 ({int(NOW.timestamp()) + 4})'")
        asked = f'echo "$*" >> {folder}/asked; '
        program("sacctmgr", f"{asked} case $* in *config) echo 'PurgeJobAfter = {purge}';; *) echo 'Operator';; esac")
        program(
            "scontrol",
            f"{asked} case $* in *node) echo 'NodeName=a Weight=1 X'; echo 'NodeName=b Weight=5 X';; "
            "update*) echo 'Invalid node name' >&2; exit 1;; esac",
        )
        findings = run_checks(
            shell=Shell(folder=str(folder)),
            configuration=lambda: GOOD | changed,
            user=user,
            site_factor_most=10_000,
            clock=lambda: NOW,
            more=power_checks(mechanism),
        )
        return {finding.check: finding for finding in findings}

    return run


def test_every_finding_of_a_well_set_cluster_says_what_was_found(examined: Examined) -> None:
    found = examined()
    assert {name: finding.verdict for name, finding in found.items()} == dict.fromkeys(found, FindingLevel.OK)
    facts = {
        "controller": ["venus", "25.11.2"],
        "priority": ["priority/multifactor"],
        "weights": ["Age 7", "Partition 100,000", "±10,000"],
        "soft limits": ["time_min_as_soft_limit"],
        "rate limit": ["not limited"],
        "power": ["on", "604800 sec"],
        "accounting": ["360 days"],
        "gpu accounting": ["gres/gpu"],
        "clock": [" 4 s"],
        "privileges": ["helios", "Operator"],
        "private data": ["jobs,usage"],
        "power programs": ["ResumeProgram is /r"],
        "idle timer": ["604800 s"],
        "power timeouts": ["30 s", "300 s", "60 s", "10 s"],
        "power rates": ["SuspendRate is 60", "ResumeRate is 300"],
        "administrator": ["helios"],
        "priority hook": ["JobSubmitPlugins is lua"],
    }
    assert found.keys() == facts.keys()
    missing = {name: word for name, words in facts.items() for word in words if word not in found[name].message}
    assert missing == {}


def test_the_doctor_asks_slurms_programs_with_these_words(examined: Examined, tmp_path: Path) -> None:
    examined()
    assert (tmp_path / "asked").read_text().splitlines() == [
        "--noheader --parsable2 show cluster format=cluster",
        "show config",
        "--all --oneliner show node",
        "--noheader --parsable2 show user name=helios format=AdminLevel",
        "update NodeName=helios-probe Weight=1",
    ]


@pytest.mark.parametrize(
    ("check", "changed", "message", "hint"),
    [
        ("controller", {"SLURM_VERSION": "21.08.8"}, "21.08.8", "shadow"),
        ("priority", {"PriorityType": "priority/basic"}, "priority/basic", "priority/multifactor"),
        ("priority", {"PriorityFlags": "INCR_ONLY"}, "INCR_ONLY", "INCR_ONLY"),
        ("weights", {"PriorityWeightPartition": "9992"}, "9,992", "9,999"),
        ("weights", {"PriorityWeightPartition": "0", "PriorityWeightAge": "0"}, "all 0", "Helios"),
        ("soft limits", {"SchedulerParameters": ""}, "time_min_as_soft_limit", "SchedulerParameters"),
        ("soft limits", {"SLURM_VERSION": "23.02.7"}, "time_min_as_soft_limit", "23.11"),
        ("rate limit", {"SlurmctldParameters": "RL_ENABLE"}, "rl_enable", "rl_bucket_size"),
        ("accounting", {"purge": "29 days"}, "29 days", "PurgeJobAfter"),
        ("privileges", {"user": "root"}, "root", "Operator"),
        ("power programs", {"ResumeProgram": "(null)"}, "ResumeProgram", "slurm.conf"),
        ("idle timer", {"SuspendTime": "INFINITE"}, "INFINITE", "SuspendTime=604800"),
        ("idle timer", {"SuspendTime": "86399 sec"}, "86399 s", "SuspendTime=604800"),
        ("idle timer", {"SuspendTime": "86400 sec", "mechanism": "keep_awake"}, "86400 s", "SuspendTime=600"),
        ("power timeouts", {"BatchStartTimeout": "59 sec"}, "59 s", "BatchStartTimeout=60"),
        ("power rates", {"ResumeRate": "0 nodes/min"}, "ResumeRate is 0", "0"),
        ("keep-awake list", {"mechanism": "keep_awake"}, "KeepPowerSaveSettings", "KeepPowerSaveSettings"),
        ("keep-awake list", {"mechanism": "keep_awake", "SLURM_VERSION": "22.05.8"}, "22.05.8", "23.02"),
    ],
)
def test_a_finding_names_the_setting_and_what_to_set(
    examined: Examined, check: str, changed: dict[str, str], message: str, hint: str
) -> None:
    found = examined(**changed)[check]
    assert message in found.message
    assert hint in found.hint
    assert found.verdict is not FindingLevel.OK


@pytest.mark.parametrize(
    ("check", "changed"),
    [
        ("controller", {"SLURM_VERSION": "22.05.0"}),
        ("controller", {"SLURM_VERSION": "26.05.1"}),
        ("weights", {"PriorityWeightPartition": "9993"}),
        ("soft limits", {"SLURM_VERSION": "23.11.0"}),
        ("accounting", {"purge": "30 days"}),
        ("accounting", {"purge": "NONE"}),
        ("idle timer", {"SuspendTime": "86400 sec"}),
        ("idle timer", {"SuspendTime": "86399 sec", "mechanism": "keep_awake"}),
        ("power timeouts", {"BatchStartTimeout": "10 sec", "ResumeTimeout": "60 sec"}),
        ("keep-awake list", {"mechanism": "keep_awake", "ReconfigFlags": "keeppowersavesettings"}),
    ],
)
def test_at_the_very_bound_nothing_is_wrong(examined: Examined, check: str, changed: dict[str, str]) -> None:
    found = examined(**changed)[check]
    assert (found.verdict, found.hint) == (FindingLevel.OK, "")


def test_the_controllers_time_is_read_of_sdiag_or_said_to_be_missing(program: Program) -> None:
    folder = program("sdiag", "echo '*****'; echo 'sdiag output at Sat (1795255200)'; echo 'Data since Fri (17)'")
    assert controllers_time(Shell(folder=str(folder))) == datetime.fromtimestamp(1_795_255_200, UTC)
    program("sdiag", "echo nothing")
    with pytest.raises(Exception, match="sdiag"):
        controllers_time(Shell(folder=str(folder)))


def test_sleeps_and_wakes_are_their_own_actions() -> None:
    slurm = SleepySlurm(a_raw_node("n1"))
    cluster = nodes_of(slurm)
    assert only(cluster.steer(asked_of_nodes([PowerUp(node="n1", reason="x")]))).result is Result.UNCHANGED
    assert only(cluster.steer(asked_of_nodes([PowerDown(node="n1", reason="x")]))).result is Result.DONE
    assert only(cluster.steer(asked_of_nodes([PowerDown(node="n1", reason="x")]))).result is Result.UNCHANGED


@pytest.mark.parametrize(
    "changed",
    [{"SuspendProgram": "(null)"}, {"SuspendTime": "NONE"}, {"SuspendTime": "INFINITE"}, {"SuspendTime": ""}],
)
def test_power_saving_is_off_without_its_program_or_its_time(examined: Examined, changed: dict[str, str]) -> None:
    assert examined(**changed)["power"].message == "power saving is off"


# What Slurm's commands print.

SQUEUE = """
import json, re, sys
words = next(word for word in sys.argv if word.startswith("--Format="))
fields = re.findall(r"([A-Z][A-Za-z]+|tres-[a-z-]+):([^,]*),?", words.removeprefix("--Format="))
for job in json.loads(JOBS):
    print("".join(job.get(name, "N/A") + end for name, end in fields))
"""
RUNNING = {
    "JobID": "12",
    "ArrayJobID": "10",
    "ArrayTaskID": "2",
    "HetJobID": "0",
    "RestartCnt": "3",
    "UserName": "alice",
    "GroupName": "staff",
    "Account": "lab",
    "QOS": "high",
    "Partition": "gpu",
    "State": "RUNNING",
    "Reason": "None",
    "SubmitTime": "1795255200",
    "EligibleTime": "1795255201",
    "StartTime": "1795255202",
    "TimeLimit": "1:00:00",
    "MinTime": "30:00",
    "NumNodes": "9",
    "NumCPUs": "9",
    "NumTasks": "2",
    "tres-alloc": "cpu=8,mem=16G,node=2,gres/gpu=4,gres/gpu:a100=4",
    "NodeList": "n[1-2]",
    "PriorityLong": "77",
    "Reservation": "maint",
    "Nice": "-5",
    "Name": "train",
}
PENDING = {
    "JobID": "20",
    "ArrayJobID": "20",
    "ArrayTaskID": "0-3",
    "HetJobID": "7",
    "HetJobOffset": "1",
    "State": "PENDING",
    "StartTime": "1795255300",
    "NumNodes": "2-4",
    "NumCPUs": "6",
    "NumTasks": "3",
    "tres-per-task": "gres/gpu:v100:2",
    "PriorityLong": "0",
    "Nice": "odd",
}


def test_a_job_that_squeue_prints_is_read_with_every_field(program: Program) -> None:
    folder = program("squeue", f'exec {sys.executable} $0.py "$@"')
    (folder / "squeue.py").write_text(SQUEUE.replace("JOBS", repr(json.dumps([RUNNING, PENDING]))))
    program("scontrol", show_config())
    runs, waits = CommandsBackend(commands_folder=str(folder)).queue()
    assert dict(runs) == {
        "job_id": "12",
        "restart": 3,
        "array_job_id": "10",
        "array_tasks": "2",
        "tasks": 1,
        "het_job_id": None,
        "het_job_offset": None,
        "name": "train",
        "user": "alice",
        "group": "staff",
        "account": "lab",
        "qos": "high",
        "partition": "gpu",
        "state": "RUNNING",
        "reason": None,
        "submitted": START,
        "eligible": START + 1,
        "started": START + 2,
        "planned_start": None,
        "time_limit_s": 3600.0,
        "time_min_s": 1800.0,
        "nodes": 2,
        "cpus": 8,
        "gpus": 4,
        "gpu_type": "a100",
        "shards": 0,
        "mps": 0,
        "memory_mib": 16_384.0,
        "node_list": "n[1-2]",
        "priority": 77,
        "reservation": "maint",
        "cron": False,
        "nice": -5,
    }
    assert {name: value for name, value in waits.items() if value is not None} == {
        "job_id": "20",
        "restart": 0,
        "array_job_id": "20",
        "array_tasks": "0-3",
        "tasks": 4,
        "het_job_id": "7",
        "het_job_offset": 1,
        "name": "N/A",
        "state": "PENDING",
        "submitted": 0,
        "planned_start": START + 100,
        "nodes": 2,
        "cpus": 6,
        "gpus": 6,
        "gpu_type": "v100",
        "shards": 0,
        "mps": 0,
        "priority": 0,
        "cron": False,
        "nice": 0,
    }


def test_a_node_that_scontrol_prints_is_read_with_every_field(program: Program) -> None:
    words = (
        "NodeName=n1 Arch=x86_64 CPUAlloc=4 CPUTot=64 ActiveFeatures=ib,nvlink Gres=gpu:a100:8(S:0-1) "
        "RealMemory=512000 State=IDLE+DRAIN* Weight=5 Partitions=gpu,big LastBusyTime=1795255200 "
        "AllocTRES=cpu=4,gres/gpu=2 Reason=bad disk [root@1795255200]"
    )
    folder = program(
        "scontrol", f"echo '{words}'; echo 'NodeName=n2 CPUAlloc=0 CPUTot=0 State=MIXED LastBusyTime=1795255200'"
    )
    first, second = CommandsBackend(commands_folder=str(folder)).nodes()
    assert dict(first) == {
        "name": "n1",
        "partitions": "gpu,big",
        "state": "IDLE",
        "flags": "DRAIN+NOT_RESPONDING",
        "cpus": 64,
        "cpus_held": 4,
        "gpus": 8,
        "gpus_held": 2,
        "gres": "gpu:a100:8(S:0-1)",
        "gpu_type": "a100",
        "memory_mib": 512_000.0,
        "weight": 5,
        "features": "ib,nvlink",
        "idle_since": START,
        "reason": "bad disk [root@1795255200]",
    }
    assert {name: value for name, value in second.items() if value} == {"name": "n2", "state": "MIXED"}


def test_the_earlier_value_is_told_where_nothing_was_written() -> None:
    slurm = SleepySlurm(a_raw_node("n1", weight=10), a_raw_node("n2", weight=10))
    spent = nodes_of(slurm, writes_per_cycle=0).steer(asked_of_nodes([restore(NodeSetting.WEIGHT, n1="10", n2="11")]))
    assert [(outcome.result, outcome.before) for outcome in spent] == [
        (Result.UNCHANGED, "Weight 10"),
        (Result.POSTPONED, "Weight 10"),
    ]


def test_partitions_are_asked_for_hidden_ones_included(program: Program) -> None:
    folder = program(
        "scontrol", 'echo "$*" > "$0.asked"; echo "PartitionName=gpu Nodes=n1"; echo "PartitionName=big X"'
    )
    assert set(partition_names(Shell(folder=str(folder)))) == {"gpu", "big"}
    assert (folder / "scontrol.asked").read_text() == "--all --oneliner show partition\n"
