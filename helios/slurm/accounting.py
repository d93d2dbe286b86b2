"""Reader of Slurm's accounting in bounded time windows.

An unbounded ``sacct -S`` has brought slurmdbd down at sites.

Meaning of a window (seen on 22.05.8): ``sacct -S A -E B`` lists every job that was pending, running or ending between A
and B, as it is *now*. A job that was pending at A and ended long after B is listed with its end. With ``--duplicates``
each run of a requeued job has a line. Jobs that slurmdbd has purged are missing without a warning;
:meth:`Accounting.keeps_jobs` returns how far back they reach.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import tempfile
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd

from helios.errors import AnswerNotUnderstood, HeliosError, UsageError
from helios.model import NODE_EVENTS
from helios.private_files import require_cluster_name
from helios.slurm import parse
from helios.slurm.commands import show_config
from helios.slurm.pyslurm_worker import OVER
from helios.slurm.shell import Shell, lines, settings
from helios.slurm.translate import readable, times

LONGEST_WINDOW = timedelta(days=31)
"""Longest window of a query. slurmdbd needs minutes for about a month of a large site."""

LONGEST_ENDED = timedelta(days=1)
"""Longest time of which the ended jobs are asked for; longer ago a job has no part in what vanished."""
_LATE = timedelta(minutes=1)
"""Difference of the clocks that such a window is widened by; the cycle allows half of it."""
_ENDED = "BF,CA,CD,DL,F,NF,OOM,PR,TO"
"""States of jobs that have ended, as ``sacct --state`` has taken them since 22.05."""

SACCT_FIELDS = (
    "JobIDRaw,JobID,Cluster,User,Group,Account,QOS,Partition,State,ExitCode,Submit,Eligible,Start,End,Elapsed,"
    "Suspended,Timelimit,NNodes,ReqCPUS,AllocCPUS,ReqMem,ReqTRES,AllocTRES,NodeList,JobName"
)
"""Fields that ``helios.ingest.sacct`` reads."""
_HEADER = SACCT_FIELDS.partition(",")[0].encode()
USE_FIELDS = "JobIDRaw,Submit,Start,End,State,AllocTRES,NTasks,MaxRSS,JobName,AdminComment"
"""Fields of jobs and their steps that say what was used."""
_WORD_BYTES = 12
"""Random bytes of a delimiter. Nobody can put it into a job's name, because it is drawn after the job was named."""
_EVENT_FIELDS = "NodeName,TimeStart,TimeEnd,State,Reason"
_EVENT = re.compile(r"^([^|\n]*)\|(\d{1,10})\|(\d{1,10}|Unknown|None|)\|([A-Z][^|\n]*|)\|", re.MULTILINE)
_PURGE = re.compile(r"(\d+)\s*(hour|day|month|\*)?", re.IGNORECASE)
_UNITS = {"hour": timedelta(hours=1), "day": timedelta(days=1), "month": timedelta(days=30)}

