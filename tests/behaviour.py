"""Freeze what Helios does in golden files, and compare with them after the code was restructured.

python -m tests.behaviour record|compare [--only NAME ...] [--traces DIR]

Three kinds of behaviour are kept under ``tests/golden/behaviour/``:

commands
    What each ``helios`` command prints with ``--json``, with its exit status and what it says on standard error, in
    a fresh home with a fresh SQLite warehouse. Commands that ask Slurm get recorded answers.
arrays
    Digests of the start and end times of each policy with each backfill in each replay engine.
cycles
    Audit rows of seeded control cycles on the fakes of :mod:`helios.testing`: of jobs, of nodes, and of a whole site.

Everything is compared as sorted, indented JSON, byte by byte; ``VARYING`` lists the exceptions. Figures are not
rounded, so record the files on the machine where you will compare, from the commit before your change.
"""

from __future__ import annotations

import argparse
import difflib
import gzip
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from email import message_from_bytes
from email.policy import default
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

# What follows is all that this module knows of Helios' names, with the functions of the section "Adapters" below.
from benchmarks.published.simulator import PublishedPolicy, replay_as_published
from helios.actions import (
    KeepAwake,
    NodeSetting,
    Place,
    PowerDown,
    PowerUp,
    Reorder,
    Revert,
    RevertNodes,
    SoftLimit,
)
from helios.app.scenarios import ORDERS as POLICIES
from helios.config import Control, Power, Settings, SlurmSettings
from helios.control import (
    ActiveService,
    ControllerState,
    Cycle,
    JobDomain,
    NodeControllerState,
    NodeDomain,
    Preconditions,
    ServiceMode,
    Undo,
    release,
    release_nodes,
)
from helios.model import DECISIONS, NODE_EVENTS, NODES, Mode
from helios.ports import Domain
from helios.simulate import Ageing, Backfill, ClusterShape, Placement, Reservation, WaitBound, Workload, replay
from helios.simulate.slurm import replay_slurm
from helios.testing import NOON, Crash, FakeCluster, FakeLedger, FakeNodes, a_node, a_use
from helios.warehouse import Warehouse
from tests.builders import a_batch, a_job
from tests.live.recorded import Recording, as_submitted
from tests.run_times import in_columns
from tests.traces import TRACES
from tests.unit.app.sites import FakeSite
from tests.unit.control.table import Says

REPOSITORY = Path(__file__).parents[1]
GOLDEN = Path(__file__).parent / "golden" / "behaviour"
ANSWERS = Path(__file__).parent / "golden" / "slurm-24.11"  # recorded on a running cluster, see tests/golden/record.py
RECORDING = Path(__file__).parent / "unit" / "simulate" / "slurm" / "recorded" / "slurm-22.05"
LARGE = 100_000  # characters from which a golden file is compressed, so that the repository stays small
SHOWN = 40  # lines of a difference

RENAMED: dict[str, str] = {}
"""Old word and new word, where a word changed on purpose: applied to the golden text before it is compared."""

Json = Any
Frame = pd.DataFrame


