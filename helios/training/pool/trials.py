"""Trials of a sweep and their records.

They come from the search, wait, and end in the state file and in what the search is told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import quantiles
from typing import Any

from helios.errors import FileUnwritable
from helios.model.trial_runs import MeasuredSpeed, TrialRun
from helios.training.model import (
    NUMBERS,
    Forecast,
    SharedSpeed,
    Trial,
    TrialForecast,
    TrialState,
    name_directions,
    placement,
)
from helios.training.pool.attempts import Attempt, Attempts
from helios.training.pool.clock import steady_s
from helios.training.pool.containers import Container
from helios.training.pool.elastic_state import MOST_SHOWN, begin_with, describe_shown, first_state
from helios.training.pool.fusing import Fusion
from helios.training.pool.notes import Notes
from helios.training.pool.orders import PoolOrder
from helios.training.pool.search import Search
from helios.training.pool.state import StateFile, TrialRecord, run_entry, trial_folder
from helios.training.pool.sweep import TrainingSweep, family, program
from helios.training.pool.targets import SweepTarget

MOST_MEMORY_KILLS = 3
"""A trial that is killed for memory is started twice with more room; from then on it runs alone."""
WAITING_AT_MOST = 10_000
"""How many trials of a grid are made before they can start."""
DECIDE_S = 1.0
"""How often the service is asked while nothing happens, s; no more than a part of a core goes into it either."""
COST = 100
"""One part in so many of a core goes into what is done again and again."""
_SYNC_S = 0.5
"""A power cut loses what ended in so many seconds, which is run again; a kill loses nothing."""
_HOLD_S = 2.0
"""After how long a full disk is tried again."""
_RECENT = 100
"""Ended trials from which the time of the next is expected."""
_ADOPT_S = 2.0
"""How often the trials of pools that are gone are looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSweep:
    """A sweep of a pool, and what is its own.

    Attributes
    ----------
    folder : Path
        Folder of its results, logs and checkpoints.
    name : str
        Name for people, which no other sweep of the pool has.
    container : Container, optional
        What its trials run in.
    forecast : Forecast, optional
        Tells what to expect of trials. By default nothing but the sweep file tells it.
    known_speeds : sequence of SharedSpeed
        Measured in earlier pools on such devices.
    known_sizes : mapping of str to sequence
        What earlier trials of each family have shown of their sizes on such devices.
    notes : sequence of str
        What a person should know before it begins.
    """

    sweep: TrainingSweep
    search: Search
    state: StateFile
    folder: Path
    name: str = ""
    container: Container | None = None
    forecast: Forecast | None = None
    known_speeds: Sequence[SharedSpeed] = ()
    known_sizes: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    notes: Sequence[str] = ()


