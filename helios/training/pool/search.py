"""Search for the next trial of a sweep.

Grids and lists need nothing else; a search over ranges is Optuna's, which is imported only here. One process at a time
has a search's folder, unless several share it.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any, Protocol

from helios.errors import FileUnreadable, FileUnwritable, UsageError
from helios.lines_file import LinesFile, cut_on_failure, try_lock
from helios.private_files import atomic_write, make_folder, open_private
from helios.training.model import TrialState, name_directions
from helios.training.pool.state import trial_folder
from helios.training.pool.sweep import SearchMethod, TrainingSweep, Value, ValueRange

_OTHER_SEED = 7_919
"""Moves the seed of a process that shares a search, so that it draws other trials."""
JOURNAL, STUDY = "optuna.journal", "sweep"
"""File of a search in Optuna's own format, and the study in it: ``optuna-dashboard FOLDER/optuna.journal``."""
COPY = "run again"
"""Attribute of the study's trials that are another one run again, with its number and how often."""
FOLDER, ENDED_AS = "folder", "ended as"
"""What the pool adds to a trial of the study. For Optuna all that gave no value has failed."""
LOCKED = "pool\n"
STALE_LOCK_S = 5
"""After which the lock of a dashboard that was killed is broken, s; it is held for one write."""
EVERY_STEP = 100
"""Up to this step all reports are kept, then those that are ``THINNED`` times later than the last one kept."""
THINNED = 1.01


@dataclass(frozen=True, slots=True, kw_only=True)
class NextTrial:
    """A trial to run."""

    number: int
    parameters: Mapping[str, Value]


class Search(Protocol):
    """Which trial comes next, kept in a folder.

    One process at a time has the folder, or several take turns. After a restart, trials that were asked for and not
    told are asked for again under the same number.
    """

    def ask(self) -> NextTrial | None:
        """Return the next trial, or None when all were asked for.

        Raises
        ------
        FileUnwritable
            The folder cannot be written. The same may be asked again.
        """

    def tell(self, number: int, state: TrialState, *values: float | None, again: int = 0) -> None:
        """Record for good how a trial ended.

        Parameters
        ----------
        values : float, optional
            Of the metrics that are compared, in their order.
        again : int
            How often it has been run again after it had ended. Each time has a result of its own.

        Raises
        ------
        FileUnwritable
            The folder cannot be written. The same may be told again.
        """

    def report(self, number: int, step: int, value: float, again: int = 0) -> bool:
        """Record a metric and return whether to prune.

        The metric may be NaN.

        Raises
        ------
        FileUnwritable
            The folder cannot be written. Nothing is lost but this value.
        """

    def close(self) -> None:
        """Let another process open the folder."""


def open_search(
    sweep: TrainingSweep, folder: Path, made: Sequence[Mapping[str, Value]] = (), *, others: int | None = None
) -> Search:
    """Open or resume the search of a sweep in a folder.

    Parameters
    ----------
    made : sequence of mapping
        Parameters of the trials that the pool has recorded, by number.
    others : int, optional
        How many processes have had it open before, where several may have it at the same time; they must then take
        turns. None where only this one may.

    Raises
    ------
    UsageError
        The folder belongs to a process that runs, or Optuna is needed and missing.
    FileUnreadable, FileUnwritable
        What is in the folder is damaged, or it cannot be written.
    """
    with _disk_errors(folder):
        make_folder(folder)
        lock = open_private(folder / "search.lock")
        try:
            if not try_lock(lock, shared=others is not None):
                raise UsageError(f"Another process works in {folder}.", hint="Wait for it, or choose another folder.")
            if sweep.search:
                return OptunaSearch(sweep, folder, lock, made, others=others or 0)
            return ListSearch(sweep, folder, lock, made)
        except BaseException:
            os.close(lock)
            raise


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as reason:
        raise FileUnwritable(
            f"{folder} cannot be used: {reason.strerror}.", hint="Make room or set its mode, then start again."
        ) from reason


