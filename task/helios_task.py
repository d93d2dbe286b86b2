"""Reports, checkpoints and requests of a training program in a Helios pool.

This is the whole package: one module without dependencies, for Python 3.9 and newer, which may also be copied beside a
program. Without a pool its functions do nothing that would disturb a program: reports go nowhere, nothing is
requested, and checkpoints go into a folder that is removed at the end.

A pool sets these variables of the environment:

``HELIOS_REPORT``
    File to which reports are appended, one JSON object on each line.
``HELIOS_REQUESTS``
    File that holds what is requested, as ``{"request": "pause", "by_s": 1790000000.0}``; missing while nothing is.
``HELIOS_CHECKPOINTS``
    Folder that a trial keeps over all its attempts.
``HELIOS_TRIAL``
    Number of the trial.
``HELIOS_PARAMETERS``
    Parameters of the trial, a JSON object.

Outside of a pool, in a Slurm job whose comment names a target (``--comment=helios:target=val_acc>=0.90;yield=USR2``),
reports keep that comment up to date with where the program stands.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "checkpoint_folder",
    "latest_checkpoint",
    "mark_checkpoint",
    "parameters",
    "report",
    "request_details",
    "requested",
    "save_checkpoint",
    "trial",
    "watch_signals",
]
__version__ = "0.1.0"  # and LightningCallback and HuggingFaceCallback, made when they are asked for

LATEST = "latest"
"""File in the folder of checkpoints that names the last complete one."""
NAME = "lightning.ckpt"
"""Checkpoint of PyTorch Lightning."""
REQUESTS = ("pause", "checkpoint", "stop")
LONGEST_REQUEST = 1 << 16
"""Bytes of the file that are read."""
NOT_BLOCKING = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
"""Flags for files of a pool, in whose place something else may be."""

COMMENT_EVERY_S = 60.0
"""Between two changes of a Slurm job's comment, s, unless a target is reached or a checkpoint saved."""
SLURM_WAITS_S = 10.0
"""Longest wait for a command of Slurm, s."""
LONGEST_RETRY_S = 3600.0
"""Longest wait after a command of Slurm that failed, s. It is a minute at first, and doubles with each in a row."""
_TARGET = re.compile(r"helios:target=(?P<metric>[\w./-]+)(?P<sign>>=|<=)(?P<values>[^;\s]*)(?P<rest>\S*)")
_PROGRESS = re.compile(r";(?:at|step|checkpoint)=[^;\s]*")

OWN_KEYS = ("answer", "time_s")
"""Keys of a report that are no parameters of :func:`report`, and no metrics."""


