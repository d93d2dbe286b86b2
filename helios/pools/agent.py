"""Process that starts trials on one machine, watches their memory, and ends them.

The coordinator starts it as a program of its own and talks to it in lines of JSON on its standard input and output. It
is small, so that a fork is cheap, and it is the reason that a coordinator that was killed leaves no trial behind: the
end of its standard input ends every trial. All processes that a trial leaves become its children
(``PR_SET_CHILD_SUBREAPER``), so that it can end these too. Where the agent itself is killed, the kernel ends what it
started (``PR_SET_PDEATHSIG``), and :func:`kill_leftovers` the rest.

It imports nothing of Helios.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil

POOL = "HELIOS_POOL"
"""Environment variable by which the processes of a pool are known."""
TRIAL = "HELIOS_TRIAL"

_SET_PDEATHSIG, _SET_SUBREAPER = 1, 36
"""Of ``prctl``, from ``linux/prctl.h``."""
_OOM_SCORE = "500"
"""Trials are killed before the coordinator when the machine's memory is short (``proc_pid_oom_score_adj``)."""
_MIB = 2.0**20
_SHORTEST_WATCH_S, _LONGEST_WATCH_S = 0.1, 2.0
_WATCH_COST = 100
"""One part in so many of a core goes into watching."""
_LIBC = ctypes.CDLL(None, use_errno=True)


def kill_leftovers(pool: str) -> int:
    """Kill every process of a pool, and return how many there were.

    Processes are known by the environment that they were started with.
    """
    killed, own = 0, os.getpid()
    for _ in range(100):  # what is killed may have forked meanwhile
        found = [
            process for process in psutil.process_iter() if process.pid != own and _variable(process, POOL) == pool
        ]
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        killed += len(found)
        if not found:
            break
        psutil.wait_procs(found, timeout=5)
    return killed


def _variable(process: psutil.Process, name: str) -> str | None:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        value = process.environ().get(name)
    except (psutil.Error, OSError):
        return None
    return str(value) if value is not None else None


# A memory limit that the kernel keeps, where this user may make control groups.


@dataclass(frozen=True)
class ControlGroups:
    """Folder in which control groups with a memory limit can be made.

    Attributes
    ----------
    parent : Path
    limit : str
        Name of the file with the limit.
    events : str
        Name of the file that counts kills.
    """

    parent: Path
    limit: str
    events: str

    def make(self, name: str, limit_mib: float) -> Path:
        """Make a group with a limit."""
        group = self.parent / name
        group.mkdir(exist_ok=True)
        try:
            (group / self.limit).write_text(str(int(limit_mib * _MIB)))
        except OSError:
            group.rmdir()
            raise
        for file, value in (("memory.swap.max", "0"), ("memory.oom.group", "1"), ("memory.swappiness", "0")):
            with contextlib.suppress(OSError):  # depends on version and configuration of the kernel
                (group / file).write_text(value)
        return group

    def kills(self, group: Path) -> int:
        """Return how many processes were killed at the limit."""
        with contextlib.suppress(OSError):
            found = re.search(r"^oom_kill (\d+)$", (group / self.events).read_text(), re.MULTILINE)
            return int(found[1]) if found else 0
        return 0


def control_groups(prefix: str) -> ControlGroups | None:
    """Return where control groups can be made and entered, or None.

    Groups of an earlier agent, whose names begin with ``prefix``, are removed.
    """
    for candidate in _candidates():
        with contextlib.suppress(OSError):
            for old in candidate.parent.glob(f"{prefix}*"):
                with contextlib.suppress(OSError):
                    old.rmdir()
            group = candidate.make(f"{prefix}probe", 64.0)
            try:
                entered = subprocess.run(["true"], preexec_fn=partial(_enter, group), check=False, capture_output=True)
            finally:
                _remove(group)
            if entered.returncode == 0:
                return candidate
    return None


def _candidates() -> Iterator[ControlGroups]:
    try:
        own = Path("/proc/self/cgroup").read_text().splitlines()
        mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    except OSError:
        return
    for line in own:
        _, controllers, path = line.split(":", 2)
        second = controllers == ""
        if not second and "memory" not in controllers.split(","):
            continue
        for mount in mounts:
            kind, options = mount[mount.index("-") + 1], mount[-1].split(",")
            if kind != ("cgroup2" if second else "cgroup") or not (second or "memory" in options):
                continue
            root = Path(mount[4])
            inside = path.removeprefix(mount[3]) if mount[3] != "/" else path
            parent = root / inside.lstrip("/")
            if not second:
                yield ControlGroups(parent=parent, limit="memory.limit_in_bytes", events="memory.oom_control")
                continue
            # A group that hands a controller on holds no processes itself, so it is this one's parent or above it.
            for above in (parent, *parent.parents):
                if not above.is_relative_to(root):
                    break
                with contextlib.suppress(OSError):
                    if "memory" in (above / "cgroup.subtree_control").read_text().split():
                        yield ControlGroups(parent=above, limit="memory.max", events="memory.events")