class _Combinations:
    """Trials of a grid or list by their numbers.

    Those that were made keep their numbers, also where the grid has grown. The others follow in order.
    """

    def __init__(self, sweep: TrainingSweep, made: Sequence[Mapping[str, Value]]) -> None:
        self._known = list(made)
        # A list may repeat a trial, and begins with those that were made.
        skipped = set() if sweep.listed else {_key(parameters) for parameters in made}
        others = islice(sweep.grid(), len(made) if sweep.listed else 0, None)
        self._others = (parameters for parameters in others if _key(parameters) not in skipped)

    def get(self, number: int) -> Mapping[str, Value] | None:
        """Return the parameters of a trial, None where there are no more."""
        while len(self._known) <= number:
            if (parameters := next(self._others, None)) is None:
                return None
            self._known.append(parameters)
        return self._known[number]


def _key(parameters: Mapping[str, Value]) -> str:
    return json.dumps(sorted(parameters.items()))


class ListSearch:
    """Every combination of a grid, or every listed trial, in order."""

    def __init__(self, sweep: TrainingSweep, folder: Path, lock: int, made: Sequence[Mapping[str, Value]]) -> None:
        self._folder, self._lock = folder, lock
        self._combinations = _Combinations(sweep, made)
        self._record = LinesFile(open_private(folder / "told.jsonl"))
        self._ended: set[int] = set()
        try:
            self._catch_up()
        except FileUnreadable:
            os.close(self._record.handle)
            raise
        self._next = 0

    def _catch_up(self) -> None:
        """Read what this process, or another that shares the folder, was told before."""
        for line in self._record.read():
            try:
                self._ended.add(json.loads(line)["number"])
            except (ValueError, TypeError, KeyError) as reason:
                raise FileUnreadable(
                    f"{self._folder / 'told.jsonl'} is damaged.", hint="Choose another folder, or remove this one."
                ) from reason

    def ask(self) -> NextTrial | None:
        """Return the next trial, or None when all were asked for."""
        while self._next in self._ended:
            self._next += 1
        if (parameters := self._combinations.get(self._next)) is None:
            return None
        self._next += 1
        return NextTrial(number=self._next - 1, parameters=parameters)

    def tell(self, number: int, state: TrialState, *values: float | None, again: int = 0) -> None:
        """Record how a trial ended."""
        del values, again  # which the pool's own record has
        self._catch_up()
        if number in self._ended:
            return
        line = json.dumps({"number": number, "state": state.value}) + "\n"
        with _disk_errors(self._folder):
            self._record.append(line.encode(), lasting=False)
        self._ended.add(number)

    def report(self, number: int, step: int, value: float, again: int = 0) -> bool:
        """Return False, since nothing is pruned without Optuna."""
        del number, step, value, again
        return False

    def close(self) -> None:
        """Let another process open the folder."""
        os.close(self._record.handle)
        os.close(self._lock)


def load_optuna() -> Any:
    """Return the package.

    Raises
    ------
    UsageError
        It is not installed.
    """
    try:
        import optuna  # noqa: PLC0415 - an extra, and not needed for grids
        import optuna.storages.journal  # noqa: PLC0415 - as above
    except ImportError as reason:
        raise UsageError(
            "A [search] needs Optuna, which is not installed here.", hint="pip install 'helios-slurm[search]'"
        ) from reason
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def make_sampler(method: SearchMethod, done: int) -> Any:
    """Return a sampler with a fresh seed after a restart."""
    if not method.sampler:
        return None
    options = dict(method.sampler_options)
    if method.seed is not None:
        options["seed"] = (method.seed + 1_000_003 * done) % 2**32
    if method.sampler == "TPESampler":
        options.setdefault("constant_liar", True)  # trials run side by side, and would else be drawn close together
    with silence_warnings():
        return getattr(load_optuna().samplers, method.sampler)(**options)


def make_pruner(method: SearchMethod) -> Any:
    """Return a pruner, one that prunes nothing where none is named."""
    if not method.pruner:
        return load_optuna().pruners.NopPruner()
    return getattr(load_optuna().pruners, method.pruner)(**method.pruner_options)


