"""Figures over time, of use, queue, submissions and losses."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.metrics.blocks import Question
from helios.metrics.history import COMPLETED, NOT_ENDED, UNKNOWN, Floats, Seconds, share
from helios.metrics.node_usage import NodeSeconds, energy_kwh
from helios.study.figures.jobs import NO_STARTS, SPREAD, WAIT
from helios.study.figures.source import (
    FOOTNOTES,
    MOST_NAMES,
    Axis,
    FigureData,
    FigureSource,
    NamedLevel,
    Panel,
    Series,
    days,
    divide,
    published,
    quantile_series,
    series,
)
from helios.study.statements.jobs import dispersion, failed_late, reached_limit
from helios.units import DAY_S, HOUR_S, MINUTE_S, duration_in_words, percent

WHOLE_MONTH_DAYS = 28
MOST_LAG_H = 168
BURST_SCALES_S = {MINUTE_S: "1 min", 10 * MINUTE_S: "10 min", HOUR_S: "1 h", 6 * HOUR_S: "6 h", DAY_S: "1 day"}
FEWEST_IN_BLOCK = 20
"""Fewest jobs of a week or day for its quantiles."""
WEEKDAYS = ("Mo", "Tu", "We", "Th", "Fr", "Sa", "Su")
STARTED_WITHIN = {"half": 0.5, "9 in 10": 0.9}
NO_HOURS = "no such hours, or capacity is not known here"
AT_LEAST = "Capacity is the most that was ever in use in four weeks, so at least that."


def hour_of_day(source: FigureSource) -> FigureData | str:
    """Return use and submissions by hour of the day."""
    history, unit = source.history, source.history.unit
    hour = source.hour_of_step % 24
    length_s = np.bincount(hour, weights=source.step_s, minlength=24)
    step_of_job = np.searchsorted(source.edges_s, history.submitted_s[source.sized], side="right") - 1
    counts = np.bincount(hour[step_of_job], minlength=24)
    submitted = divide(counts * HOUR_S, length_s)
    panels = []
    title, gpus = "", history.resource == "gpus"
    if history.has_starts:
        used = np.bincount(hour, weights=source.in_use * source.step_s, minlength=24)
        in_service = source.in_service(source.edges_s)
        denominator = (
            length_s if in_service is None else np.bincount(hour, weights=in_service * source.step_s, minlength=24)
        )
        levels = divide(used, denominator) * (1 if in_service is None else 100)
        y_unit = f"mean {unit}s in use" if in_service is None else f"mean % of {unit}s in use"
        panels.append(
            Panel(
                "line",
                Axis("hour", "hour of the day"),
                Axis("number" if in_service is None else "percent", y_unit),
                [series(f"{unit}s in use", np.arange(24), levels)],
                title=f"{unit}s in use",
                beside=published("hour_use") if gpus and in_service is not None else (),
            )
        )
        swing = float(np.nanmax(levels) - np.nanmin(levels))
        title = f"{unit}s in use swing by {swing:.0f} {'points' if in_service is not None else f'{unit}s'} over the day"
    panels.append(
        Panel(
            "line",
            Axis("hour", "hour of the day"),
            Axis("number", f"{unit} jobs submitted in the hour"),
            [series(f"{unit} jobs submitted", np.arange(24), submitted)],
            title="Submissions",
            beside=published("hour_submissions") if gpus else (),
        )
    )
    busiest, quietest = float(np.nanmax(submitted)), float(np.nanmin(submitted))
    times = f"{busiest / quietest:.1f} times as many as in the quietest" if quietest > 0 else "none in the quietest"
    submissions = f"in the busiest hour {busiest:.1f} jobs are submitted, {times}"
    return _figure_of_starts(
        source,
        title=f"{title}; {submissions}." if title else f"{submissions[0].upper()}{submissions[1:]}.",
        definition=(
            f"Means over the hours of the window on the cluster's clock ({history.timezone}), divided by how many such "
            "hours there were"
        ),
        panels=tuple(panels),
        notes=(
            *((AT_LEAST,) if history.has_starts and source.capacity is not None and source.capacity.at_least else ()),
            *((FOOTNOTES["hour_of_day"],) if gpus else ()),
            *(() if history.has_starts else (f"{unit}s in use are not shown: {NO_STARTS}.",)),
        ),
    )


def months(source: FigureSource) -> FigureData | str:
    """Return jobs and use by month, of one unit and of several."""
    history, unit = source.history, source.history.unit
    edges_s = source.calendar_edges("MS")
    names = _month_names(edges_s, history.timezone)
    one, more = ("up to 1", "more than 1") if (history.size % 1 > 0).any() else ("1", "2 or more")
    sizes = {f"{one} {unit}": (history.size > 0) & (history.size <= 1), f"{more} {unit}s": history.size > 1}
    month = np.searchsorted(edges_s, history.submitted_s, side="right") - 1
    counts = {
        name: np.bincount(month[jobs & source.sized], minlength=len(names)).astype(np.float64)
        for name, jobs in sizes.items()
    }
    panels = [
        Panel(
            "bars",
            Axis("name", "month"),
            Axis("number", f"{unit} jobs submitted in the month"),
            [series(name, names, values) for name, values in counts.items()],
            title="Jobs submitted",
        )
    ]
    if history.has_starts:
        in_service = source.in_service(edges_s)
        capacity = 1.0 if in_service is None else _mean_in_service(source, edges_s) / 100
        panels.append(
            Panel(
                "stack",
                Axis("name", "month"),
                Axis(
                    "number" if in_service is None else "percent",
                    f"mean {unit}s" if in_service is None else f"mean % of {unit}s",
                ),
                [series(name, names, source.held(jobs, edges_s) / capacity) for name, jobs in sizes.items()],
                title=f"{unit}s that they held",
            )
        )
    length = days(edges_s)
    whole_months = length >= WHOLE_MONTH_DAYS
    partial_months = [name for name, is_whole in zip(names, whole_months, strict=True) if not is_whole]
    single, larger = counts.values()
    days_s = max(float(length.sum()), 1 / 24)
    title = f"{single.sum() / days_s:,.0f} jobs of one {unit} and {larger.sum() / days_s:,.0f} of more arrive a day."
    jobs_per_day = [(values / length)[whole_months] for values in (single, larger)]
    if whole_months.sum() >= 2 and all(per_day.min() > 0 for per_day in jobs_per_day):
        vary, vary_larger = (float(per_day.max() / per_day.min()) for per_day in jobs_per_day)
        title = (
            f"Jobs of one {unit} vary {vary:.1f} times between the months, "
            f"those of more {unit}s {vary_larger:.1f} times."
        )
    return _figure_of_starts(
        source,
        title=title,
        definition=f"{unit} jobs by month of submission; {unit}s held by all jobs in the month, on the cluster's clock",
        panels=tuple(panels),
        notes=(f"Not whole: {', '.join(partial_months)}.",) if partial_months else (),
    )


def partitions(source: FigureSource) -> FigureData | str:
    """Return use and waits by partition."""
    history, unit = source.history, source.history.unit
    if not history.has_starts:
        return NO_STARTS
    rows = source.partitions
    if not rows:
        return "partitions are not recorded here"
    names = [name for name, _, _ in rows]
    levels = [source.held(jobs) for _, jobs, _ in rows]
    in_service = [None if pool is None else source.in_service(source.edges_s, pool) for _, _, pool in rows]
    relative = all(units is not None for units in in_service)
    if relative:
        levels = [
            divide(100 * level, units) for level, units in zip(levels, in_service, strict=True) if units is not None
        ]
    known = [level[np.isfinite(level)] for level in levels]
    medians = [float(np.quantile(level, 0.5)) for level in known]
    low, high = int(np.argmin(medians)), int(np.argmax(medians))
    noun = f"% of its {unit}s" if relative else f"{unit}s"
    title = (
        f"In half of the time {names[low]} uses {medians[low]:.0f} {noun} or less, "
        f"{names[high]} {medians[high]:.0f} or more."
        if len(names) > 1
        else f"In half of the time {medians[0]:.0f} {'% of the ' if relative else ''}{unit}s or more are in use."
    )
    waits = [source.waits(jobs) for _, jobs, _ in rows]
    panels = [
        Panel(
            "range",
            Axis("name", "partition"),
            Axis("percent" if relative else "number", f"% of {unit}s in use" if relative else f"{unit}s in use"),
            quantile_series(names, [partial(np.quantile, level) for level in known], SPREAD),
            title=f"{unit}s in use",
        )
    ]
    if any(times.n for times in waits):
        panels.append(
            Panel(
                "range",
                Axis("name", "partition"),
                Axis("duration", "s waited"),
                quantile_series(names, [times.quantile for times in waits], STARTED_WITHIN, "{} started within"),
                title="Wait",
            )
        )
    at_least = source.capacity is not None and source.capacity.at_least and relative
    return FigureData(
        title=title,
        definition=f"{unit}s in use in quarters of an hour: 5, 25, 50, 75, 95 %. {WAIT}",
        n=int(sum((jobs & source.sized).sum() for _, jobs, _ in rows)),
        coverage=share(sum(float(source.hours[jobs].sum()) for _, jobs, _ in rows), source.hours),
        covered=f"{unit} hours",
        panels=tuple(panels),
        notes=(
            *((AT_LEAST,) if at_least else ()),
            *((f"The {MOST_NAMES} with the most {unit} hours.",) if len(rows) == MOST_NAMES else ()),
        ),
    )


def used_and_waited(source: FigureSource) -> FigureData | str:
    """Return used, idle and requested units by week."""
    history, unit = source.history, source.history.unit
    if not history.has_starts:
        return NO_STARTS
    edges_s = history.blocks.edges_s
    used, waited = source.held(edges_s=edges_s), source.asked(edges_s=edges_s)
    lines = [series("in use", edges_s[:-1], used)]
    if source.in_service(edges_s) is not None:
        in_service = _mean_in_service(source, edges_s)
        lines.append(series("idle", edges_s[:-1], np.maximum(in_service - used, 0)))
    lines.append(series("waited for", edges_s[:-1], waited))
    length_s = np.diff(edges_s)
    mean_used, mean_waited = (float(np.average(level, weights=length_s)) for level in (used, waited))
    of_total, in_service_by_step = "", source.in_service(source.edges_s)
    if in_service_by_step is not None and source.capacity is not None:
        total = float(np.average(in_service_by_step, weights=source.step_s))
        of_total = f" of {'at least ' if source.capacity.at_least else ''}{total:,.0f}"
    return _figure_of_starts(
        source,
        title=f"On average {mean_used:,.0f}{of_total} {unit}s are in use while {mean_waited:,.0f} are waited for.",
        definition=f"Means over {history.blocks.kind}: {unit}s of running jobs and of jobs that may start and wait",
        n=int(source.wait_known.sum()),
        panels=(_over_time(f"mean {unit}s", lines),),
        notes=(AT_LEAST,) if of_total and source.capacity is not None and source.capacity.at_least else (),
    )


def idle_beside(source: FigureSource) -> FigureData | str:
    """Return the idle units of partitions while jobs that fit wait in others."""
    history, unit = source.history, source.history.unit
    levels = [level for level in source.idle_beside if len(level.level)]
    if not levels:
        return NO_HOURS if history.has_starts else NO_STARTS
    blocks = history.blocks
    means = {level.name: _by_block(source, level) for level in levels}
    order = sorted(means, key=lambda name: -float(np.nansum(means[name])))[: MOST_NAMES // 2]
    total = sum(float(np.average(level.level, weights=np.diff(level.edges_s))) for level in levels)
    return _figure_of_starts(
        source,
        title=f"On average {total:,.1f} {unit}s idle while jobs that fit wait elsewhere, most of them in {order[0]}.",
        definition=(
            "After the own queue of each partition is placed greedily: waiting jobs of others, oldest first, that fit; "
            f"means over {blocks.kind}"
        ),
        panels=(_over_time(f"mean {unit}s idle", [series(name, blocks.edges_s[:-1], means[name]) for name in order]),),
    )


def fragmentation(source: FigureSource) -> FigureData | str:
    """Return the free capacity beside waiting jobs, by reason."""
    history, unit = source.history, source.history.unit
    levels = [reason for reason in source.unusable if reason.level.any()]
    if not levels:
        return NO_HOURS if history.has_starts else NO_STARTS
    means = {reason.name: _by_block(source, reason) for reason in levels}
    total = {reason.name: float(np.average(reason.level, weights=np.diff(reason.edges_s))) for reason in levels}
    largest = max(total, key=lambda name: total[name])
    reasons = f", most of them for this reason: {largest}" if len(source.unusable) > 1 else ""
    return _figure_of_starts(
        source,
        title=f"On average {sum(total.values()):,.1f} {unit}s are free while jobs wait, none of which fits{reasons}.",
        definition=(
            f"{unit}s left free after the queue of each partition is placed greedily, while a job of it still waits; "
            f"of several reasons that which comes closest to a fit; means over {history.blocks.kind}"
        ),
        panels=(
            _over_time(
                f"mean {unit}s free",
                [series(name, history.blocks.edges_s[:-1], values) for name, values in means.items()],
            ),
        ),
        notes=() if len(source.unusable) > 1 else ("Reasons are not known: jobs' nodes are not recorded here.",),
    )


def idle_nodes(source: FigureSource) -> FigureData | str:
    """Return idle spells of nodes and their energy."""
    history, finding = source.history, source.findings.get(Question.IDLE_NODES)
    if finding is None or finding.estimate.value is None:
        return finding.missing if finding is not None else NO_STARTS
    hours, served = (np.array(finding.parts[name]) for name in ("hours_by_block", "served_hours_by_block"))
    kwh = np.array(
        [
            energy_kwh(NodeSeconds(idle=idle_hours * HOUR_S), source.energy)
            - energy_kwh(NodeSeconds(asleep=idle_hours * HOUR_S), source.energy)
            for idle_hours in hours
        ]
    )
    begins_s, kind = history.blocks.edges_s[:-1], history.blocks.kind
    a_day = kwh.sum() * DAY_S / (history.end_s - history.first_s)
    at_least = "At least " if finding.parts["level"] == "counts" else ""
    share_idle = percent(finding.estimate.value, 1)
    return FigureData(
        title=f"{at_least}{share_idle} of node hours are in idle spells above an hour.",
        definition=(
            f"Spells longer than an hour without a job on a node in service, by {kind}; the energy is that of nodes "
            f"awake less that of nodes asleep, at {source.energy.node_idle_w:g} and {source.energy.node_sleep_w:g} W "
            f"and {source.energy.cooling_factor:g} times that for the building, {a_day:,.0f} kWh a day. That is the "
            "most that sleep can save; helios whatif energy says what it would"
        ),
        n=finding.n or 0,
        noun="nodes",
        coverage=finding.coverage,
        covered="hours",
        panels=(
            _over_time(
                "% of node hours",
                [series("idle", begins_s, divide(100 * hours, served))],
                title="Idle spells",
                y_kind="percent",
            ),
            _over_time(f"kWh in each of the {kind}", [series("kWh", begins_s, kwh)], title="Energy"),
        ),
        notes=("Nodes of jobs are not recorded: nodes are taken to be filled in one order.",) if at_least else (),
    )


def energy(source: FigureSource) -> FigureData | str:
    """Return energy, cost and emissions of the nodes."""
    history, unit, model = source.history, source.history.unit, source.energy
    if not history.has_starts:
        return NO_STARTS
    blocks, kind = history.blocks, history.blocks.kind
    used_s = history.hours_by_block() * HOUR_S
    of_gpus = history.resource == "gpus"
    busy = "gpus_busy" if of_gpus else "cpus_busy"
    load = np.array([energy_kwh(NodeSeconds(**{busy: seconds}), model) for seconds in used_s])
    awake = _awake_s(source)
    base_load = (
        np.array([energy_kwh(NodeSeconds(idle=seconds), model) for seconds in awake]) if awake is not None else None
    )
    total = load if base_load is None else load + base_load
    if not total.any():
        return "nodes are not known here"
    weeks = history.weeks
    money = f"{total.sum() * model.price_per_kwh / weeks:,.0f} {model.currency}"
    carbon = f"{total.sum() * model.co2_g_per_kwh / 1e6 / weeks:,.2f} t of CO2"
    unit_w = model.gpu_busy_w if of_gpus else model.cpu_busy_w
    at_least = "At least " if base_load is None else ""
    lines = [series(f"load of {unit}s in use", blocks.edges_s[:-1], load)]
    lines += [] if base_load is None else [series("nodes awake", blocks.edges_s[:-1], base_load)]
    return _figure_of_starts(
        source,
        title=f"{at_least}{total.sum() / weeks:,.0f} kWh a week by the stated model: {money} and {carbon} a week.",
        definition=(
            f"A node awake {model.node_idle_w:g} W, each {unit} in use {unit_w:g} W more, {model.cooling_factor:g} "
            f"times that for the building; {model.price_per_kwh:g} {model.currency} and {model.co2_g_per_kwh:g} g of "
            "CO2 a kWh (section energy of the configuration). Nodes in service count as awake"
        ),
        panels=(_over_time(f"kWh in each of the {kind}", lines),),
        notes=("Nodes are not known: only the load of jobs counts.",) if base_load is None else (),
    )


def hours_lost(source: FigureSource) -> FigureData | str:
    """Return hours lost to failures and limits, and needlessly long limits."""
    history, unit = source.history, source.history.unit
    known = ~np.isin(history.state, (UNKNOWN, NOT_ENDED))
    held = history.hours_by_block(known)
    if not known.any() or held.sum() <= 0:
        return "how jobs ended is not recorded here"
    limited = np.isfinite(history.time_limit_s) & (history.time_limit_s > 0)
    lost = {
        "failed after an hour or more": history.hours_by_block(failed_late(history)),
        "at their time limit": history.hours_by_block(reached_limit(history)),
    }
    begins_s, kind = history.blocks.edges_s[:-1], history.blocks.kind
    panels = [
        _over_time(
            f"% of {unit} hours",
            [series(name, begins_s, divide(100 * values, held)) for name, values in lost.items()],
            title="Lost",
            y_kind="percent",
        )
    ]
    completed = limited & (history.state == COMPLETED) & np.isfinite(history.run_time_s)
    unused_s = np.where(completed, np.maximum(history.time_limit_s - history.run_time_s, 0), 0.0)
    if completed.any():
        unused = history.blocks.sum(history.submitted_s, unused_s * history.size / HOUR_S)
        used = history.blocks.sum(
            history.submitted_s, np.where(completed, np.nan_to_num(history.run_time_s), 0.0) * history.size / HOUR_S
        )
        lines = [series("completed jobs", begins_s, divide(unused, used))]
        panels.append(_over_time("times the hours used", lines, title="Asked for beyond the run"))
    parts = [percent(float(values.sum() / held.sum()), 1) for values in lost.values()]
    return FigureData(
        title=f"{parts[0]} of the {unit} hours are in jobs that failed after an hour or more, {parts[1]} in jobs that "
        "ended at their limit.",
        definition=(
            f"{unit} hours inside each of the {kind}. Failed: FAILED, OUT_OF_MEMORY, NODE_FAIL, BOOT_FAIL, but not at "
            "the time limit; cancelled is not lost. Asked for beyond the run: limit - run time of completed jobs, by "
            "submission"
        ),
        n=int((known & (history.size > 0)).sum()),
        coverage=share(source.hours[known], source.hours),
        covered=f"{unit} hours",
        panels=tuple(panels),
    )


def arrivals(source: FigureSource) -> FigureData | str:
    """Return autocorrelation and burstiness of submissions."""
    history = source.history
    at_s = {"jobs": np.sort(history.submitted_s[source.sized])}
    array = history.jobs["array_job_id"]
    if source.n and bool(array.notna().any()):
        tasks = array.notna().to_numpy() & source.sized
        first = np.zeros(len(tasks), dtype=bool)
        first[np.flatnonzero(tasks)[~array[tasks].duplicated().to_numpy()]] = True
        at_s["submissions, an array once"] = np.sort(history.submitted_s[(source.sized & ~tasks) | first])
    hourly = {name: _counts(moments, history.first_s, history.end_s, HOUR_S) for name, moments in at_s.items()}
    counts = hourly["jobs"]
    if len(counts) < 48 or not counts.any() or float(counts.std()) == 0:
        return "fewer than two days of submissions"
    lags = np.arange(1, min(MOST_LAG_H, len(counts) // 3) + 1)
    bursts = {
        name: [_dispersion(_counts(moments, history.first_s, history.end_s, scale)) for scale in BURST_SCALES_S]
        for name, moments in at_s.items()
    }
    correlations = {name: _autocorrelation(values, lags) for name, values in hourly.items()}
    of_jobs = correlations["jobs"]
    a_day = f", {of_jobs[23]:.2f} a day later" if len(of_jobs) > 23 else ""
    return FigureData(
        title=f"Submissions of an hour correlate by {of_jobs[0]:.2f} with those of the next{a_day}; their variance is "
        f"{bursts['jobs'][2]:,.0f} times their mean.",
        definition=(
            "Autocorrelation of the jobs submitted in each whole hour; variance / mean of the jobs submitted in "
            "windows of a length, 1 if they came independently"
        ),
        n=source.n,
        coverage=1.0,
        panels=(
            Panel(
                "line",
                Axis("number", "h later"),
                Axis("number", "correlation"),
                [series(name, lags, values) for name, values in correlations.items()],
                title="Autocorrelation",
            ),
            Panel(
                "bars",
                Axis("name", "window"),
                Axis("number", "variance / mean"),
                [series(name, list(BURST_SCALES_S.values()), values) for name, values in bursts.items()],
                title="Bursts",
            ),
        ),
    )


def drift(source: FigureSource) -> FigureData | str:
    """Return how run times and sizes change from week to week."""
    history, unit = source.history, source.history.unit
    begins_s = history.blocks.edges_s[:-1]
    times_by_block = [source.run_times(jobs) for jobs in source.sized_by_block]
    if sum(1 for times in times_by_block if times.n >= FEWEST_IN_BLOCK) < 2:
        return f"fewer than two {history.blocks.kind} of {FEWEST_IN_BLOCK} jobs with run times"
    quantiles = {
        name: np.array([times.quantile(part) if times.n >= FEWEST_IN_BLOCK else np.nan for times in times_by_block])
        for name, part in {"1 in 10": 0.1, "half": 0.5, "9 in 10": 0.9}.items()
    }
    sizes = [float(history.size[jobs].mean()) if len(jobs) else np.nan for jobs in source.sized_by_block]
    half = quantiles["half"][np.isfinite(quantiles["half"])]
    low, high = (float(half.min()), float(half.max())) if len(half) else (float("nan"),) * 2
    kind = history.blocks.kind[:-1]
    return FigureData(
        title=f"The median run time of a {kind} lies between {duration_in_words(low)} and {duration_in_words(high)}."
        if len(half)
        else "Most jobs still run.",
        definition=f"Jobs by {kind} of submission: run time of 1 in 10, half, 9 in 10 at most; mean {unit}s of a job",
        n=sum(times.n for times in times_by_block),
        coverage=share(float(sum(times.n for times in times_by_block)), source.sized),
        panels=(
            Panel(
                "line",
                Axis("date", "beginning"),
                Axis("duration", "s run"),
                [series(f"{name} ran at most", begins_s, values) for name, values in quantiles.items()],
                title="Run times",
            ),
            _over_time(f"mean {unit}s of a job", [series("jobs", begins_s, sizes)], title="Sizes"),
        ),
    )


def _figure_of_starts(
    source: FigureSource, *, title: str, definition: str, n: int | None = None, **more: Any
) -> FigureData:
    """Return a figure that covers the jobs with a known start.

    ``more`` are its panels and notes.
    """
    history, ran = source.history, source.sized & source.history.ran
    return FigureData(
        title=title,
        definition=definition,
        n=source.n if n is None else n,
        coverage=share(ran & (history.started_s < history.ended_s), ran) if history.has_starts else None,
        covered="jobs that ran and whose start is known",
        **more,
    )


def _mean_in_service(source: FigureSource, edges_s: Seconds) -> Floats:
    """Return the mean units in service in longer steps than ``source``'s."""
    in_service = source.in_service(source.edges_s)
    assert in_service is not None
    step_of = np.searchsorted(edges_s, source.edges_s[:-1], side="right") - 1
    unit_seconds = np.bincount(step_of, weights=in_service * source.step_s, minlength=len(edges_s) - 1)
    length_s = np.bincount(step_of, weights=source.step_s, minlength=len(edges_s) - 1)
    return divide(unit_seconds, np.where(unit_seconds > 0, length_s, 0))