class _State:
    """What this process remembers between calls."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.removed: Path | None = None
        self.seen: tuple[int, int] | None = None
        self.details: dict[str, Any] = {}
        self.persists = False
        self.by_signal = False
        self.unwritten = False
        self.warned = False
        self.checkpoint_by_signal = False
        self.target: re.Match[str] | None = None
        self.progress: dict[str, str] = {}
        self.reached = 0
        self.told_s = self.retry_s = -math.inf
        self.failures = 0


_state = _State()


def report(
    *,
    step: int | None = None,
    progress: float | None = None,
    message: str | None = None,
    checkpoint: str | None = None,
    **metrics: Any,
) -> Stop:
    """Report how training goes, and return whether to stop.

    A report that cannot be written is dropped, with a warning.

    Parameters
    ----------
    step : int, optional
        Which step, epoch or round the metrics are of, from 0. A search prunes by it.
    progress : float, optional
        Share that is done, 0 to 1.
    message : str, optional
        One line for a person.
    checkpoint : str, optional
        Name of a checkpoint that is complete; :func:`save_checkpoint` reports its own.
    **metrics
        Numbers, or what ``float`` makes one, such as a tensor of one element.

    Returns
    -------
    Stop
        True where the pool has asked the program to stop, so that a loop may end with
        ``if helios_task.report(...): break``.

    Raises
    ------
    TypeError, ValueError
        A value is no number.
    """
    if own := [name for name in OWN_KEYS if name in metrics]:
        raise ValueError(f"{own[0]!r} cannot be the name of a metric")
    fields: dict[str, Any] = {name: _number(value) for name, value in metrics.items()}
    if step is not None:
        fields["step"] = int(step)
    if progress is not None:
        fields["progress"] = float(progress)
    if message is not None:
        fields["message"] = str(message)
    if checkpoint is not None:
        fields["checkpoint"] = str(checkpoint)
    _write(fields)
    _tell_slurm(fields)
    return Stop()


class Stop:
    """Truth value of whether the program should stop.

    Who looks at it sees the request, so that the trial counts as stopped. Who does not runs on to its own end.
    """

    def __bool__(self) -> bool:
        return _read_request("stop") is not None


def _number(value: Any) -> float:
    """Return a number, also of a tensor with a gradient."""
    item = getattr(value, "item", None)
    return float(item() if callable(item) else value)


def _write(fields: dict[str, Any]) -> None:
    """Append a line in one call, so that it stays whole."""
    path = os.environ.get("HELIOS_REPORT")
    if not path:
        return
    line = (json.dumps({**fields, "time_s": round(time.time(), 3)}) + "\n").encode()
    try:
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | NOT_BLOCKING, 0o600)
        try:
            whole = b"\n" + line if _state.unwritten else line  # what was written of the last one ends here
            _state.unwritten = os.write(handle, whole) < len(whole)
        finally:
            os.close(handle)
    except OSError as reason:
        _state.unwritten = True
        if not _state.warned:
            _state.warned = True
            print(f"helios_task: reports cannot be written: {reason}", file=sys.stderr)  # noqa: T201 - no logger here


def _tell_slurm(fields: dict[str, Any]) -> None:
    """Write how far a job is into its comment on Slurm.

    Only its owner and operators may change it, so that Helios knows whose word it is. It is read anew before it is
    changed, as the owner may have changed it. A job without a target is looked at once.
    """
    job = os.environ.get("SLURM_JOB_ID")
    process = os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or "0"
    if not job or os.environ.get("HELIOS_REPORT") or process != "0":
        return
    now_s = time.monotonic()
    due = _note_progress(fields) or "checkpoint" in fields or now_s - _state.told_s >= COMMENT_EVERY_S
    if not due or now_s < _state.retry_s:
        return
    try:
        comment = _slurm("squeue", "--noheader", f"--jobs={job},{job}", "--format=%k")
        _state.told_s, _state.target = time.monotonic(), _TARGET.search(comment)
        if not (found := _state.target):
            _state.retry_s = math.inf
            return
        _note_progress(fields)
        progress = ",".join(f"{name}={value}" for name, value in sorted(_state.progress.items()))
        opt_in = comment[found.start() : found.start("rest")] + _PROGRESS.sub("", found["rest"])
        if progress:
            text = f"{comment[: found.start()]}{opt_in};{progress}{comment[found.end() :]}"
            _slurm("scontrol", "update", f"jobid={job}", f"comment={text}")
        _state.failures = 0
    except (OSError, subprocess.SubprocessError) as reason:
        wait_s = min(LONGEST_RETRY_S, COMMENT_EVERY_S * 2.0 ** min(_state.failures, 10))
        _state.failures += 1
        _state.retry_s = time.monotonic() + wait_s
        if _state.failures == 1:
            said = (getattr(reason, "stderr", None) or b"").decode("utf-8", "replace").strip()
            print(f"helios_task: Slurm could not be told, and is tried later: {said or reason}", file=sys.stderr)  # noqa: T201 - no logger here


def _note_progress(fields: dict[str, Any]) -> bool:
    """Note what a report says of the target.

    Returns whether it reaches one for the first time.
    """
    if "checkpoint" in fields:
        _state.progress["checkpoint"] = str(int(time.time()))
    value = fields.get(_state.target["metric"]) if _state.target else None
    if _state.target is None or not isinstance(value, float) or not math.isfinite(value):
        return False
    _state.progress["at"] = repr(value)  # rounded, it might reach a target that it does not
    if "step" in fields:
        _state.progress["step"] = str(fields["step"])
    sign = 1 if _state.target["sign"] == ">=" else -1
    with suppress(ValueError):  # a target that is no number is reported by Helios
        reached = sum(sign * value >= sign * float(text) for text in _state.target["values"].split(","))
        is_first, _state.reached = reached > _state.reached, max(reached, _state.reached)
        return is_first
    return False


def _slurm(*words: str) -> str:
    done = subprocess.run(words, check=True, capture_output=True, timeout=SLURM_WAITS_S)
    return done.stdout.decode("utf-8", "surrogateescape").rstrip("\n")


def parameters(**defaults: Any) -> dict[str, Any]:
    """Return the parameters of the trial, over the given defaults."""
    given = json.loads(os.environ.get("HELIOS_PARAMETERS") or "{}")
    return {**defaults, **given}


def trial() -> int | None:
    """Return the number of the trial, or None without a pool."""
    number = os.environ.get("HELIOS_TRIAL")
    return int(number) if number else None


def requested() -> str | None:
    """Return what is requested, or None.

    ``"pause"``: save a checkpoint and exit with code 0; the pool starts the trial again later. ``"checkpoint"``: save
    one and go on; returned once. ``"stop"``: exit; the trial is not needed any more.

    Calls cost a look at one file, so once for each batch is cheap. What is returned is reported as answered: a trial
    that answered a pause and ends with code 0 counts as paused.
    """
    request = _read_request(*REQUESTS) or ("pause" if _state.by_signal else None)
    if request is None and _state.checkpoint_by_signal:
        _state.checkpoint_by_signal = False
        return "checkpoint"
    return request


def request_details() -> dict[str, Any]:
    """Return all keys of the request that was returned last.

    ``by_s``: when the pool ends the program if it goes on, s since the epoch. Empty before a request. Newer pools may
    add keys.
    """
    return dict(_state.details)


def _read_request(*heeded: str) -> str | None:
    """Return and answer what is requested, if it is one of these."""
    path = os.environ.get("HELIOS_REQUESTS")
    if path:
        try:
            found = os.stat(path)  # noqa: PTH116 - once for each batch, so as cheap as it can be
            state = (found.st_mtime_ns, found.st_ino)
            if state != _state.seen or _state.persists:
                handle = os.open(path, os.O_RDONLY | NOT_BLOCKING)
                with os.fdopen(handle, "rb") as file:
                    details = json.loads(file.read(LONGEST_REQUEST))
                request = details["request"]
                if request in heeded:
                    if state != _state.seen:
                        _write({"answer": request})
                    _state.seen, _state.persists = state, request != "checkpoint"
                    _state.details = details
                    return str(request)
        except (OSError, ValueError, KeyError, TypeError):
            pass  # nothing is requested, or nothing that can be read
    return None


def watch_signals() -> None:
    """Have SIGUSR1 and SIGTERM request a pause, and SIGUSR2 a checkpoint.

    Slurm sends the first before a time limit with ``#SBATCH --signal=USR1@120``; Helios sends the last before a job
    yields to another one, where its comment has ``yield=USR2``. Call this in the main thread. Without a pool it works
    as well.
    """

    def ask_checkpoint(number: int, frame: Any) -> None:
        del number, frame
        _state.checkpoint_by_signal = True

    signal.signal(signal.SIGUSR2, ask_checkpoint)

    def ask(number: int, frame: Any) -> None:
        del number, frame
        if not _state.by_signal:
            _state.by_signal = True
            _write({"answer": "pause"})

    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, ask)


def checkpoint_folder(otherwise: str | Path | None = None) -> Path:
    """Return the trial's folder of checkpoints, which outlives every attempt.

    Parameters
    ----------
    otherwise : path, optional
        Used without a pool, from then on; without it a new folder that is removed at the end of the program.
    """
    chosen = os.environ.get("HELIOS_CHECKPOINTS") or otherwise or _state.folder
    if not chosen:
        chosen = _state.removed = Path(tempfile.mkdtemp(prefix="checkpoints-"))
        atexit.register(_remove, _state.removed, os.getpid())
        if os.environ.get("SLURM_JOB_ID"):
            print("helios_task: checkpoints are removed when the program ends; set HELIOS_CHECKPOINTS", file=sys.stderr)  # noqa: T201 - no logger here
    folder = _state.folder = Path(chosen)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:  # not at the end of a forked child
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def save_checkpoint(name: str, *, step: int | None = None) -> Iterator[Path]:
    """Give a path to write to, and make it the latest checkpoint.

    A program that is killed while it writes leaves the one before as it was. A file of the same name is replaced.

    Parameters
    ----------
    name : str
        Of the file in the folder of checkpoints.
    step : int, optional
        Reported with it.

    Raises
    ------
    ValueError
        The name is a path, or ``latest``.
    OSError
        It could not be written.
    """
    if name != os.path.basename(name) or name in ("", ".", "..", LATEST):  # noqa: PTH119 - a name is no path
        raise ValueError(f"{name!r} is no name of a checkpoint")
    folder = checkpoint_folder()
    partial = folder / f".{name}.partial"
    with suppress(FileNotFoundError):
        partial.unlink()
    try:
        yield partial
        _complete(partial, folder / name)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise
    mark_checkpoint(name, step=step)


def _complete(partial: Path, final: Path) -> None:
    """Give a file its name once all of it is on the disk."""
    handle = os.open(str(partial), os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    partial.replace(final)


def mark_checkpoint(name: str, *, step: int | None = None) -> None:
    """Make a complete file or folder the latest checkpoint, and report it."""
    folder = checkpoint_folder()
    if latest_checkpoint() != folder / name:
        partial = folder / f".{LATEST}.partial"
        partial.write_text(name + "\n", encoding="utf-8")
        _complete(partial, folder / LATEST)
    report(step=step, checkpoint=None if folder == _state.removed else name)  # a requeued job would not find it


def latest_checkpoint() -> Path | None:
    """Return the last complete checkpoint, or None."""
    folder = checkpoint_folder()
    try:
        name = (folder / LATEST).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None
    path = folder / name
    return path if name and path.parent == folder and path.exists() else None


# Callbacks. Their classes are made when they are first asked for, since their bases are the frameworks' own.


def _from_first_process(request: str | None) -> str | None:
    """Return what was requested of the first of several processes.

    So all act at the same step.
    """
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return request
    requests = [request]
    distributed.broadcast_object_list(requests, src=0)
    return requests[0]


def _numbers(metrics: Any) -> dict[str, Any]:
    """Return what is a number of a framework's metrics."""
    own = ("step", "progress", "message", "checkpoint", *OWN_KEYS)
    numbers = {}
    for name, value in dict(metrics or {}).items():
        with suppress(TypeError, ValueError, RuntimeError):
            if not isinstance(value, (str, bytes)) and name not in own:
                numbers[str(name)] = _number(value)
    return numbers


