"""The study of a cluster, from its history to statements."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa

from helios.app.clusters import choose_cluster, live_window
from helios.app.history import LoadedHistory
from helios.config import Energy
from helios.errors import NotEnoughHistory, UsageError
from helios.metrics.blocks import Finding
from helios.metrics.capacity import WHOLE, CapacitySource, ClusterCapacity
from helios.metrics.history import COLUMNS, StudyHistory, read_history
from helios.metrics.window import RECORD_COLUMNS, RecordWindow, record_window
from helios.model import UntrackedGpus
from helios.ports import Progress, no_progress
from helios.private_files import make_folder, write_private
from helios.report.admin.sacct_format import ReportTable
from helios.report.stored_study import StoredStudy, study_path
from helios.study.capacity import Capacity, find_capacity
from helios.study.figures.catalog import study_figures
from helios.study.figures.source import FigureData, FigureSource, NamedLevel, compare_clusters
from helios.study.proposals import Source
from helios.study.statements import jobs as job_findings
from helios.study.statements import levels, use
from helios.study.statements.idle import LENT, REASONS, UNUSABLE, IdleByDay, idle_beside_waiting, idle_by_day
from helios.study.text import Statement, statements
from helios.units import HOUR_S
from helios.warehouse import Warehouse

if TYPE_CHECKING:
    from helios.report.html import PageSection


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecords:
    """Nodes of a cluster, as recorded or given by a person, and what jobs used.

    Attributes
    ----------
    nodes, events : DataFrame, optional
        Columns of ``NODES`` and ``NODE_EVENTS``.
    given : mapping, optional
        Nodes of each partition, given by a person. They replace what is recorded.
    units_per_node : float
        GPUs or CPUs of a node in ``given``.
    job_use : DataFrame, optional
        What jobs used, columns of ``JOB_USE``. None where nothing was measured.
    """

    nodes: pd.DataFrame | None = None
    events: pd.DataFrame | None = None
    given: Mapping[str, int] | None = None
    units_per_node: float = 8
    job_use: pd.DataFrame | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """Study of a cluster's history.

    Attributes
    ----------
    history : StudyHistory
        The jobs of the window.
    capacity : Capacity
        What was in service.
    size : ClusterCapacity, optional
        Size of the cluster, as all commands say it.
    idle : IdleByDay, optional
        Idle units beside waiting jobs on each day. None where not known.
    findings : tuple of Finding
        Findings by number.
    statements : tuple of Statement
        The findings in words.
    notes : tuple of str
        Properties of the data that a reader should know.
    """

    history: StudyHistory
    capacity: Capacity
    size: ClusterCapacity | None
    idle: IdleByDay | None
    findings: tuple[Finding, ...]
    statements: tuple[Statement, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return everything but the figures as plain values."""
        history = self.history
        return {
            "cluster": history.cluster,
            "timezone": history.timezone,
            "from": iso_time(history.first_s),
            "to": iso_time(history.end_s),
            "resource": history.resource,
            "jobs": int(history.submitted.sum()),
            "jobs_with_resource": int(history.sized.sum()),
            "hours": float(history.hours().sum()),
            "hours_are": "held in the window" if history.has_starts else "of jobs submitted in the window",
            "blocks": {"kind": history.blocks.kind, "n": history.blocks.n},
            "capacity": {
                **({} if self.size is None else self.size.to_json()),
                "mean_in_service": float(self.capacity.unit_hours.sum()) * HOUR_S / (history.end_s - history.first_s),
                "pools": list(self.capacity.pools),
            },
            "statements": [statement.to_json() for statement in self.statements],
            "notes": list(self.notes),
        }


def idle_levels(result: Study) -> list[NamedLevel]:
    """Return the idle units beside waiting jobs, by pool and day."""
    if result.idle is None or len(result.capacity.pools) < 2:
        return []
    edges_s = result.capacity.edges_s
    lent = result.idle.pools[:, :, LENT] / np.diff(edges_s)[:, None]
    return [
        NamedLevel(name=name, edges_s=edges_s, level=lent[:, place])
        for place, name in enumerate(result.capacity.pools)
        if lent[:, place].any()
    ]


