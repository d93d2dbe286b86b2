"""What the running trials of a pool report, and how fast they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import nan
from typing import Any

from helios.training.model import NUMBERS, FusedSpeed, SharedSpeed, placement
from helios.training.pool.attempts import Attempt
from helios.training.pool.clock import steady_s
from helios.training.pool.curve import Curve
from helios.training.pool.elastic_state import learn
from helios.training.pool.event_files import EventReader
from helios.training.pool.notes import Notes
from helios.training.pool.reports import Report, ReportReader, TaskRequest
from helios.training.pool.trials import Sweeps

_MOST_READS = 100
"""Of a report file when a trial has ended; each takes a bounded part. Then its last lines are read."""
_SHARED_MEASURE_S = 10.0
"""Shortest measurement of a trial with a share of its device, s: when it was held back is known to a second or two."""
_EARLIER = -1
"""Stands for the trials of earlier pools among those of which a speed is known."""


class Readings:
    """Reads reports of trials, and measures speeds from them."""

    def __init__(self, *, sweeps: Sweeps, notes: Notes) -> None:
        self._sweeps, self._notes = sweeps, notes
        self._readers: dict[int, tuple[ReportReader | EventReader, ...]] = {}
        self._speeds: dict[tuple[str, tuple[str, ...], tuple[int, ...]], dict[int, float]] = {
            (speed.family, speed.beside, speed.placement): {_EARLIER: speed.steps_per_s}
            for trials in sweeps
            for speed in trials.known_speeds
        }
        self._fused_speeds: dict[tuple[str, int], FusedSpeed] = {}

    @property
    def speeds(self) -> tuple[SharedSpeed, ...]:
        """Mean speed of each family beside others."""
        return tuple(
            SharedSpeed(
                family=family,
                beside=beside,
                steps_per_s=sum(rates.values()) / len(rates),
                samples=len(rates),
                placement=placement,
            )
            for (family, beside, placement), rates in self._speeds.items()
        )

    @property
    def fused_speeds(self) -> tuple[FusedSpeed, ...]:
        """Measured speeds of processes that train several trials."""
        return tuple(self._fused_speeds.values())

    def read(self, attempt: Attempt, *, to_end: bool = False) -> None:
        """Handle the reports of a trial."""
        number = attempt.trial.number
        if number not in self._readers:
            sweep, checkpoints = self._sweeps.of(number).sweep, attempt.folder / "checkpoints"
            events = sweep.events_folder(trial=number % NUMBERS, checkpoints=checkpoints)
            readers: list[ReportReader | EventReader] = [ReportReader(attempt.folder / "report.jsonl")]
            self._readers[number] = (*readers, *([] if events is None else [EventReader(events)]))
        now = steady_s()
        for reader in self._readers[number]:
            for _ in range(_MOST_READS if to_end else 1):
                before = reader.place
                self._take_reports(attempt, reader.read(), now, is_over=to_end)
                if reader.place == before:
                    break
            if to_end and isinstance(reader, ReportReader):
                self._take_reports(attempt, reader.read(last=True), now, is_over=True)
            if reader.problem or any(_count_skipped(reader)):
                lines, count = _count_skipped(reader)
                skipped = f"{lines:,} lines and {count:,} bytes were skipped"
                self._notes.note(
                    f"Of the reports of trial {attempt.trial.label}, {reader.problem or skipped}",
                    key=f"reports of {number}",
                )
        if attempt.read_s is not None:
            attempt.read_s = now

    def restore(self, attempt: Attempt) -> None:
        """Handle what earlier attempts of a trial reported.

        What they answered was not asked of this one.
        """
        record = self._sweeps.of(attempt.trial.number).record(attempt.trial.number)
        attempt.curve = Curve(record.curve)
        self.read(attempt, to_end=True)
        attempt.curve_from_s = attempt.began_s - max(record.seconds - record.held_s, attempt.curve.seconds)
        attempt.read_s = attempt.began_s
        attempt.answered = attempt.first_report_s = attempt.beside_since = attempt.step = None
        attempt.ended = {}

    def forget(self, number: int) -> None:
        """Have the next attempt of a trial read all again."""
        del self._readers[number]

    def _take_reports(self, attempt: Attempt, reports: Iterable[Report], now: float, *, is_over: bool) -> None:
        """Take a program's reports, and ask nothing of an ended one."""
        for report in reports:
            attempt.has_reported = True
            attempt.metrics.update(report.metrics)
            for name in report.not_finite:
                attempt.metrics.pop(name, None)
            if report.fused and attempt.process is not None:
                self._take_fused(attempt, report.fused)
            if report.progress is not None:
                attempt.trial = replace(attempt.trial, progress=report.progress)
            if report.elastic and attempt.read_s is not None:
                self._take_elastic(attempt, report)
            if attempt.first_report_s is None and attempt.trial.started_s is not None:
                attempt.first_report_s = now - attempt.trial.started_s - attempt.held_s
            self._take_value(attempt, report, now, is_over=is_over)
            at_s = now if report.time_s is None else min(now, report.time_s)  # a program's clock may be wrong
            self._sweeps.of(attempt.trial.number).goal.take(attempt, report, at_s)
            if report.step is not None:
                self._take_step(attempt, report.step, now)
            if report.answer not in {None, TaskRequest.RESIZE}:
                attempt.answered = report.answer

    def _take_elastic(self, attempt: Attempt, report: Report) -> None:
        """Learn from what a program of changing size tells of it."""
        program, elastic = self._sweeps.of(attempt.trial.number).sweep.elastic, attempt.trial.elastic
        if program is not None and elastic is not None:
            elastic = learn(elastic, program, report.elastic, progress=report.progress)
            attempt.trial, attempt.is_elastic = replace(attempt.trial, elastic=elastic), True
            attempt.told.append(report.elastic)

    def _take_step(self, attempt: Attempt, step: int, now: float) -> None:
        """Note how far a trial is, and measure its speed."""
        attempt.step = step
        # Speed counts from the last of the steps that were read first.
        if attempt.beside_since is None or attempt.beside_since[0] == now:
            attempt.beside_since = (now, step, attempt.ran_s(now))
        since, first, before_s = attempt.beside_since
        ran_s = attempt.ran_s(now) - before_s
        is_shared = attempt.trial.share is not None
        if now - since >= (_SHARED_MEASURE_S if is_shared else 1.0) and ran_s >= 1.0 and step > first:
            rate = (step - first) / ran_s
            attempt.trial = replace(attempt.trial, steps_per_s=rate)
            if is_shared:  # it is the speed neither alone nor beside others
                return
            key = attempt.trial.family, attempt.beside, placement(attempt.trial.devices)
            self._speeds.setdefault(key, {})[attempt.trial.number] = rate
            attempt.speeds[attempt.beside] = (rate, now - since)

    def _take_value(self, attempt: Attempt, report: Report, now: float, *, is_over: bool) -> None:
        """Take the value that trials are compared by, and prune by it."""
        trials = self._sweeps.of(attempt.trial.number)
        metric = trials.sweep.metric
        attempt.diverged |= {*trials.sweep.objectives} & {*report.not_finite}
        attempt.diverged -= report.metrics.keys()
        if metric not in {*report.metrics, *report.not_finite}:
            return
        attempt.value = report.metrics.get(metric)
        self._take_point(attempt, report, now)
        if report.step is None:
            return
        if attempt.stopped and attempt.answered is TaskRequest.STOP and report.step > (attempt.step or 0):
            attempt.answered = None  # it trains on
        pruned = trials.is_pruned(attempt.trial.number, report.step, report.metrics.get(metric, nan))
        if pruned and not is_over and not attempt.stopped:
            attempt.stop(trials.sweep.grace_s, why=f"pruned by the search at step {report.step}")

    def _take_point(self, attempt: Attempt, report: Report, now: float) -> None:
        """Add a value to the curve of the trial."""
        at_s = now if report.time_s is None else report.time_s
        if report.step is None or (attempt.read_s is None and not self._is_missing(attempt, report)):
            return
        held_s = 0.0
        if attempt.read_s is not None:  # a program's clock may be wrong
            at_s = max(attempt.read_s, min(now, at_s))
            held_s = at_s - attempt.began_s - attempt.ran_s(at_s)
        attempt.curve.add(report.step, at_s - attempt.curve_from_s - held_s, attempt.value)

    def _is_missing(self, attempt: Attempt, report: Report) -> bool:
        """Return whether a report of an earlier attempt is not in the curve.

        It is one of an attempt whose end is not recorded, since its pool was killed.
        """
        number = attempt.trial.number
        began = self._sweeps.of(number).record(number).unended_s[:-1]
        before = [began_s for began_s in began if report.time_s is not None and began_s <= report.time_s]
        if not before or report.step is None or not attempt.curve.is_ahead(report.step):
            return False
        if attempt.curve_from_s + attempt.curve.seconds < before[-1]:  # the first one of its attempt
            attempt.curve_from_s = before[-1] - attempt.curve.seconds
        return True

    def _take_fused(self, attempt: Attempt, message: Mapping[str, Any]) -> None:
        """Handle a message of a fused process about a trial."""
        if isinstance(message.get("ended"), str):
            attempt.ended = dict(message)
        trials = self._sweeps.of(attempt.trial.number)
        changed = trials.fusion.learn(attempt.trial.parameters, message)
        speed = trials.fusion.speed(attempt.trial.parameters, message)
        if speed is not None:
            self._fused_speeds[speed.fusible, speed.models] = speed
        if message.get("obstacle"):
            self._notes.note(f"Trials like {attempt.trial.label} are not fused: {message['obstacle']}"[:500])
        for trial in [*trials.waiting.values(), *(each.trial for each in trials.running)] if changed else ():
            if trial.fusible:
                fusible, most = trials.fusion.group_key(trial.number, trial.parameters)
                trials.replace(replace(trial, fusible=fusible, most_fused=most))


def _count_skipped(reader: ReportReader | EventReader) -> tuple[int, int]:
    """Return the entries and bytes that a reader skipped."""
    return reader.skipped_lines, reader.skipped_bytes if isinstance(reader, ReportReader) else 0
