"""Process of a pool that trains its trials as one stack.

``python -m helios.training.fused.task PROGRAM TRIALS``: ``PROGRAM`` is a Python file with ``build``, ``data``, one of
``loss`` and ``step`` and, optionally, ``metrics`` and ``configure``. ``TRIALS`` is a file of JSON lines that the pool
appends to: settings first, then a line for each trial, at last that no more will come. Each trial has a folder of its
own with reports, requests and checkpoints, as any program of a pool has them, so that a trial that leaves or fails
concerns no other one.

What it reports of a trial under the key ``fused`` is read by :mod:`helios.training.pool.fusing`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from helios.errors import ConfigurationInvalid, HeliosError, UsageError
from helios.training.fused.batches import check_batch_size, is_tensors
from helios.training.fused.configurations import OPTIMIZERS, OTHER_KEYS, check_configuration
from helios.training.fused.memory import models_that_fit, peak_bytes
from helios.training.fused.structure import settings_of
from helios.training.fused.trainer import Epoch, FusedTrainer

COMMON = ("batch_size", "optimizer", "precision", "on_nan")
"""Settings of which the models of a stack have one value."""
OWN_KEYS = {*COMMON, *OTHER_KEYS, *(key for _, keys in OPTIMIZERS.values() for key in keys)} - {"model"}
"""Names of parameters that are not for ``build``."""
LATEST, CHECKPOINT = "latest", "model.pt"
"""File that names the last complete checkpoint, as ``helios_task`` has it, and the checkpoint itself."""
REQUESTS = ("pause", "checkpoint", "stop")
POLL_S = 0.25
"""About how long the models train until requests and new trials are looked for."""
IDLE_S, IDLE_POLL_S = 10.0, 0.02
"""How long to wait for a trial when there is none, and how often to look."""
COST = 20
"""One part in so many of the time goes into checkpoints at most."""
LIKELY_SHARE = 0.5
"""Of the memory, above which it is measured how many models fit; below that it is not worth the time."""


@dataclass
class FusedTrial:
    """A trial of a pool, with its files.

    Attributes
    ----------
    configuration : dict
        As ``FusedTrainer`` takes it.
    common : dict
        Settings that all models of a stack have in common.
    """

    number: int
    folder: Path
    configuration: dict[str, Any] = field(default_factory=dict)
    common: dict[str, Any] = field(default_factory=dict)
    saved_at_s: float = field(default_factory=time.monotonic)
    seen: tuple[int, int] | None = None

    def report(self, **fields: Any) -> None:
        """Append a line to the report file, if it can be written."""
        line = json.dumps({**fields, "time_s": round(time.time(), 3)}).encode() + b"\n"
        try:
            handle = os.open(self.folder / "report.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(handle, line)
            finally:
                os.close(handle)
        except OSError as reason:
            print(f"Trial {self.number}: a report cannot be written: {reason}", file=sys.stderr)  # noqa: T201 - the log

    def end(self, how: str, reason: str = "", **fields: Any) -> None:
        """Report that this process has done with the trial.

        ``how`` is ``finished``, ``diverged``, ``stopped``, ``paused``, ``failed``, or ``apart``: it cannot train with
        the others.
        """
        self.report(fused={"ended": how, "reason": reason, **fields})

    def requested(self) -> str | None:
        """Return what was requested since the last call, or None."""
        path = self.folder / "requests"
        try:
            found = path.stat()
            if (found.st_mtime_ns, found.st_ino) == self.seen:
                return None
            request = json.loads(path.read_bytes())["request"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        self.seen = (found.st_mtime_ns, found.st_ino)
        if request not in REQUESTS:  # one of a newer pool
            return None
        self.report(answer=request)
        return str(request)

    def save(self, state: Mapping[str, Any], ended: str = "") -> None:
        """Save a checkpoint atomically."""
        began_s = time.monotonic()
        folder = self.folder / "checkpoints"
        partial = folder / f".{CHECKPOINT}.partial"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as file:
                torch.save({**state, "ended": ended}, file)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(folder / CHECKPOINT)
            if not (folder / LATEST).exists():
                (folder / LATEST).write_text(f"{CHECKPOINT}\n", encoding="utf-8")
        except OSError as reason:  # a full disk: the one before stays
            print(f"Trial {self.number}: no checkpoint: {reason}", file=sys.stderr)  # noqa: T201 - the log
        self.saved_at_s = time.monotonic() + COST * (time.monotonic() - began_s)

    def saved(self, device: torch.device) -> dict[str, Any] | None:
        """Return the last checkpoint, or None."""
        try:
            found = torch.load(self.folder / "checkpoints" / CHECKPOINT, map_location=device, weights_only=True)
        except (OSError, RuntimeError, ValueError, EOFError):
            return None
        return dict(found)


def configure(settings: Mapping[str, Any], parameters: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the common settings of a trial's stack, and its own configuration.

    A parameter stands above a setting of the same name. ``schedule.T_max`` is a key in a table, ``betas.1`` a place in
    a list. What is no key of a configuration is for ``build``.
    """
    found = json.loads(json.dumps(dict(settings)))
    model = found.setdefault("model", {})
    for name, value in parameters.items():
        *outer, last = name.split(".")
        if name.partition(".")[0] not in OWN_KEYS:
            model[name] = value
            continue
        at: Any = found
        for key in outer:
            at = at[int(key)] if isinstance(at, list) else at.setdefault(key, {})
        at[int(last) if isinstance(at, list) else last] = value
    common = {name: found.pop(name) for name in COMMON if found.get(name) is not None}
    found.pop("checkpoint_s", None)
    return common, found