def _enter(group: Path) -> None:
    with (group / "cgroup.procs").open("w") as file:
        file.write("0")


def _remove(group: Path) -> None:
    for _ in range(50):  # a group is busy until its last process is gone
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.01)
        else:
            return


# The agent itself.


@dataclass
class _Running:
    number: int
    pid: int
    began_s: float
    limit_mib: float | None
    gpu: str | None
    group: Path | None
    kernel_kills: int = 0
    memory_mib: float = 0.0
    peak_mib: float = 0.0
    energy_j: float = 0.0
    busy: list[float] = field(default_factory=list)
    over_limit: bool = False
    ended_by_us: bool = False
    kill_at_s: float | None = None
    orphans: set[int] = field(default_factory=set)


class Agent:
    """Starts, watches and ends trials.

    Parameters
    ----------
    pool : str
        Identity of the pool.
    say : callable
        Takes each event.
    """

    def __init__(self, pool: str, say: Callable[[dict[str, Any]], None]) -> None:
        self._pool, self._say = pool, say
        self._running: dict[int, _Running] = {}
        self._groups = control_groups(f"helios-{pool}-")
        self._pending: dict[int, tuple[dict[str, Any], _Running]] = {}
        self._ended_early: dict[int, tuple[int, float, float]] = {}
        self._warm: subprocess.Popen[bytes] | None = None
        self._warm_failed, self._warm_rest = False, b""
        self._own_peak_mib = 0.0
        self._energy_j: dict[str, float | None] = {}
        self._watch_at_s = 0.0
        self._watch_every_s = _SHORTEST_WATCH_S

    def start(self, order: dict[str, Any]) -> None:
        """Start a trial as a session of its own.

        Its output is appended to the log.
        """
        number, limit, gpu, group = int(order["number"]), order.get("limit_mib"), order.get("gpu"), None
        if limit is not None and gpu is None and self._groups is not None:
            with contextlib.suppress(OSError):  # then the limit is kept by watching
                group = self._groups.make(f"helios-{self._pool}-{number}", limit)
        environment = {**os.environ, **order["environment"], POOL: self._pool, TRIAL: str(number)}
        trial = _Running(number=number, pid=0, began_s=time.time(), limit_mib=limit, gpu=gpu, group=group)
        if order.get("warm") and self._start_warm(order, trial, environment):
            return
        parent = os.getpid()

        def prepare() -> None:
            _LIBC.prctl(_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)
            with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123 - in a fork
                file.write(_OOM_SCORE)
            if group is not None:
                _enter(group)

        try:
            with open(order["log"], "ab") as log:  # noqa: PTH123 - one call less in what is done for each trial
                process = subprocess.Popen(
                    order["argv"],
                    env=environment,
                    cwd=order["folder"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=prepare,  # noqa: PLW1509 - there are no threads here
                )
        except (OSError, ValueError, subprocess.SubprocessError) as reason:
            if group is not None:
                _remove(group)
            self._say({"event": "not_started", "number": number, "reason": str(reason)})
            return
        process.returncode = 0  # it is waited for with all others, not by this object
        self._started(trial, process.pid)

    def _started(self, trial: _Running, pid: int) -> None:
        trial.pid, trial.kernel_kills = pid, _kernel_kills()
        self._running[trial.number] = trial
        self._say(
            {"event": "started", "number": trial.number, "pid": pid, "limited_by_kernel": trial.group is not None}
        )

    # Trials of Python programs whose imports are done in a warm process.

    def _start_warm(self, order: dict[str, Any], trial: _Running, environment: dict[str, str]) -> bool:
        """Have the warm process start a trial, and return whether there is one."""
        if self._warm is None and not self._warm_failed:
            before = {name: value for name, value in environment.items() if name not in order["own"]}
            try:
                self._warm = subprocess.Popen(
                    [order["argv"][0], str(Path(__file__).with_name("warm.py")), *order["warm"]],
                    env={**before, POOL: self._pool},
                    cwd=order["folder"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    start_new_session=True,
                    preexec_fn=partial(_LIBC.prctl, _SET_PDEATHSIG, signal.SIGKILL),  # noqa: PLW1509 - as above
                )
            except OSError as reason:
                self._warm_failed = True
                self._say({"event": "warm_failed", "reason": str(reason)})
        if self._warm is None or self._warm.stdin is None:
            return False
        self._pending[trial.number] = (order, trial)
        told = {**order, "environment": environment, "oom_score": _OOM_SCORE, "group": str(trial.group or "")}
        try:
            self._warm.stdin.write(json.dumps(told).encode() + b"\n")
            self._warm.stdin.flush()
        except BrokenPipeError:
            del self._pending[trial.number]
            return False
        return True

    @property
    def warm_output(self) -> int | None:
        """Descriptor to read the warm process from, and None without one."""
        return None if self._warm is None or self._warm.stdout is None else self._warm.stdout.fileno()

    def read_warm(self) -> None:
        """Take what the warm process says.

        Where it has ended, its trials are started without it.
        """
        assert self._warm is not None and self._warm.stdout is not None
        read = os.read(self._warm.stdout.fileno(), 65_536)
        *lines, self._warm_rest = (self._warm_rest + read).split(b"\n")
        for told in map(json.loads, lines):
            if "failed" in told:
                for module, reason in told["failed"].items():
                    self._say({"event": "warm_failed", "reason": f"{module} could not be imported: {reason}"})
                continue
            _, trial = self._pending.pop(told["number"])
            trial.began_s = time.time()
            self._started(trial, told["pid"])
            if trial.ended_by_us:
                trial.kill_at_s = 0.0
            if (ended := self._ended_early.pop(trial.pid, None)) is not None:
                self._ended(trial, *ended)
        if not read:
            self._warm, self._warm_failed, self._warm_rest = None, True, b""
            self._say({"event": "warm_failed", "reason": "the warm process ended"})
            orders, self._pending = list(self._pending.values()), {}
            for order, trial in orders:
                if trial.group is not None:
                    _remove(trial.group)
                self.start({**order, "warm": None})

    def end(self, number: int, grace_s: float) -> None:
        """Ask a trial's processes to end, and kill them after ``grace_s``."""
        if number in self._pending:
            self._pending[number][1].ended_by_us = True
        trial = self._running.get(number)
        if trial is None:
            return
        trial.ended_by_us = True
        if grace_s > 0:
            _signal_group(trial.pid, signal.SIGTERM)
        limit = time.monotonic() + grace_s
        trial.kill_at_s = limit if trial.kill_at_s is None else min(limit, trial.kill_at_s)

    def reap(self) -> None:
        """Take note of every process that has ended."""
        by_pid = {trial.pid: trial for trial in self._running.values()}
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            ended = status, usage.ru_maxrss / 1024, usage.ru_utime + usage.ru_stime
            if (trial := by_pid.get(pid)) is not None:
                self._ended(trial, *ended)
            elif self._warm is not None and pid == self._warm.pid:
                self._warm.returncode = status
            elif self._pending:  # perhaps a trial of which the warm process has not told yet
                self._ended_early[pid] = ended

    def _ended(self, trial: _Running, status: int, peak_mib: float, cpu_s: float) -> None:
        seconds = time.time() - trial.began_s
        returncode = os.waitstatus_to_exitcode(status)
        self._kill_tree(trial)
        del self._running[trial.number]
        # What the kernel reports as the peak begins with that of the process that forked, which is this one.
        if trial.gpu is None and (peak_mib > self._own_peak_mib or not trial.peak_mib):
            trial.peak_mib = max(trial.peak_mib, peak_mib)
        killed = returncode == -signal.SIGKILL and not trial.ended_by_us
        out_of_memory = trial.over_limit or (killed and _kernel_kills() > trial.kernel_kills)
        if trial.group is not None and self._groups is not None:
            out_of_memory |= self._groups.kills(trial.group) > 0 and returncode != 0
            _remove(trial.group)
        self._say(
            {
                "event": "ended",
                "number": trial.number,
                "status": returncode,
                "seconds": seconds,
                "utilization": _mean(trial.busy)
                if trial.gpu
                else cpu_s / max(1e-9, seconds) / len(os.sched_getaffinity(0)),
                "energy_j": trial.energy_j or None,
                "peak_memory_mib": trial.peak_mib or None,
                "out_of_memory": out_of_memory,
                "asked": trial.ended_by_us,
            }
        )

    def next_wake_s(self) -> float | None:
        """Return after how many seconds something is due, or None."""
        if not self._running:
            return None
        due = [self._watch_at_s, *(trial.kill_at_s for trial in self._running.values() if trial.kill_at_s is not None)]
        return max(0.0, min(due) - time.monotonic())

    def tick(self) -> None:
        """Do what is due."""
        now = time.monotonic()
        for trial in list(self._running.values()):
            if trial.kill_at_s is not None and trial.kill_at_s <= now:
                trial.kill_at_s = now + 1.0  # until it is gone
                self._kill_tree(trial)
        if self._running and now >= self._watch_at_s:
            self._watch()
            cost = time.monotonic() - now
            self._watch_every_s = min(max(_SHORTEST_WATCH_S, _WATCH_COST * cost), _LONGEST_WATCH_S)
            self._watch_at_s = time.monotonic() + self._watch_every_s

    def _watch(self) -> None:
        """Measure memory, and kill what is above its limit."""
        self._own_peak_mib = max(self._own_peak_mib, psutil.Process().memory_info().rss / _MIB)
        trees = self._trees()
        self._measure_gpus()
        for number, processes in trees.items():
            trial = self._running[number]
            if trial.gpu is not None:
                trial.memory_mib = _gpu_memory_mib(trial.gpu, {process.pid for process in processes})
            else:
                trial.memory_mib = sum(_resident(process) for process in processes) / _MIB
            over_limit = trial.limit_mib is not None and trial.memory_mib > trial.limit_mib
            if over_limit and trial.gpu is None and len(processes) > 1:
                # Resident memory counts what processes share once for each, which the proportional one does not.
                trial.memory_mib = sum(_proportional(process) for process in processes) / _MIB
            trial.peak_mib = max(trial.peak_mib, trial.memory_mib)
            if trial.limit_mib is not None and trial.memory_mib > trial.limit_mib:
                trial.over_limit = True
                self._kill_tree(trial)
        self._say({"event": "memory", "mib": {number: round(self._running[number].memory_mib, 1) for number in trees}})

    def _measure_gpus(self) -> None:
        """Share what each GPU used since the last look among the trials on it."""
        for gpu in {trial.gpu for trial in self._running.values() if trial.gpu is not None}:
            there = [trial for trial in self._running.values() if trial.gpu == gpu]
            energy_j, busy = _gpu_use(gpu)
            before_j, self._energy_j[gpu] = self._energy_j.get(gpu), energy_j
            for trial in there:
                if busy is not None:
                    trial.busy.append(busy)
                if energy_j is not None and before_j is not None:
                    trial.energy_j += (energy_j - before_j) / len(there)

    def _trees(self) -> dict[int, list[psutil.Process]]:
        """Return all processes of each running trial."""
        children: dict[int, list[psutil.Process]] = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                children.setdefault(process.ppid(), []).append(process)
        leaders = {trial.pid: trial.number for trial in self._running.values()}
        trees: dict[int, list[psutil.Process]] = {number: [] for number in self._running}
        for process in children.get(os.getpid(), ()):
            number = leaders.get(process.pid)
            if number is None:
                number = self._owner(process)
            if number is not None:
                trees[number] += [process, *_below(process, children)]
        return trees

    def _owner(self, orphan: psutil.Process) -> int | None:
        for trial in self._running.values():
            if orphan.pid in trial.orphans or _belongs(orphan.pid, trial):
                trial.orphans.add(orphan.pid)
                return trial.number
        return None

    def _kill_tree(self, trial: _Running) -> None:
        """Kill all processes of a trial, also those that left its session."""
        _signal_group(trial.pid, signal.SIGKILL)
        leaders = {other.pid for other in self._running.values()}
        for _ in range(100):  # whoever is killed leaves its children to this process
            left = [pid for pid in _own_children() if pid not in leaders]
            ours = [pid for pid in left if _belongs(pid, trial)]
            for pid in ours:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
            if not ours:
                return

    def end_all(self) -> None:
        """Kill everything that was started, and wait until it is gone."""
        while children := _own_children():
            for pid in children:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            for pid in children:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)
        for trial in self._running.values():
            if trial.group is not None:
                _remove(trial.group)


def _belongs(pid: int, trial: _Running) -> bool:
    """Return whether a process is of a trial, by its session or its environment."""
    with contextlib.suppress(psutil.Error, OSError):
        # A fork of a warm process has the environment of that one for whoever looks from outside.
        return os.getsid(pid) == trial.pid or _variable(psutil.Process(pid), TRIAL) == str(trial.number)
    return False


def _own_children() -> list[int]:
    own = os.getpid()
    try:
        return [int(pid) for pid in Path(f"/proc/{own}/task/{own}/children").read_text().split()]
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN
        return [child.pid for child in psutil.Process().children()]


def _below(process: psutil.Process, children: dict[int, list[psutil.Process]]) -> Iterable[psutil.Process]:
    for child in children.get(process.pid, ()):
        yield child
        yield from _below(child, children)


def _resident(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.Error):
        return float(process.memory_info().rss)
    return 0.0


def _proportional(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.Error, AttributeError):
        return float(process.memory_full_info().pss)
    return _resident(process)


def _gpu_memory_mib(uuid: str, pids: set[int]) -> float:
    """Return the memory of a GPU that processes use, MiB.

    It is 0 where the driver does not tell, as in a container with process ids of its own.
    """
    try:
        import pynvml  # noqa: PLC0415 - it is optional, and loads the driver
    except ImportError:
        return 0.0
    try:
        pynvml.nvmlInit()  # once it is open this only counts
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        found = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except pynvml.NVMLError:
        return 0.0
    return float(sum(process.usedGpuMemory or 0 for process in found if process.pid in pids)) / _MIB


def _gpu_use(uuid: str) -> tuple[float | None, float | None]:
    """Return the energy and the utilization of a GPU.

    The energy is that since the driver was loaded, J. Both are None where the driver does not tell.
    """
    energy_j = busy = None
    with contextlib.suppress(ImportError):
        import pynvml  # noqa: PLC0415 - it is optional, and loads the driver

        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            busy = float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100
            energy_j = float(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1000
    return energy_j, busy


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _kernel_kills() -> int:
    """Return how many processes the kernel has killed for memory on this machine."""
    with contextlib.suppress(OSError):
        found = re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.MULTILINE)
        return int(found[1]) if found else 0
    return 0


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


class AgentProcess:
    """An agent and the pipes to it, for the coordinator."""

    def __init__(self, pool: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, pool],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C at a terminal goes to all processes of its session
        )
        assert self._process.stdout is not None
        self.output = self._process.stdout.fileno()
        self._rest = b""

    def send(self, order: dict[str, Any]) -> None:
        """Send an order, which is lost if the agent has ended."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()

    def events(self) -> list[dict[str, Any]] | None:
        """Return the events that have arrived, or None when the agent has ended."""
        read = os.read(self.output, 65_536)
        if not read:
            return None
        *lines, self._rest = (self._rest + read).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """End the agent and all that it started."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        while os.read(self.output, 65_536):  # it may wait for somebody to read
            pass
        self._process.stdout.close()
        self._process.wait()