def unusable_levels(result: Study) -> list[NamedLevel]:
    """Return the unusable free units by day and by known reason."""
    if result.idle is None:
        return []
    edges_s, step_s = result.capacity.edges_s, np.diff(result.capacity.edges_s)
    by_reason = {name: list(columns) for name, columns in REASONS.items()}
    columns = by_reason if result.idle.level == "nodes" else {"free": [UNUSABLE]}
    return [
        NamedLevel(name=name, edges_s=edges_s, level=result.idle.pools[:, :, numbers].sum(axis=(1, 2)) / step_s)
        for name, numbers in columns.items()
    ]


def write_study(
    result: Study,
    *,
    audience: str,
    report: Path | None,
    out: Path | None,
    energy: Energy | None = None,
) -> tuple[str, list[Path]]:
    """Write the files of a study, and return its page.

    Parameters
    ----------
    audience : str
        ``admin``, ``manager`` or ``paper``; figures of the last two name no users.
    report : Path, optional
        Where the page will be written. None where none is made.
    out : Path, optional
        Folder of the files. None where none are written.
    energy : Energy, optional
        Draw of nodes, and prices.
    """
    from helios.report.html import render_sections  # noqa: PLC0415 - drawing takes a second to import
    from helios.study.page import write_files  # noqa: PLC0415 - as above

    source, figures = _figures(result, audience=audience, energy=energy)
    files = write_files(out, result.statements, figures) if out is not None else []
    if report is None:
        return "", files
    page = render_sections(f"Study of {result.history.cluster}", _subtitle(result), _sections(result, source, figures))
    return page, files


def store_study(result: Study, folder: Path, *, energy: Energy | None, now: datetime) -> Path:
    """Store the latest study for the web page.

    Raises
    ------
    UsageError
        The folder cannot be written.
    """
    source, figures = _figures(result, audience="admin", energy=energy)
    sections = [
        {
            "title": section.title,
            "sentences": list(section.sentences),
            "figures": [drawn for draw in section.figures if all(drawn := [draw(), draw(narrow=True)])],
            "tables": [
                {"header": list(table.header), "rows": [list(row) for row in table.rows]}
                for table in section.tables
                if not isinstance(table, ReportTable)  # a study has none
            ],
            "notes": list(section.notes),
        }
        for section in _sections(result, source, figures)
    ]
    stored = StoredStudy(made_at=now, subtitle=_subtitle(result), values=result.to_json(), sections=tuple(sections))
    path = study_path(folder, result.history.cluster)
    try:
        make_folder(folder)
        write_private(path, stored.to_bytes())
    except OSError as reason:
        raise UsageError(f"{path} cannot be written: {reason}", hint="Choose another place: report.folder") from reason
    return path


def iso_time(at_s: int) -> str:
    """Return a time in ISO 8601, UTC."""
    return datetime.fromtimestamp(at_s, UTC).isoformat()


def load_study(
    *,
    url: str,
    cluster: str | None,
    window: Callable[[str, datetime | None], tuple[datetime | None, datetime | None]],
    progress: Progress = no_progress,
) -> tuple[LoadedHistory, NodeRecords]:
    """Read the jobs and nodes of a cluster from the warehouse.

    Jobs that began before the window and reached into it are included.

    Parameters
    ----------
    window : callable
        Returns begin and end of the window for the time zone and the end of a history that is not live, each None where
        it has no bound.

    Raises
    ------
    NoSuchCluster
        No cluster of that name is loaded, or none was named and several are.
    """
    progress("Reading the warehouse", 0.0)
    # Arrow's own allocator does not return freed memory, 0.7 GB after reading 10^7 jobs.
    pa.set_memory_pool(pa.system_memory_pool())
    with Warehouse.open(url) as warehouse:
        row = choose_cluster(warehouse, cluster)
        name, timezone = str(row["name"]), str(row["timezone"] or "UTC")
        covered, record = live_window(warehouse, name), None
        last = row["last_submitted_at"]
        since, until = window(timezone, None if covered or pd.isna(last) else last.to_pydatetime())
        if since is not None or until is not None:
            # A part of the jobs does not tell in which window the record is complete.
            record = record_window(warehouse.jobs(name, columns=RECORD_COLUMNS), asked=covered)
        loaded, records = read_records(warehouse, name, timezone=timezone, since=since, until=until)
    progress("Reading the warehouse", 1.0)
    loaded = replace(loaded, nodes=records.nodes, covered=covered, record=record)
    return loaded, records