def load_program(path: Path) -> ModuleType:
    """Import a user's file, with its folder on the path.

    Raises
    ------
    UsageError
        It lacks one of the functions.
    """
    sys.path.insert(0, str(path.absolute().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is no Python file.", hint="Name a file that ends with .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    for names in (("build",), ("loss", "step"), ("data",)):
        if sum(callable(getattr(module, name, None)) for name in names) != 1:
            hint = "Write build(configuration), data(), and either loss(output, target) or step(model, batch)."
            raise UsageError(f"{path} has no function {' or '.join(names)}, or both.", hint=hint)
    if hasattr(module, "step") and hasattr(module, "metrics"):
        raise UsageError(f"{path} has metrics beside step.", hint="Return them from step, beside the loss.")
    return module


def structure(model: nn.Module, optimizer: str = "") -> str:
    """Return a text that is equal for models that can train together.

    It stands for what :func:`helios.training.fused.structure.difference` compares, and the optimiser.
    """
    digest = hashlib.sha256(optimizer.encode())
    for (kind, name, key), value in settings_of(model).items():
        text = value.cpu().tolist() if isinstance(value, torch.Tensor) else value
        digest.update(f"{kind} {name} {key} {text!r}\n".encode())
    return digest.hexdigest()[:16]


class FusedTask:
    """Trains the trials of one process."""

    def __init__(self, program: Path, trials: Path) -> None:
        self._file, self._place = trials, 0
        self._settings: dict[str, Any] = {}
        self._limit_mib: float | None = None
        self._closed = False
        self._new: list[dict[str, Any]] = []
        self._ending = False
        self._read_file()
        # A GPU is visible to a trial only if that is its device.
        on_gpu = torch.cuda.is_available() and not os.environ.get("HELIOS_DEVICE", "").rpartition("/")[2].startswith(
            "cpu"
        )
        self._device = torch.device("cuda" if on_gpu else "cpu")
        self._program = load_program(program)
        data = self._program.data()
        alone = is_tensors(data) or not isinstance(data, tuple | list)
        self._data, self._validation = (data, None) if alone else tuple(data)
        self._loss, self._step = (getattr(self._program, name, None) for name in ("loss", "step"))
        self._metrics: Callable[..., Mapping[str, Any]] | None = getattr(self._program, "metrics", None)
        self._trainer: FusedTrainer | None = None
        self._by_number: dict[int, FusedTrial] = {}
        self._structure = ""
        self._most = sys.maxsize
        self._made_for = 0
        self._chunk = 1
        self._evaluated: nn.Module | None = None

    def run(self) -> None:
        """Train until no trial is left and none will come."""
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._end_soon)
        idle_since_s = time.monotonic()
        while True:
            self._read_file()
            self._handle_requests()
            if self._ending:
                return
            self._take_new()
            if self._by_number:
                self._train()
                idle_since_s = time.monotonic()
            elif self._closed or time.monotonic() - idle_since_s > IDLE_S:
                return
            else:
                time.sleep(IDLE_POLL_S)

    def _end_soon(self, *_: Any) -> None:
        self._ending = True

    def _read_file(self) -> None:
        with self._file.open("rb") as file:
            file.seek(self._place)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._place += len(line)
                message = json.loads(line)
                if "settings" in message:
                    self._settings, self._limit_mib = message["settings"], message.get("limit_mib")
                elif "trial" in message:
                    self._new.append(message)
                self._closed |= "close" in message

    def _handle_requests(self) -> None:
        """Handle the requests of each trial."""
        for at, trial in list(self._by_number.items()):
            request = trial.requested()
            if self._ending and request != "stop":
                trial.report(answer="pause")
                request = "pause"
            if request in {"pause", "checkpoint"}:
                trial.save(self._current_trainer().checkpoint(at))
                trial.report(checkpoint=CHECKPOINT)
            if request in {"pause", "stop"}:
                trainer = self._current_trainer()
                trainer.remove(at)
                trainer.finished.pop(at)
                del self._by_number[at]
                trial.end("paused" if request == "pause" else "stopped")

    def _current_trainer(self) -> FusedTrainer:
        assert self._trainer is not None
        return self._trainer

    def _take_new(self) -> None:
        messages, self._new = self._new, []
        ready = [trial for message in messages if (trial := self._prepare(message)) is not None]
        if not ready:
            return
        kinds = {trial.number: self._model_structure(trial) for trial in ready}
        ready = [trial for trial in ready if kinds[trial.number]]
        if not ready:
            return
        if not self._by_number:
            self._structure = Counter(kinds[trial.number] for trial in ready).most_common(1)[0][0]
            self._trainer, self._evaluated, self._most = None, None, sys.maxsize
        training = list(self._by_number.values())
        common = (training or [trial for trial in ready if kinds[trial.number] == self._structure])[0].common
        joining: list[FusedTrial] = []
        for trial in ready:
            if kinds[trial.number] != self._structure or trial.common != common:
                trial.end("apart", "its model has another structure", structure=kinds[trial.number])
            elif len(self._by_number) + len(joining) >= self._most:
                trial.end("apart", "the memory is too small for more models", most=self._most)
            else:
                trial.report(fused={"structure": kinds[trial.number]})
                joining.append(trial)
        if not joining:
            return
        # A stack was measured for as many models as it began with; with many more, another way may be faster.
        if self._trainer is None or not self._by_number or len(self._by_number) + len(joining) > 2 * self._made_for:
            self._make_trainer(joining)
            return
        for trial in joining:
            self._add(trial, trial.saved(self._device))

    def _prepare(self, message: Mapping[str, Any]) -> FusedTrial | None:
        """Return a trial to train, or None."""
        trial = FusedTrial(int(message["trial"]), Path(message["folder"]))
        try:
            common, configuration = configure(self._settings, message["parameters"])
            check_batch_size(self._data, common.get("batch_size"))
            configuration.setdefault("seed", 0)  # else what it draws would depend on when it joined
            if (more := getattr(self._program, "configure", None)) is not None:
                configuration |= more(configuration)
                if (named := configuration.pop("optimizer", None)) is not None:
                    common["optimizer"] = named
            optimizer = common.get("optimizer", "sgd")
            if optimizer not in OPTIMIZERS:
                raise UsageError(f"optimizer is {optimizer!r}.", hint=f"Known: {', '.join(OPTIMIZERS)}.")
            check_configuration(trial.number, configuration, optimizer)
            trial.common, trial.configuration = common, configuration
        except Exception as reason:  # also of a user's function: this trial's fault alone
            self._fail(trial, reason)
            return None
        before = trial.saved(torch.device("cpu"))
        if before is not None and before["ended"]:
            trial.end(*before["ended"].split(": ", 1))
            return None
        return trial

    def _model_structure(self, trial: FusedTrial) -> str:
        """Return the structure of a trial's model.

        Empty where the model cannot be built.
        """
        try:
            with torch.random.fork_rng([]):
                model = self._program.build(trial.configuration)
                return structure(model, str(trial.common.get("optimizer")))
        except Exception as reason:  # whatever a user's function raises is this trial's fault alone
            self._fail(trial, reason)
            return ""

    def _fail(self, trial: FusedTrial, reason: Exception) -> None:
        traceback.print_exception(reason)
        trial.end("failed", " ".join(f"{type(reason).__name__}: {reason}".split())[:500])

    def _make_trainer(self, joining: Sequence[FusedTrial]) -> None:
        """Start a trainer for current and joining trials."""
        kept = [(trial, self._current_trainer().checkpoint(at)) for at, trial in self._by_number.items()]
        self._by_number, self._trainer, self._evaluated = {}, None, None
        trials = [*kept, *((trial, trial.saved(self._device)) for trial in joining)]
        count = self._count_that_fits([trial for trial, _ in trials])
        while True:
            try:
                trainer = self._trainer = FusedTrainer(
                    self._program.build,
                    self._loss,
                    self._data,
                    [trial.configuration for trial, _ in trials[:count]],
                    step=self._step,
                    validation=self._validation,
                    device=self._device,
                    way="auto" if count > 1 else "serial",
                    **trials[0][0].common,
                )
                break
            except RuntimeError as error:
                if "out of memory" not in str(error).lower() or count == 1:
                    raise
                self._most = count = count // 2
        for trial, state in trials[count:]:
            if state is not None:
                trial.save(state)
            trial.end("apart", "the memory is too small for more models", most=count)
        trials = trials[:count]
        self._made_for = count
        numbers = list(trainer.numbers)
        if trainer.obstacles:
            obstacles = "; ".join(f"{each.module}: {each.reason}" for each in trainer.obstacles)
            for (trial, state), at in zip(trials[1:], numbers[1:], strict=True):
                if state is not None:
                    trial.save(state)
                trainer.remove(at)
                trial.end("apart", "it cannot be fused", obstacle=obstacles)
            trials, numbers, self._most = trials[:1], numbers[:1], 1
            trials[0][0].report(fused={"structure": self._structure, "obstacle": obstacles})
        for (trial, state), at in zip(trials, numbers, strict=True):
            if state is None:
                self._by_number[at] = trial
            else:
                trainer.remove(at)
                self._add(trial, state)
        trainer.finished.clear()
        if (times := trainer.measured_s) and trainer.steps_per_epoch is not None:
            epoch_s = {
                "alone_s": times["serial"] / count * trainer.steps_per_epoch,
                "fused_s": times[trainer.way] * trainer.steps_per_epoch,
            }
            trials[0][0].report(fused={"way": trainer.way, "models": count, **epoch_s})
        self._chunk = 1

    def _count_that_fits(self, trials: Sequence[FusedTrial]) -> int:
        """Return how many models the memory holds."""
        if len(trials) == 1:
            return 1
        available_bytes = self._available_bytes()
        options = {**trials[0].common, "device": self._device, "step": self._step}
        program = (self._program.build, self._loss, self._data, trials[0].configuration)
        one = peak_bytes(1, *program, steps=1, way="serial", **options)
        if one * len(trials) < LIKELY_SHARE * available_bytes:
            return len(trials)
        count = models_that_fit(int(available_bytes), *program, most=len(trials), **options)
        if count < len(trials):
            self._most = count
        return count

    def _available_bytes(self) -> float:
        limit = (self._limit_mib or sys.maxsize) * 2.0**20
        if self._device.type == "cuda":
            return min(limit, float(torch.cuda.mem_get_info(self._device)[0]))
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return max(0.0, limit - resident)

    def _add(self, trial: FusedTrial, state: Mapping[str, Any] | None) -> None:
        try:
            at = self._current_trainer().add(trial.configuration, state)
        except ConfigurationInvalid as reason:  # a difference that its structure does not show
            trial.end("apart", str(reason), structure=f"{self._structure} {trial.number}")
        else:
            self._by_number[at] = trial

    def _train(self) -> None:
        trainer, began_s = self._current_trainer(), time.monotonic()
        trainer.train(steps=self._chunk, on_epoch=self._report)
        took_s = max(1e-6, time.monotonic() - began_s)
        self._chunk = max(1, min(2 * self._chunk, int(self._chunk * POLL_S / took_s)))
        for at in list(trainer.finished):
            trial, finished = self._by_number.pop(at), trainer.finished.pop(at)
            # A model that was stopped since it is not finite is told from one that has done its steps.
            diverged = finished.reason.endswith("is not finite")
            how, reason = ("diverged", finished.reason) if diverged else ("finished", "")
            trial.save(finished.checkpoint, ended=f"{how}: {reason}")
            trial.report(checkpoint=CHECKPOINT, progress=1.0)
            trial.end(how, reason)

    def _report(self, trainer: FusedTrainer, reached: Sequence[Epoch]) -> None:
        for epoch in reached:
            trial = self._by_number[epoch.number]
            losses = {"training_loss": epoch.training_loss}
            if epoch.validation_loss is not None:
                losses["validation_loss"] = epoch.validation_loss
            trial.report(
                step=epoch.epoch - 1,
                progress=_progress(trial.configuration, epoch),
                **losses,
                **epoch.metrics,
                **self._measure(trainer, epoch.number),
            )
            every_s = float(self._settings.get("checkpoint_s", 30.0))
            if epoch.number not in trainer.finished and time.monotonic() - trial.saved_at_s >= every_s:
                trial.save(trainer.checkpoint(epoch.number))
                trial.report(checkpoint=CHECKPOINT)

    def _measure(self, trainer: FusedTrainer, at: int) -> dict[str, float]:
        """Return the user's own metrics of one model on the validation data."""
        if self._metrics is None or self._validation is None:
            return {}
        finished = trainer.finished.get(at)
        state = finished.checkpoint if finished is not None else trainer.checkpoint(at)
        if self._evaluated is None:
            self._evaluated = trainer.model(at)
        model = self._evaluated
        model.load_state_dict(state["model"])
        model.eval()
        metrics = self._metrics(*trainer.validation_outputs(model))
        return {str(name): float(value) for name, value in metrics.items()}


def _progress(configuration: Mapping[str, Any], epoch: Epoch) -> float:
    """Return the share of a trial that is done."""
    done = {"steps": epoch.step, "epochs": epoch.epoch}
    return float(min(1.0, max(count / configuration[name] for name, count in done.items() if configuration.get(name))))


def main(program: str, trials: str) -> int:
    """Train, and return the exit status."""
    try:
        FusedTask(Path(program), Path(trials)).run()
    except HeliosError as reason:
        print(f"{reason.message} {reason.hint}".strip(), file=sys.stderr)  # noqa: T201 - the log
        return 1
    except SystemExit as reason:  # of the user's file: whatever its status, no trial was trained
        return reason.code if isinstance(reason.code, int) and reason.code else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