def _month_names(edges_s: Seconds, timezone: str) -> list[str]:
    return [
        str(name) for name in pd.to_datetime(edges_s[:-1], unit="s", utc=True).tz_convert(timezone).strftime("%Y-%m")
    ]


def _over_time(y_unit: str, lines: list[Series], *, title: str = "", y_kind: str = "number") -> Panel:
    return Panel("line", Axis("date", "beginning"), Axis(y_kind, y_unit), lines, title=title)


def _by_block(source: FigureSource, level: NamedLevel) -> Floats:
    """Return the mean level in each block, NaN if unknown."""
    blocks, steps_s = source.history.blocks, np.diff(level.edges_s).astype(np.float64)
    unit_seconds, length_s = (blocks.sum(level.edges_s[:-1], weight) for weight in (level.level * steps_s, steps_s))
    return divide(unit_seconds, length_s)


def _awake_s(source: FigureSource) -> Floats | None:
    """Return node seconds in service by block, None of unknown nodes."""
    capacity, blocks = source.capacity, source.history.blocks
    if capacity is None or capacity.at_least or not all(capacity.units_per_node) or not capacity.units_per_node:
        return None
    nodes = capacity.units / np.array(capacity.units_per_node, dtype=np.float64)[:, None]
    return blocks.sum(capacity.edges_s[:-1], nodes.sum(axis=0) * np.diff(capacity.edges_s))


def _counts(moments_s: Seconds, first_s: int, end_s: int, step_s: int) -> Floats:
    """Return how many moments fall into each whole step of a window."""
    edges_s = np.arange(-(-first_s // step_s) * step_s, end_s + 1, step_s)
    return np.diff(np.searchsorted(moments_s, edges_s)).astype(np.float64)


def _dispersion(counts: Floats) -> float:
    """Return the dispersion of counts, NaN where there are too few."""
    return dispersion(counts) if len(counts) > 1 and counts.any() else float("nan")


def _autocorrelation(counts: Floats, lags: NDArray[np.int64]) -> Floats:
    if float(counts.std()) == 0:
        return np.full(len(lags), np.nan)
    deviation = counts - counts.mean()
    return np.array([float(np.dot(deviation[lag:], deviation[:-lag]) / np.dot(deviation, deviation)) for lag in lags])