USAGE_FIELDS = "JobIDRaw,User,Partition,State,ElapsedRaw,AllocTRES,TotalCPU,NTasks,MaxRSS,JobName"
"""Fields that are read. The name is the last, since only it may hold a delimiter."""
USAGE_COLUMNS = ("job_id", "user", "partition", "name", "state", "run_time_s", "nodes", "gpus", "cpus", "memory_mib")
USED = ("cpu_s", "used_memory_mib")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)", re.ASCII)
_BYTES = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4, "P": 1024**5}
_MIB = 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounting:
    """Slurm's database, queried through ``sacct`` and ``sacctmgr``.

    Parameters
    ----------
    shell : Shell
        Runs the commands.
    timeout_s : float
        Longest wait for the answer to one window, s.
    """

    shell: Shell
    timeout_s: float = 600.0

    def sacct_window(self, start: datetime, end: datetime, *, path: Path) -> None:
        """Write the jobs of one window to ``path``, as ``sacct`` prints them.

        The file appears when it is complete, or not at all. Times are in seconds since the epoch, whatever zone the
        site uses. A random delimiter for each call separates the fields. So no job name, which sacct prints unchanged,
        can look like a record.

        Raises
        ------
        UsageError
            The window is empty, longer than ``LONGEST_WINDOW``, or its times have no zone.
        ClusterUnavailable, ClusterRefused, AnswerNotUnderstood
            ``sacct`` failed, or did not answer in time.
        """
        self._write_window(start, end, path, "--allocations", f"--format={SACCT_FIELDS}")

    def use_window(self, start: datetime, end: datetime, *, path: Path, steps: bool) -> None:
        """Write what jobs of one window used to ``path``.

        As :meth:`sacct_window`, with ``USE_FIELDS``. With ``steps`` each job is followed by its steps.
        """
        self._write_window(start, end, path, *(() if steps else ("--allocations",)), f"--format={USE_FIELDS}")

    def _write_window(self, start: datetime, end: datetime, path: Path, *options: str) -> None:
        window = _window(start, end)
        # --local: where FederationParameters=fed_display, sacct lists the jobs of the whole federation.
        words = ["--local", "--allusers", "--duplicates", "--noconvert"]
        delimiter = secrets.token_hex(_WORD_BYTES)
        words += ["--parsable", f"--delimiter=|{delimiter}|"]
        words += [f"--starttime={window[0]}", f"--endtime={window[1]}", *options]
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        os.close(descriptor)
        partial = Path(name)
        try:
            self.shell.write(partial, "sacct", *words, timeout_s=self.timeout_s)
            _check_whole(partial, end=f"|{delimiter}|\n")
            partial.replace(path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                partial.unlink()

    def used_by_jobs(self, start: datetime, end: datetime, *, users: Collection[str]) -> pd.DataFrame:
        """Return allocated and used resources of jobs.

        The columns are those of :func:`read_usage`.

        Jobs of all users where ``users`` is empty; sites may show a user the own jobs only. A longer window than
        ``LONGEST_WINDOW`` is read in parts.

        Raises
        ------
        UsageError, ClusterUnavailable, ClusterRefused, AnswerNotUnderstood
            As :meth:`sacct_window`.
        """
        parts = []
        while start < end:
            until = min(start + LONGEST_WINDOW, end)
            window, delimiter = _window(start, until), f"|{secrets.token_hex(_WORD_BYTES)}|"
            words = [f"--user={','.join(users)}" if users else "--allusers", "--local", "--noheader", "--noconvert"]
            words += ["--parsable2", f"--delimiter={delimiter}", f"--starttime={window[0]}", f"--endtime={window[1]}"]
            printed = self.shell.run("sacct", *words, f"--format={USAGE_FIELDS}").decode("utf-8", "surrogateescape")
            parts.append(read_usage(printed, delimiter=delimiter))
            start = until
        return pd.concat(parts, ignore_index=True).drop_duplicates("job_id", keep="last", ignore_index=True)

    def ended_jobs(self, since: datetime, now: datetime) -> frozenset[str]:
        """Return the jobs that ended, as the accounting or the controller tells.

        The accounting may lag, and the controller forgets a job ``MinJobAge`` after its end. One that does not answer
        adds nothing. At most ``LONGEST_ENDED`` are looked at.
        """
        begins, ends = _window(max(since, now - LONGEST_ENDED) - _LATE, now + _LATE)
        sacct = [
            "--local",
            "--allusers",
            "--allocations",
            "--noheader",
            "--parsable2",
            f"--state={_ENDED}",
            "--format=JobIDRaw,State",
        ]
        found: set[str] = set()
        for program, words in (
            ("sacct", [*sacct, f"--starttime={begins}", f"--endtime={ends}"]),
            ("squeue", ["--all", "--noheader", "--states=all", "--format=%A|%T"]),
        ):
            with contextlib.suppress(HeliosError):
                rows = (line.partition("|") for line in lines(self.shell.run(program, *words)))
                found.update(job for job, _, state in rows if state.partition(" ")[0] in OVER)
        return frozenset(found)

    def node_events(self, start: datetime, end: datetime) -> pd.DataFrame:
        """Return the node events of a window as ``NODE_EVENTS``, oldest first.

        Events that last are included, whenever they began. Events of the whole cluster are not.

        Raises
        ------
        UsageError, ClusterUnavailable, ClusterRefused, AnswerNotUnderstood
            As :meth:`sacct_window`.
        """
        window = _window(start, end)
        asked = ["--noheader", "--parsable2", "show", "event", f"Clusters={self.cluster_name()}"]
        asked += [f"Start={window[0]}", f"End={window[1]}", f"format={_EVENT_FIELDS}"]
        return _events(self.shell.run("sacctmgr", *asked).decode("utf-8", "surrogateescape"))

    def cluster_name(self) -> str:
        """Return ``ClusterName`` from the controller's configuration.

        Raises
        ------
        ClusterUnavailable
            The controller does not answer.
        AnswerNotUnderstood, UsageError
            The configuration has no such line, or the name is none.
        """
        name = show_config(self.shell).get("ClusterName")
        if name is None:
            raise AnswerNotUnderstood("scontrol show config names no ClusterName.")
        return require_cluster_name(name)

    def keeps_jobs(self) -> timedelta | None:
        """Return how long slurmdbd keeps jobs, or None.

        None stands for no limit, and for an answer without one.

        Raises
        ------
        ClusterUnavailable
            slurmdbd does not answer.
        """
        shown = settings(lines(self.shell.run("sacctmgr", "show", "config")))
        if (found := _PURGE.match(shown.get("PurgeJobAfter", ""))) is None:
            return None
        # In slurmdbd.conf a number without a unit is in months.
        return int(found[1]) * _UNITS[(found[2] or "month").lower().replace("*", "month")]


def _check_whole(answer: Path, *, end: str) -> None:
    """Raise AnswerNotUnderstood unless a file has its header and end."""
    with answer.open("rb") as file:
        begins = file.read(len(_HEADER)) == _HEADER
        file.seek(-min(len(end), file.seek(0, os.SEEK_END)), os.SEEK_END)
        if not begins or file.read() != end.encode():
            raise AnswerNotUnderstood(
                "sacct's answer is empty, or begins or ends in the middle of a job.",
                hint="Run sacct by hand as the user that runs Helios.",
            )


def _window(start: datetime, end: datetime) -> tuple[str, str]:
    if start.tzinfo is None or end.tzinfo is None:
        raise UsageError("A window of the accounting needs times with a zone.")
    if not timedelta(0) < end - start <= LONGEST_WINDOW:
        longest = f"{LONGEST_WINDOW.days} days"
        raise UsageError(
            f"The window from {start:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} is empty or longer than {longest}.",
            hint="Read the history in shorter windows: [history] window_s.",
        )
    begins, ends = (moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S") for moment in (start, end))
    return begins, ends


def _events(printed: str) -> pd.DataFrame:
    found = list(_EVENT.finditer(printed))
    if printed[: found[0].start() if found else None].strip() or not printed.endswith("\n" if found else ""):
        raise AnswerNotUnderstood(
            f"sacctmgr show event begins or ends in the middle: {printed[:40]!r} to {printed[-40:]!r}",
            hint="Run: sacctmgr --parsable2 show event",
        )
    ends = [*(match.start() for match in found), len(printed)][1:]
    rows = [
        {
            "node": match[1],
            "state": match[4] or None,
            "started_at": int(match[2]),
            "ended_at": parse.time_s(match[3]),
            "reason": readable(printed[match.end() : end].strip()) or None,
        }
        for match, end in zip(found, ends, strict=True)
        if match[1]
    ]
    if not rows:
        return NODE_EVENTS.empty()
    frame = pd.DataFrame(rows).sort_values(["started_at", "node"], ignore_index=True, kind="stable")
    return NODE_EVENTS.conform(frame.assign(**{name: times(frame[name]) for name in ("started_at", "ended_at")}))


# What jobs used, as sacct prints it. A site records it if it sets ``JobAcctGatherType``. Of the use of GPUs nothing is
# said: each poll of Slurm replaces the one before, so that TRESUsageInTot and TRESUsageInAve are the last one
# (jobacct_gather_common.c of 22.05), and a job that was idle in its last half minute looks idle.
def read_usage(text: str, *, delimiter: str = "|") -> pd.DataFrame:
    """Return what each ended job had and used.

    Parameters
    ----------
    text : str
        Output of ``sacct --parsable2 --format=USAGE_FIELDS`` without ``--allocations``, with or without its header. A
        header may name further fields. A job may be in it twice.

    Returns
    -------
    DataFrame
        ``USAGE_COLUMNS``, and ``USED``, NaN where it is not recorded: CPU seconds; MiB, as if each task of each step
        had had at once the most that any of the step had, so at least what the job had.

    Raises
    ------
    AnswerNotUnderstood
        No line has these fields.
    """
    lines = [line for line in text.split("\n") if line.strip()]
    names = USAGE_FIELDS.split(",")
    has_header = bool(lines) and {*names} <= {*lines[0].split(delimiter)}
    names = lines.pop(0).split(delimiter) if has_header else names
    rows = [line.split(delimiter, len(names) - 1) for line in lines]
    known = [dict(zip(names, row, strict=True)) for row in rows if len(row) == len(names)]
    if rows and not known:
        raise AnswerNotUnderstood(
            "No line has the fields of what jobs used.",
            hint=f"Write it with: sacct --parsable2 --noconvert --starttime=now-4weeks --format={USAGE_FIELDS}",
        )
    jobs: dict[str, dict[str, object]] = {}
    steps: dict[str, dict[str, Mapping[str, str]]] = {}
    for row in known:
        job, dot, step = row["JobIDRaw"].partition(".")
        if dot:
            steps.setdefault(job, {})[step] = row
        elif (job_values := _job(row)) is not None:
            jobs[job] = job_values
    found = [{"job_id": job, **values, **_sum_usage(steps.get(job, {}).values())} for job, values in jobs.items()]
    return pd.DataFrame(found, columns=[*USAGE_COLUMNS, *USED])


def _job(row: Mapping[str, str]) -> dict[str, object] | None:
    """Return the resources of an ended job, or None."""
    state = row["State"].partition(" ")[0]
    if (
        not row["ElapsedRaw"].isdecimal()
        or not float(row["ElapsedRaw"])
        or state in {"PENDING", "RUNNING", "SUSPENDED"}
    ):
        return None
    had = _amounts(row["AllocTRES"])
    return {
        "user": row["User"],
        "partition": row["Partition"],
        "name": row["JobName"],
        "state": state,
        "run_time_s": float(row["ElapsedRaw"]),
        "nodes": had.get("node", np.nan),
        "gpus": had.get("gres/gpu", 0.0),
        "cpus": had.get("cpu", np.nan),
        "memory_mib": had.get("mem", np.nan) / _MIB,
    }


def _sum_usage(steps: Iterable[Mapping[str, str]]) -> dict[str, float]:
    """Return the sums over a job's steps, NaN if unknown."""
    sums = dict.fromkeys(USED, np.nan)
    for step in steps:
        tasks = float(step["NTasks"]) if step["NTasks"].isdecimal() else 1.0
        peak = _size(step["MaxRSS"]) * tasks
        if np.isnan(peak):
            continue  # nothing was gathered for this step
        seconds = parse.length_s(step["TotalCPU"].partition(".")[0])
        amounts = (seconds if isinstance(seconds, float) else 0.0, peak / _MIB)
        for name, amount in zip(USED, amounts, strict=True):
            sums[name] = np.nansum([sums[name], amount])
    return sums


def _amounts(text: str) -> dict[str, float]:
    pairs = (entry.partition("=") for entry in text.split(",") if "=" in entry)
    return {name: size for name, _, amount in pairs if not np.isnan(size := _size(amount))}


def _size(text: str) -> float:
    found = _SIZE.fullmatch(text)
    return float(found[1]) * _BYTES[found[2]] if found else np.nan
