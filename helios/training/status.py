"""State of a pool, read from its folder while it runs or afterwards.

Nothing is locked or written, so that asking disturbs no pool. What programs write is read in bounded steps.
"""

from __future__ import annotations

import json
import re
import shlex
import stat
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from helios.errors import UsageError
from helios.targets import Target
from helios.training.model import TrialState, name_directions
from helios.training.pool.orders import PoolOrder, waiting_orders
from helios.training.pool.provenance import MADE_WITH
from helios.training.pool.reports import Report, read_end, read_last_report
from helios.training.pool.state import (
    FILE,
    MEMBERS,
    NAME_A_POOL,
    Records,
    TrialRecord,
    is_locked,
    read_records,
    trial_folder,
)
from helios.training.pool.sweep import fill_word, find_placeholders
from helios.training.report import find_best

FEWEST_ENDED = 3
"""Ended trials from which the time left is told."""
RECENT = 100
"""Trials that ended last, whose mean time the others are expected to need."""
MOST_REPORTS = 256
"""Running trials whose reports are read for one answer."""
LOG_LINES, LONGEST_LOG_LINE = 10, 1_000
_SEED = re.compile(r"(^|[_.-])(seed|random_state)($|[_.-])", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatus:
    """A pool at one moment, as its folder tells.

    Attributes
    ----------
    live : mapping
        What each run that goes on shows, by its id.
    history : sequence of mapping
        Lines of the trial that was asked for.
    reports : mapping
        Last report of running trials.
    orders : sequence of PoolOrder
        Those that no run has carried out yet.
    """

    folder: Path
    owner: int
    records: Records
    live: Mapping[str, Mapping[str, Any]]
    reports: Mapping[int, Report]
    now_s: float
    history: Sequence[Mapping[str, Any]] = ()
    orders: Sequence[PoolOrder] = ()

    @property
    def about(self) -> Mapping[str, Any]:
        """What the last run said when it began."""
        return next(reversed(self.records.runs.values()), {})

    @property
    def total(self) -> int:
        """Number of trials of the sweep, else of those made."""
        return max(int(self.about.get("total") or 0), len(self.records.trials))

    @property
    def counts(self) -> dict[str, int]:
        """Number of trials in each state, with unmade ones as waiting."""
        counts = Counter(str(trial.state) for trial in self.records.trials.values())
        counts["waiting"] += self.total - len(self.records.trials)
        return {state: count for state, count in sorted(counts.items()) if count}

    @property
    def ended(self) -> list[TrialRecord]:
        """The trials that have a result."""
        return [trial for trial in self.records.trials.values() if trial.ended]

    @property
    def running(self) -> list[TrialRecord]:
        """The trials that run now."""
        return [trial for trial in self.records.trials.values() if trial.state is TrialState.RUNNING]

    @property
    def failed(self) -> list[TrialRecord]:
        """The trials that failed."""
        return [trial for trial in self.records.trials.values() if trial.state is TrialState.FAILED]

    @property
    def objectives(self) -> dict[str, bool]:
        """The metrics that are compared, and whether more of each is better."""
        return dict(self.about.get("objectives", {}))

    @property
    def target(self) -> Target | None:
        """The target of the last run."""
        return Target(**self.about["target"]) if self.about.get("target") else None

    def target_json(self) -> dict[str, Any] | None:
        """Return how far the sweep is from its target, as plain values."""
        if (target := self.target) is None:
            return None
        known = [(each["value"], each["trial"]) for each in self.records.reached.values()]
        live = [each["target"] for each in self.live.values() if each.get("target")]
        known += [tuple(each["best"]) for each in live if each.get("best")]
        for trial in self.records.trials.values():
            known += [(value, trial.number) for value in trial.extremes]
            metrics = {**trial.metrics, **self.reports.get(trial.number, Report()).metrics}
            known += [(metrics[target.metric], trial.number)] if target.metric in metrics else []
        value, number = target.best(known) or (None, None)
        need = next((each["need"] for each in live if each.get("need")), None)
        n_reached = len(self.records.reached)
        return {
            "target": str(target),
            "metric": target.metric,
            "best": value,
            "trial": number,
            "problem": next((each["problem"] for each in live if each.get("problem")), None),
            "tiers": [
                {
                    "value": goal,
                    "reached": self.records.reached.get(tier),
                    "delivered": self.records.delivered.get(tier),
                    "need": need if tier == n_reached else None,
                }
                for tier, goal in enumerate(target.values)
            ],
        }

    def best(self, count: int | None = None) -> list[TrialRecord]:
        """Return the best finished trials, the best first.

        Without a count these are those that no other one beats: one, or the front of several metrics.
        """
        finished = {trial.number: trial for trial in self.records.trials.values() if trial.state is TrialState.FINISHED}
        left = {number: trial.metrics for number, trial in finished.items()}
        found = find_best(left, self.objectives)
        while count is not None and len(found) < count:
            left = {number: metrics for number, metrics in left.items() if number not in found}
            if not (more := find_best(left, self.objectives)):
                break
            found += more
        return [finished[number] for number in found[:count]]

    @property
    def left_s(self) -> float | None:
        """Time until all trials have ended, None where it is not known.

        The others are expected to need as long as those that ended did in the mean, as many at a time as run now.
        """
        ended = [trial.seconds for trial in self.ended if trial.seconds][-RECENT:]
        if len(ended) < FEWEST_ENDED or not self.running:
            return None
        mean_s = fmean(ended)
        rest = [self._rest_s(trial, mean_s) for trial in self.running]
        waiting = self.total - len(self.ended) - len(self.running)
        return max(*rest, (sum(rest) + waiting * mean_s) / len(rest))

    def _rest_s(self, trial: TrialRecord, mean_s: float) -> float:
        seconds = self.seconds(trial)
        progress = self.reports[trial.number].progress if trial.number in self.reports else None
        if progress and trial.attempts == 1:
            return seconds * (1 - progress) / progress
        return max(0.0, mean_s - seconds)

    def seconds(self, trial: TrialRecord) -> float:
        """Return how long a trial has run in all attempts."""
        runs = trial.state is TrialState.RUNNING and trial.started_s is not None
        return trial.seconds + (max(0.0, self.now_s - (trial.started_s or 0.0)) if runs else 0.0)

    def trial_folder(self, number: int) -> Path:
        """Return the folder of a trial."""
        return trial_folder(self.folder, number)

    def log(self, trial: TrialRecord) -> Path:
        """Return the log of a trial."""
        return Path(trial.log or self.trial_folder(trial.number) / "log.txt")

    def trial_json(self, trial: TrialRecord) -> dict[str, Any]:
        """Return what is known of a trial now as plain values."""
        report = self.reports.get(trial.number, Report())
        running = {"progress": report.progress, "step": report.step, "metrics": {**trial.metrics, **report.metrics}}
        return {
            **trial.to_json(),
            **(running if trial.state is TrialState.RUNNING else {}),
            "seconds": round(self.seconds(trial), 3),
            "value": trial.value,
            "log": str(self.log(trial)),
        }

    def result_json(self, trial: TrialRecord) -> dict[str, Any]:
        """Return a trial with what reproduces it."""
        run = self.run_of(trial)
        checkpoints = self.trial_folder(trial.number) / "checkpoints"
        return {
            **self.trial_json(trial),
            "checkpoints": str(checkpoints) if any(checkpoints.glob("*")) else None,
            "command": self.command(trial),
            "provenance": {**{name: run.get(name) for name in MADE_WITH}, "seed": self.seed(trial)},
        }

    def run_of(self, trial: TrialRecord) -> Mapping[str, Any]:
        """Return the run of the pool in which a trial was started last."""
        return self.records.runs.get(trial.run, {})

    def seed(self, trial: TrialRecord) -> Any:
        """Return the seed that a trial got, None where no parameter is one."""
        found = [value for name, value in trial.parameters.items() if _SEED.search(name)]
        return found[0] if found else self.run_of(trial).get("seed")

    def command(self, trial: TrialRecord) -> str | None:
        """Return what a shell runs to repeat a trial by itself.

        None where that is not known, or trials are trained by a process of several. Its checkpoints have a new folder.
        """
        run = self.run_of(trial)
        if not run or run["fused"] or run["container"]:
            return None
        again = self.trial_folder(trial.number) / "again"
        filled = {**trial.parameters, "trial": trial.number, "checkpoints": str(again)}
        environment = dict(run["env"])
        if {*trial.parameters} - {name for word in run["command"] for name in find_placeholders(word)}:
            environment["HELIOS_PARAMETERS"] = json.dumps(dict(trial.parameters))
        words = [f"{name}={value}" for name, value in environment.items()]
        words += [fill_word(word, filled) for word in run["command"]]
        return f"cd {shlex.quote(run['cwd'])} && {'env ' * bool(environment)}{shlex.join(words)}"

    def trial(self, number: int) -> TrialRecord:
        """Return a trial.

        Raises
        ------
        UsageError
            There is none with this number.
        """
        if number not in self.records.trials:
            last = max(self.records.trials, default=None)
            known = "none has been made yet" if last is None else f"they are from 0 to {last}"
            raise UsageError(f"There is no trial {number}.", hint=f"Name one of the trials; {known}.")
        return self.records.trials[number]

    def attempts(self, trial: TrialRecord) -> list[dict[str, Any]]:
        """Return each attempt of the trial whose history was read."""
        attempts: list[dict[str, Any]] = []
        for line in self.history:
            if line["what"] == "started":
                run = self.records.runs.get(line.get("run", ""), {})
                attempts.append(
                    {
                        "attempt": len(attempts) + 1,
                        "devices": line["devices"],
                        "resized": [],
                        "started_s": line["at_s"],
                        "memory_limit_mib": line["memory_limit_mib"],
                        "why": line.get("why", ""),
                        "outcome": "running" if trial.state is TrialState.RUNNING else "interrupted",
                        "reason": "",
                        "seconds": None,
                        "peak_memory_mib": None,
                        "value": None,
                        **{name: run.get(name) for name in ("commit", "changed", "helios", "host")},
                    }
                )
            elif line["what"] == "resized" and attempts:
                attempts[-1]["resized"].append({key: line[key] for key in ("at_s", "devices", "pause_s", "in_place")})
            elif "state" in line and attempts:
                ended = {name: line[name] for name in ("reason", "seconds", "peak_memory_mib", "value")}
                attempts[-1] |= {"outcome": line["what"], **ended}
        for attempt in attempts[:-1]:  # a kill of the pool leaves no line
            attempt["outcome"] = "interrupted" if attempt["outcome"] == "running" else attempt["outcome"]
        return attempts

    def log_end(self, trial: TrialRecord) -> list[str]:
        """Return the last lines of a trial's log, without control characters."""
        lines = [line.decode("utf-8", "replace") for line in read_end(self.log(trial), owner=self.owner)]
        plain = ["".join(each if each.isprintable() else " " for each in line).rstrip() for line in lines]
        return [line[:LONGEST_LOG_LINE] for line in plain if line][-LOG_LINES:]

    def to_json(self) -> dict[str, Any]:
        """Return the answer of ``helios pool status --json``."""
        about, metrics = self.about, [*self.objectives]
        runs = [
            {**self.records.runs.get(run, {"run": run}), "hold": shown.get("hold")} for run, shown in self.live.items()
        ]
        return {
            "folder": str(self.folder),
            "sweep": about.get("sweep"),
            "metrics": metrics,
            "directions": name_directions(self.objectives),
            "running": bool(self.live),
            "runs": runs,
            "last_run": None if runs else about or None,
            "total": self.total,
            "counts": self.counts,
            "left_s": None if self.left_s is None else round(self.left_s, 1),
            "best": [self.trial_json(trial) for trial in self.best()],
            "running_trials": [self.trial_json(trial) for trial in self.running],
            "failed": [self.trial_json(trial) for trial in self.failed],
            "target": self.target_json(),
            "orders": [{"order": each.what, "trials": list(each.numbers), "who": each.who} for each in self.orders],
        }


def find_pool(place: Path | None) -> Path:
    """Return the folder of a pool.

    Parameters
    ----------
    place : Path, optional
        The folder or its sweep file. None for the only pool of the current folder.

    Raises
    ------
    UsageError
        There is none, or there are several.
    """
    if place is None:
        found = [folder for folder in sorted(Path.cwd().glob("*.pool")) if (folder / FILE).exists()]
        if len(found) != 1:
            names = ", ".join(folder.name for folder in found[:5]) + (" ..." if len(found) > 5 else "")
            problem = f"There are {len(found)} pools here: {names}." if found else "There is no pool here."
            raise UsageError(problem, hint=NAME_A_POOL)
        return found[0]
    try:
        is_folder = stat.S_ISDIR(place.stat().st_mode)
    except OSError as reason:
        raise UsageError(f"{place}: {reason.strerror}.", hint=NAME_A_POOL) from reason
    folder = place if is_folder else place.with_suffix(".pool")
    if not folder.exists():
        raise UsageError(f"{place} has no pool yet.", hint=f"Start it: helios pool run {place}")
    return folder.absolute()


def read_status(folder: Path, *, history_of: int | None = None) -> PoolStatus:
    """Read how a pool is.

    Raises
    ------
    FileUnreadable
        The folder is not of a pool, of another version of Helios, or of somebody else.
    """
    before = _alive(folder)
    records, history = read_records(folder, history_of=history_of)
    owner, now = folder.stat().st_uid, _alive(folder)
    alive = before | now  # of one that began or ended meanwhile, trials ran
    reports: dict[int, Report] = {}
    for trial in records.trials.values():
        if trial.state is not TrialState.RUNNING:
            continue
        if not (trial.owner in alive if trial.owner else alive):
            records.interrupt(trial)
        elif len(reports) < MOST_REPORTS:
            report = trial_folder(folder, trial.number) / "report.jsonl"
            reports[trial.number] = read_last_report(report, owner=owner)
    return PoolStatus(
        folder=folder,
        owner=owner,
        records=records,
        live={run: _shown(folder / MEMBERS / run, owner) for run in now},
        reports=reports,
        now_s=time.time(),
        history=history,
        orders=waiting_orders(folder, records, owner=owner),
    )


def _alive(folder: Path) -> set[str]:
    """Return the runs of a pool that go on."""
    with suppress(OSError):
        return {path.name for path in (folder / MEMBERS).iterdir() if path.name[0] != "." and is_locked(path)}
    return set()


def _shown(path: Path, owner: int) -> Mapping[str, Any]:
    with suppress(ValueError):
        shown = json.loads(b"\n".join(read_end(path, owner=owner)))
        if isinstance(shown, dict):
            return shown
    return {}