def _modified_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _make_lightning_callback() -> Any:
    try:
        from lightning.pytorch.callbacks import Callback  # noqa: PLC0415 - only where it is used
    except ImportError:
        from pytorch_lightning.callbacks import Callback  # noqa: PLC0415 - its older name

    class LightningCallback(Callback):  # type: ignore[misc]  # because the base may not be installed
        """Report metrics, save checkpoints and answer requests in PyTorch Lightning.

        Go on with ``trainer.fit(model, ckpt_path=helios_task.latest_checkpoint())``. That is also what a
        ``ModelCheckpoint`` of Lightning saved, if it is newer.

        Parameters
        ----------
        every : int
            Batches between two looks for a request.
        checkpoint_every_s : float
            Between two checkpoints, s.
        """

        def __init__(self, every: int = 10, checkpoint_every_s: float = 300.0) -> None:
            super().__init__()
            self.every = every
            self.checkpoint_every_s = checkpoint_every_s
            self.saved_s = time.monotonic()
            self.batches = 0

        def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
            self.batches += 1
            if self.batches % self.every:
                return
            first = trainer.is_global_zero
            if first:
                self.keep_newest(trainer)
            request = requested() if first else None
            if first and request is None and time.monotonic() - self.saved_s > self.checkpoint_every_s:
                request = "checkpoint"
            request = _from_first_process(request)
            if request in ("checkpoint", "pause"):
                self.save(trainer)
            if request in ("pause", "stop"):
                raise SystemExit(0)

        def save(self, trainer: Any) -> None:
            """Save a checkpoint, which every process takes part in."""
            partial = checkpoint_folder() / f".{NAME}.partial"
            trainer.save_checkpoint(str(partial))
            if trainer.is_global_zero:
                _complete(partial, checkpoint_folder() / NAME)
                mark_checkpoint(NAME, step=trainer.global_step)
            self.saved_s = time.monotonic()

        def keep_newest(self, trainer: Any) -> None:
            """Make Lightning's newest checkpoint the latest, and keep a copy of it."""
            saved: list[str] = []
            for each in getattr(trainer, "checkpoint_callbacks", ()):
                saved += [getattr(each, "last_model_path", ""), getattr(each, "best_model_path", "")]
                saved += getattr(each, "best_k_models", ())
            files = [Path(path) for path in saved if os.path.isfile(path)]  # noqa: PTH113 - an empty text is none
            if not files:
                return
            newest, ours = max(files, key=_modified_s), checkpoint_folder() / NAME
            if _modified_s(newest) > _modified_s(ours):
                partial = checkpoint_folder() / f".{NAME}.partial"
                with suppress(FileNotFoundError):
                    partial.unlink()
                try:
                    os.link(str(newest), str(partial))
                except OSError:  # on another file system
                    shutil.copy2(str(newest), str(partial))
                _complete(partial, ours)
                mark_checkpoint(NAME)
                self.saved_s = time.monotonic()

        def on_train_epoch_end(self, trainer: Any, *_: Any) -> None:
            self.report(trainer)

        def on_validation_end(self, trainer: Any, *_: Any) -> None:
            if not trainer.sanity_checking:
                self.report(trainer)

        def report(self, trainer: Any) -> None:
            """Report what the module has logged."""
            if trainer.is_global_zero:
                total = trainer.estimated_stepping_batches
                share = trainer.global_step / total if 0 < total < float("inf") else None
                report(step=trainer.global_step, progress=share, **_numbers(trainer.callback_metrics))

    return LightningCallback


