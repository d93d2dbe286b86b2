"""Pages of the web site about pools, from their runs in the warehouse."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from helios.model.trial_runs import TrialRun
from helios.report.html import PageSection, TableCells
from helios.training.figures import PlottedPool, PlottedTrial, pool_figures
from helios.training.report import memory_in_words, write_parameters
from helios.units import count_in_words, rounded_duration
from helios.warehouse import Warehouse
from helios.warehouse.trials import SHORT_POOL
from helios.web.page import MenuPlace, Page, PageMissing, Reader, Role, Route
from helios.web.site import Site

MOST_POOLS, MOST_TRIALS = 200, 500
"""Rows of a page. JSON has as many pools, and all trials."""
LONGEST_CELL = 200
"""Letters of a cell."""
FINISHED = {"finished", "stopped"}
"""Outcomes of a trial with a result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPool:
    """Runs of one program in a pool, as the warehouse has them.

    Attributes
    ----------
    runs : sequence of TrialRun
        At least one, oldest first.
    """

    runs: Sequence[TrialRun]

    @property
    def last(self) -> list[TrialRun]:
        """The last attempt of each trial, by number."""
        found: dict[int, TrialRun] = {}
        for run in sorted(self.runs, key=lambda run: (run.number, run.attempt)):
            found[run.number] = run
        return list(found.values())

    @property
    def gpu_hours(self) -> float:
        """GPU hours of all attempts, shared GPUs counting for each."""
        return sum(run.seconds * sum(run.placement) / 3600 for run in self.runs if run.device_kind == "gpu")

    def plotted(self) -> PlottedPool:
        """Return its trials for figures."""
        trials = [
            PlottedTrial(
                number=run.number,
                parameters=run.parameters,
                state="finished" if run.outcome in FINISHED else run.outcome,
                value=run.metrics.get(run.metric),
                curve=run.curve,
            )
            for run in self.last
        ]
        first = self.runs[0]
        return PlottedPool(metric=first.metric, maximize=first.direction == "maximize", trials=trials)

    def to_json(self) -> dict[str, Any]:
        """Return what the list of pools says."""
        first, ranked = self.runs[0], self.plotted().ranked
        return {
            "pool": first.pool,
            "user": first.user,
            "program": first.program,
            "started_at": _moment(first.started_s),
            "last_ended_at": _moment(max(run.ended_s for run in self.runs)),
            "trials": dict(sorted(Counter(run.outcome for run in self.last).items())),
            "metric": first.metric or None,
            "direction": first.direction or None,
            "best": {"number": ranked[0].number, "value": ranked[0].value} if ranked and first.metric else None,
            "gpu_hours": round(self.gpu_hours, 3),
        }


def pools_page(site: Site, reader: Reader, _: Mapping[str, str]) -> Page:
    """Return the list of pools, the last one first."""
    pools = _stored(site, reader)
    found = [pool.to_json() for pool in pools[:MOST_POOLS]]
    names = ["Pool", "Program", *(["User"] if reader.is_admin else []), "Started", "Last end", "Trials", "Best"]
    rows = [
        [
            pool["pool"][:SHORT_POOL],
            Path(pool["program"]).name[:LONGEST_CELL],
            *([pool["user"]] if reader.is_admin else []),
            pool["started_at"],
            pool["last_ended_at"],
            _outcomes(pool["trials"]),
            "" if pool["best"] is None else f"{pool['metric'][:LONGEST_CELL]} {pool['best']['value']:.5g}",
            f"{pool['gpu_hours']:,.1f}",
        ]
        for pool in found
    ]
    lines = (
        [f"{count_in_words(len(pools), 'pool')}, the last one first. Times are UTC."]
        if pools
        else ["No pool has stored its trials here: helios pool run does, where there is this database."]
    )
    notes = ["A trial counts when it has ended. GPU hours: trials that share a GPU count in full each."]
    notes += [f"The first {MOST_POOLS} of {len(pools):,} are shown."] if len(pools) > MOST_POOLS else []
    table = TableCells(header=[*((name, True) for name in names), ("GPU hours", False)], rows=rows)
    section = PageSection(sentences=lines, tables=[table], notes=notes if pools else [])
    return Page(title="Pools", sections=[section], values={"pools": found})


