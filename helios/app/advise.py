"""Advice for users from the history, and from what their jobs used."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from helios.app.clusters import NOT_LIVE
from helios.app.history import LoadedHistory
from helios.app.reports import JobUse, ReportQuery, open_context
from helios.config import SlurmSettings
from helios.errors import AnswerNotUnderstood, ClusterUnavailable, HeliosError, UsageError
from helios.metrics.history import COLUMNS, read_history
from helios.metrics.trials import GAINS, find_trials, repeated_amounts, sum_by_user
from helios.model import JOBS
from helios.report.admin.sacct_format import ReportTable, as_json
from helios.report.admin.usage import select_jobs
from helios.report.advice import Advice, limit_advice, packing_advice, sort_by_hours, usage_advice
from helios.report.advice_table import advice_by_kind
from helios.report.gpu_advice import gpu_advice
from helios.report.job_use import with_use
from helios.slurm.accounting import Accounting, read_usage
from helios.slurm.shell import Shell

WINDOW = timedelta(weeks=4)
READ = [name for name in COLUMNS if name not in {"node_list", "tres_requested", "gpu_type", "nodes", "eligible_at"}]
"""Columns of ``JOBS`` that advice looks at."""
USAGE_S = 120.0
"""Longest wait for the accounting, s."""
_NOT_ASKED = (
    "What jobs used of CPUs and memory is not asked of Slurm for a history. Name what sacct wrote: --usage FILE"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceReport:
    """Advice on the jobs of a window.

    Attributes
    ----------
    cluster : str
    users : tuple of str
        Users whose jobs count. Empty for all.
    live : bool
        Whether it is a cluster with a live Slurm.
    since, until : datetime
    jobs, measured : int
        Jobs submitted in the window, and those whose use of memory and CPUs is known.
    gpu_runs, gpu_runs_measured : int
        Runs with GPUs, and those whose use of GPUs is known.
    advice : tuple of Advice
        The advice, sorted by hours.
    notes : tuple of str
        What could not be looked at, and why.
    """

    cluster: str
    users: tuple[str, ...]
    since: datetime
    until: datetime
    jobs: int
    measured: int
    gpu_runs: int
    gpu_runs_measured: int
    advice: tuple[Advice, ...]
    notes: tuple[str, ...]
    live: bool = True

    def lines(self, *, most: int | None = None) -> list[str]:
        """Return the report as lines of text.

        ``most`` limits the pieces of advice.
        """
        whose = ", ".join(self.users) or "everybody"
        days = (self.until - self.since).total_seconds() / 86_400
        where = self.cluster if self.live else f"{self.cluster} ({NOT_LIVE})"
        when = f"in {days:.0f} days to {self.until:%Y-%m-%d}"
        lines = [f"{self.jobs:,} jobs of {whose} on {where} {when}, use of CPUs and memory known of {self.measured:,}."]
        if self.gpu_runs:
            lines += [f"Use of GPUs known of {self.gpu_runs_measured:,} of {self.gpu_runs:,} runs with GPUs."]
        shown = self.advice if most is None else self.advice[:most]
        for number, one in enumerate(shown, start=1):
            first, *rest = one.lines()
            owner = "" if len(self.users) == 1 else f"user {one.user}, "
            lines += ["", f"{number}. {owner}{first}", *(f"   {line}" for line in rest)]
        if not self.advice:
            lines += ["", "No advice: nothing stands out that enough alike jobs show."]
        elif len(shown) < len(self.advice):
            lines += ["", f"{len(self.advice) - len(shown):,} more on fewer hours: --json."]
        return lines

    def to_json(self, *, kinds: ReportTable | None = None) -> dict[str, Any]:
        """Return everything as plain values.

        ``kinds`` is the advice by kind, where it was made before.
        """
        return {
            "cluster": self.cluster,
            "live": self.live,
            "users": list(self.users),
            "from": self.since.isoformat(),
            "to": self.until.isoformat(),
            "jobs": self.jobs,
            "jobs_measured": self.measured,
            "gpu_runs": self.gpu_runs,
            "gpu_runs_measured": self.gpu_runs_measured,
            "kinds": as_json(kinds or advice_by_kind(self.advice))["rows"],
            "advice": [one.to_json() for one in self.advice],
            "notes": list(self.notes),
        }


Usage = tuple[pd.DataFrame | None, tuple[str, ...]]
"""What jobs used, as :func:`helios.slurm.accounting.read_usage` returns it, and messages. None where not known."""


def advise(
    ask: ReportQuery,
    *,
    usage: Callable[[Collection[str], str, datetime, datetime], Usage] | None = None,
    used: pd.DataFrame | None = None,
    own: str = "",
) -> AdviceReport:
    """Advise the users of a query, by the jobs of the warehouse.

    Parameters
    ----------
    usage : callable, optional
        Returns what the jobs of some users on a cluster, from a begin to an end, used. A live cluster alone is asked.
    used : DataFrame, optional
        What jobs used, in place of that.
    own : str
        User to advise where the query names none, on a live cluster. Of a history it is everybody.
    """
    with open_context(ask) as context:
        since, until, live = context.since, context.until, context.live
        users = tuple(ask.users) or ((own,) if live and own else ())
        jobs = context.warehouse.jobs(
            context.cluster, since=since, until=until, columns=READ, only={"user": list(users)}
        )
        job_use = context.job_use(jobs)
        loaded = LoadedHistory(cluster=context.cluster, jobs=JOBS.conform(jobs), timezone=context.timezone)
    notes = tuple[str, ...]()
    if usage is not None and used is None:
        used, notes = usage(users, loaded.cluster, since, until) if live else (None, (_NOT_ASKED,))
    found = advise_on(
        loaded, since=since, until=until, users=users, used=used, notes=notes, job_use=job_use, exempt=ask.exempt
    )
    return replace(found, live=live)


def advise_on(
    loaded: LoadedHistory,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    users: tuple[str, ...] = (),
    used: pd.DataFrame | None = None,
    notes: tuple[str, ...] = (),
    job_use: JobUse | None = None,
    exempt: Mapping[str, Collection[str]] | None = None,
) -> AdviceReport:
    """Advise users by the jobs submitted in [since, until).

    Without a begin it is ``WINDOW`` before the end, without an end the last submission. ``exempt`` are the users,
    accounts and partitions of whose GPUs nothing is said.
    """
    jobs, notes = loaded.jobs, (*loaded.notes, *notes)
    last = jobs["submitted_at"].max() if len(jobs) else None
    until = until or (None if last is None else last.to_pydatetime() + timedelta(seconds=1))
    if until is None:
        raise UsageError("There are no jobs in this history.", hint="Load some: helios trace load FILE")
    since = since or until - WINDOW
    within = jobs[(jobs["submitted_at"] >= since) & (jobs["submitted_at"] < until)].reset_index(drop=True)
    own = select_jobs(within, users=users)
    found = limit_advice(own)
    if not own["time_limit_s"].notna().any() and len(own):
        notes = (*notes, "Time limits are not recorded here, so nothing is said of them.")
    if (own["gpus"] > 0).any():
        history = read_history(
            own.reset_index(drop=True),
            cluster=loaded.cluster,
            timezone=loaded.timezone,
            since=since,
            until=until,
            resource="gpus",
            keep=("user", "account", "partition"),
        )
        everything = np.ones(len(history.size), dtype=bool)
        amounts = repeated_amounts(history, find_trials(history), everything, GAINS)
        found += packing_advice(sum_by_user(amounts), GAINS)
    measured = 0
    if used is not None:
        used = used[used["user"].isin(users)] if users else used
        measured = int(used["used_memory_mib"].notna().sum())
        found += usage_advice(used)
        if len(used) and not measured:
            notes = (*notes, "The accounting has jobs but not what they used: Slurm's JobAcctGatherType gathers it.")
    job_use = job_use or JobUse()
    with_gpus = with_use(own[own["gpus"] > 0], job_use.runs)
    found += gpu_advice(with_gpus, job_use.gpus, exempt=exempt)
    return AdviceReport(
        cluster=loaded.cluster,
        users=users,
        since=since,
        until=until,
        jobs=len(own),
        measured=measured,
        gpu_runs=len(with_gpus),
        gpu_runs_measured=int(with_gpus["is_measured"].sum()),
        advice=tuple(sort_by_hours(found)),
        notes=notes,
    )


def usage_of_file(path: Path) -> pd.DataFrame:
    """Read the use of jobs from a file of sacct.

    Raises
    ------
    UsageError
        It cannot be read, or is something else.
    """
    try:
        return read_usage(path.read_text(encoding="utf-8", errors="surrogateescape"))
    except OSError as reason:
        raise UsageError(
            f"{path} cannot be read: {reason}", hint="Name a file that sacct wrote: --usage FILE"
        ) from reason
    except AnswerNotUnderstood as reason:
        raise UsageError(f"{path}: {reason.message}", hint=reason.hint) from reason


def usage_of_cluster(
    settings: SlurmSettings, users: Collection[str], cluster: str, since: datetime, until: datetime
) -> Usage:
    """Read the use of jobs from the cluster's accounting.

    None, and why, where it does not answer or is of another cluster.
    """
    accounting = Accounting(shell=Shell(folder=settings.commands, timeout_s=USAGE_S))
    try:
        here = accounting.cluster_name()
        if here != cluster:
            raise ClusterUnavailable(f"this machine reaches cluster {here}, not {cluster}")
        return accounting.used_by_jobs(since, until, users=users), ()
    except HeliosError as reason:
        problem = reason.message.rstrip(".")
        why = f"What jobs used of CPUs and memory is not known here ({problem})."
        return None, (f"{why} Name what sacct wrote: --usage FILE",)