def read_records(
    warehouse: Warehouse, cluster: str, *, timezone: str, since: datetime | None, until: datetime | None
) -> tuple[LoadedHistory, NodeRecords]:
    """Read the data of a study from an open warehouse."""
    jobs = warehouse.jobs(cluster, until=until, unended_at=since, columns=COLUMNS)
    nodes, events = warehouse.nodes(cluster), warehouse.node_events(cluster, since, until, reaching=True)
    records = NodeRecords(
        nodes=None if nodes.empty else nodes,
        events=None if events.empty else events,
        job_use=warehouse.job_use(cluster, until=until),
    )
    notes = tuple(filter(None, (UntrackedGpus().add(jobs).note(),)))
    return LoadedHistory(cluster=cluster, jobs=jobs, timezone=timezone, notes=notes), records


def study(
    loaded: LoadedHistory,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    partitions: Collection[str] = (),
    resource: str | None = None,
    records: NodeRecords | None = None,
    source: Source | None = None,
    progress: Progress = no_progress,
) -> Study:
    """Study a history.

    Parameters
    ----------
    since, until : datetime, optional
        The window; by default from the first to the last submission.
    partitions : collection of str
        Only jobs of these; empty for all.
    resource : str, optional
        ``gpus`` or ``cpus``; by default the one that the jobs have.
    records : NodeRecords, optional
        The nodes.
    source : Source, optional
        Where the history comes from, for the commands of the statements.

    Raises
    ------
    NotEnoughHistory
        No job was submitted, waited or ran in the window.
    UsageError
        The window ends before it begins, or a partition does not exist.
    """
    if since is not None and until is not None and since >= until:
        raise UsageError("The window ends before it begins.", hint="Give --from before --to")
    progress("Studying", 0.0)
    notes, size = loaded.notes, loaded.capacity
    record = loaded.record or record_window(loaded.jobs)
    jobs = _select_partitions(loaded.jobs[list(COLUMNS)], partitions)
    _refuse_empty(len(jobs), loaded.cluster, record)
    history = read_history(
        jobs,
        cluster=loaded.cluster,
        timezone=loaded.timezone,
        since=since,
        until=until,
        resource=resource,
    )
    del loaded, jobs  # so that only one history is in memory, unless the caller keeps it
    _refuse_empty(len(history.size), history.cluster, record)
    records = _with_size(records or NodeRecords(), size)
    capacity = find_capacity(
        history,
        nodes=records.nodes,
        events=records.events,
        given=records.given,
        units_per_node=records.units_per_node,
    )
    idle = idle_by_day(history, capacity) if history.has_starts and capacity.total.any() else None
    findings = find_all(history, capacity, records, idle, progress=progress)
    progress("Studying", 1.0)
    return Study(
        history=history,
        capacity=capacity,
        size=size,
        idle=idle,
        findings=tuple(findings),
        statements=tuple(statements(findings, history, size=size, source=source or Source())),
        notes=(*notes, *_notes(history), *capacity.notes),
    )


def find_all(
    history: StudyHistory,
    capacity: Capacity,
    records: NodeRecords,
    idle: IdleByDay | None,
    *,
    progress: Progress = no_progress,
) -> list[Finding]:
    """Return all findings, by number."""
    node_cpus, node_memory_mib = _ordinary_node(records.nodes)
    job_use = records.job_use
    measured = None if job_use is None or job_use.empty else use.use_of_history(history, job_use)
    steps: tuple[Callable[[], Finding | tuple[Finding, ...]], ...] = (
        lambda: idle_beside_waiting(history, capacity, idle),
        *(
            partial(step, history, capacity)
            for step in (
                levels.idle_nodes,
                levels.utilization,
                levels.imbalance,
                levels.large_and_long,
                levels.cpu_jobs_on_gpu_nodes,
                job_findings.who_waits,
            )
        ),
        *(
            partial(step, history)
            for step in (
                job_findings.long_failures,
                job_findings.repeated_failures,
                job_findings.hours_at_limit,
                job_findings.long_limits,
                job_findings.lost_to_requeues,
                job_findings.concentration,
                job_findings.short_behind_long,
                job_findings.repetition,
                job_findings.bursts,
                job_findings.drift,
            )
        ),
        lambda: job_findings.small_work(history, node_cpus=node_cpus, node_memory_mib=node_memory_mib),
        *(partial(step, history, measured) for step in (use.held_and_unused, use.fits_a_part, use.unused_requests)),
    )
    findings: list[Finding] = []
    for number, step in enumerate(steps):
        findings_of_step = step()
        findings += findings_of_step if isinstance(findings_of_step, tuple) else [findings_of_step]
        progress("Studying", (number + 1) / (len(steps) + 1))
    with_reasons = [
        replace(finding, missing="jobs to count in this window")
        if finding.estimate.value is None and not finding.missing
        else finding
        for finding in findings
    ]
    return sorted(with_reasons, key=lambda finding: finding.question)


