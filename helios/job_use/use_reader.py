"""Questions to Prometheus about what ended jobs used.

Each query is about the own span of each of many jobs, at its own end: so an id that was used again is no other job.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import pandas as pd

from helios.config import PrometheusSettings
from helios.errors import UsageError
from helios.job_use.dialects import (
    DIALECTS,
    HOST_METRICS,
    MIB,
    GpuExporter,
    HostMetrics,
    Metric,
    is_slice,
    one_of,
    select,
)
from helios.job_use.prometheus import Prometheus, PrometheusRefused, PrometheusSeries, TooMuchAsked
from helios.metrics.job_use import COVERED, IDLE, LOADING_S
from helios.units import HOUR_S, MINUTE_S

MOST_POINTS = 11_000
"""Most points of a series that Prometheus gives; steps are as long as that takes."""
DEFAULT_STEP_S = 30
FEWEST_FOR_STEP = 5
"""Samples of a series in ten minutes from which their step is taken."""
BINS = 200
"""Parts of a run in which its longest idle time is looked for."""
_RUN_LABEL = "helios_run"
_MEAN = "avg_over_time(SERIESWINDOW)"
_MOST = "max_over_time(SERIESWINDOW)"
_SUM_OF_MOST = "sum(max_over_time(SERIESWINDOW))"
_COVERED = "STEP * count_over_time(SERIESWINDOW)"
_IDLE_SHARE = "avg_over_time((SERIES < bool IDLE)WINDOW)"
_UTILIZATION = {
    "utilization": _MEAN,
    "utilization_p95": "quantile_over_time(0.95, SERIESWINDOW)",
    "utilization_max": _MOST,
}


@dataclass(slots=True, kw_only=True)
class Gpu:
    """What the answers say of one GPU of a run."""

    node: str
    number: str
    labels: tuple[str, ...]
    is_slice: bool
    metric: Metric
    values: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class JobRun:
    """One run of a job, and what the answers say of it.

    Attributes
    ----------
    begin_s, end_s : float
        Its span, s since the epoch.
    gpus : float
        GPUs that it held; NaN where that is not known.
    nodes : frozenset of str
        Its nodes, empty where they are not known.
    """

    submitted_at: pd.Timestamp
    job_id: str
    restart: int
    begin_s: float
    end_s: float
    gpus: float
    nodes: frozenset[str]
    found: dict[tuple[str, ...], Gpu] = field(default_factory=dict)
    host: dict[str, float] = field(default_factory=dict)
    counts_sm: bool = False

    @property
    def span_s(self) -> int:
        """Length of its span, s."""
        return round(self.end_s - self.begin_s)

    def step(self, step_s: int) -> int:
        """Return the step in which its span has not too many points, s."""
        return max(step_s, math.ceil(self.span_s / MOST_POINTS))

    def is_covered(self, covered_s: float | None, step_s: int) -> bool:
        """Return whether samples cover the span, whose first one may come a step late."""
        return covered_s is not None and covered_s + self.step(step_s) >= COVERED * self.span_s

    def window(self, step_s: int, *, without_s: int = 0) -> str:
        """Return the window of its span for a subquery, without its first ``without_s``, s."""
        return f"[{self.span_s - without_s}s:{self.step(step_s)}s] @ {self.end_s:.3f}"


def find_dialect(client: Prometheus, settings: PrometheusSettings) -> GpuExporter | None:
    """Return the exporter whose series name jobs, or None."""
    for dialect in DIALECTS:
        if settings.dialect not in {"auto", dialect.name}:
            continue
        if dialect.owner:
            series = select(dialect.owner, settings.match)
        else:
            series = select("", dialect.of_utilization, f'{dialect.job_label}!=""', settings.match)
        if is_there(client, series):
            return dialect
    return None


def find_host_metrics(client: Prometheus, settings: PrometheusSettings) -> HostMetrics | None:
    """Return the exporter of processors and memory whose series name jobs, or None."""
    for metrics in HOST_METRICS:
        if is_there(client, select(metrics.limit, f'{metrics.job_label}!=""', settings.match)):
            return metrics
    return None


def is_there(client: Prometheus, series: str) -> bool:
    """Return whether series have samples of the last day."""
    return any(client.query(f"count(last_over_time({series}[{span}]))") for span in ("1h", "1d"))


class UseReader:
    """Reads what runs used.

    Parameters
    ----------
    client : Prometheus
        The server.
    settings : PrometheusSettings
        What is known of it.

    Raises
    ------
    UsageError
        No exporter names jobs.
    """

    def __init__(self, client: Prometheus, settings: PrometheusSettings) -> None:
        self._client, self._match = client, settings.match
        self.dialect = find_dialect(client, settings)
        self._host = find_host_metrics(client, settings)
        if self.dialect is None and self._host is None:
            raise UsageError(
                "No exporter in Prometheus names jobs, so what they use is not known.",
                hint="See which label is missing: helios doctor",
            )
        self.step_s = settings.step_s or self._found_step_s()
        self._nodes: frozenset[str] = frozenset()
        if self.dialect is not None and self.dialect.owner:
            answer = client.query(f"count by (instance) ({select(self.dialect.owner, self._match)})")
            self._nodes = frozenset(map(self.dialect.node, (series.labels for series in answer)))

    def read(self, runs: Sequence[JobRun]) -> None:
        """Ask for what runs used, and keep it in them."""
        asked = self._asked(runs)
        with_gpus = [run for run in asked if run.gpus != 0]
        if self.dialect is not None and with_gpus:
            self._read_gpus(self.dialect, with_gpus)
        if self._host is not None:
            self._read_host(self._host, asked)

    def read_early(self, runs: Sequence[JobRun]) -> None:
        """Ask for the use of runs, whose spans are their first minutes.

        Of utilization it is the mean without ``LOADING_S``.
        """
        dialect, asked = self.dialect, [run for run in self._asked(runs) if run.gpus != 0]
        if dialect is None:
            return
        for metric in dialect.utilization:
            self._read_statistics(dialect, metric, asked, {"covered_s": _COVERED}, scale=1.0)
            found = [run for run in asked if run.found]
            self._read_statistics(dialect, metric, found, {"utilization": _MEAN}, without_s=LOADING_S)
        self._read_memory(dialect, asked)

    def _asked(self, runs: Sequence[JobRun]) -> list[JobRun]:
        return [
            run for run in runs if run.job_id.isascii() and run.job_id.isdecimal() and run.span_s >= 2 * self.step_s
        ]

    def _read_gpus(self, dialect: GpuExporter, runs: Sequence[JobRun]) -> None:
        for metric in dialect.utilization:
            self._read_statistics(dialect, metric, runs, {"covered_s": _COVERED}, scale=1.0)
            found = [run for run in runs if run.found]
            idle = {"idle_share": _IDLE_SHARE.replace("IDLE", f"{IDLE / metric.scale:g}")}
            later = [run for run in found if run.span_s > HOUR_S + self.step_s]
            self._read_statistics(dialect, metric, found, _UTILIZATION)
            self._read_statistics(dialect, metric, found, idle, scale=1.0)
            self._read_statistics(dialect, metric, later, {"utilization_later": _MEAN}, without_s=HOUR_S)
        found = self._read_memory(dialect, runs)
        self._read_statistics(dialect, dialect.power, found, {"power_w": _MEAN})
        for run in found:
            if any(gpu.values.get("idle_share") for gpu in run.found.values()):
                self._read_longest_idle(dialect, run)

    def _read_memory(self, dialect: GpuExporter, runs: Sequence[JobRun]) -> list[JobRun]:
        """Ask for memory and for other jobs on the GPUs.

        Returns the runs that were found.
        """
        self._read_statistics(dialect, dialect.memory, runs, {"gpu_memory_peak_mib": _MOST})
        found = [run for run in runs if run.found]
        self._read_statistics(dialect, dialect.memory_total, found, {"gpu_memory_total_mib": _MOST})
        if dialect.shows_sm:
            selector = partial(self._selector, dialect, Metric(name=dialect.shows_sm))
            for _, run in self._ask(found, _expression(_MOST, selector)):
                run.counts_sm = True
        if dialect.job_label:
            self._read_shared(dialect, found)
        return found

    def _read_statistics(
        self,
        dialect: GpuExporter,
        metric: Metric,
        runs: Sequence[JobRun],
        statistics: Mapping[str, str],
        *,
        scale: float | None = None,
        without_s: int = 0,
    ) -> None:
        """Ask for statistics of a metric over each run, without its first ``without_s``."""
        for name, template in statistics.items():
            expression = _expression(template, partial(self._selector, dialect, metric), without_s=without_s)
            for series, run in self._ask(runs, expression):
                labels = dialect.gpu(series.labels)
                if labels not in run.found:
                    run.found[labels] = Gpu(
                        node=dialect.node(series.labels),
                        number=dialect.number(series.labels),
                        labels=labels,
                        is_slice=is_slice(series.labels),
                        metric=metric,
                    )
                run.found[labels].values[name] = series.value * (metric.scale if scale is None else scale)

    def _read_shared(self, dialect: GpuExporter, runs: Sequence[JobRun]) -> None:
        """Ask in which share of the samples another job was on a GPU."""
        labels = dialect.gpu_labels

        def others(run: JobRun) -> str:
            on = [one_of(name, {gpu.labels[n] for gpu in run.found.values()}) for n, name in enumerate(labels)]
            series = select(dialect.memory.name, f'{dialect.job_label}!=""', *on, self._match)
            return f"(count by ({','.join(labels)}) ({series}) > bool 1)"

        for series, run in self._ask(runs, _expression(_MEAN, others)):
            if (gpu := run.found.get(dialect.gpu(series.labels))) is not None:
                gpu.values["shared"] = series.value

    def _read_longest_idle(self, dialect: GpuExporter, run: JobRun) -> None:
        """Ask for the highest utilization in each of many parts of a run."""
        bin_s = max(self.step_s, math.ceil(run.span_s / BINS / self.step_s) * self.step_s)
        for metric in {gpu.metric.name: gpu.metric for gpu in run.found.values()}.values():
            series = self._selector(dialect, metric, run)
            try:
                answer = self._client.query(f"max_over_time({series}[{bin_s}s:{self.step_s}s]){run.window(bin_s)}")
            except TooMuchAsked:
                continue  # it stays unknown
            for each in answer:
                if (gpu := run.found.get(dialect.gpu(each.labels))) is not None:
                    idle = [(time_s, value * metric.scale < IDLE) for time_s, value in each.points]
                    gpu.values["longest_idle_s"] = min(longest_idle_s(idle, bin_s), run.span_s)

    def _read_host(self, host: HostMetrics, runs: Sequence[JobRun]) -> None:
        for name, template, metric, scale in (
            ("covered_s", "STEP * min(count_over_time(SERIESWINDOW))", host.limit, 1.0),
            ("memory_peak_mib", _SUM_OF_MOST, host.memory, MIB),
            ("memory_limit_mib", _SUM_OF_MOST, host.limit, MIB),
            ("cpu_s", _SUM_OF_MOST, host.cpu, host.cpu_scale),
        ):

            def selector(run: JobRun, metric: str = metric) -> str:
                return select(metric, f'{host.job_label}="{run.job_id}"', host.match, self._match)

            for series, run in self._ask(runs, _expression(template, selector)):
                run.host[name] = series.value * scale

    def _ask(
        self, runs: Sequence[JobRun], expression: Callable[[JobRun, int], str], *, step_s: int = 0
    ) -> Iterator[tuple[PrometheusSeries, JobRun]]:
        """Yield each series of the answers to an expression about each run, with its run.

        Where the server refuses so much, half of the runs are asked for, and a single run in longer steps.
        """
        step_s = step_s or self.step_s
        if not runs:
            return
        parts = (
            f'label_replace({expression(run, step_s)}, "{_RUN_LABEL}", "{number}", "", "")'
            for number, run in enumerate(runs)
        )
        try:
            answer = self._client.query(" or ".join(parts))
        except TooMuchAsked:
            if len(runs) == 1 and step_s > runs[0].span_s / 8:
                raise
            half = len(runs) // 2
            for part in (runs[:half], runs[half:]):
                yield from self._ask(part, expression, step_s=step_s if half else 4 * step_s)
            return
        for series in answer:
            number = series.labels.get(_RUN_LABEL, "")
            if not number.isdecimal() or int(number) >= len(runs):
                raise PrometheusRefused("Prometheus answered with series that nobody asked for.")
            yield series, runs[int(number)]

    def _selector(self, dialect: GpuExporter, metric: Metric, run: JobRun) -> str:
        """Return the series of a metric on the GPUs of a run."""
        if dialect.owner:
            known = run.nodes if run.nodes <= self._nodes else ()
            on = f'instance=~"({"|".join(sorted(known))})([.:].*)?"' if known else ""
            named = [select(name, metric.match, on, self._match) for name in (metric.name, metric.plus) if name]
            return f"({' + '.join(named)} and {select(dialect.owner, on, self._match)} == {run.job_id})"
        job = f'{dialect.job_label}="{run.job_id}"'
        named = [select(name, job, metric.match, self._match) for name in (metric.name, metric.plus) if name]
        return f"({' + '.join(named)})" if metric.plus else named[0]

    def _found_step_s(self) -> int:
        """Return the time between two samples of the last ten minutes, s."""
        names = [metric.name for metric in self.dialect.utilization] if self.dialect else []
        for name in (*names, *([self._host.limit] if self._host else [])):
            found = self._client.query(f"max(count_over_time({select(name, self._match)}[10m]))")
            if found and found[0].value >= FEWEST_FOR_STEP:
                return max(1, round(10 * MINUTE_S / found[0].value))
        return DEFAULT_STEP_S


def _expression(template: str, series: Callable[[JobRun], str], *, without_s: int = 0) -> Callable[[JobRun, int], str]:
    """Return what makes the expression of a statistic over a run."""

    def expression(run: JobRun, step_s: int) -> str:
        window = run.window(step_s, without_s=without_s)
        parts = {"SERIES": series(run), "WINDOW": window, "STEP": str(run.step(step_s))}
        return re.sub("SERIES|WINDOW|STEP", lambda found: parts[found[0]], template)

    return expression


def longest_idle_s(idle: Sequence[tuple[float, bool]], bin_s: float) -> float:
    """Return the longest time of parts in a row that were idle, s.

    Parameters
    ----------
    idle : sequence of (float, bool)
        End of each part, s, in order, and whether it was idle. A part that is missing ends an idle time: what was then
        is not known.
    bin_s : float
        Length of a part, s.
    """
    longest = length = 0
    before_s = -math.inf
    for time_s, is_idle in idle:
        follows = time_s - before_s < 1.5 * bin_s
        length = (length if follows else 0) + 1 if is_idle else 0
        longest, before_s = max(longest, length), time_s
    return longest * bin_s