def _make_hugging_face_callback() -> Any:
    from transformers import TrainerCallback  # noqa: PLC0415 - only where it is used

    class HuggingFaceCallback(TrainerCallback):  # type: ignore[misc]  # because the base may not be installed
        """Report metrics, save checkpoints and answer requests in Hugging Face's Trainer.

        Give ``output_dir=helios_task.checkpoint_folder()`` to ``TrainingArguments``, and go on with
        ``trainer.train(resume_from_checkpoint=helios_task.latest_checkpoint())``.

        Parameters
        ----------
        every : int
            Steps between two looks for a request.
        """

        def __init__(self, every: int = 10) -> None:
            self.every = every
            self.request: str | None = None

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            del args, control
            if state.is_world_process_zero:
                share = state.global_step / state.max_steps if state.max_steps > 0 else None
                report(step=state.global_step, progress=share, **_numbers(logs))

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
            del args
            if state.global_step % self.every == 0:
                self.request = _from_first_process(requested() if state.is_world_process_zero else None)
                if self.request == "stop":
                    raise SystemExit(0)
                if self.request is not None:
                    control.should_save = True
            return control

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            del control
            if state.is_world_process_zero and Path(args.output_dir).resolve() == checkpoint_folder().resolve():
                mark_checkpoint(f"checkpoint-{state.global_step}", step=state.global_step)
            if self.request == "pause":
                raise SystemExit(0)

    return HuggingFaceCallback


_CALLBACKS = {"LightningCallback": _make_lightning_callback, "HuggingFaceCallback": _make_hugging_face_callback}


def __getattr__(name: str) -> Any:  # of a module: PEP 562
    if name not in _CALLBACKS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    made = globals()[name] = _CALLBACKS[name]()
    return made