class _Journal:
    """Optuna's journal file, with the lock of its dashboard.

    A kill leaves neither a line that was only written in part nor, since the lock says whose it is, the lock.
    """

    def __init__(self, path: Path) -> None:
        journal = load_optuna().storages.journal
        self._size_path = path.with_name(f"{path.name}.size")
        self._handle = open_private(path)
        with suppress(FileNotFoundError):
            os.truncate(self._handle, int(self._size_path.read_text()))  # a kill came while a batch was written
            self._size_path.unlink()
        whole = LinesFile(self._handle)
        whole.skip()
        whole.append(b"", lasting=False)  # cuts off a partial line
        self._lock_path = path.with_name(f"{path.name}.lock")
        with suppress(FileNotFoundError):
            if self._lock_path.read_text() == LOCKED:  # by a pool that was killed: this one has the folder now
                self._lock_path.unlink()
        self._lock = journal.JournalFileOpenLock(str(path), grace_period=STALE_LOCK_S)
        self._file = journal.JournalFileBackend(str(path), lock_obj=self)

    def acquire(self) -> bool:
        self._lock.acquire()
        self._lock_path.write_text(LOCKED)
        return True

    def release(self) -> None:
        with suppress(RuntimeError):  # a dashboard broke the lock while this process was stopped; the line is written
            self._lock.release()

    def read_logs(self, log_number_from: int) -> Any:
        return self._file.read_logs(log_number_from)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        with cut_on_failure(self._handle):
            self._file.append_logs(logs)

    def append_batch(self, logs: list[dict[str, Any]]) -> None:
        """Append lines of which a kill leaves all or none."""
        atomic_write(self._size_path, str(os.fstat(self._handle).st_size), mode=0o640)
        self.append_logs(logs)
        self._size_path.unlink()

    def close(self) -> None:
        os.close(self._handle)


class _Batch:
    """A journal with lines that are kept to be written at once."""

    def __init__(self, journal: _Journal) -> None:
        self._before = list(journal.read_logs(0))
        self.logs: list[dict[str, Any]] = []

    def read_logs(self, log_number_from: int) -> list[dict[str, Any]]:
        return [*self._before[log_number_from:], *self.logs[max(0, log_number_from - len(self._before)) :]]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        self.logs += logs