# Commands


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command line, and where it is typed.

    Attributes
    ----------
    name : str
        Name of the golden file.
    words : str
        What follows ``helios``; ``{folder}`` is a folder for files.
    code : int
        Exit status, for the reader; a differing one is a difference.
    live : bool
        Whether it is typed on the cluster of recorded answers, instead of on the site that has only a history.
    environment : str
        Variables besides, as ``NAME=VALUE NAME=VALUE``.
    files : tuple of str
        Files written in the folder, whose text is kept too.
    after : str
        Names of commands on whose effects it stands, or ``set-up``, where it stands on those of ``SET_UP`` without
        naming the cluster venus.
    """

    name: str
    words: str
    code: int = 0
    live: bool = False
    environment: str = ""
    files: tuple[str, ...] = ()
    after: str = ""


VENUS, KTH = "traces/helios_venus_users_may-jun2020.csv.gz", "traces/KTH-SP2-1996-2.1-cln.swf.gz"
PHILLY, SACCT = "traces/philly_vc_aug-oct2017.csv.gz", "traces/sacct_raw_phillips_dec2016.txt.gz"
SERIES, CEDAR = "traces/philly_nodes_oct-nov2017.csv.gz", "traces/sacct_cedar_may-jun2021.txt.gz"
ON_VENUS = "--cluster venus --nodes 14 --oversized skip --from 2020-06-12 --to 2020-06-12"
DAY = "--cluster frost -S 2021-03-02 -E 2021-03-02 --json"
SITE_FILES = "--slurm-conf recorded/slurm.conf --qos recorded/qos.txt --assoc recorded/assoc.txt"

# Run first, in this order: commands about the cluster venus stand on what these load and learn.
SET_UP = (
    Command(name="db-upgrade", words="db upgrade --json"),
    Command(name="trace-load-venus", words=f"trace load {VENUS} --timezone Asia/Shanghai --cluster venus --json"),
    Command(name="trace-load-sacct", words=f"trace load {SACCT} --timezone America/New_York --cluster phillips --json"),
    Command(name="model-train", words="model train --cluster venus --to 2020-06-09 --json"),
    Command(name="model-train-later", words="model train --cluster venus --to 2020-06-12 --json"),
)
COMMANDS = (
    Command(name="config", words="config --json"),
    Command(name="notify", words="notify --json"),
    Command(name="trace-list", after="set-up", words="trace list --json"),
    Command(name="trace-load-again", words=f"trace load {VENUS} --timezone Asia/Shanghai --cluster venus --json"),
    Command(name="trace-load-swf", words=f"trace load {KTH} --cluster kth --json"),
    Command(name="trace-load-odd-rows", words="trace load recorded/odd.txt --cluster odd --json"),
    Command(name="trace-describe-odd", after="trace-load-odd-rows", words="trace describe --cluster odd --json"),
    Command(name="trace-rename", after="trace-load-odd-rows", words="trace rename odd even --json"),
    Command(name="trace-remove", after="trace-load-odd-rows trace-rename", words="trace remove even --yes --json"),
    Command(name="trace-describe", words="trace describe --cluster venus --json"),
    Command(name="trace-describe-file", words=f"trace describe --trace {CEDAR} --json"),
    Command(name="study", words="study --cluster venus --json"),
    Command(name="advise", words=f"advise --trace {SACCT} --json"),
    Command(name="study-file", words=f"study --trace {KTH} --json"),
    Command(name="model-list", words="model list --cluster venus --json"),
    Command(
        name="model-compare",
        words="model evaluate --model {first_model} --model {second_model} --cluster venus --json",
    ),
    Command(name="model-drift", words="model drift --cluster venus --to 2020-06-15 --json"),
    Command(name="model-promote", words="model promote {second_model} --cluster venus --why fresher --json"),
    Command(
        name="model-rollback",
        after="model-promote",
        words="model promote --previous --cluster venus --why worse --json",
    ),
    Command(name="why", words="why 11586 --cluster venus --json"),
    Command(name="why-prediction", words="why 11586 --cluster venus --prediction --json"),
    Command(
        name="model-evaluate",
        words="model evaluate --cluster venus --from 2020-06-14 --nodes 40 --json",
    ),
    Command(name="model-evaluate-file", words=f"model evaluate --trace {SACCT} --test-fraction 0.2 --draws 0 --json"),
    Command(name="whatif", words=f"whatif {ON_VENUS} --json"),
    Command(
        name="whatif-options",
        words=f"whatif {ON_VENUS} --warm-up 1d --policy fifo,qssf --set qssf.wait_share=0.8 --set fifo.patience=6h "
        "--json",
    ),
    Command(
        name="whatif-cpus",
        after="trace-load-swf",
        words="whatif --cluster kth --nodes 100 --gpus-per-node 1 --from 1997-01-06 --to 1997-02-05 --json",
    ),
    Command(name="why-replayed", words="why 11586 --cluster venus --nodes 80 --policy fifo --json"),
    Command(
        name="whatif-slurm",
        words=f"whatif slurm {SITE_FILES} --trace recorded/sacct.txt --set PriorityWeightFairshare=0 "
        "--service qssf --json",
    ),
    Command(name="whatif-service", words=f"whatif {ON_VENUS} --service qssf --json"),
    Command(
        name="rehearse-two",
        words=f"whatif {ON_VENUS} --service qssf --service soft_limits --set qssf.promote_after_s=7200 --draws 0 "
        "--json",
    ),
    Command(name="forecast", words=f"forecast --series {SERIES} --to 2017-10-30 --json"),
    Command(name="forecast-jobs", words="forecast --cluster venus --nodes 60 --to 2020-06-15 --json"),
    Command(name="whatif-energy", words=f"whatif energy --series {SERIES} --from 2017-10-30 --to 2017-10-30 --json"),
    Command(
        name="whatif-energy-jobs",
        words="whatif energy --cluster venus --nodes 60 --from 2020-06-15 --to 2020-06-15 --json",
    ),
    Command(name="report-usage", words=f"report usage {DAY}"),
    Command(name="report-usage-text", words="report usage --cluster frost -S 2021-03-02 -E 2021-03-02"),
    Command(name="report-usage-venus", words="report usage --cluster venus -S 2020-06-01 -E 2020-06-07 --json"),
    Command(name="report-usage-accounts", words=f"report usage --by account {DAY}"),
    Command(name="report-usage-partitions", words=f"report usage --by partition {DAY}"),
    Command(name="report-queue", words="report queue --cluster frost -E 2021-03-02T10:30 --json"),
    Command(name="report-queue-over-time", words=f"report queue {DAY}"),
    Command(name="report-predictions", words=f"report predictions {DAY}"),
    Command(name="report-decisions", words=f"report decisions {DAY}"),
    Command(name="report-decisions-services", words=f"report decisions --by service {DAY}"),
    Command(name="report-energy", words=f"report energy {DAY} --by partition"),
    Command(name="report-shadow", words="report shadow --cluster frost --day 2021-03-02 --nodes gpu=1,debug=1 --json"),
    Command(
        name="report-trials",
        words="report trials --cluster venus -S 2020-06-05 -E 2020-06-11 --nodes 80 --json",
    ),
    Command(
        name="report-trials-groups",
        words="report trials --cluster venus -S 2020-06-05 -E 2020-06-07 --nodes 80 --by group",
    ),
    Command(name="status", words="status --cluster frost --json"),
    Command(name="mode", words="mode --cluster frost --json"),
    Command(name="mode-set", words="mode qssf shadow --cluster frost --reason trial --json"),
    Command(name="hook-show-none", words="hook --json", code=1),
    Command(name="doctor-without-slurm", words="doctor --cluster frost --json", code=1),
    Command(name="try", words="try --days 3 --out {folder}/try --json"),
    Command(name="slurm-history", words=f"trace load {SACCT} --timezone UTC --cluster chroot --json", live=True),
    Command(name="slurm-sync", words="trace sync --from {yesterday} --json", live=True),
    Command(name="slurm-doctor", words="doctor --json", code=1, live=True),
    Command(name="slurm-mode", words="mode qssf shadow --json", live=True),
    Command(name="slurm-turn-shadow", after="slurm-history slurm-sync", words="cycle --apply --json", live=True),
    Command(name="slurm-turn-active", after="slurm-history slurm-sync", words="cycle --as active --json", live=True),
    Command(name="slurm-why", after="slurm-history slurm-sync", words="why 17 --json", live=True),
    Command(name="slurm-power-status", words="power --json", live=True),
    Command(name="slurm-power-turn", words="cycle nodes --as active --json", live=True),
    Command(name="slurm-power-clear", words="power --clear all --json", live=True),
    Command(name="power-weights", words="power weights --slurm-conf recorded/slurm.conf --json"),
    Command(
        name="slurm-hook-publish",
        after="slurm-history slurm-sync",
        words="hook --publish",
        live=True,
        environment="HELIOS_HOOK_PUBLISH=true",
    ),
    Command(
        name="slurm-hook-show",
        after="slurm-hook-publish",
        words="hook --json",
        live=True,
        environment="HELIOS_HOOK_PUBLISH=true",
    ),
    Command(name="slurm-hook-retract", after="slurm-hook-publish", words="hook --retract", live=True),
    Command(name="slurm-pause", words="pause --reason trial --json", code=1, live=True),
    Command(name="slurm-resume", after="slurm-pause", words="resume", live=True),
)
LEFT_OUT = {
    "compile": "it answers with a count and a folder",
    "daemon": "it runs until it is told to stop; what its cycles do is in the cycles",
    "db grant": "it needs PostgreSQL",
    **dict.fromkeys(
        ("pool best", "pool retry", "pool show", "pool status", "pool stop"),
        "they tell of a folder with times and processes; tests/story/test_pool_questions.py reads their answers",
    ),
    "pool load": "it reads what a pool wrote; tests/story/test_pool.py reads it back",
    "pool run": "its times and memory differ each time; tests/story/test_pool.py reads its answer",
    "pool submit": "its script names folders of the machine; tests/story/test_pool.py runs it",
    "pool whatif": "it needs a sweep file; tests/unit/training/test_whatif.py holds its answer",
    "report use": "nothing of use is in that history; tests/unit/job_use/test_report.py reads its answer",
    "study sharing": "nothing of use is in that history; tests/unit/study/test_sharing.py reads its answer",
    "trace use": "it reads what others wrote; tests/story/test_job_use.py reads its answer",
    "study compare": "it reads what two studies wrote; tests/unit/study/test_study.py compares such",
    "trace export": "it draws a key and writes files; tests/unit/study/export/test_export.py reads them back",
    "web": "it serves until it is told to stop; tests/unit/web asks every page",
    "setup": "it writes files; tests/unit/app/test_setup.py reads them back",
    "nightly": "its window ends now; tests/unit/app/test_nightly.py holds its parts",
}
"""Commands that are not frozen, and why."""

INHERITED = ("PYTHONHASHSEED", "NUMBA_CACHE_DIR", "LD_LIBRARY_PATH")


class Site:
    """A folder with a home, a database and traces, in which commands are typed."""

    def __init__(self, folder: Path, *, traces: Path, live: bool) -> None:
        self.folder = folder
        self._began = datetime.now(UTC)
        self._traces = traces
        for name in ("home", "work", "bin"):
            (folder / name).mkdir(parents=True)
        (folder / "work" / "traces").symlink_to(traces, target_is_directory=True)
        write_inputs(folder / "work" / "recorded")
        if live:
            stand_in_for_slurm(folder / "bin")
            (folder / "work" / "helios.toml").write_text(LIVE_SETTINGS, encoding="utf-8")
        self._environment = {name: os.environ[name] for name in INHERITED if name in os.environ} | {
            "PATH": str(folder / "bin"),
            "HOME": str(folder / "home"),
            "LOGNAME": "operator",
            "TZ": "UTC",
            "LC_ALL": "C.UTF-8",
            "OMP_NUM_THREADS": "1",  # sums of floats depend on the number of threads
            "PYTHONPATH": str(REPOSITORY),
            "HELIOS_DATABASE_URL": self.url,
            "HELIOS_CONTROL_STATE_FOLDER": str(folder / "work" / "state"),
            "HELIOS_SLURM_BACKEND": "commands",
            "HELIOS_SLURM_COMMANDS": str(folder / "bin"),
        }

    @property
    def url(self) -> str:
        """URL of the database."""
        return f"sqlite:///{self.folder / 'work' / 'helios.db'}"

    def type(self, command: Command, known: Mapping[str, str]) -> dict[str, Json]:
        """Run a command and return what it answered."""
        words = shlex.split(command.words.format_map({"folder": "files", **known}))
        (self.folder / "work" / "files").mkdir(exist_ok=True)
        done = subprocess.run(
            [sys.executable, "-m", "helios", *words],
            cwd=self.folder / "work",
            env=self._environment | dict(pair.split("=", 1) for pair in command.environment.split()),
            capture_output=True,
            text=True,
            check=False,
        )
        texts = {name: _read_text(self.folder / "work" / "files" / name) for name in command.files}
        answer: dict[str, Json] = {
            "command": f"helios {' '.join(words)}",
            "exit": done.returncode,
            "printed": _read_json(done.stdout),
            # Whether something is compiled depends on the cache.
            "said": [line for line in done.stderr.splitlines() if not line.startswith("Compiling, once")],
            "files": {name: text.splitlines() for name, text in texts.items()},
        }
        return answer

    def normalized(self, answer: Json) -> Json:
        """Return an answer without what varies from run to run."""
        return _without_what_varies(answer, self._replacements())

    def _replacements(self) -> list[tuple[re.Pattern[str], Callable[[re.Match[str]], str]]]:
        folders = {self.folder: "FOLDER", self._traces.resolve(): "TRACES", REPOSITORY: "REPOSITORY"}
        named = [(re.compile(re.escape(str(folder))), lambda _, word=word: word) for folder, word in folders.items()]
        patterns = [(re.compile(pattern), lambda _, word=word: word) for pattern, word, _ in VARYING]
        return [*named, (MOMENT, self._moment), *patterns]

    def _moment(self, found: re.Match[str]) -> str:
        at = pd.Timestamp(found[0].removesuffix(" UTC"))
        at = at.tz_localize("UTC") if at.tzinfo is None else at
        during = self._began - timedelta(minutes=2) <= at <= datetime.now(UTC) + timedelta(minutes=2)
        return "NOW" if during else found[0]


MOMENT = re.compile(r"20\d\d-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:\+00:00|Z| UTC)?")
"""A moment within the run itself is replaced by NOW; others are data."""

VARYING = (
    (r"\(Python [\d.]+\)", "(Python VERSION)", "the interpreter is not Helios"),
    (r"clock differs by \d+ s", "clock differs by SOME SECONDS", "the answer of sdiag takes its time"),
    (
        r"(?<!who had )\bwaited [\d.]+ (s|min|h|days?)\b",
        "waited SOME TIME",
        "a job of the recorded answers has waited until now",
    ),
    (
        r"predicted [^;]* on (\d+ GPUs?): [\d.,]+ [\w-]+; waited SOME TIME(, which counts as 1/[\d.,]+ of that)?",
        "predicted SOME TIME; waited SOME TIME",
        "the prediction knows the hour at which the recorded answers are read",
    ),
    (
        r"counts as 1/[\d.,]+ of that",
        "counts as SOME SHARE of that",
        "a job of the recorded answers has waited until now",
    ),
)
"""Pattern, replacement and reason of what varies in texts."""

VARYING_KEYS = {
    "expires_at": "some hours from now",
    "end_p10_at": "a forecast counts from now",
    "end_p50_at": "a forecast counts from now",
    "end_p90_at": "a forecast counts from now",
    "horizon_at": "a forecast counts from now",
    "p10_at": "a forecast counts from now",
    "p50_at": "a forecast counts from now",
    "p90_at": "a forecast counts from now",
    "waited_s": "a job of the recorded answers has waited until now",
}
"""Keys of JSON answers whose values vary, and why."""


def _without_what_varies(
    value: Json, replacements: Sequence[tuple[re.Pattern[str], Callable[[re.Match[str]], str]]]
) -> Json:
    if isinstance(value, str):
        for pattern, replacement in replacements:
            value = pattern.sub(replacement, value)
        return value
    if isinstance(value, list):
        return [_without_what_varies(item, replacements) for item in value]
    if isinstance(value, dict):
        return {
            key: "VARIES" if key in VARYING_KEYS and item is not None else _without_what_varies(item, replacements)
            for key, item in value.items()
        }
    return value


def _read_text(path: Path) -> str:
    """Return a file's text, of a mail without the page that is attached."""
    if path.suffix == ".eml":
        body = message_from_bytes(path.read_bytes(), policy=default).get_body()
        assert body is not None
        return str(body.get_content())
    return path.read_text(encoding="utf-8")