class SweepTrials:
    """Keeps the trials of one sweep, from the search to the record.

    Outside of its folder their numbers are those in the pool.

    Parameters
    ----------
    place : int
        How many sweeps of the pool come before this one.
    others : sequence of TrainingSweep
        All sweeps of the pool but this one.

    Attributes
    ----------
    waiting : dict of int to Trial
        Those that may start, by number.
    just_ended : list of Trial
        Those that have ended since the service was asked.
    unreported : list of TrialRecord
        Those of whose end the search is not told yet.
    exhausted : bool
        Whether the search has no more.
    changed : bool
        Whether the service should be asked at once.
    goal : SweepTarget
        How far they are from their target.
    hold_until_s : float
        Until when none starts, since it could not be recorded.
    sync_at_s : float
        When what was written is synced next.
    usual_s : float, optional
        How long nine of ten took.
    """

    def __init__(
        self, source: PoolSweep, *, place: int, others: Sequence[TrainingSweep], attempts: Attempts, notes: Notes
    ) -> None:
        self.sweep, self.state, self.source = source.sweep, source.state, source
        self._search, self._attempts, self._notes, self._folder = source.search, attempts, notes, source.folder
        self._forecast, self._forecast_at_s = source.forecast, 0.0
        self._runs: list[TrialRun] = []
        self._first, self._title = place * NUMBERS, str(Path(source.name).with_suffix("")) if others else ""
        own_program = program(self.sweep)
        is_unlike = any(
            Path(program(other)).name == Path(own_program).name and program(other) != own_program for other in others
        )
        self._prefix = f"{Path(own_program).parent}/" if is_unlike else ""
        self.fusion = Fusion(self.sweep.fused, searched=self.sweep.search is not None, title=self._title)
        self.goal = SweepTarget(trials=self, notes=notes)
        self.problem = ""
        self.waiting: dict[int, Trial] = {}
        self.just_ended: list[Trial] = []
        self.unreported: list[TrialRecord] = []
        self.exhausted = self.changed = False
        self._durations: list[float] = []
        self._sizes = {self._prefix + name: [*shown] for name, shown in source.known_sizes.items()}  # by family
        self.usual_s: float | None = None
        self.hold_until_s = self.sync_at_s = self._adopt_at_s = 0.0
        self._hold, self._shown = "", ("", dict[str, Any]())

    def restore(self) -> None:
        """Take over what earlier pools have recorded."""
        self.state.adopt()
        for record in self.state.trials.values():
            if not record.ended and self.state.is_mine(record):
                self._wait(record)
                continue
            if record.last_seconds is not None:
                self._take_duration(record.last_seconds)
            if record.again:  # the search does not ask for it, if the end of the pool came before it was told
                self.unreported.append(record)
        self.goal.restore()

    def ask(self, slots: int) -> bool:
        """Ask the search for as many trials as may start.

        Parameters
        ----------
        slots : int
            Of all devices.

        Returns
        -------
        bool
            Whether those of pools that are gone were looked for.
        """
        room = WAITING_AT_MOST
        # The next choice of a search is better the more results it knows, and other pools want trials, too.
        if self.sweep.search is not None or self.state.shared:
            running, own = self._attempts.running.values(), self.running
            others = {each.process_number for each in running} - {each.process_number for each in own}
            room = max(1, slots - len(others)) * self.fusion.most - len(own)
        if len(self.waiting) >= room:
            return False
        if not self.exhausted:
            with self.state.exclusive():
                self._ask_search(room)
        if not (self.state.shared and self.exhausted and not self.waiting and steady_s() >= self._adopt_at_s):
            return False
        self._adopt_at_s = steady_s() + (_ADOPT_S if self._attempts.running else 0.0)
        for record in self.state.adopt():
            self._wait(record)
            self.changed = True
        return True

    def _ask_search(self, room: int) -> None:
        while not self.exhausted and len(self.waiting) < room:
            try:
                chosen = self._search.ask()
            except FileUnwritable as reason:
                self.pause_starts(reason.message)
                return
            except Exception as reason:  # whatever a sampler of Optuna, or one of somebody else, raises
                self.problem = f"its search failed: {type(reason).__name__}: {reason}"
                self._notes.note(f"No more trials of {self.source.name} are made, since {self.problem}")
                self.exhausted = True
                return
            if chosen is None:
                self.exhausted = True
                return
            record = self.state.trials.get(chosen.number)
            if record is not None and not self.state.is_mine(record) and self.state.has_owner(record):
                continue
            if record is not None and record.ended:  # recorded, but the search was not told before the end
                if record not in self.unreported:
                    self.unreported.append(record)
                self.report_to_search()
                continue
            if record is None:
                self.state.record_created(chosen.number, chosen.parameters)
                record = self.state.trials[chosen.number]
                self.changed = True
            if self.pool_number(record) not in self._attempts.running and self.state.is_mine(record):
                self._wait(record)

    @property
    def running(self) -> list[Attempt]:
        """Those that run."""
        return [each for each in self._attempts.running.values() if 0 <= each.trial.number - self._first < NUMBERS]

    def record(self, number: int) -> TrialRecord:
        """Return what is known of a trial of the pool."""
        return self.state.trials[number % NUMBERS]

    def pool_number(self, record: TrialRecord) -> int:
        """Return the number in the pool of a trial."""
        return self._first + record.number

    def label(self, number: int) -> str:
        """Return how people call a trial of the pool."""
        return f"{self._title}:{number % NUMBERS}" if self._title else str(number % NUMBERS)

    def identify(self, number: int) -> dict[str, Any]:
        """Return the sweep and number of a pool's trial, for events."""
        return {"number": number % NUMBERS, "sweep": self.source.name}

    def _wait(self, record: TrialRecord) -> None:
        self.waiting[self.pool_number(record)] = self._with_family(self._trial(record))

    def run_again(self, record: TrialRecord, order: PoolOrder) -> None:
        """Have a trial that has ended run again, as somebody ordered.

        One that diverged begins anew, since its checkpoints and reports may hold what is not finite. They are put
        aside.
        """
        if record.state is TrialState.DIVERGED:
            folder = self.folder(record.number)
            for name in ("checkpoints", "report.jsonl"):
                with suppress(OSError):
                    (folder / name).rename(folder / f"{name}.{record.attempts}")
        self.state.record_retried(record.number, order=order.place, who=order.who)
        self._wait(record)
        self.changed = True

    def withdraw(self, record: TrialRecord, *, reason: str, finished: bool = False) -> None:
        """End a waiting trial, as pruned or finished with its last value."""
        trial = self.waiting.pop(self.pool_number(record))
        self.state.record_withdrawn(record.number, reason=reason, finished=finished)
        self.unreported.append(record)
        self.just_ended.append(replace(trial, state=record.state))
        self.changed = True

    def show_hold(self) -> None:
        """Show those who ask why no trial is started."""
        held = steady_s() < self.hold_until_s or self.state.problem
        hold = self._attempts.stop_reason or (self._hold if held else "")
        outlook = self.goal.outlook
        if (hold, outlook) != self._shown:
            self._shown = hold, outlook
            with suppress(OSError):  # a full disk on which also what has its place cannot be written
                self.state.show(hold, target=outlook)

    def pause_starts(self, problem: str) -> None:
        """Pause starts, which could not be recorded."""
        self.hold_until_s, self._hold = steady_s() + _HOLD_S, problem
        self._notes.note(f"No trial is started: {problem}")

    def _report_end(self, record: TrialRecord) -> bool:
        """Record a trial's end with the search, if it can be written."""
        try:
            with self.state.exclusive():
                values = [record.metrics.get(name) for name in self.sweep.objectives]
                self._search.tell(record.number, record.state, *values, again=record.again)
        except FileUnwritable as reason:
            self.pause_starts(reason.message)
            return False
        return True

    def report_to_search(self) -> None:
        """Report written results to the search, and sync them."""
        while self.unreported and not self.state.problem and self._report_end(self.unreported[0]):
            del self.unreported[0]
        if self.state.unsynced and steady_s() >= self.sync_at_s:
            self.state.sync()
            self.sync_at_s = steady_s() + _SYNC_S

    def is_pruned(self, number: int, step: int, value: float) -> bool:
        """Tell the search of a metric, and return whether it prunes the trial."""
        with suppress(FileUnwritable), self.state.exclusive():  # then it is not pruned at this step
            again = self.record(number).again
            return self._search.report(number % NUMBERS, step, value, again)
        return False

    def _trial(self, record: TrialRecord) -> Trial:
        number, fusible, most_fused = self._first + record.number, "", 1
        if not record.memory_kills:  # else it needs more room, which a process that it joins has not
            fusible, most_fused = self.fusion.group_key(number, record.parameters)
        return Trial(
            number=number,
            parameters=record.parameters,
            family=self._prefix + family(self.sweep, record.parameters),
            state=TrialState.PAUSED if record.state is TrialState.PAUSED else TrialState.WAITING,
            attempts=record.attempts,
            peak_memory_mib=record.peak_memory_mib,
            out_of_memory_mib=record.out_of_memory_mib,
            forecast=TrialForecast(memory_p95_mib=self.sweep.memory_mib),
            fusible=fusible,
            most_fused=most_fused,
            curve=record.curve,
            weight=self.sweep.weight,
            sweep=self._title,
            owner=self.sweep.owner,
            target=self.goal.target,
            targets_reached=self.goal.count_reached,
            elastic=None
            if self.sweep.elastic is None
            else first_state(self.sweep.elastic, record, self.folder(record.number) / "report.jsonl"),
        )

    def _with_family(self, trial: Trial) -> Trial:
        """Return a trial that has measured nothing with what its family has."""
        shown, program, elastic = self._sizes.get(trial.family), self.sweep.elastic, trial.elastic
        if not shown or program is None or elastic is None or elastic.measured:
            return trial
        return replace(trial, elastic=begin_with(elastic, program, shown[-MOST_SHOWN:]))

    def expect(self) -> None:
        """Update the forecasts by the pool's own trials."""
        now = steady_s()
        if self._forecast is None or (now < self._forecast_at_s and not self.just_ended):
            return
        running = self.running
        trials = [*self.waiting.values(), *(attempt.seen for attempt in running)]
        runs = [*self._runs, *(self.describe_run(attempt, "running", now - attempt.began_s) for attempt in running)]
        forecasts = self._forecast([self._as_alone(trial) for trial in trials], runs)
        for trial, forecast in zip(trials, forecasts, strict=True):
            limit = forecast.memory_p95_mib or self.sweep.memory_mib
            self.replace(replace(trial, forecast=replace(forecast, memory_p95_mib=limit)))
        self._forecast_at_s = steady_s() + max(DECIDE_S, COST * (steady_s() - now))

    def _as_alone(self, trial: Trial) -> Trial:
        """Return a trial as it is in a pool of this sweep alone."""
        return replace(trial, number=trial.number % NUMBERS, family=trial.family.removeprefix(self._prefix))

    @property
    def known_speeds(self) -> list[SharedSpeed]:
        """Speeds measured in earlier pools, with the families of this one."""
        name = Path(program(self.sweep)).name

        def known(family: str) -> str:
            return self._prefix + family if family.partition(" ")[0] == name else family

        return [
            replace(speed, family=known(speed.family), beside=tuple(sorted(map(known, speed.beside))))
            for speed in self.source.known_speeds
        ]

    def replace(self, trial: Trial) -> None:
        """Replace what is known of a trial."""
        if trial.number in self.waiting:
            self.waiting[trial.number] = trial
        else:
            self._attempts.running[trial.number].trial = trial

    def describe_run(self, attempt: Attempt, what: str, seconds: float, **used: Any) -> TrialRun:
        """Return the use of an attempt."""
        trial = self._as_alone(attempt.trial)
        return TrialRun(
            pool=self.state.pool,
            number=trial.number,
            attempt=trial.attempts,
            program=program(self.sweep),
            family=trial.family,
            parameters=trial.parameters,
            device_kind=attempt.devices[0].kind,
            device_model=attempt.devices[0].model,
            placement=placement(trial.devices),
            outcome=what,
            started_s=attempt.began_s,
            seconds=max(0.0, seconds - attempt.held_s),
            start_up_s=attempt.first_report_s,
            progress=1.0 if what == "finished" else trial.progress,
            peak_memory_mib=trial.peak_memory_mib,
            memory_limit_mib=attempt.limit_mib,
            speeds=tuple(
                MeasuredSpeed(
                    beside=tuple(sorted(family.removeprefix(self._prefix) for family in beside)),
                    steps_per_s=rate,
                    seconds=measured_s,
                )
                for beside, (rate, measured_s) in (attempt.speeds or {attempt.beside: (0.0, 0.0)}).items()
            ),
            metrics=dict(attempt.metrics),
            metric=self.sweep.metric,
            direction=next(iter(name_directions(self.sweep.objectives)), ""),
            curve=attempt.curve.points,
            sizes=describe_shown(trial.elastic) if attempt.is_elastic and trial.elastic is not None else {},
            **used,
        )

    def fits(self, trial: Trial, left_s: float | None) -> bool:
        """Return whether a trial may start in the time left."""
        if left_s is None:
            return True
        if left_s <= 0:
            return False
        if trial.attempts and any((self.folder(trial.number) / "checkpoints").glob("*")):
            return True
        seconds = trial.forecast.seconds_p90 or self.usual_s
        return seconds is None or seconds <= left_s

    def _take_duration(self, seconds: float) -> None:
        """Expect of trials what nine of ten of the last hundred took."""
        self._durations = [*self._durations[1 - _RECENT :], seconds]
        self.usual_s = quantiles(self._durations, n=10)[-1] if len(self._durations) > 1 else seconds

    def may_start_any(self, left_s: float | None) -> bool:
        """Return whether any trial may still start."""
        return not self.exhausted or any(self.fits(trial, left_s) for trial in self.waiting.values())

    def is_done(self, left_s: float | None) -> bool:
        """Return whether no trial may start any more, and all results are written."""
        return not self.unreported and not self.state.problem and not self.may_start_any(left_s)

    def why_left(self, stop_reason: str) -> str:
        """Return why trials are left at the end, empty where none are."""
        if self.problem or (not self.waiting and self.exhausted):
            return self.problem
        return stop_reason or ("the time left is too short for the trials that wait" if self.waiting else "")

    @property
    def finished(self) -> dict[int, tuple[Mapping[str, float], Mapping[str, Any]]]:
        """Metrics and parameters of finished trials, by number in the sweep."""
        records = self.state.trials.values()
        return {each.number: (each.metrics, each.parameters) for each in records if each.state is TrialState.FINISHED}

    @property
    def total(self) -> int:
        """Number of trials of the whole sweep."""
        return max(self.sweep.trials, len(self.state.trials))

    def folder(self, number: int) -> Path:
        """Return the folder of a trial."""
        return trial_folder(self._folder, number % NUMBERS)

    def needs_device_alone(self, number: int) -> bool:
        """Return whether a trial was killed for memory too often to share."""
        return self.record(number).memory_kills >= MOST_MEMORY_KILLS

    def record_end(
        self, attempt: Attempt, what: str, state: TrialState, reason: str, ended: TrialRun, *, seconds: float
    ) -> TrialRecord:
        """Record how an attempt ended, and return the trial's record."""
        self.state.record_ended(
            attempt.trial.number % NUMBERS,
            what=what,
            state=state,
            seconds=seconds,
            peak_memory_mib=ended.peak_memory_mib,
            memory_limit_mib=attempt.limit_mib,
            metrics=attempt.metrics,
            value=attempt.value,
            reason=reason,
            run=run_entry(ended, held_s=attempt.held_s),
        )
        if self._forecast is not None:
            self._runs.append(ended)
        record = self.record(attempt.trial.number)
        if ended.sizes:
            self._sizes.setdefault(attempt.trial.family, []).append(ended.sizes)
            self.waiting.update({number: self._with_family(trial) for number, trial in self.waiting.items()})
        self.changed = True
        if not record.ended:
            self._wait(record)
            return record
        self.unreported.append(record)
        self._take_duration(seconds)
        self.just_ended.append(
            replace(
                attempt.trial, state=record.state, devices=(), peak_memory_mib=record.peak_memory_mib, memory_mib=None
            )
        )
        missing = [name for name in self.sweep.objectives if name not in record.metrics]
        if record.state is TrialState.FINISHED and missing:
            label = attempt.trial.label
            key = f"no metric of {self._title}"
            self._notes.note(f"Trial {label} finished without reporting {missing[0]!r}", key=key)
        return record


class Sweeps(tuple[SweepTrials, ...]):
    """The sweeps of a pool."""

    def of(self, number: int) -> SweepTrials:
        """Return the sweep of a trial or fused process."""
        return self[abs(number) // NUMBERS]
