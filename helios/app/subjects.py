"""What the history says of one user, account, partition or node."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from difflib import get_close_matches
from typing import Any

import numpy as np
import pandas as pd

from helios.app.advise import READ as ADVICE
from helios.app.advise import advise_on
from helios.app.history import LoadedHistory
from helios.app.reports import CLOCK_SKEW, JobUse, ReportContext, ReportQuery, open_context
from helios.errors import UsageError
from helios.model import JOBS, NODES, SIZE_RANGES, size_range
from helios.model.frames import plain
from helios.model.nodes import expand_valid
from helios.model.slurm_site import PartitionRules
from helios.report.admin.decisions import decision_rows
from helios.report.admin.sacct_format import FieldKind, ReportTable, as_json, declare_fields
from helios.report.admin.usage import held_s, usage_by, usage_of_sums, wait_s
from helios.report.advice_table import advice_by_kind
from helios.report.job_use import gpu_hours, idle_sentences, with_use
from helios.units import HOUR_S, count_in_words, duration_in_words, in_number, percent
from helios.warehouse.use import Use

LAST_JOBS = 50
"""Most jobs in the list of the last ones."""
READ = [
    name
    for name in JOBS.names
    if name not in {"group", "qos", "exit_code", "het_job_id", "het_job_offset", "tres_requested", "tres_allocated"}
    and not name.endswith("_requested")
]
"""Columns of ``JOBS`` that are looked at."""
UNUSED_FIELDS = {"Predicted", "OffBy"}
"""Fields of use that need predictions, which are not read here."""
JOB_FIELDS = declare_fields(
    ("JobID", "job_id", FieldKind.TEXT, 12, "The job"),
    ("Name", "name", FieldKind.TEXT, 20, "Its name"),
    ("User", "user", FieldKind.TEXT, 12, "Whose job"),
    ("Account", "account", FieldKind.TEXT, 12, "Its account"),
    ("Partition", "partition", FieldKind.TEXT, 12, "Its partition"),
    ("State", "state", FieldKind.TEXT, 12, "State, as last recorded"),
    ("GPUs", "gpus", FieldKind.SIZE, 6, "GPUs"),
    ("CPUs", "cpus", FieldKind.SIZE, 6, "CPUs"),
    ("Submitted", "submitted_at", FieldKind.MOMENT, 19, "Its submission"),
    ("Wait", "wait_s", FieldKind.LENGTH, 10, "From when it could start to its start"),
    ("RunTime", "run_time_s", FieldKind.LENGTH, 10, "How long it ran"),
    ("Limit", "time_limit_s", FieldKind.LENGTH, 10, "Its time limit"),
    ("Nodes", "node_list", FieldKind.TEXT, 20, "Nodes it ran on"),
)
NODE_FIELDS = declare_fields(
    ("Node", "name", FieldKind.TEXT, 16, "Node"),
    ("Partition", "partition", FieldKind.TEXT, 12, "Its partition"),
    ("CPUs", "cpus", FieldKind.COUNT, 6, "CPUs"),
    ("GPUs", "gpus", FieldKind.COUNT, 6, "GPUs"),
    ("Type", "gpu_type", FieldKind.TEXT, 12, "Type of its GPUs"),
    ("MemoryMiB", "memory_mib", FieldKind.COUNT, 10, "Memory, MiB"),
)
EVENT_FIELDS = declare_fields(
    ("State", "state", FieldKind.TEXT, 12, "State of the node"),
    ("Start", "started_at", FieldKind.MOMENT, 19, "Begin"),
    ("End", "ended_at", FieldKind.MOMENT, 19, "End; empty where it lasts"),
    ("Reason", "reason", FieldKind.TEXT, 40, "Reason that was given"),
)
MOST_NEAR = 3
"""Most names that are proposed for an unknown one."""
NAMES = {"user": "users", "account": "accounts", "partition": "partitions"}
"""Field of a query by the kind of its subject."""


class SubjectUnknown(UsageError):
    """Nothing of this name is recorded."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SubjectAnswer:
    """Answers on one user, account, partition or node in a window.

    Attributes
    ----------
    kind, name : str
        ``user``, ``account``, ``partition`` or ``node``, and its name.
    title : str
        What was asked, with the window.
    sentences : tuple of str
        The answer in short.
    tables : mapping of str to ReportTable
        Tables by their name in JSON.
    notes : tuple of str
        What a person should know before relying on it.
    values : mapping
        Further plain values for JSON.
    """

    kind: str
    name: str
    title: str
    sentences: tuple[str, ...]
    tables: Mapping[str, ReportTable]
    notes: tuple[str, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        tables = {name: as_json(table)["rows"] for name, table in self.tables.items()}
        said = {"title": self.title, "sentences": list(self.sentences), "notes": list(self.notes)}
        return {self.kind: self.name, **said, **plain(dict(self.values)), **tables}


def subject_report(
    query: ReportQuery, kind: str, name: str, *, by: Sequence[str], rules: PartitionRules | None = None
) -> SubjectAnswer:
    """Report the use, waits and last jobs of a user, account or partition.

    Of a user there is advice, too.

    Parameters
    ----------
    kind : str
        A key of ``NAMES``.
    by : sequence of str
        What use is summed by besides ``size``.
    rules : PartitionRules, optional
        Rules of a partition, where a live cluster tells them.
    """
    chosen: dict[str, Any] = {NAMES[kind]: (name,)}
    with open_context(replace(query, **chosen)) as context:
        groups: tuple[Any, ...] = (*by, "size")
        found = context.use(groups, (context.since, context.until), all_distributions=True)
        use = {f"by_{group}": _use(context, one, group) for group, one in zip(groups, found, strict=True)}
        last = _last_jobs(context, _latest(context), without=kind)
        nodes = _nodes_of(context, name) if kind == "partition" and not query.hides_others else NODES.empty()
        own = context.jobs(columns=ADVICE) if kind == "user" else JOBS.empty()
        used = context.job_use(own)
    sentences = [*_use_sentences(found[-1], use["by_size"])]
    tables, notes = dict[str, ReportTable](), use["by_size"].notes
    if rules is not None:
        sentences += _rule_sentences(rules)
    if kind == "user":
        loaded = LoadedHistory(cluster=context.cluster, jobs=own, timezone=context.timezone)
        advice = advise_on(loaded, since=context.since, until=context.until, job_use=used, exempt=query.exempt)
        sentences += _gpu_sentences(own, used, context)
        kinds = advice_by_kind(advice.advice)
        fields = tuple(field for field in kinds.fields if field.column != "users")
        tables["advice"], notes = replace(kinds, title="Advice", fields=fields), (*notes, *advice.notes)
    tables |= use
    if len(nodes):
        tables["nodes"] = ReportTable(title="Its nodes, as recorded", fields=NODE_FIELDS, rows=nodes)
    tables["jobs"] = last
    return SubjectAnswer(
        kind=kind,
        name=name,
        title=context.title(f"{kind} {name}"),
        sentences=tuple(sentences),
        tables=tables,
        notes=notes,
        values={} if rules is None else {"rules": rules},
    )


def nearest_names(name: str, known: Collection[str]) -> str:
    """Return a sentence with known names near one, if there are any."""
    by_case = {text.casefold(): text for text in sorted(known)}
    near = [by_case[text] for text in get_close_matches(name.casefold(), by_case, n=MOST_NEAR)]
    return f"Meant perhaps: {', '.join(near)}." if near else ""


def node_report(query: ReportQuery, node: str) -> SubjectAnswer:
    """Report jobs, events and changes of a node.

    Raises
    ------
    SubjectUnknown
        No node of this name is recorded, and no job in the window ran on it.
    """
    with open_context(query) as context:
        warehouse, cluster, since, until = context.warehouse, context.cluster, context.since, context.until
        placed = warehouse.jobs(cluster, until=until + CLOCK_SKEW, unended_at=since, columns=["node_list"])
        lists = placed["node_list"].cat.categories
        holding = [text for text in lists if _holds(text, node)]
        jobs = _jobs(context, {"node_list": holding}) if holding else JOBS.empty()
        nodes = warehouse.nodes(cluster)
        known = nodes[nodes["name"] == node]
        events = warehouse.node_events(cluster, since, until, reaching=True)
        events = events[events["node"] == node]
        made = warehouse.decisions_about(cluster, node, since=since)
        if jobs.empty and known.empty and events.empty and made.empty:
            near = nearest_names(node, {*nodes["name"], *(text for text in lists if not set(text) & set("[,"))})
            raise SubjectUnknown(
                f"No node {node} is recorded, and no job ran on it in this window.",
                hint=near or "Choose another window. Some histories do not record nodes.",
            )
        busy_h = busy_hours(jobs, context)
        window_h = (until - since) / timedelta(hours=1)
        tables = {
            "jobs": _last_jobs(context, jobs, without=""),
            "events": ReportTable(
                title="Its events",
                fields=EVENT_FIELDS,
                rows=events.sort_values("started_at", ascending=False),
                empty="No event is recorded in this window.",
                timezone=context.timezone,
            ),
            "decisions": decision_rows(made, title="What Helios did", timezone=context.timezone),
        }
        ran = held_s(jobs, since=since, until=until, now=context.query.now)[0] > 0
        sentences = [
            f"{in_number(int(ran.sum()), 'jobs')} ran on it, "
            f"for {busy_h:,.1f} of {window_h:,.0f} hours ({percent(busy_h / window_h)}).",
            *_node_sentences(known),
        ]
        return SubjectAnswer(
            kind="node",
            name=node,
            title=context.title(f"node {node}"),
            sentences=tuple(sentences),
            tables=tables,
            values={"jobs_ran": int(ran.sum()), "busy_hours": busy_h, "window_hours": window_h},
        )


def busy_hours(jobs: pd.DataFrame, context: ReportContext) -> float:
    """Return the hours of the window with a running job."""
    held, _ = held_s(jobs, since=context.since, until=context.until, now=context.query.now)
    begin_s = np.maximum((jobs["started_at"] - pd.Timestamp(context.since)).dt.total_seconds().to_numpy(), 0.0)
    placed = ~np.isnan(begin_s) & (held > 0)
    order = np.argsort(begin_s[placed])
    begin_s, end_s = begin_s[placed][order], (begin_s + held)[placed][order]
    covered_s = np.maximum.accumulate(np.append(0.0, end_s))
    return float(np.maximum(end_s - np.maximum(begin_s, covered_s[:-1]), 0.0).sum() / HOUR_S)


def _holds(node_list: str, node: str) -> bool:
    """Return whether a hostlist has a node, most without expanding it."""
    if node_list == node:
        return True
    stem = node.rstrip("0123456789")
    return ("[" in node_list or "," in node_list) and stem in node_list and node in expand_valid(node_list)


def _jobs(context: ReportContext, only: Mapping[str, Collection[str]]) -> pd.DataFrame:
    """Return the jobs submitted or running in the window.

    Columns that are not looked at have no values.
    """
    until = context.until + CLOCK_SKEW
    read = context.warehouse.jobs(context.cluster, until=until, unended_at=context.since, columns=READ, only=only)
    return JOBS.conform(read)


def _use(context: ReportContext, use: Use, group: str) -> ReportTable:
    """Return use and waits by group."""
    if group != "size":
        return usage_of_sums(group, use, title=f"Use and waits by {group}", timezone=context.timezone)
    if use.names and set(use.names) <= {SIZE_RANGES[0], SIZE_RANGES[-1]}:
        table = _use_by_cpus(context)  # sums have no sizes but GPUs
    else:
        table = usage_of_sums(group, use, title="Use and waits by GPUs of the job", timezone=context.timezone)
    rows = table.rows.sort_values("group", key=lambda names: names.map(SIZE_RANGES.index), ignore_index=True)
    return replace(table, rows=rows)


def _use_by_cpus(context: ReportContext) -> ReportTable:
    """Return use and waits by CPUs of the job, without errors of predictions."""
    jobs = _jobs(context, context.query.only)
    size = pd.Categorical.from_codes(size_range(jobs["cpus"].to_numpy()), pd.Index(SIZE_RANGES))
    table = usage_by(
        "size",
        jobs.assign(size=size),
        predictions=None,
        since=context.since,
        until=context.until,
        now=context.query.now,
        title="Use and waits by CPUs of the job",
        timezone=context.timezone,
    )
    return replace(table, fields=tuple(field for field in table.fields if field.name not in UNUSED_FIELDS))


def _latest(context: ReportContext) -> pd.DataFrame:
    """Return the last jobs of the window.

    They are more than ``LAST_JOBS`` where the window has more.
    """
    most, only = LAST_JOBS + 1, context.query.only
    read = context.warehouse.jobs
    jobs = read(context.cluster, since=context.since, until=context.until, columns=READ, only=only, last=most)
    if len(jobs) < most:
        earlier = read(context.cluster, until=context.since, unended_at=context.since, columns=READ, only=only)
        jobs = pd.concat([JOBS.conform(earlier), JOBS.conform(jobs)], ignore_index=True)
    return JOBS.conform(jobs)


def _last_jobs(context: ReportContext, jobs: pd.DataFrame, *, without: str) -> ReportTable:
    """Return the jobs that were submitted last before the end of the window.

    The column ``without`` is left out, as it is the same in all.
    """
    last = jobs[jobs["submitted_at"] < pd.Timestamp(context.until)].iloc[::-1].head(LAST_JOBS)
    return ReportTable(
        title="The last jobs" if len(jobs) <= LAST_JOBS else f"The last {LAST_JOBS} jobs",
        fields=tuple(field for field in JOB_FIELDS if field.column != without),
        rows=last.assign(wait_s=wait_s(last)),
        empty="No job was submitted or ran in this window.",
        timezone=context.timezone,
    )


def _use_sentences(use: Use, table: ReportTable) -> Iterator[str]:
    total = table.total
    if not total:
        yield table.empty
        return
    gpu_hours = total["gpu_hours"]
    hours = f"{total['cpu_hours']:,.0f} CPU hours"
    if gpu_hours > 0 or np.isnan(gpu_hours):
        hours = f"{'unknown' if np.isnan(gpu_hours) else f'{gpu_hours:,.0f}'} GPU hours and {hours}"
    yield f"{in_number(int(total['jobs']), 'jobs')} submitted, {hours} held."
    if not np.isnan(total["p50_wait_s"]):
        half, most = (duration_in_words(total[name]) for name in ("p50_wait_s", "p95_wait_s"))
        yield f"Half of the jobs that started waited at most {half}, 19 of 20 at most {most}."
    yield f"At the end {use.waits_at_end:,} waited and {use.runs_at_end:,} ran."
    if not np.isnan(total["failed_share"]):
        yield f"{percent(total['failed_share'], 1)} failed, {percent(total['timeout_share'], 1)} ended at their limit."


def _gpu_sentences(jobs: pd.DataFrame, used: JobUse, context: ReportContext) -> Iterator[str]:
    """Yield how much of the GPUs was used, where any of it was measured."""
    runs = with_use(jobs[jobs["gpus"] > 0], used.runs)
    if not runs["is_measured"].any():
        return
    held, _ = held_s(runs, since=context.since, until=context.until, now=context.query.now)
    yield from idle_sentences(gpu_hours(runs, used.gpus, held))


def _rule_sentences(rules: PartitionRules) -> Iterator[str]:
    longest = "no longest time" if rules.max_time_s is None else f"at most {duration_in_words(rules.max_time_s)}"
    usual = "" if rules.default_time_s is None else f", {duration_in_words(rules.default_time_s)} unless asked"
    yield f"Slurm's rules: {count_in_words(len(rules.nodes), 'node')}, {longest}{usual}, tier {rules.priority_tier}."
    words = [
        *([] if rules.is_up else ["it is not up"]),
        *(["it is the default"] if rules.is_default else []),
        *(["jobs get whole nodes"] if rules.exclusive else []),
        *([f"the limits of QOS {rules.qos} hold"] if rules.qos else []),
    ]
    if words:
        yield f"{'; '.join(words)}.".capitalize()


def _nodes_of(context: ReportContext, partition: str) -> pd.DataFrame:
    nodes = context.warehouse.nodes(context.cluster)
    return nodes[nodes["partition"] == partition].reset_index(drop=True)


def _node_sentences(known: pd.DataFrame) -> Iterator[str]:
    if known.empty:
        yield "Its size is not recorded."
        return
    node = known.iloc[0]
    sizes = [count_in_words(float(node[name]), unit) for name, unit in (("cpus", "CPU"), ("gpus", "GPU"))]
    partitions = ", ".join(known["partition"].dropna().astype(str))
    yield f"Recorded with {' and '.join(sizes)}" + (f", in {partitions}." if partitions else ".")