def _read_json(text: str) -> Json:
    try:
        return json.loads(text)
    except ValueError:
        return text.splitlines()


def write_inputs(folder: Path) -> None:
    """Write the small files that commands read: a recorded site, odd rows."""
    folder.mkdir()
    recording = Recording.read(RECORDING)
    for name, text in recording.texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    lines = [_as_sacct(job) for job in as_submitted(recording).jobs.to_dict("records")]
    (folder / "sacct.txt").write_text("\n".join([SACCT_FIELDS, *lines]) + "\n", encoding="utf-8")
    odd = [line.replace("COMPLETED", "NOWHERE") for line in lines[:2]]
    odd += [lines[2].replace("|", ""), lines[3].replace("2", "x", 3), *lines[4:10]]
    (folder / "odd.txt").write_text("\n".join([SACCT_FIELDS, *odd]) + "\n", encoding="utf-8")


SACCT_FIELDS = (
    "JobIDRaw|JobID|Partition|QOS|Account|User|Submit|Eligible|Start|End|State|NNodes|ReqCPUS|ReqTRES|Timelimit"
)


def _as_sacct(job: Mapping[Any, Any]) -> str:
    """Write a job as ``sacct -P`` does, in whole seconds."""
    times = [
        pd.Timestamp(job[f"{name}_at"]).strftime("%Y-%m-%dT%H:%M:%S")
        for name in ("submitted", "eligible", "started", "ended")
    ]
    task = job["array_task_id"]
    tres = f"cpu={job['cpus']:g},mem={job['memory_mib']:g}M,node={job['nodes']:g}"
    limit_s = int(job["time_limit_s"])
    fields = [
        job["job_id"],
        f"{job['array_job_id']}_{task}" if isinstance(task, str) else job["job_id"],
        *(job[name] for name in ("partition", "qos", "account", "user")),
        *times,
        "COMPLETED",
        f"{job['nodes']:g}",
        f"{job['cpus']:g}",
        f"{tres},gres/gpu={job['gpus']:g}" if job["gpus"] else tres,
        f"{limit_s // 3600:02}:{limit_s // 60 % 60:02}:00",
    ]
    return "|".join(map(str, fields))


# The recorded jobs wait ever longer, so that in the end all of them would be promoted.
LIVE_SETTINGS = """
[services.qssf]
promote_after_s = 1e10

[services.soft_limits]

[services.ces]
"""
SLURM = ("squeue", "scontrol", "sprio", "sacct", "sacctmgr", "sdiag", "sinfo", "sshare")
STAND_IN = """#!{python} -S
import re, sys, time
name, words = sys.argv[0].rpartition("/")[2], sys.argv[1:]
nouns = "-".join([name, *(word for word in words if re.fullmatch("[a-z]+", word))])
option = dict(word.split("=", 1) for word in words if "=" in word)
if name == "sdiag":
    print(f"sdiag output at {{time.ctime()}} ({{int(time.time())}})")
elif nouns == "sacctmgr-show-cluster":
    print("chroot")
elif nouns == "scontrol-show-partition":
    print("PartitionName=gpu Nodes=ALL State=UP")
elif name == "sacct":
    print("".join(field + option["--delimiter"] for field in option["--format"].split(",")))
elif nouns == "sacctmgr-show-event":
    pass
else:
    try:
        answer = open(f"{answers}/{{nouns}}.txt", "rb").read()
    except FileNotFoundError:
        sys.exit(f"{{nouns}}: not recorded")
    for nonce in re.findall(rb"\\x1e[0-9a-f]{{16}}", " ".join(words).encode()):
        answer = answer.replace(b"\\x1e<nonce>", nonce)
    sys.stdout.buffer.write(answer)
"""