class OptunaSearch:
    """A search with a sampler or pruner of Optuna."""

    def __init__(
        self, sweep: TrainingSweep, folder: Path, lock: int, made: Sequence[Mapping[str, Value]], *, others: int = 0
    ) -> None:
        assert sweep.search is not None
        self._sweep, self._method, self._folder, self._lock = sweep, sweep.search, folder, lock
        self._optuna = load_optuna()
        self._spaces = {name: self._distribution(space) for name, space in _spaces(sweep).items()}
        self._journal = _Journal(folder.absolute() / JOURNAL)
        try:
            with silence_warnings():
                self._study = self._open_study(self._journal)
                before = self._study.get_trials(deepcopy=False)
                if not all(self._is_of_space(number, trial, made) for number, trial in _number_trials(before)):
                    self._copy_to_space(before, made)
                    self._study = self._open_study(self._journal)
                self._study.sampler = (
                    make_sampler(self._method, len(before) + _OTHER_SEED * others) or self._study.sampler
                )
                self._study.pruner = make_pruner(self._method)
        except (ValueError, KeyError, TypeError, AssertionError) as reason:
            self._journal.close()
            raise FileUnreadable(
                f"{folder / JOURNAL} cannot be read: {reason}.", hint="Choose another folder, or remove this one."
            ) from reason
        self._combinations = _Combinations(sweep, made)
        self._seen = 0
        self._chosen: list[int] = []  # numbers in the study of the pool's trials
        self._copies: dict[int, tuple[int, int]] = {}  # how often each was run again, and the number of the last copy
        self._unasked: list[int] = []
        self._trials: dict[int, Any] = {}
        self._take_up()

    def _open_study(self, backend: Any) -> Any:
        """Return the study in a journal, which is made where there is none."""
        study = self._optuna.create_study(
            study_name=STUDY,
            storage=self._optuna.storages.JournalStorage(backend),
            directions=name_directions(self._sweep.objectives),
            load_if_exists=True,
        )
        if study.metric_names != [*self._sweep.objectives]:
            study.set_metric_names([*self._sweep.objectives])
        return study

    def _is_of_space(self, number: int, trial: Any, made: Sequence[Mapping[str, Value]]) -> bool:
        """Return whether a trial is as recorded, in the spaces of the sweep."""
        recorded = made[number] if number < len(made) else trial.params
        return trial.params == recorded and all(
            trial.distributions[name] == self._spaces.get(name) for name in trial.params
        )

    def _copy_to_space(self, trials: Sequence[Any], made: Sequence[Mapping[str, Value]]) -> None:
        """Replace the study by one with all trials in the new spaces.

        Optuna refuses other choices of a parameter in one study, and its samplers that see several parameters at once
        ignore one whose ranges differ. A trial that was asked for and not recorded is asked for again.
        """
        batch = _Batch(self._journal)
        self._optuna.delete_study(study_name=STUDY, storage=self._optuna.storages.JournalStorage(batch))
        study = self._open_study(batch)
        for number, trial in _number_trials(trials):
            if number >= len(made):
                continue
            copied = copy(trial)
            copied.params = dict(made[number])
            copied.distributions = {name: self._spaces[name] for name in copied.params}
            # What CMA-ES keeps in trials is of the spaces as they were.
            copied.system_attrs = {name: value for name, value in trial.system_attrs.items() if "cma:" not in name}
            study.add_trial(copied)
        self._journal.append_batch(batch.logs)

    def _take_up(self) -> None:
        """Queue trials that the study has and nobody was given."""
        trials = self._study.get_trials(deepcopy=False)
        for trial in trials[self._seen :]:
            if (copied := trial.user_attrs.get(COPY)) is not None:
                self._copies[copied["number"]] = copied["again"], trial.number
                continue
            if not trial.state.is_finished():
                self._unasked.append(len(self._chosen))
            self._chosen.append(trial.number)
        self._seen = len(trials)

    def ask(self) -> NextTrial | None:
        """Return the next trial, or None when all were asked for."""
        with _disk_errors(self._folder), silence_warnings():
            self._take_up()  # what others asked for meanwhile
            try:
                if not self._unasked and len(self._chosen) < self._method.trials:
                    self._begin()
            finally:
                self._take_up()
            if not self._unasked:
                return None
            number = self._unasked[0]
            parameters = self._parameters(number)
            trial = self._trial(self._chosen[number])
            if FOLDER not in trial.user_attrs:
                trial.set_user_attr(FOLDER, self._folder_of(number))
        return NextTrial(number=self._unasked.pop(0), parameters=parameters)

    def _folder_of(self, number: int) -> str:
        return str(trial_folder(self._folder.absolute().parent, number))

    def _begin(self) -> None:
        if self._method.sampler:
            self._study.ask()
            return
        parameters = self._combinations.get(len(self._chosen)) or {}
        create, running = self._optuna.trial.create_trial, self._optuna.trial.TrialState.RUNNING
        spaces = {name: self._spaces[name] for name in parameters}
        self._study.add_trial(create(state=running, params=dict(parameters), distributions=spaces))

    def _parameters(self, number: int) -> dict[str, Value]:
        if not self._method.sampler:
            return dict(self._combinations.get(number) or {})
        trial = self._trial(self._chosen[number])
        chosen: dict[str, Value] = {}
        for name in self._spaces:
            if self._sweep.has(name, chosen):
                chosen[name] = self._suggest(trial, name)
        return chosen

    def _suggest(self, trial: Any, name: str) -> Value:
        """Draw a value, or return the recorded one."""
        value: Value
        space = self._sweep.parameters[name]
        if isinstance(space, tuple):
            value = trial.suggest_categorical(name, space)
        elif space.whole:
            value = trial.suggest_int(name, int(space.low), int(space.high), step=int(space.step or 1), log=space.log)
        else:
            value = trial.suggest_float(name, space.low, space.high, step=space.step, log=space.log)
        return value

    def _distribution(self, space: tuple[Value, ...] | ValueRange) -> Any:
        distributions = self._optuna.distributions
        if isinstance(space, tuple):
            return distributions.CategoricalDistribution(space)
        if space.whole:
            return distributions.IntDistribution(
                int(space.low), int(space.high), log=space.log, step=int(space.step or 1)
            )
        return distributions.FloatDistribution(space.low, space.high, log=space.log, step=space.step)

    def _trial(self, place: int) -> Any:
        if place not in self._trials:
            known = self._study.get_trials(deepcopy=False)[place]
            self._trials[place] = self._optuna.trial.Trial(self._study, known._trial_id)
        return self._trials[place]

    def _place(self, number: int, again: int) -> int:
        """Return the number in the study of a trial, or of its copy.

        Optuna keeps how a trial ended, so one that is run again is a copy, as Optuna's own callback for failed trials
        makes it.
        """
        if not again:
            return self._chosen[number]
        self._take_up()  # what others made meanwhile
        if self._copies.get(number, (0, 0))[0] < again:
            states, before = self._optuna.trial.TrialState, self._chosen[number]
            self._study.tell(before, state=states.FAIL, skip_if_finished=True)
            known = self._study.get_trials(deepcopy=False)[before]
            copy = self._optuna.trial.create_trial(
                state=states.RUNNING,
                params=known.params,
                distributions=known.distributions,
                user_attrs={COPY: {"number": number, "again": again}, FOLDER: self._folder_of(number)},
            )
            self._study.add_trial(copy)
            self._take_up()
        return self._copies[number][1]

    def tell(self, number: int, state: TrialState, *values: float | None, again: int = 0) -> None:
        """Record how a trial ended.

        One that finished without one of its metrics has failed, for Optuna.
        """
        states = self._optuna.trial.TrialState
        known = [value for value in values if value is not None and math.isfinite(value)]
        complete = state is TrialState.FINISHED and len(known) == len(self._sweep.objectives)
        optuna_state = states.PRUNED if state is TrialState.PRUNED else states.COMPLETE if complete else states.FAIL
        with _disk_errors(self._folder), silence_warnings():
            place = self._place(number, again)
            if optuna_state is states.FAIL and not self._study.get_trials(deepcopy=False)[place].state.is_finished():
                self._trial(place).set_user_attr(ENDED_AS, str(state))
            self._study.tell(place, known if complete else None, state=optuna_state, skip_if_finished=True)
        self._trials.pop(place, None)

    def report(self, number: int, step: int, value: float, again: int = 0) -> bool:
        """Record a metric, and return whether to prune the trial."""
        if len(self._sweep.objectives) > 1:  # Optuna has no values in between of several
            return False
        with _disk_errors(self._folder), silence_warnings():
            place = self._place(number, again)
            trial = self._trial(place)
            known = self._study.get_trials(deepcopy=False)[place]
            last = max(known.intermediate_values, default=-1)
            too_soon = step <= last or (step >= EVERY_STEP and step < THINNED * last)
            if step < 0 or too_soon or known.state.is_finished():
                return False
            trial.report(value, step)
            return bool(trial.should_prune())

    def close(self) -> None:
        """Let another process open the folder."""
        self._journal.close()
        os.close(self._lock)


def _number_trials(trials: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    """Yield the trials of a study with their numbers in the pool."""
    numbers = count()
    for trial in trials:
        copied = trial.user_attrs.get(COPY)
        yield next(numbers) if copied is None else copied["number"], trial


def _spaces(sweep: TrainingSweep) -> dict[str, tuple[Value, ...] | ValueRange]:
    """Return the space of each parameter."""
    if not sweep.listed:
        return dict(sweep.parameters)
    spaces: dict[str, tuple[Value, ...] | ValueRange] = {}
    for name in dict.fromkeys(name for trial in sweep.listed for name in trial):
        values = [trial[name] for trial in sweep.listed if name in trial]
        numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
        if len(numbers) < len(values):
            spaces[name] = tuple(dict.fromkeys(values))
        else:
            whole = all(isinstance(value, int) for value in numbers)
            spaces[name] = ValueRange(low=min(numbers), high=max(numbers), whole=whole)
    return spaces


@contextmanager
def silence_warnings() -> Iterator[None]:
    """Hide Optuna's warnings about experimental features."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