def _refuse_empty(n_jobs: int, cluster: str, record: RecordWindow | None) -> None:
    """Raise an error where a window has no job."""
    if not n_jobs:
        spans = "" if record is None else f"; the record spans {record.span}"
        raise NotEnoughHistory(
            f"No job of {cluster} was submitted, waited or ran in the window{spans}.",
            hint="Choose --from and --to within it.",
        )


def _with_size(records: NodeRecords, size: ClusterCapacity | None) -> NodeRecords:
    """Return the nodes that a file names where no others are known.

    It is the header of a trace, or the file of a site.
    """
    if records.nodes is not None or records.given or size is None or not size.nodes:
        return records
    if size.source not in {CapacitySource.HEADER, CapacitySource.SITE}:
        return records
    return replace(records, given={WHOLE: size.nodes}, units_per_node=size.units / size.nodes)


def _select_partitions(jobs: pd.DataFrame, partitions: Collection[str]) -> pd.DataFrame:
    if not partitions:
        return jobs
    known = [str(name) for name in jobs["partition"].cat.categories]
    if unknown := sorted(set(partitions) - set(known)):
        raise UsageError(
            f"No job ran in a partition {', '.join(unknown)}.",
            hint=f"Partitions are: {', '.join(known[:20]) or 'not recorded here'}",
        )
    return jobs[jobs["partition"].isin(list(partitions))].reset_index(drop=True)


def _ordinary_node(nodes: pd.DataFrame | None) -> tuple[float | None, float | None]:
    """Return median CPUs and memory of GPU nodes, None where unknown."""
    if nodes is None:
        return None, None
    with_gpus = nodes[nodes["gpus"] > 0].drop_duplicates("name")
    medians = [float(with_gpus[name].median()) if len(with_gpus) else np.nan for name in ("cpus", "memory_mib")]
    cpus, memory = (None if np.isnan(value) else value for value in medians)
    return cpus, memory


def _notes(history: StudyHistory) -> tuple[str, ...]:
    notes = [
        f"{count:,} jobs whose record {what}: these times are unknown here" for what, count in history.repaired.items()
    ]
    if not history.has_starts:
        notes.append(
            "No starts are recorded here: hours are those of the jobs submitted in the window, whole, and nothing is "
            "known of waits and of what was in use."
        )
    return tuple(notes)


def _figures(result: Study, *, audience: str, energy: Energy | None) -> tuple[FigureSource, list[FigureData]]:
    source = FigureSource(
        result.history,
        result.capacity,
        audience=audience,
        idle_beside=idle_levels(result),
        unusable=unusable_levels(result),
        findings=result.findings,
        energy=energy,
    )
    return source, list(study_figures(source))


def _subtitle(result: Study) -> str:
    history = result.history
    return (
        f"{int(history.sized.sum()):,} jobs with {history.unit}s submitted from {iso_time(history.first_s)[:10]} to "
        f"{iso_time(history.end_s - 1)[:10]}, each run of a requeued one once. {history.unit} hours are those "
        f"{'held in the window' if history.has_starts else 'of the jobs submitted in the window, whole'}. Times are on "
        f"the cluster's own clock ({history.timezone}). Intervals are over {history.blocks.n} {history.blocks.kind}."
    )


def _sections(result: Study, source: FigureSource, figures: Sequence[FigureData]) -> list[PageSection]:
    from helios.study.page import study_sections  # noqa: PLC0415 - drawing takes a second to import

    return study_sections(
        statements=result.statements,
        figures=figures,
        beside=compare_clusters(source) if source.n else None,
        notes=result.notes,
    )