def pool_page(site: Site, reader: Reader, given: Mapping[str, str]) -> Page:
    """Return the page of one pool."""
    pools = _stored(site, reader, pool=given["pool"])
    if not pools:
        raise PageMissing(f"You have no pool {given['pool']}.", hint="Only your own pools are shown.")
    sections, values = [], []
    for pool in pools:
        summary = pool.to_json()
        sections += _pool_sections(pool, summary)
        values.append({**summary, "trials": [_trial_json(run) for run in pool.last]})
    return Page(title=f"Pool {given['pool'][:SHORT_POOL]}", sections=sections, values={"sweeps": values})


def _stored(site: Site, reader: Reader, *, pool: str | None = None) -> list[StoredPool]:
    """Return the pools that a reader may see, the last one first.

    Pools of one folder that run different programs are apart.
    """
    with Warehouse.open(site.settings.database.url) as warehouse:
        runs = warehouse.trial_runs(user=None if reader.is_admin else reader.user, pool=pool)
    pools: dict[tuple[str, ...], list[TrialRun]] = defaultdict(list)
    for run in runs:
        pools[run.user, run.pool, run.program, run.metric].append(run)
    return [StoredPool(runs=group) for group in pools.values()][::-1]


def _pool_sections(pool: StoredPool, summary: Mapping[str, Any]) -> list[PageSection]:
    plotted = pool.plotted()
    ranked = plotted.ranked
    lines = [
        f"{summary['program'][:LONGEST_CELL]} of {summary['user']}: {_outcomes(summary['trials'])}.",
        *(
            f"Best {summary['metric']}: {trial.value:.5g}, trial {trial.number} ({write_parameters(trial.parameters)})."
            for trial in ranked[:1]
            if summary["metric"]
        ),
        f"From {summary['started_at']} to {summary['last_ended_at']} UTC, {summary['gpu_hours']:,.1f} GPU hours.",
    ]
    names = ("Trial", "Parameters", "Outcome", summary["metric"] or "Metric", "Time", "Memory", "Attempt")
    order = {trial.number: place for place, trial in enumerate(ranked)}
    last = sorted(pool.last, key=lambda run: (order.get(run.number, len(order)), run.number))
    seconds: dict[int, float] = defaultdict(float)
    for run in pool.runs:
        seconds[run.number] += run.seconds
    rows = [
        [
            str(run.number),
            write_parameters(run.parameters)[:LONGEST_CELL],
            run.outcome,
            f"{run.metrics[run.metric]:.5g}" if run.metric in run.metrics else "",
            rounded_duration(seconds[run.number]),
            memory_in_words(run.peak_memory_mib),
            str(run.attempt),
        ]
        for run in last[:MOST_TRIALS]
    ]
    notes = [f"{len(last) - MOST_TRIALS:,} more trials are in JSON."] if len(last) > MOST_TRIALS else []
    table = TableCells(header=[(name, place < 3) for place, name in enumerate(names)], rows=rows)
    return [
        PageSection(title=Path(summary["program"]).name[:LONGEST_CELL], sentences=lines),
        *pool_figures(plotted),
        PageSection(title="Trials that have ended", tables=[table], notes=notes),
    ]


def _trial_json(run: TrialRun) -> dict[str, Any]:
    return {
        "number": run.number,
        "attempt": run.attempt,
        "parameters": dict(run.parameters),
        "outcome": run.outcome,
        "value": run.metrics.get(run.metric),
        "metrics": dict(run.metrics),
        "started_at": _moment(run.started_s),
        "seconds": run.seconds,
        "peak_memory_mib": run.peak_memory_mib,
    }


def _outcomes(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {outcome}" for outcome, count in counts.items())


def _moment(at_s: float) -> str:
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M}"


ROUTES = (
    Route(
        "/pools",
        "Training pools and their best trials",
        pools_page,
        place=MenuPlace.HELIOS,
        menu_name="Pools",
        readers=Role.USER,
    ),
    Route(
        "/pools/{pool}",
        "One pool: trials, curves, parameters",
        pool_page,
        place=MenuPlace.HELIOS,
        readers=Role.USER,
        parent="/pools",
    ),
)