def stand_in_for_slurm(folder: Path) -> None:
    """Write programs that answer as Slurm did when it was recorded, and refuse whatever would change something."""
    for name in SLURM:
        text = STAND_IN.format(python=sys.executable, answers=ANSWERS)
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)


def record_commands(folder: Path, traces: Path, only: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yield the name and text of each golden file of the commands."""
    asked = {command.name for command in COMMANDS} if not only or "commands" in only else set(only)
    for command in reversed(COMMANDS):
        asked |= set(command.after.split()) if command.name in asked else set()
    if any(command.live and command.name in asked for command in COMMANDS):  # each stands on what those before it did
        asked |= {command.name for command in COMMANDS if command.live}
    chosen = [command for command in COMMANDS if command.name in asked]
    if not chosen:
        return
    history, slurm = (Site(folder / name, traces=traces, live=name == "slurm") for name in ("history", "slurm"))
    known = {"yesterday": f"{datetime.now(UTC) - timedelta(days=1):%Y-%m-%d}"}
    on_venus = any("venus" in command.words or command.after == "set-up" for command in chosen)
    on_history = any(not command.live for command in chosen)
    for command in SET_UP if on_venus else SET_UP[:1] if on_history else ():
        answer = history.type(command, known)
        place = {"model-train": "first_model", "model-train-later": "second_model"}.get(command.name)
        if place:
            known[place] = answer["printed"]["model_id"]
        yield f"commands/{command.name}.json", pretty(history.normalized(answer))
    if on_history:
        add_operations(history.url)
    for command in chosen:
        site = slurm if command.live else history
        answer = site.normalized(site.type(command, known))
        if command.code != answer["exit"]:
            print(f"{command.name}: exit {answer['exit']}, not {command.code}: {answer['said'][-3:]}", flush=True)
        answer["command"] = answer["command"].replace(known["yesterday"], "YESTERDAY")
        yield f"commands/{command.name}.json", pretty(answer)


def add_operations(url: str) -> None:
    """Load a cluster called frost: three days of jobs, what was predicted and decided, and nodes that slept."""
    began, hour = pd.Timestamp("2021-03-01T00:00:00Z"), pd.Timedelta(hours=1)
    jobs = [
        a_job(
            job_id=str(1_000 + n),
            user=("alice", "bob", "carol")[n % 3],
            account=("lab", "hpc")[n % 2],
            partition="debug" if n % 7 == 0 else "gpu",
            state="FAILED" if n % 11 == 0 else "COMPLETED",
            submitted_at=began + n * hour / 2,
            started_at=began + (n + n % 4) * hour / 2 + pd.Timedelta(seconds=10),
            run_time_s=600.0 * (1 + n * 37 % 20),
            gpus=(1, 2, 4, 8)[n % 4],
            node_list=f"n{1 + n % 4}",
        )
        for n in range(144)
    ]
    predictions = pd.DataFrame(
        {
            "submitted_at": [job["submitted_at"] for job in jobs],
            "job_id": [job["job_id"] for job in jobs],
            "restart": np.zeros(len(jobs), dtype=np.int32),
            "p10_s": [0.3 * job["run_time_s"] for job in jobs],
            "p50_s": [(0.5 + n % 5 / 4) * job["run_time_s"] for n, job in enumerate(jobs)],
            "p90_s": [4.0 * job["run_time_s"] for job in jobs],
            "typical_s": [job["run_time_s"] for job in jobs],
            "mean_s": [1.5 * job["run_time_s"] for job in jobs],
            "truncated_mean_s": [min(1.5 * job["run_time_s"], 28_800.0) for job in jobs],
            "source": pd.Categorical(["frost-1" if n % 2 else "shrinkage: user" for n in range(len(jobs))]),
        }
    )
    outcomes = ("would", "done", "refused: the job is held", "unchanged", "mismatch: it reads 0")
    decisions = [
        {
            "decided_at": job["submitted_at"] + pd.Timedelta(minutes=1),
            "service": ("qssf", "soft_limits")[n % 7 == 3],
            "mode": "shadow" if n % 3 else "active",
            "action": ("Reorder", "SoftLimit")[n % 7 == 3],
            "target": job["job_id"],
            "reason": f"predicted {n} min",
            "after": f"urgency 0.{n % 10}",
            "model_id": "frost-1",
            "outcome": outcomes[n % 5],
        }
        for n, job in enumerate(jobs)
    ]
    events = [
        {
            "node": node,
            "state": "IDLE~",
            "started_at": began + (24 * day + 18) * hour,
            "ended_at": began + (24 * day + 30) * hour,
        }
        for day in range(3)
        for node in ("n3", "n4")
    ]
    nodes = [
        {"name": f"n{number}", "partition": partition, "gpus": 8}
        for partition in ("gpu", "debug")
        for number in range(1, 5)
    ]
    end = (began + pd.Timedelta(days=4)).to_pydatetime()
    with Warehouse.open(url) as warehouse:
        warehouse.load([a_batch(*jobs)], cluster="frost", path="made", sha256="0", format="sacct", timezone="UTC")
        warehouse.add_predictions("frost", predictions, made_at=began.to_pydatetime())
        warehouse.add_decisions("frost", DECISIONS.conform(pd.DataFrame(decisions)))
        warehouse.add_nodes("frost", NODES.conform(pd.DataFrame(nodes)))
        warehouse.add_node_events("frost", NODE_EVENTS.conform(pd.DataFrame(events)))
        for source in ("jobs", "node_events"):
            warehouse.add_coverage("frost", source=source, started_at=began.to_pydatetime(), ended_at=end, read_at=end)


# Arrays


def record_arrays(_: Path, traces: Path, only: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yield the name and text of each golden file of the replay engines."""
    if only and "arrays" not in only:
        return
    for name, (shape, jobs) in {"ties": made_with_ties(), "philly": some_of_philly(traces)}.items():
        yield f"arrays/{name}.json", pretty(dict(replays(shape, jobs)))
        yield f"arrays/{name}-published.json", pretty(dict(published_replays(shape, jobs)))
    yield "arrays/slurm.json", pretty(dict(slurm_replays()))


def made_with_ties() -> tuple[ClusterShape, Workload]:
    """Return a small workload in which many jobs are submitted, and would end, in the same second."""
    rng = np.random.default_rng(11)
    number = 600
    partition = rng.integers(0, 2, number).astype(np.int32)
    gpus = np.where(partition == 0, rng.choice([1, 1, 2, 4, 8, 16], number), rng.choice([1, 2, 3, 4, 12], number))
    return _shape(("a", 2, 8), ("b", 3, 4)), Workload(
        job_id=np.array([f"{n:04d}" for n in range(number)], dtype=object),
        submitted_s=np.sort(rng.integers(0, 200, number) * 100).astype(np.int64),
        run_time_s=rng.choice([0, 1, 100, 100, 200, 1_000], number).astype(np.int64),
        gpus=gpus.astype(np.int32),
        partition=partition,
    )


PHILLY_NODES = {"6214e9": 64, "7f04ca": 32, "11cb48": 16, "b436b2": 64, "ee9e8c": 64, "e13805": 16, "6c71a0": 32}
PHILLY_JOBS, PHILLY_SHARE = slice(20_000, 24_000), 0.15


def some_of_philly(traces: Path) -> tuple[ClusterShape, Workload]:
    """Return 4,000 jobs of Philly on so few of its nodes that they queue."""
    jobs = pd.read_csv(traces / PHILLY.rpartition("/")[2], dtype={"job_id": str}, parse_dates=["submit_time"])
    shape = _shape(*((name, max(2, round(PHILLY_SHARE * nodes)), 8) for name, nodes in PHILLY_NODES.items()))
    jobs = jobs[jobs["vc"].isin(list(PHILLY_NODES)) & (jobs["gpu_num"] > 0)]
    jobs = jobs.sort_values("submit_time", kind="stable").iloc[PHILLY_JOBS]
    partition = pd.Categorical(jobs["vc"], categories=list(PHILLY_NODES)).codes.astype(np.int32)
    fits = jobs["gpu_num"].to_numpy() <= shape.capacity[partition]
    jobs, partition = jobs[fits], partition[fits]
    return shape, Workload(
        job_id=np.array([f"{n:06d}" for n in range(len(jobs))], dtype=object),
        submitted_s=jobs["submit_time"].to_numpy(dtype="datetime64[s]").astype(np.int64),
        run_time_s=jobs["duration"].to_numpy(dtype=np.int64),
        gpus=jobs["gpu_num"].to_numpy(dtype=np.int32),
        partition=partition,
    )


def _shape(*partitions: tuple[str, int, int]) -> ClusterShape:
    names, nodes, gpus = zip(*partitions, strict=True)
    return ClusterShape(
        partitions=tuple(names),
        nodes=np.array(nodes, dtype=np.int32),
        gpus_per_node=np.array(gpus, dtype=np.int32),
    )


class Irregular:
    """A predictor that goes by a job's position and by how many jobs have ended."""

    def __init__(self) -> None:
        self._ended = 0

    def ended(self, jobs: Any, ended_s: Any) -> None:
        self._ended += len(jobs)

    def submitted(self, jobs: Any, now_s: int) -> Any:
        return in_columns(np.outer(300.0 * (1 + jobs * 7_919 % 13) + self._ended % 97, [0.3, 1.0, 3.0]))

    def waiting(self, jobs: Any, now_s: int, **running: Any) -> Any:
        return 1.5 * self.submitted(jobs, now_s)


def replays(shape: ClusterShape, jobs: Workload) -> Iterator[tuple[str, Json]]:
    """Yield a digest of each policy with each backfill, and of each option once."""
    true = jobs.run_time_s
    for policy, order in POLICIES.items():
        preemptive = policy == "srtf"
        for backfill in Backfill:
            if preemptive and backfill not in {Backfill.NONE, Backfill.SKIP}:
                continue
            plans: dict[str, Any] = {"true": true}
            if backfill in {Backfill.EASY, Backfill.NODES}:
                plans |= {"half": np.maximum(true // 2, 1), "constant": np.full(len(true), 3_600)}
            for plan, estimate_s in plans.items():
                yield (
                    f"{policy} {backfill} {plan}",
                    _digests(
                        jobs,
                        replay(
                            jobs,
                            shape,
                            backfill=backfill,
                            order=order,
                            preemptive=preemptive,
                            run_time_s=None if preemptive else true.astype(np.float64),
                            estimate_s=None if preemptive else estimate_s.astype(np.int64),
                        ),
                    ),
                )
    known = {"run_time_s": true.astype(np.float64), "estimate_s": true}
    for name, options in OPTIONS.items():
        for backfill in Backfill:
            if "reservation" in options and backfill is not Backfill.NODES:
                continue
            told = {"predictor": Irregular()} if "predictor" in options else known
            done = replay(jobs, shape, backfill=backfill, order=POLICIES["qssf"], **(options | told))
            yield f"qssf {backfill}, {name}", _digests(jobs, done)


# Of a replay; a new predictor is made for each.
OPTIONS: dict[str, dict[str, Any]] = {
    "constant guard": {"guard": WaitBound.constant(3_600)},
    "aged": {"ageing": Ageing(at_s=np.array([0, 10**9]), tau_s=np.array([3_600.0, 7_200.0]))},
    "closed reservation": {"reservation": Reservation(closed=True), "guard": WaitBound.constant(3_600)},
    "reservation with idle GPUs": {"reservation": Reservation(idle_gpus=2)},
    "spread": {"placement": Placement.SPREAD},
    "random": {"placement": Placement.RANDOM, "seed": 5},
    "weighted, nodes counted": {"placement": Placement.WEIGHTED, "count_nodes": True},
    "predicted": {"predictor": Irregular},
    "predicted again": {"predictor": Irregular, "predict_again_s": 600, "plan_quantile": None},
}


def published_replays(shape: ClusterShape, jobs: Workload) -> Iterator[tuple[str, Json]]:
    """Yield a digest of each policy of the published simulator, which knows no job of length 0."""
    longer = replace(jobs, run_time_s=np.maximum(jobs.run_time_s, 1))
    for policy in PublishedPolicy:
        priority = (longer.gpus * longer.run_time_s).astype(np.float64) if policy is PublishedPolicy.QSSF else None
        done = replay_as_published(longer, shape, policy=policy, priority=priority)
        yield str(policy), _digests(longer, done) | {"queue_s": _digest(done.queue_s), "stops": int(done.stops.sum())}


def slurm_replays() -> Iterator[tuple[str, Json]]:
    """Yield digests of a recorded site under Slurm's rules: as it was, and with SiteFactors."""
    recording = Recording.read(RECORDING)
    submitted = as_submitted(recording).workload
    factors = (np.arange(len(submitted.job_id)) * 7_919 % 20_001 - 10_000).astype(np.int64)
    for name, factor in {"as it was": None, "with SiteFactors": factors}.items():
        done = replay_slurm(submitted, recording.site, site_factor=factor)
        yield (
            name,
            {
                "started": _digest(np.rint(done.started_s * 1_000)),
                "ended": _digest(np.rint(done.ended_s * 1_000)),
                "partition": _digest(done.partition),
                "first_started_s": [float(at) for at in done.started_s[:5]],
                "backfilled": int(done.backfilled.sum()),
                "passes": [done.main_passes, done.backfill_passes, done.backfill_tests],
            },
        )


def _digests(jobs: Workload, done: Any) -> dict[str, Json]:
    wait_s = done.started_s - jobs.submitted_s
    return {
        "started": _digest(done.started_s),
        "ended": _digest(done.ended_s),
        "first_started_s": [int(at) for at in done.started_s[:5]],
        "longest_wait_s": int(wait_s.max()),
        "mean_wait_s": round(float(wait_s.mean()), 3),
    }


def _digest(array: Any) -> str:
    return hashlib.sha256(np.ascontiguousarray(array, dtype="<i8").tobytes()).hexdigest()


# Cycles


WORLDS, CYCLES = 8, 25
MINUTE = timedelta(minutes=1)
MODES = (
    ServiceMode(mode=Mode.OFF),
    ServiceMode(mode=Mode.SHADOW),
    ServiceMode(mode=Mode.CANARY, partitions=("gpu",)),
    ServiceMode(mode=Mode.CANARY, percent=50),
    ServiceMode(mode=Mode.ACTIVE),
    ServiceMode(mode=Mode.ACTIVE),
    ServiceMode(mode=Mode.ACTIVE),
)


def record_cycles(folder: Path, _: Path, only: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yield the name and text of each golden file of the control cycles."""
    worlds: dict[str, Callable[[], Iterable[Json]]] = {
        "jobs": lambda: (line for seed in range(WORLDS) for line in JobWorld(seed).story()),
        "nodes": lambda: (line for seed in range(WORLDS) for line in NodeWorld(seed).story()),
        "site": lambda: site_story(folder / "site"),
    }
    for name, story in worlds.items():
        if not only or only & {name, "cycles"}:
            yield f"cycles/{name}.jsonl", "".join(f"{_line(line)}\n" for line in story())


class World:
    """What both kinds of worlds share: a seeded chance, services, and the conditions of a cycle."""

    services: tuple[str, ...]
    cluster: Any

    def __init__(self, seed: int, *, domain: Domain) -> None:
        self.seed = seed
        self.rng = np.random.default_rng([seed, len(domain.value)])
        self.ledger = FakeLedger(domain=domain)
        self.says = {name: Says() for name in self.services}
        self.modes = dict.fromkeys(self.services, ServiceMode(mode=Mode.ACTIVE))
        self.now = NOON
        self.problem: dict[str, Any] = {}
        self.pause_asked = ""
        self.controller = 1
        self.events: list[str] = []

    def story(self) -> Iterator[Json]:
        """Take the turns and yield a line for each, and one for what stands at the end."""
        for cycle in range(CYCLES):
            self.events = []
            self.cluster.tick(timedelta(seconds=self.step_s()))
            self.now = self.cluster.now
            self.people()
            self.overridden()
            self.disturb()
            self.propose()
            yield {"world": self.seed, "cycle": cycle, "events": self.events, **self.take_cycle()}
        self.ledger.fail_next(times=0)
        yield {"world": self.seed, "applied_changes": _rows(self.ledger.applied_changes()), **self.left()}

    # What each kind of world has of its own: how long until the next cycle, who does what, and what is left in the end.

    def step_s(self) -> int:
        raise NotImplementedError

    def people(self) -> None:
        raise NotImplementedError

    def overridden(self) -> None:
        raise NotImplementedError

    def propose(self) -> None:
        raise NotImplementedError

    def take_cycle(self) -> dict[str, Json]:
        raise NotImplementedError

    def left(self) -> dict[str, Json]:
        raise NotImplementedError

    def happens(self, chance: float) -> bool:
        return bool(self.rng.random() < chance)

    def one_of(self, choices: Sequence[Any]) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def some_of(self, choices: Sequence[Any], most: int) -> list[Any]:
        number = int(self.rng.integers(0, min(most, len(choices)) + 1))
        return [choices[int(place)] for place in self.rng.permutation(len(choices))[:number]]

    def number(self, least: int, most: int) -> int:
        return int(self.rng.integers(least, most + 1))

    def note(self, *words: object) -> None:
        self.events.append(" ".join(map(str, words)))

    def active_services(self) -> list[ActiveService]:
        return [ActiveService(name=name, service=self.says[name], mode=self.modes[name]) for name in self.services]

    def conditions(self, _: Any) -> Preconditions:
        usual: dict[str, Any] = {
            "controller": f"ctl{self.controller}",
            "history_read_at": self.now,
            "model_trained_at": self.now,
            "clock_skew_s": 0.0,
        }
        return Preconditions(**(usual | self.problem))

    def disturb(self) -> None:
        """Let something go wrong around the cycle, or not."""
        self.problem, self.pause_asked = {}, ""
        if self.happens(0.15):
            self.problem = self.one_of(
                [
                    {"paused": "maintenance"},
                    {"clock_skew_s": None},
                    {"clock_skew_s": 95.0},
                    {"history_read_at": None},
                    {"history_read_at": self.now - timedelta(hours=7)},
                    {"model_trained_at": self.now - timedelta(days=40)},
                    {"model_problem": "its bytes are damaged"},
                    {"released": "helios-release.sh"},
                    {"model_problem": "errors have grown"},
                ]
            )
            self.note("trouble", sorted(self.problem))
        if self.happens(0.05):
            self.pause_asked = "in the middle of a cycle"
            self.note("a pause is asked for during the cycle")
        if self.happens(0.04):
            self.controller += 1
            self.note("another controller answers")
        if self.happens(0.06):
            after = self.number(0, 3)
            self.ledger.fail_next(after=after)
            self.note("the ledger fails after", after)
        if self.happens(0.04):
            self.ledger.fail_next(times=0)
            self.ledger.acquire(holder="helios-2", now=self.now, lasts=timedelta(minutes=self.number(1, 5)))
            self.note("another Helios takes the lease")
        for name in self.services:
            if self.happens(0.12):
                self.modes[name] = self.one_of(MODES)
                self.note(name, "is now", self.modes[name].mode.value)
            self.says[name].raises = RuntimeError("no luck") if self.happens(0.07) else None


class JobWorld(World):
    """A cluster of three partitions, people, admins and three services that act on jobs."""

    services = ("qssf", "node_fill_order", "soft_limits")

    def __init__(self, seed: int) -> None:
        super().__init__(seed, domain=Domain.JOBS)
        self.cluster = FakeCluster(
            now=NOON,
            nodes=[a_node(name=f"node{n}", partitions=("gpu", "debug", "gpu,debug")[n % 3]) for n in range(6)],
            soft_limits=seed % 4 != 3,
            writes_per_cycle=(None, 6)[seed % 2],
        )
        self.settings = Settings(
            control=Control(most_of_one_user=(0.5, 1.0, 0.2)[seed % 3]),
            slurm=SlurmSettings(writes_per_cycle=(500, 3)[seed % 4 == 2]),
        )
        self.memory = ControllerState()
        self.pending: list[str] = []
        self.running: list[str] = []
        self.submitted = 0

    def step_s(self) -> int:
        return self.number(20, 200)

    def left(self) -> dict[str, Json]:
        self.cluster.fail_next(times=0)
        queue = [[job, self.cluster.site_factor_of(job), self.cluster.time_min_of(job)] for job in self.cluster.queue]
        return {"queue": queue}

    def take_cycle(self) -> dict[str, Json]:
        common = {"cluster": self.cluster, "ledger": self.ledger, "now": self.now, "holder": "helios-1"}
        try:
            if self.happens(0.03):
                return {"released": _job_report(release(**common, reason="a person asks"))}
            domain = JobDomain(common.pop("cluster"), self.settings)
            cycle = Cycle(
                **common,
                domain=domain,
                settings=self.settings,
                memory=ControllerState.from_json(self.memory.to_json()),
                paused=lambda: self.pause_asked,
            )
            report = cycle.run(self.active_services(), expectation=self.expect, conditions=self.conditions)
        except Crash as crash:
            return {"crash": str(crash)}
        if report.leads:
            self.memory = report.memory
        return _job_report(report) | {"memory": json.loads(report.memory.to_json())}

    def expect(self, snapshot: Any) -> Any:
        pending = snapshot.pending
        known = pending.assign(
            p50_s=pending["p50_s"].fillna(60.0), source=pd.Series("m1", pending.index, dtype="category")
        )
        return replace(snapshot, pending=known)

    def people(self) -> None:
        for _ in range(self.number(0, 3) + 4 * (len(self.pending) < 4)):
            self.submitted += 1
            job, columns = f"{1000 * self.seed + self.submitted}", self.a_job()
            self.cluster.submit(job_id=job, **columns)
            self.pending.append(job)
            self.note("submit", job, columns["user"], columns["partition"])
        for job in self.some_of(self.pending, 2):
            self.cluster.start(job)
            self.pending.remove(job)
            self.running.append(job)
            self.note("start", job)
        for job in self.some_of(self.running, 2):
            self.running.remove(job)
            if self.happens(0.2):
                self.cluster.requeue(job)
                self.pending.append(job)
                self.note("requeue", job)
            else:
                self.cluster.end(job)
                self.note("end", job)
        if self.pending and self.happens(0.1):
            job = self.one_of(self.pending)
            self.cluster.alter(job, time_limit_s=1_800.0 * self.number(1, 4), partition=self.one_of(("gpu", "debug")))
            self.note("alter", job)

    def a_job(self) -> dict[str, Any]:
        columns: dict[str, Any] = {
            "user": self.one_of(("alice", "bob", "carol", "dan")),
            "partition": self.one_of(("gpu", "gpu", "debug", "gpu,debug")),
            "gpus": self.one_of((0, 1, 1, 2, 8)),
            "time_limit_s": self.one_of((600.0, 3_600.0, 86_400.0, None)),
        }
        if self.happens(0.15):
            columns["tasks"] = self.number(2, 9)
        if self.happens(0.1):
            columns["user_soft_limit_s"] = 600.0
        if self.happens(0.1):
            columns["eligible_at"] = self.now + timedelta(minutes=5)
        if self.happens(0.1):
            columns["urgency"] = self.number(-9, 9) / 10
        return columns

    def overridden(self) -> None:
        if not self.pending or not self.happens(0.4):
            return
        deed = self.number(0, 6)
        set_by_somebody = [job for job in self.pending if self.cluster.site_factor_of(job)]
        job = self.one_of(set_by_somebody if deed in {3, 4} and set_by_somebody else self.pending)
        if deed == 0:
            self.cluster.hold(job)
        elif deed == 1:
            self.cluster.unhold(job)
        elif deed == 2:
            self.cluster.admin_sets_priority(job, float(self.number(0, 9)))
        elif deed in {3, 4}:
            self.cluster.admin_sets_site_factor(job, self.one_of((0, 0, 0, 500, -1_237)))
        elif deed == 5:
            self.cluster.admin_sets_time_min(job, self.one_of((0, 10, 17)))
        else:
            self.cluster.refuse_writes(job, answer=self.one_of(("", "Access/permission denied")))
        self.note("admin", ("hold", "unhold", "priority", "factor", "factor", "TimeMin", "refuse")[deed], job)
        if self.happens(0.1):
            self.cluster.fail_next(times=self.number(1, 2))
            self.note("the cluster fails")
        if self.happens(0.15):
            self.cluster.swallow_writes(times=self.number(1, 4))
            self.note("writes are swallowed")
        if self.happens(0.05):
            self.cluster.crash_after(writes=self.number(0, 3))
            self.note("a crash is near")

    def propose(self) -> None:
        jobs = [*self.pending, *self.running[:1], "nobody"]
        for name in ("qssf", "node_fill_order"):
            if self.happens(0.6):
                urgencies = {job: self.number(-100, 100) / 100 for job in self.some_of(jobs, 7)}
                ranked = sorted(urgencies.items(), key=lambda item: (-item[1], item[0]))
                places = tuple(Place(job_id=job, urgency=by, reason=f"{job} is short") for job, by in ranked)
                partition = self.one_of(("gpu", "gpu", "debug"))
                self.says[name].actions = [Reorder(partition=partition, order=places, reason="short jobs first")]
        if self.happens(0.6):
            minutes = [timedelta(minutes=self.number(5, 90)) for _ in range(4)]
            self.says["soft_limits"].actions = [
                SoftLimit(job_id=job, run_time=run_time, reason="such jobs are short")
                for job, run_time in zip(self.some_of(jobs, 4), minutes, strict=False)
            ]
        if self.happens(0.1):
            chosen = None if self.happens(0.3) else tuple(self.some_of(jobs, 3))
            self.says["node_fill_order"].actions = [Revert(job_ids=chosen, reason="no longer wanted")]


class NodeWorld(World):
    """Twelve nodes of two partitions, jobs, admins and two services that act on nodes."""

    services = ("ces", "own")
    names = tuple(f"n{place}" for place in range(1, 13))

    def __init__(self, seed: int) -> None:
        super().__init__(seed, domain=Domain.NODES)
        self.cluster = FakeNodes(
            nodes=[
                a_node(name=name, partitions="gpu" if place < 6 else "debug", weight=20.0 * (1 + place % 3))
                for place, name in enumerate(self.names)
            ],
            keep_awake="n12",
            lax=seed % 2 == 0,
            suspend_timeout_s=90.0,
            can_keep_awake=seed % 4 != 3,
        )
        self.settings = Settings(
            power=Power(
                mechanism=("sleep", "sleep", "keep_awake")[seed % 3],
                most_in_transition=0.4,
                idle_s=60,
                payback_s=120,
                failures_to_protect=2,
            )
        )
        self.memory = NodeControllerState()
        self.undo = Undo()
        self.jobs: list[str] = []
        self.submitted = 0

    def step_s(self) -> int:
        return int(self.one_of((30, 60, 120, 120, 900)))

    def left(self) -> dict[str, Json]:
        nodes = [[name, str(self.cluster.power_of(name)), self.cluster.weight_of(name)] for name in self.names]
        return {"nodes": nodes, "keep_awake": self.cluster.keep_awake, "undo": repr(self.undo)}

    def take_cycle(self) -> dict[str, Json]:
        common = {
            "cluster": self.cluster,
            "ledger": self.ledger,
            "now": self.now,
            "holder": "helios-1",
            "undo": self.write_undo,
            "read_undo": lambda: self.undo,
        }
        try:
            if self.happens(0.03):
                return {"released": _node_report(release_nodes(**common, reason="a person asks", memory=self.memory))}
            memory = NodeControllerState.from_json(self.memory.to_json())
            domain = NodeDomain(common.pop("cluster"), self.settings, memory)
            cycle = Cycle(
                **common, domain=domain, settings=self.settings, memory=memory.cycle, paused=lambda: self.pause_asked
            )
            report = cycle.run(
                self.active_services(),
                expectation=lambda snapshot: replace(snapshot, use=a_use(at=snapshot.taken_at)),
                conditions=self.conditions,
            )
        except Crash as crash:
            return {"crash": str(crash)}
        if report.leads:
            self.memory = report.memory
        return _node_report(report) | {"memory": json.loads(report.memory.to_json())}

    def write_undo(self, undo: Undo) -> None:
        self.undo = undo

    def people(self) -> None:
        if self.happens(0.4):
            self.submitted += 1
            job, nodes = f"{1000 * self.seed + self.submitted}", self.one_of((1, 1, 2, 5))
            self.cluster.submit(job_id=job, nodes=nodes, partition=self.one_of(("gpu", "debug", "gpu,debug")))
            self.jobs.append(job)
            self.note("submit", job, nodes)
        for job in self.some_of(self.jobs, 2):
            self.jobs.remove(job)
            self.cluster.end(job)
            self.note("end", job)

    def overridden(self) -> None:
        name = self.one_of(self.names)
        activity: dict[str, Callable[[], object]] = {
            "drain": lambda: self.cluster.drain(name),
            "resume": lambda: self.cluster.resume(name),
            "take down": lambda: self.cluster.take_down(name),
            "reconfigure": self.cluster.reconfigure,
            "wakes fail": lambda: self.cluster.fail_wakes(name),
            "wakes succeed": lambda: self.cluster.fail_wakes(*self.names, fails=False),
            "sleeps": lambda: self.cluster.admin_powers_down(name),
            "wakes": lambda: self.cluster.admin_powers_up(name),
            "weighs": lambda: self.cluster.admin_sets_weight(name, 33),
            "lists": lambda: self.cluster.admin_sets_keep_awake("n[11-12]"),
            "refuses": lambda: self.cluster.refuse_writes(name, answer=self.one_of(("", "Invalid user id"))),
            "cluster fails": self.cluster.fail_next,
            "writes are swallowed": self.cluster.swallow_writes,
            "a crash is near": lambda: self.cluster.crash_after(writes=self.number(0, 3)),
        }
        if self.happens(0.45):
            deed = self.one_of(tuple(activity))
            activity[deed]()
            self.note("admin", deed, name)

    def propose(self) -> None:
        names = [*self.names, "nobody"]
        actions: list[Any] = []
        if self.happens(0.7):
            actions += [PowerDown(node=node, reason=f"{node} is idle") for node in self.some_of(names, 6)]
        if self.happens(0.4):
            actions += [PowerUp(node=node, reason=f"{node} will be needed") for node in self.some_of(names, 3)]
        if self.happens(0.3):
            actions.append(KeepAwake(nodes=tuple(self.some_of(names, 4)), reason="needed soon"))
        if self.happens(0.05):
            own = tuple((node, "20") for node in self.some_of(names, 2))
            actions.append(RevertNodes(setting=self.one_of(list(NodeSetting)), own=own, reason="no longer wanted"))
        self.says["ces"].actions = actions
        if self.happens(0.4):
            self.says["own"].actions = [PowerUp(node=node, reason="mine") for node in self.some_of(names, 2)]


def _job_report(report: Any) -> dict[str, Json]:
    told = {name: getattr(report, name) for name in ("pending", "running", "gpus_pending", "gpus_running", "acted")}
    return _report(report) | told


def _node_report(report: Any) -> dict[str, Json]:
    told = {name: getattr(report, name) for name in ("slept", "woken", "weighed", "asleep_by_helios", "protected")}
    nodes = {str(power): number for power, number in report.nodes.items()}
    return _report(report) | told | {"nodes": nodes, "tallies": _rows(report.tallies)}


def _report(report: Any) -> dict[str, Json]:
    return {
        "taken_at": report.taken_at.isoformat(),
        "still": report.suspended,
        "counts": {service: {str(k): n for k, n in sums.items()} for service, sums in report.counts.items()},
        "flags": {name: getattr(report, name) for name in ("seen", "recorded", "leads")},
        "remaining": report.remaining,
        "notes": report.notes,
        "rows": _rows(report.decisions),
    }


def _rows(frame: Frame) -> list[dict[str, Json]]:
    plain = frame.astype(object).where(frame.notna(), None)
    return [{str(name): value for name, value in row.items()} for row in plain.to_dict("records")]


SITE_CYCLES = 120


def site_story(folder: Path) -> Iterator[Json]:
    """Take cycles of the real services on a fake cluster with a real warehouse, and yield what these leave there."""
    folder.mkdir()
    rng = np.random.default_rng(5)
    site = FakeSite(folder, services={"qssf": {}, "soft_limits": {}})
    site.learn(jobs=60)
    modes = {"qssf": ServiceMode(mode=Mode.ACTIVE), "soft_limits": ServiceMode(mode=Mode.SHADOW)}
    running: list[str] = []
    for cycle in range(SITE_CYCLES):
        site.cluster.tick(timedelta(minutes=2))
        for n in range(int(rng.integers(0, 4))):
            user = ("alice", "bob", "carol")[int(rng.integers(3))]
            gpus = (1, 2, 8)[int(rng.integers(3))]
            site.cluster.submit(job_id=f"{cycle}{n:02d}", user=user, gpus=gpus, account=f"of {user}")
        for job in site.cluster.queue[: max(0, 4 - len(running))]:
            site.cluster.start(job)
            running.append(job)
        if running and rng.random() < 0.3:
            site.cluster.end(running.pop(int(rng.integers(len(running)))))
        if cycle == SITE_CYCLES // 2:
            site.put_promoted()
            modes["soft_limits"] = ServiceMode(mode=Mode.ACTIVE)
        if rng.random() < 0.9:
            site.read()
        report = site.cycles.cycle(modes=modes)
        yield {"cycle": cycle, **_job_report(report)}
    with site.warehouse() as warehouse:
        ledger = warehouse.ledger("dev", domain=Domain.JOBS)
        yield {"applied_changes": _rows(ledger.applied_changes()), "rows": len(warehouse.decisions("dev"))}


# Golden files


OTHER_FILES = (
    *(f"arrays/{name}.json" for name in ("ties", "ties-published", "philly", "philly-published", "slurm")),
    *(f"cycles/{name}.jsonl" for name in ("jobs", "nodes", "site")),
)
"""Golden files beside those of the commands."""

PARTS = (record_arrays, record_cycles, record_commands)


def pretty(value: Json) -> str:
    """Return a value as sorted, indented JSON."""
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, default=str) + "\n"


def _line(value: Json) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)


def all_files(folder: Path, traces: Path, only: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yield the name and text of every golden file as the code makes it now, telling the CPU seconds on the way."""
    for part in PARTS:
        began = _cpu_s()
        yield from part(folder, traces, only)
        print(f"{part.__name__}: {_cpu_s() - began:.0f} s CPU", flush=True)


def _cpu_s() -> float:
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def write(name: str, text: str) -> None:
    """Write a golden file; a large one compressed."""
    plain, packed = GOLDEN / name, GOLDEN / f"{name}.gz"
    plain.parent.mkdir(parents=True, exist_ok=True)
    for path in (plain, packed):
        path.unlink(missing_ok=True)
    if len(text) > LARGE:
        packed.write_bytes(gzip.compress(text.encode(), compresslevel=9, mtime=0))
    else:
        plain.write_text(text, encoding="utf-8")


def read(name: str) -> str:
    """Return the text of a golden file with the words that were renamed on purpose; empty: there is none."""
    plain, packed = GOLDEN / name, GOLDEN / f"{name}.gz"
    if not (plain.exists() or packed.exists()):
        return ""
    text = plain.read_text(encoding="utf-8") if plain.exists() else gzip.decompress(packed.read_bytes()).decode()
    return renamed(text, as_lines=name.endswith(".jsonl"))


def renamed(text: str, *, as_lines: bool, words: Mapping[str, str] | None = None) -> str:
    """Return a golden text with new words for old ones, sorted as the code would sort it now."""
    words = RENAMED if words is None else words
    if not words:
        return text
    pattern = re.compile("|".join(rf"(?<!\w){re.escape(old)}(?!\w)" for old in sorted(words, key=len, reverse=True)))
    text = pattern.sub(lambda found: words[found[0]], text)
    if as_lines:
        return "".join(f"{_line(json.loads(line))}\n" for line in text.splitlines())
    return pretty(json.loads(text))


def kept_names() -> set[str]:
    """Return the names of the golden files that are there."""
    files = (path for path in GOLDEN.rglob("*") if path.is_file())
    return {path.relative_to(GOLDEN).as_posix().removesuffix(".gz") for path in files}


def difference(name: str, old: str, new: str) -> list[str]:
    """Return the first lines of a unified difference; none if there is none."""
    if old == new:
        return []
    lines = list(
        difflib.unified_diff(*(_readable(text) for text in (old, new)), f"golden/{name}", name, lineterm="", n=1)
    )
    more = [f"... {len(lines) - SHOWN} more lines"] if len(lines) > SHOWN else []
    return [line[:200] for line in lines[:SHOWN]] + more


def _readable(text: str) -> list[str]:
    """Break lines of JSON, so that a difference shows one field and not a cycle."""
    if not text.startswith('{"'):
        return text.splitlines()
    return [line for cycle in text.splitlines() for line in pretty(json.loads(cycle)).splitlines()]


def known_names() -> tuple[str, ...]:
    """Return what ``--only`` takes."""
    return ("arrays", "cycles", "jobs", "nodes", "site", "commands", *(command.name for command in COMMANDS))


def main(words: Sequence[str] | None = None) -> int:
    """Record, or compare and return 1 if something differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["record", "compare"])
    parser.add_argument(
        "--only", nargs="+", default=[], help="commands, arrays, cycles, jobs, nodes, site, or a command"
    )
    parser.add_argument("--traces", type=Path, default=TRACES)
    asked = parser.parse_args(words)
    if unknown := set(asked.only) - set(known_names()):
        parser.error(f"--only has no {', '.join(sorted(unknown))}; it has {', '.join(known_names())}")
    if not asked.traces.is_dir():
        print(f"The real traces are not at {asked.traces}. Name their folder: --traces DIR")
        return 2
    only, names, differing = frozenset(asked.only), set(), []
    with tempfile.TemporaryDirectory() as folder:
        for name, text in all_files(Path(folder).resolve(), asked.traces.resolve(), only):
            names.add(name)
            if asked.what == "record":
                write(name, text)
            elif lines := difference(name, read(name), text):
                differing.append(name)
                print(*lines, sep="\n")
    missing = set() if only else kept_names() - names
    for name in sorted(missing):
        print(f"{name}: no longer made")
        if asked.what == "record":
            (GOLDEN / name).unlink(missing_ok=True)
            (GOLDEN / f"{name}.gz").unlink(missing_ok=True)
    print(f"{len(names)} files {'recorded' if asked.what == 'record' else f'compared, {len(differing)} differ'}")
    return int(asked.what == "compare" and bool(differing or missing))


if __name__ == "__main__":
    sys.exit(main())