def main(pool: str) -> None:
    """Run until standard input ends, then kill everything."""
    _LIBC.prctl(_SET_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, lambda *_: None)  # a handler, which a program that is started does not inherit
    wake_in, wake_out = os.pipe()
    os.set_blocking(wake_in, False)
    os.set_blocking(wake_out, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_out, warn_on_full_buffer=False)

    def say(event: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(event) + "\n")

    agent = Agent(pool, say)
    selector, buffer = selectors.DefaultSelector(), b""
    selector.register(0, selectors.EVENT_READ)
    selector.register(wake_in, selectors.EVENT_READ)
    warm: int | None = None
    with contextlib.suppress(BrokenPipeError):
        while True:
            for key, _ in selector.select(agent.next_wake_s()):
                if key.fd == wake_in:
                    with contextlib.suppress(BlockingIOError):
                        os.read(wake_in, 4096)
                    continue
                if key.fd == warm:
                    agent.read_warm()
                    continue
                read = os.read(0, 65536)
                if not read:
                    raise BrokenPipeError  # the coordinator has ended
                *lines, buffer = (buffer + read).split(b"\n")
                for line in lines:
                    order = json.loads(line)
                    if order["do"] == "start":
                        agent.start(order)
                    else:
                        agent.end(int(order["number"]), float(order["grace_s"]))
            agent.reap()
            agent.tick()
            if agent.warm_output != warm:
                if warm is not None:
                    selector.unregister(warm)
                warm = agent.warm_output
                if warm is not None:
                    selector.register(warm, selectors.EVENT_READ)
            sys.stdout.flush()
    agent.end_all()
    with contextlib.suppress(OSError):  # nobody reads any more
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


if __name__ == "__main__":
    main(sys.argv[1])
