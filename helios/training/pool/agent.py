"""Process that runs trials on one machine.

The coordinator starts it as a program of its own and talks to it in lines of JSON on its standard input and output. It
is small, so that a fork is cheap. If the coordinator is killed, the end of standard input ends every trial. Orphans of
a trial become children of the agent (``PR_SET_CHILD_SUBREAPER``), which ends them too. If the agent itself is killed,
the kernel ends the processes that it started (``PR_SET_PDEATHSIG``), and :func:`kill_leftovers` ends the rest.

It imports nothing of Helios but two small modules.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING or __name__ != "__main__":
    from helios.training.pool.slices import GPU_SLICE_S, SLICE_S, TimeSlices
    from helios.training.pool.warm import find_tree, hold, read_state, release
else:  # as a program it finds them beside it, since importing Helios itself takes half as much memory again
    sys.path.append(str(Path(__file__).parent))
    from slices import GPU_SLICE_S, SLICE_S, TimeSlices
    from warm import find_tree, hold, read_state, release

POOL = "HELIOS_POOL"
"""Environment variable that identifies the processes of a pool."""
TRIAL = "HELIOS_TRIAL"

_SET_PDEATHSIG, _SET_SUBREAPER = 1, 36
"""Options of ``prctl`` from ``linux/prctl.h``."""
_OOM_SCORE = "500"
"""Trials are killed before the coordinator when the machine's memory is short (``proc_pid_oom_score_adj``)."""
_MIB = 2.0**20
_SHORTEST_WATCH_S, _LONGEST_WATCH_S = 0.1, 2.0
_REMOVE_TIMEOUT_S = 30.0
"""Longest time for a container runtime to remove a container."""
_END_TIMEOUT_S = 5.0
"""Longest time for containers to end by themselves."""
_DATA_LIMIT_RATIO = 2.0
"""Limit of writable memory to memory limit, of a trial in a container without a control group.

It stops a trial whose memory grows faster than it is watched. Programs reserve more memory than they use, so the ratio
is above 1.
"""
_PLACEHOLDER = re.compile(r"\{(?:segment|limit_mib|node)\}")
_WATCH_PAUSE = 100
"""Watching pauses this many times as long as it takes, so that it costs 1% of a core."""
_WEIGHTS = {"cpu.weight": (100, 1, 10_000), "cpu.shares": (1_024, 2, 262_144)}
"""Usual, smallest and largest CPU weight of a control group of version 2 and 1, by the file that holds it."""
MPS_CONTROL = "nvidia-cuda-mps-control"
_MPS_TIMEOUT_S = 10.0
"""Longest time for the control process of MPS to answer, and to end."""
_LIBC = ctypes.CDLL(None, use_errno=True)


def kill_leftovers(pool: str) -> int:
    """Kill every process of a pool, and return how many there were.

    Processes are known by the environment that they were started with.
    """
    killed, own_pid = 0, os.getpid()
    for _ in range(100):  # what is killed may have forked meanwhile
        leftovers = [
            process
            for process in psutil.process_iter()
            if process.pid != own_pid and _environment_variable(process, POOL) == pool
        ]
        for process in leftovers:
            with contextlib.suppress(psutil.Error):
                process.kill()
        killed += len(leftovers)
        if not leftovers:
            break
        psutil.wait_procs(leftovers, timeout=5)
    return killed


class AgentProcess:
    """An agent and the pipes to it, for the coordinator.

    Parameters
    ----------
    pool : str
        Identity of the pool.
    step : sequence of str
        Command that runs the agent on another node, as ``srun``.
    mps : str
        Folder of MPS, empty where it is not started.
    """

    def __init__(self, pool: str, step: Sequence[str] = (), *, mps: str = "") -> None:
        self._process = subprocess.Popen(
            [*step, sys.executable, "-P", __file__, pool, mps],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C at a terminal goes to all processes of its session
        )
        assert self._process.stdout is not None
        self.output = self._process.stdout.fileno()
        self._partial_line = b""

    def send(self, order: dict[str, Any]) -> None:
        """Send an order, which is lost if the agent has ended."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()

    def events(self) -> list[dict[str, Any]] | None:
        """Return new events, or None after the agent's end."""
        read = os.read(self.output, 65_536)
        if not read:
            return None
        *lines, self._partial_line = (self._partial_line + read).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """End the agent and all that it started."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        while os.read(self.output, 65_536):  # it may be blocked in a write
            pass
        self._process.stdout.close()
        self._process.wait()


def main(pool: str, mps: str) -> None:
    """Run until standard input ends, then kill everything.

    ``mps`` is the folder of MPS, empty without it.
    """
    _LIBC.prctl(_SET_SUBREAPER, 1, 0, 0, 0)
    for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(signal_number, lambda *_: None)  # a handler, which a program that is started does not inherit
    wake_in, wake_out = os.pipe()
    os.set_blocking(wake_in, False)
    os.set_blocking(wake_out, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_out, warn_on_full_buffer=False)

    def send_event(event: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(event) + "\n")

    mps_control = None
    if mps:
        try:
            mps_control = start_mps(mps, pool)
        except OSError as reason:
            send_event({"event": "mps_failed", "reason": str(reason)})
    agent, partial_line = Agent(pool, send_event), b""
    with contextlib.suppress(BrokenPipeError):
        while True:
            readers = agent.readers()
            with selectors.PollSelector() as selector:
                for descriptor in (0, wake_in, *readers):
                    selector.register(descriptor, selectors.EVENT_READ)
                ready = {key.fd for key, _ in selector.select(agent.next_wake_s())}
            if wake_in in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake_in, 4096)
            for descriptor in ready & readers.keys():
                readers[descriptor]()
            if 0 in ready:
                read = os.read(0, 65536)
                if not read:
                    break  # the coordinator has ended
                *lines, partial_line = (partial_line + read).split(b"\n")
                for line in lines:
                    agent.handle(json.loads(line))
            agent.reap()
            agent.tick()
            sys.stdout.flush()
    if mps_control is not None:
        agent.end_trials()
        stop_mps(mps_control, mps)
    agent.end_all()
    with contextlib.suppress(OSError):  # the coordinator no longer reads
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


class Agent:
    """Starts, watches and ends trials.

    Parameters
    ----------
    pool : str
        Identity of the pool.
    send_event : callable
        Sends an event to the coordinator.
    """

    def __init__(self, pool: str, send_event: Callable[[dict[str, Any]], None]) -> None:
        self._pool, self._send_event = pool, send_event
        self._running: dict[int, _RunningTrial] = {}  # by number
        self._groups = control_groups(f"helios-{pool}-")
        for parent, _ in _group_parents("cpu"):
            _remove_old_groups(parent, f"helios-{pool}-")
        self._cpu_groups: tuple[Path, str] | None = None
        self._looked_for_cpu_groups = False
        self._shared: dict[str, _SharedDevice] = {}  # by device
        self._segments: dict[int, _Segment] = {}  # by process id
        self._segments_made = 0
        self._warm: dict[str, _WarmProcess] = {}  # by the identity of the sweep's folder
        # Trials that the warm process has not reported yet, by number, and ends of such trials, by process id.
        self._pending: dict[int, tuple[dict[str, Any], _RunningTrial]] = {}
        self._ended_early: dict[int, tuple[int, float, float]] = {}
        self._own_peak_mib = 0.0
        self._energy_j: dict[str, float | None] = {}  # counter of each GPU when it was last read
        self._watch_at_s = 0.0

    def handle(self, order: dict[str, Any]) -> None:
        """Start or end a trial, or divide a device, as the coordinator orders."""
        if order["do"] == "start":
            self.start(order)
        elif order["do"] == "share":
            self.share(order)
        else:
            self.end(int(order["number"]), float(order["grace_s"]))

    def start(self, order: dict[str, Any]) -> None:
        """Start a trial as a session of its own.

        Its output is appended to the log.
        """
        number, limit_mib, gpus, group = (
            int(order["number"]),
            order.get("limit_mib"),
            tuple(order.get("gpus", ())),
            None,
        )
        if order.get("segment"):
            self._start_in_segment(order, number, limit_mib)
            return
        if limit_mib is not None and not gpus and self._groups is not None:
            with contextlib.suppress(OSError):  # then the limit is kept by watching
                group = self._groups.make(f"helios-{self._pool}-{os.getpid()}-{number}", limit_mib)
        own = {POOL: order["pool"], TRIAL: order["trial"]}
        environment = {**os.environ, **order["environment"], **own}
        trial = _RunningTrial(
            number=number, own=own, pid=0, began_s=time.monotonic(), limit_mib=limit_mib, gpus=gpus, group=group
        )
        if order.get("warm") and self._start_warm(order, trial, environment):
            return
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
                    preexec_fn=partial(_prepare, os.getpid(), group),  # noqa: PLW1509 - there are no threads here
                )
        except (OSError, ValueError, subprocess.SubprocessError) as reason:
            self._report_not_started(number, group, reason)
            return
        process.returncode = 0  # it is waited for with all others, not by this object
        self._report_started(trial, process.pid)

    def _report_not_started(self, number: int, group: Path | None, reason: Exception) -> None:
        if group is not None:
            _remove_group(group)
        self._send_event({"event": "not_started", "number": number, "reason": str(reason)})

    def _report_started(self, trial: _RunningTrial, pid: int) -> None:
        trial.pid, trial.kernel_kills = pid, _oom_kills()
        self._running[trial.number] = trial
        self._divide_soon(trial.number)
        self._send_event(
            {"event": "started", "number": trial.number, "pid": pid, "limited_by_kernel": trial.group is not None}
        )

    def _start_in_segment(self, order: dict[str, Any], number: int, limit_mib: float | None) -> None:
        """Start a trial in a free or new container."""
        groups = None if order.get("gpus") else self._groups
        try:
            segment = self._free_segment(order["pool"], groups, limit_mib, keeps_limit=order["segment"]["keeps_limit"])
            segment = segment or self._new_segment(order, limit_mib)
        except (OSError, ValueError, subprocess.SubprocessError) as reason:
            self._report_not_started(number, None, reason)
            return
        segment.limit_mib = limit_mib
        pid, group = segment.process.pid, segment.group
        segment.trial = _RunningTrial(
            number=number,
            own={POOL: order["pool"], TRIAL: order["trial"]},
            pid=pid,
            began_s=time.monotonic(),
            limit_mib=limit_mib,
            gpus=tuple(order.get("gpus", ())),
            group=group,
            segment=segment,
            group_kills=groups.kills(group) if groups is not None and group is not None else 0,
        )
        run = {name: order[name] for name in ("number", "argv", "folder", "log", "warm")}
        run["environment"] = {**order["environment"], **segment.trial.own}
        if limit_mib is not None and group is None and not order.get("gpus"):
            run["data_limit"] = int(_DATA_LIMIT_RATIO * limit_mib * _MIB)
        self._send_to_segment(segment, {"do": "run", **run, "clear": False, "oom_score": _OOM_SCORE, "group": ""})
        self._report_started(segment.trial, pid)

    def _free_segment(
        self, pool: str, groups: ControlGroups | None, limit_mib: float | None, *, keeps_limit: bool
    ) -> _Segment | None:
        """Return a free container of a sweep with this limit.

        Else the free ones are killed, and it is None.
        """
        unused = [segment for segment in self._segments.values() if segment.trial is None and not segment.killed]
        free = [segment for segment in unused if segment.pool == pool]
        for segment in free:
            if segment.limit_mib == limit_mib:
                return segment
        if free and groups is not None and free[0].group is not None and limit_mib is not None:
            with contextlib.suppress(OSError):  # the new limit is below the memory in use
                groups.set_limit(free[0].group, limit_mib)
                return free[0]
        elif free and not keeps_limit:
            return free[0]
        for segment in free or unused[:1]:  # that of another sweep holds the memory of a slot
            self._kill_segment(segment)
        return None

    def _new_segment(self, order: dict[str, Any], limit_mib: float | None) -> _Segment:
        template, group = order["segment"], None
        self._segments_made += 1
        name = f"helios-{order['pool']}-{os.getpid()}-{self._segments_made}"
        if limit_mib is not None and not order.get("gpus") and self._groups is not None and not template["keeps_limit"]:
            with contextlib.suppress(OSError):  # then the limit is kept by watching
                group = self._groups.make(name, limit_mib)
        try:
            with open(order["log"], "ab") as log:  # noqa: PTH123 - as in start
                process = subprocess.Popen(
                    [
                        *(fill_placeholders(word, segment=name, limit_mib=limit_mib) for word in template["command"]),
                        *template["serve"],
                    ],
                    env={**os.environ, POOL: order["pool"]},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    start_new_session=True,
                    # It ends, with all that it started, when its standard input is closed. A signal would prevent that.
                    preexec_fn=partial(_prepare, None, group),  # noqa: PLW1509 - as in start
                )
        except BaseException:
            if group is not None:
                _remove_group(group)
            raise
        process.returncode = 0  # as in start
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        root = fill_placeholders(template["root_file"], segment=name, limit_mib=limit_mib)
        segment = self._segments[process.pid] = _Segment(
            process=process,
            pool=order["pool"],
            limit_mib=limit_mib,
            group=group,
            remove=[fill_placeholders(word, segment=name, limit_mib=limit_mib) for word in template["remove"]],
            root_file=Path(root) if root else None,
        )
        return segment

    def _send_to_segment(self, segment: _Segment, message: dict[str, Any]) -> None:
        assert segment.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, which is seen when it is waited for
            segment.process.stdin.write(json.dumps(message).encode() + b"\n")
            segment.process.stdin.flush()

    def _read_segment(self, segment: _Segment) -> None:
        assert segment.process.stdout is not None
        read = b""
        with contextlib.suppress(BlockingIOError):  # something holds it open although the container has ended
            read = os.read(segment.process.stdout.fileno(), 65_536)
        *lines, segment.partial_line = (segment.partial_line + read).split(b"\n")
        for message in map(json.loads, lines):
            for module, reason in message.get("failed", {}).items():
                self._send_event({"event": "warm_failed", "reason": f"{module} could not be imported: {reason}"})
            trial = segment.trial
            if "ended" in message and trial is not None and trial.number == message["ended"]:
                segment.trial = None
                self._report_ended(trial, message["status"], message["peak_mib"], message["cpu_s"])
        if not read:
            segment.process.stdout.close()

    def _kill_segment(self, segment: _Segment) -> None:
        """Kill all that runs in a container, the first process last.

        ``reap`` handles its end.
        """
        killed_before, segment.killed = segment.killed, True
        roots = segment.roots()
        for _ in range(100):  # what is killed may have forked meanwhile
            descendants: list[psutil.Process] = []
            for root in roots:
                with contextlib.suppress(psutil.Error):
                    descendants += root.children(recursive=True)
            descendants = [process for process in descendants if process not in roots and not _is_ending(process.pid)]
            if not descendants:
                break
            for process in descendants:
                with contextlib.suppress(psutil.Error):
                    process.kill()
        if segment.root_file is not None and not killed_before:
            return  # the runtime notices that the container is empty, and ends itself
        for root in roots:
            with contextlib.suppress(psutil.Error):
                root.kill()

    def _segment_ended(self, segment: _Segment, status: int, peak_mib: float, cpu_s: float) -> None:
        while segment.process.stdout is not None and not segment.process.stdout.closed:
            self._read_segment(segment)  # its last messages
        self._kill_segment(segment)
        if segment.process.stdin is not None:
            segment.process.stdin.close()
        if segment.root_file is not None:
            segment.root_file.unlink(missing_ok=True)
        if segment.remove:
            # Only the runtime's record of the container is left.
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(segment.remove, capture_output=True, check=False, timeout=_REMOVE_TIMEOUT_S)
        if (trial := segment.trial) is not None:
            _kill_orphans(trial, {*self._segments, *(other.pid for other in self._running.values())})
            self._report_ended(trial, status, peak_mib, cpu_s)
        if segment.group is not None:
            _remove_group(segment.group)

    def _start_warm(self, order: dict[str, Any], trial: _RunningTrial, environment: dict[str, str]) -> bool:
        """Start a trial as a fork of the warm process, which has done the imports.

        Returns False where there is none.
        """
        warm = self._warm.setdefault(order["pool"], _WarmProcess())
        if warm.process is None and not warm.failed:
            common = {name: value for name, value in environment.items() if name not in order["own"]}
            try:
                warm.process = subprocess.Popen(
                    [order["argv"][0], str(Path(__file__).with_name("warm.py")), *order["warm"]],
                    env=common,
                    cwd=order["folder"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    start_new_session=True,
                    preexec_fn=partial(_LIBC.prctl, _SET_PDEATHSIG, signal.SIGKILL),  # noqa: PLW1509 - as above
                )
            except OSError as reason:
                warm.failed = True
                self._send_event({"event": "warm_failed", "reason": str(reason)})
        if warm.process is None or warm.process.stdin is None:
            return False
        self._pending[trial.number] = (order, trial)
        message = {**order, "environment": environment, "oom_score": _OOM_SCORE, "group": str(trial.group or "")}
        try:
            warm.process.stdin.write(json.dumps(message).encode() + b"\n")
            warm.process.stdin.flush()
        except BrokenPipeError:
            del self._pending[trial.number]
            return False
        return True

    def readers(self) -> dict[int, Callable[[], None]]:
        """Return the descriptors to read from, each with the function that reads it."""
        readers: dict[int, Callable[[], None]] = {}
        for pool, warm in self._warm.items():
            if warm.process is not None and warm.process.stdout is not None:
                readers[warm.process.stdout.fileno()] = partial(self._read_warm, pool, warm)
        for segment in self._segments.values():
            if segment.process.stdout is not None and not segment.process.stdout.closed:
                readers[segment.process.stdout.fileno()] = partial(self._read_segment, segment)
        return readers

    def _read_warm(self, pool: str, warm: _WarmProcess) -> None:
        """Handle the messages of a warm process.

        If it has ended, its trials are started without it.
        """
        assert warm.process is not None and warm.process.stdout is not None
        read = os.read(warm.process.stdout.fileno(), 65_536)
        *lines, warm.partial_line = (warm.partial_line + read).split(b"\n")
        for message in map(json.loads, lines):
            if "failed" in message:
                for module, reason in message["failed"].items():
                    self._send_event({"event": "warm_failed", "reason": f"{module} could not be imported: {reason}"})
                continue
            _, trial = self._pending.pop(message["number"])
            trial.began_s = time.monotonic()
            self._report_started(trial, message["pid"])
            if trial.ended_by_us:
                trial.kill_at_s = 0.0
            if (ended := self._ended_early.pop(trial.pid, None)) is not None:
                self._report_ended(trial, *ended)
        if not read:
            warm.process, warm.failed = None, True
            self._send_event({"event": "warm_failed", "reason": "the warm process ended"})
            pending = [each for each in self._pending.values() if each[0]["pool"] == pool]
            for order, trial in pending:
                del self._pending[trial.number]
                if trial.group is not None:
                    _remove_group(trial.group)
                self.start({**order, "warm": None})

    def end(self, number: int, grace_s: float) -> None:
        """Ask a trial's processes to end, and kill them after ``grace_s``."""
        if number in self._pending:
            self._pending[number][1].ended_by_us = True
        trial = self._running.get(number)
        if trial is None:
            return
        trial.ended_by_us = True
        self._release(trial)
        self._divide_soon(number)
        if grace_s > 0 and trial.segment is not None:
            self._send_to_segment(trial.segment, {"do": "end"})
        elif grace_s > 0:
            _signal_group(trial.pid, signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        trial.kill_at_s = deadline if trial.kill_at_s is None else min(deadline, trial.kill_at_s)

    def reap(self) -> None:
        """Handle every process that has ended."""
        by_pid = {trial.pid: trial for trial in self._running.values()}
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            ended = status, usage.ru_maxrss / 1024, usage.ru_utime + usage.ru_stime
            if (segment := self._segments.pop(pid, None)) is not None:
                self._segment_ended(segment, *ended)
            elif (trial := by_pid.get(pid)) is not None:
                self._report_ended(trial, *ended)
            elif warm := [each.process for each in self._warm.values() if each.process and each.process.pid == pid]:
                warm[0].returncode = status
            elif self._pending:  # perhaps a trial that the warm process has not reported yet
                self._ended_early[pid] = ended

    def _report_ended(self, trial: _RunningTrial, status: int, peak_mib: float, cpu_s: float) -> None:
        seconds = time.monotonic() - trial.began_s
        returncode = os.waitstatus_to_exitcode(status)
        if trial.segment is None:
            self._kill_tree(trial)
        del self._running[trial.number]
        self._divide_soon(trial.number)
        if trial.cpu_group is not None:
            _remove_group(trial.cpu_group)
        # The kernel's peak of a forked process begins with the memory of its parent, which is this process.
        if not trial.gpus and (peak_mib > self._own_peak_mib or not trial.peak_mib):
            trial.peak_mib = max(trial.peak_mib, peak_mib)
        killed = returncode == -signal.SIGKILL and not trial.ended_by_us
        out_of_memory = trial.over_limit or (killed and _oom_kills() > trial.kernel_kills)
        if trial.group is not None and self._groups is not None:
            out_of_memory |= self._groups.kills(trial.group) > trial.group_kills and returncode != 0
            if trial.segment is None:
                _remove_group(trial.group)
        utilization: float | None = cpu_s / max(1e-9, seconds) / len(os.sched_getaffinity(0))
        if trial.gpus:
            utilization = sum(trial.utilizations) / len(trial.utilizations) if trial.utilizations else None
        self._send_event(
            {
                "event": "ended",
                "number": trial.number,
                "status": returncode,
                "seconds": seconds,
                "held_s": trial.held_for_s(),
                "utilization": utilization,
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
        due = [self._watch_at_s, *(device.due_s for device in self._shared.values())]
        due += [trial.kill_at_s for trial in self._running.values() if trial.kill_at_s is not None]
        return max(0.0, min(due) - time.monotonic())

    def tick(self) -> None:
        """Kill trials, change turns and measure, where that is due."""
        now = time.monotonic()
        for trial in list(self._running.values()):
            if trial.kill_at_s is not None and trial.kill_at_s <= now:
                trial.kill_at_s = now + 1.0  # until it is gone
                self._kill_tree(trial)
        for device in self._shared.values():
            if device.due_s <= now:
                self._divide(device)
        if self._running and now >= self._watch_at_s:
            self._watch()
            cost_s = time.monotonic() - now
            pause_s = min(max(_SHORTEST_WATCH_S, _WATCH_PAUSE * cost_s), _LONGEST_WATCH_S)
            self._watch_at_s = time.monotonic() + pause_s

    def _watch(self) -> None:
        """Measure memory and GPUs, and kill trials above their limit."""
        self._own_peak_mib = max(self._own_peak_mib, psutil.Process().memory_info().rss / _MIB)
        trees = self._process_trees()
        self._measure_gpus()
        for number, processes in trees.items():
            trial = self._running[number]
            if trial.gpus:
                pids = {process.pid for process in processes}
                trial.memory_mib = max(_gpu_memory_mib(gpu, pids) for gpu in trial.gpus)
            else:
                trial.memory_mib = sum(_resident_bytes(process) for process in processes) / _MIB
            over_limit = trial.limit_mib is not None and trial.memory_mib > trial.limit_mib
            if over_limit and not trial.gpus and len(processes) > 1:
                # Resident memory counts shared pages once for each process, proportional memory only once.
                trial.memory_mib = sum(_proportional_bytes(process) for process in processes) / _MIB
            trial.peak_mib = max(trial.peak_mib, trial.memory_mib)
            if trial.limit_mib is not None and trial.memory_mib > trial.limit_mib:
                trial.over_limit = True
                self._kill_tree(trial)
            if trial.weight_file is not None:
                trial.measure([process.pid for process in processes])
        alive = [self._running[number] for number in trees]
        self._send_event(
            {
                "event": "memory",
                "mib": {trial.number: round(trial.memory_mib, 1) for trial in alive},
                "held_s": {trial.number: round(held_s, 3) for trial in alive if (held_s := trial.held_for_s())},
            }
        )

    def share(self, order: dict[str, Any]) -> None:
        """Divide the time of a device among its trials.

        Without shares all run. On a CPU control groups do it by their weights, where this user may make them. Else
        trials take turns, and the processes of those whose turn it is not are stopped.
        """
        name, shares = order["device"], {int(number): float(share) for number, share in order["shares"].items()}
        device = self._shared.setdefault(name, _SharedDevice(TimeSlices(GPU_SLICE_S if order["gpu"] else SLICE_S)))
        for number in device.shares.keys() - shares.keys():
            if (trial := self._running.get(number)) is not None:
                self._release(trial)
                self._reset_weight(trial)
        device.shares, device.due_s = shares, 0.0
        device.places, device.is_gpu = int(order["places"]), bool(order["gpu"])
        device.slices.set_shares(shares, device.places)
        if not shares:
            del self._shared[name]

    def _divide_soon(self, number: int) -> None:
        """Divide the device of a trial again, which starts or ends."""
        for device in self._shared.values():
            if number in device.shares:
                device.due_s = 0.0

    def _divide(self, device: _SharedDevice) -> None:
        """Carry out the shares of a device until its next turn."""
        began_s = time.monotonic()
        trials = [trial for trial in self._running.values() if trial.number in device.shares and not trial.ended_by_us]
        if self._weigh(device, trials):
            for trial in trials:
                self._release(trial)
            device.due_s = math.inf
            return
        self._charge(device, [trial for trial in trials if trial.held is None], began_s)
        chosen = device.slices.choose(trial.number for trial in trials)
        for trial in trials:
            if trial.number not in chosen:
                self._hold(trial)
        for trial in trials:
            if trial.number in chosen:
                self._release(trial)
        cost_s = time.monotonic() - began_s
        device.since_s = began_s
        device.due_s = began_s + max(device.slices.slice_s, _WATCH_PAUSE * cost_s)
        if len(trials) <= device.places:
            device.due_s = math.inf

    def _charge(self, device: _SharedDevice, ran: Sequence[_RunningTrial], now_s: float) -> None:
        """Charge trials for the time since the last turn.

        On a GPU they had all of it. On the CPU it is what they used, so that one that sleeps or waits keeps nobody off.
        """
        elapsed_s = now_s - device.since_s
        used_s: dict[int, float] = {}
        wanted_s: dict[int, float] = {}
        cores = len(os.sched_getaffinity(0)) / device.places
        for trial in ran:
            used_s[trial.number] = wanted_s[trial.number] = elapsed_s
            if trial.segment is None and not device.is_gpu:
                cpu_s, delay_s = trial.measure(find_tree(self._roots(trial)))
                used_s[trial.number] = min(elapsed_s, cpu_s / cores)
                wanted_s[trial.number] = used_s[trial.number] + delay_s
            elif trial.segment is None and read_state(trial.pid)[0] in "Tt":  # by somebody else
                used_s[trial.number] = wanted_s[trial.number] = 0.0
        device.slices.charge(elapsed_s, used_s, wanted_s)

    def _roots(self, trial: _RunningTrial) -> list[int]:
        """Return the processes of a trial that are children of this one."""
        others = {other.pid for other in self._running.values()} | self._segments.keys()
        orphans = [pid for pid in _child_pids() if pid not in others and self._trial_of_orphan(pid) == trial.number]
        return [trial.pid, *orphans]

    def _hold(self, trial: _RunningTrial) -> None:
        """Stop the processes of a trial, which keep their memory."""
        if trial.held is None:
            trial.held, trial.held_since_s = set(), time.monotonic()
            if trial.segment is not None:
                self._send_to_segment(trial.segment, {"do": "hold"})
        elif trial.pid not in trial.held or read_state(trial.pid)[0] not in "RSI":
            return
        if trial.segment is None:  # also what somebody has continued meanwhile, as Slurm does after a suspension
            trial.held |= hold(self._roots(trial))

    def _release(self, trial: _RunningTrial) -> None:
        """Continue the processes of a trial."""
        if trial.held is None:
            return
        if trial.segment is not None:
            self._send_to_segment(trial.segment, {"do": "release"})
        release(trial.held)
        trial.held_s += time.monotonic() - trial.held_since_s
        trial.held = None

    def _weigh(self, device: _SharedDevice, trials: Sequence[_RunningTrial]) -> bool:
        """Give the trials of a CPU weights, and return whether that could be done."""
        if device.is_gpu or any(trial.segment is not None for trial in trials):
            return False
        try:
            for trial in trials:
                trial.weight_file = trial.weight_file or self._weight_file(trial)
                if trial.weight_file is None:
                    break
                usual, least, most = _WEIGHTS[trial.weight_file.name]
                weight = round(usual * len(trials) * device.shares[trial.number])
                trial.weight_file.write_text(str(max(least, min(most, weight))))
            else:
                return True
        except OSError:
            pass
        for trial in trials:
            self._reset_weight(trial)
        return False

    def _weight_file(self, trial: _RunningTrial) -> Path | None:
        """Return the file with a trial's CPU weight, or None.

        Where its group has none, it is moved into one that has.
        """
        if trial.group is not None and (trial.group / "cpu.weight").exists():
            return trial.group / "cpu.weight"
        if not self._looked_for_cpu_groups:
            self._looked_for_cpu_groups = True
            self._cpu_groups = cpu_groups(f"helios-{self._pool}-")
        if self._cpu_groups is None or (trial.group is not None and self._cpu_groups[1] == "cpu.weight"):
            return None  # it would leave the group that limits its memory
        parent, file = self._cpu_groups
        group = parent / f"helios-{self._pool}-{os.getpid()}-{trial.number}-cpu"
        group.mkdir(exist_ok=True)
        trial.cpu_group = group
        moved: set[int] = set()
        while new := set(find_tree(self._roots(trial))) - moved:  # what is forked meanwhile is found by looking again
            for pid in new:
                with contextlib.suppress(ProcessLookupError):
                    (group / "cgroup.procs").write_text(str(pid))
            moved |= new
        return group / file

    def _reset_weight(self, trial: _RunningTrial) -> None:
        if trial.weight_file is not None:
            with contextlib.suppress(OSError):
                trial.weight_file.write_text(str(_WEIGHTS[trial.weight_file.name][0]))
            trial.weight_file = None

    def _measure_gpus(self) -> None:
        """Divide the energy of each GPU among its trials, and record its utilization."""
        ran_s = {trial.number: trial.ran_since_s() for trial in self._running.values() if trial.gpus}
        for gpu in {gpu for trial in self._running.values() for gpu in trial.gpus}:
            on_gpu = [trial for trial in self._running.values() if gpu in trial.gpus]
            energy_j, utilization = _gpu_use(gpu)
            before_j, self._energy_j[gpu] = self._energy_j.get(gpu), energy_j
            total_s = sum(ran_s[trial.number] for trial in on_gpu)
            for trial in on_gpu:
                if utilization is not None:
                    trial.utilizations.append(utilization)
                if energy_j is not None and before_j is not None and total_s:
                    trial.energy_j += (energy_j - before_j) * ran_s[trial.number] / total_s

    def _process_trees(self) -> dict[int, list[psutil.Process]]:
        """Return all processes of each running trial."""
        children: dict[int, list[psutil.Process]] = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                children.setdefault(process.ppid(), []).append(process)
        leaders = {trial.pid: trial.number for trial in self._running.values() if trial.segment is None}
        trees: dict[int, list[psutil.Process]] = {number: [] for number in self._running}
        segment_pids: set[int] = set()
        for segment in self._segments.values():
            roots = segment.roots()
            segment_pids.update(root.pid for root in roots)
            if segment.trial is not None:
                tree = {process.pid: process for root in roots for process in (root, *_descendants(root, children))}
                trees[segment.trial.number] = list(tree.values())
        for process in children.get(os.getpid(), ()):
            if process.pid in segment_pids:
                continue
            number = leaders.get(process.pid)
            if number is None:
                number = self._trial_of_orphan(process.pid)
            if number is not None:
                trees[number] += [process, *_descendants(process, children)]
        return trees

    def _trial_of_orphan(self, pid: int) -> int | None:
        for trial in self._running.values():
            if pid in trial.orphans or _is_part_of(pid, trial):
                trial.orphans.add(pid)
                return trial.number
        return None

    def _kill_tree(self, trial: _RunningTrial) -> None:
        """Kill all processes of a trial."""
        if trial.segment is not None:
            self._kill_segment(trial.segment)
            return
        _signal_group(trial.pid, signal.SIGKILL)
        _kill_orphans(trial, {*self._segments, *(other.pid for other in self._running.values())})

    def end_trials(self) -> None:
        """Kill every trial."""
        for trial in list(self._running.values()):
            self._kill_tree(trial)

    def end_all(self) -> None:
        """Kill everything that was started, and wait until it is gone."""
        deadline = time.monotonic() + _END_TIMEOUT_S
        for segment in self._segments.values():
            assert segment.process.stdin is not None
            segment.process.stdin.close()  # it ends its trial, then itself
        for pid, segment in list(self._segments.items()):
            while _is_running(pid):
                if time.monotonic() >= deadline:
                    self._kill_segment(segment)
                time.sleep(0.005)
            segment.trial = None
            self._segment_ended(segment, 0, 0.0, 0.0)
        self._running = {number: trial for number, trial in self._running.items() if trial.segment is None}
        while children := _child_pids():
            for pid in children:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            for pid in children:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)
        for trial in self._running.values():
            for group in (trial.group, trial.cpu_group):
                if group is not None:
                    _remove_group(group)


@dataclass
class _RunningTrial:
    """A trial and its measurements.

    Attributes
    ----------
    own : dict of str to str
        What identifies its processes in their environment.
    limit_mib, memory_mib, peak_mib : float
        Limit and use of its GPU, on the one where it uses most. Of the machine's memory where it has no GPU.
    kernel_kills, group_kills : int
        Out-of-memory kills of the machine and of the trial's control group, before it started.
    utilizations : list of float
        Samples of its GPUs' utilization.
    kill_at_s : float or None
        Monotonic time at which it is killed.
    orphans : set of int
        Process ids of its orphans, which are children of the agent.
    held : set of int or None
        Its processes that are stopped since it is another trial's turn. None while it may run.
    held_since_s, held_s : float
        Monotonic time since when it is held, and how long it was before, s.
    weight_file : Path or None
        File with its CPU weight, where weights divide the CPU.
    cpu_group : Path or None
        Control group that was made for that.
    seen : dict of int to tuple
        CPU time that each process had used, and had waited for, at the last look, s.
    ran_s : float
        Time that it had run when the energy of GPUs was measured last, s.
    """

    number: int
    own: dict[str, str]
    pid: int
    began_s: float
    limit_mib: float | None
    gpus: tuple[str, ...]
    group: Path | None
    kernel_kills: int = 0
    memory_mib: float = 0.0
    peak_mib: float = 0.0
    energy_j: float = 0.0
    utilizations: list[float] = field(default_factory=list)
    over_limit: bool = False
    ended_by_us: bool = False
    kill_at_s: float | None = None
    orphans: set[int] = field(default_factory=set)
    segment: _Segment | None = None
    group_kills: int = 0
    held: set[int] | None = None
    held_since_s: float = 0.0
    held_s: float = 0.0
    weight_file: Path | None = None
    cpu_group: Path | None = None
    seen: dict[int, tuple[float, float]] = field(default_factory=dict)
    ran_s: float = 0.0

    def ran_since_s(self) -> float:
        """Return how long it ran since the last call, s."""
        before_s, self.ran_s = self.ran_s, time.monotonic() - self.began_s - self.held_for_s()
        return max(0.0, self.ran_s - before_s)

    def held_for_s(self) -> float:
        """Return how long it was held back for other trials, s."""
        return self.held_s + (0.0 if self.held is None else time.monotonic() - self.held_since_s)

    def measure(self, pids: Iterable[int]) -> tuple[float, float]:
        """Return the CPU time since the last call.

        It is what its processes used, and what one of them had to wait for, s. Where weights divide the CPU, the
        latter is time that it was held back.
        """
        now = {pid: (read_state(pid)[1], _run_delay_s(pid)) for pid in pids}
        before, self.seen = self.seen, now or self.seen
        cpu_s = sum(max(0.0, used - before.get(pid, (0.0, 0.0))[0]) for pid, (used, _) in now.items())
        delay_s = max(
            (max(0.0, waited - before[pid][1]) for pid, (_, waited) in now.items() if pid in before), default=0.0
        )
        if self.weight_file is not None:
            self.held_s += delay_s
        return cpu_s, delay_s


@dataclass
class _SharedDevice:
    """A device whose trials have shares of its time.

    Attributes
    ----------
    shares : dict of int to float
        Share of each trial, by its number.
    places : int
        How many trials run at the same time.
    since_s, due_s : float
        Monotonic times of the last turn and of the next one.
    """

    slices: TimeSlices
    shares: dict[int, float] = field(default_factory=dict)
    places: int = 1
    is_gpu: bool = False
    since_s: float = field(default_factory=time.monotonic)
    due_s: float = 0.0


@dataclass
class _WarmProcess:
    """A process that has done the imports of a sweep's trials."""

    process: subprocess.Popen[bytes] | None = None
    failed: bool = False
    partial_line: bytes = b""


@dataclass
class _Segment:
    """A container in which trials run one after another.

    Attributes
    ----------
    remove : list of str
        Command that removes the container.
    root_file : Path or None
        File for the process id of the runtime that runs the container, where that is no child of this process.
    trial : _RunningTrial or None
        None while it is free.
    """

    process: subprocess.Popen[bytes]
    pool: str
    limit_mib: float | None
    group: Path | None
    remove: list[str]
    root_file: Path | None
    trial: _RunningTrial | None = None
    partial_line: bytes = b""
    killed: bool = False

    def roots(self) -> list[psutil.Process]:
        """Return the root processes of everything in it."""
        pids = [self.process.pid]
        if self.root_file is not None:
            with contextlib.suppress(OSError, ValueError):
                pids.append(int(self.root_file.read_text()))
        roots = []
        for pid in pids:
            with contextlib.suppress(psutil.Error):
                roots.append(psutil.Process(pid))
        return roots


def fill_placeholders(word: str, *, segment: str, limit_mib: float | None) -> str:
    """Return a word of a container runtime's command with its placeholders filled."""
    values = {
        "{segment}": segment,
        "{limit_mib}": str(int(limit_mib or 0)),
        "{node}": os.environ.get("SLURMD_NODENAME", ""),
    }
    return _PLACEHOLDER.sub(lambda match: values[match[0]], word)


def _environment_variable(process: psutil.Process, name: str) -> str | None:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        value = process.environ().get(name)
    except (psutil.Error, OSError):
        return None
    return str(value) if value is not None else None


def _kill_orphans(trial: _RunningTrial, leaders: set[int]) -> None:
    """Kill what the leader of a trial left behind."""
    waited: set[int] = set()
    for _ in range(100):  # the children of a killed process become children of this one
        orphans = [pid for pid in _child_pids() if pid not in leaders]
        own = [pid for pid in orphans if _is_part_of(pid, trial)]
        for pid in own:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        # The trial of a process that is ending cannot be read any more, and it may still have children.
        ending = {pid for pid in orphans if pid not in own and pid not in waited and _is_ending(pid)}
        for pid in ending:
            with contextlib.suppress(OSError):
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        waited |= ending
        if not own and not ending:
            return


def _is_part_of(pid: int, trial: _RunningTrial) -> bool:
    """Return whether a process belongs to a trial."""
    with contextlib.suppress(psutil.Error, OSError):
        # The environment of a fork of the warm process reads as that of the warm process.
        process = psutil.Process(pid)
        return os.getsid(pid) == trial.pid or all(
            _environment_variable(process, name) == value for name, value in trial.own.items()
        )
    return False


def _is_ending(pid: int) -> bool:
    """Return whether a process is ending."""
    with contextlib.suppress(psutil.Error):
        return bool(psutil.Process(pid).memory_info().vms == 0)
    return True


def _child_pids() -> list[int]:
    own_pid = os.getpid()
    try:
        return [int(pid) for pid in Path(f"/proc/{own_pid}/task/{own_pid}/children").read_text().split()]
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN
        return [child.pid for child in psutil.Process().children()]


def _descendants(process: psutil.Process, children: dict[int, list[psutil.Process]]) -> Iterable[psutil.Process]:
    for child in children.get(process.pid, ()):
        yield child
        yield from _descendants(child, children)


def _is_running(child_pid: int) -> bool:
    try:
        return os.waitpid(child_pid, os.WNOHANG) == (0, 0)
    except ChildProcessError:
        return False


def _resident_bytes(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.Error):
        return float(process.memory_info().rss)
    return 0.0


def _proportional_bytes(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.Error, AttributeError):
        return float(process.memory_full_info().pss)
    return _resident_bytes(process)


def _gpu_memory_mib(uuid: str, pids: set[int]) -> float:
    """Return the memory of a GPU that processes use, MiB.

    It is 0 where the driver does not know, as in a container with process ids of its own.
    """
    try:
        import pynvml  # noqa: PLC0415 - it is optional, and loads the driver
    except ImportError:
        return 0.0
    try:
        pynvml.nvmlInit()  # cheap after the first call
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except pynvml.NVMLError:
        return 0.0
    return float(sum(process.usedGpuMemory or 0 for process in processes if process.pid in pids)) / _MIB


def _gpu_use(uuid: str) -> tuple[float | None, float | None]:
    """Return the energy and the utilization of a GPU.

    The energy is that since the driver was loaded, J. Both are None where the driver does not know.
    """
    energy_j = utilization = None
    with contextlib.suppress(ImportError):
        import pynvml  # noqa: PLC0415 - it is optional, and loads the driver

        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            with contextlib.suppress(pynvml.NVMLError):  # a part of a GPU has none
                utilization = float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100
            energy_j = float(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1000
    return energy_j, utilization


def _run_delay_s(pid: int) -> float:
    """Return how long a process was ready to run and waited for a core, s.

    It is 0 on a kernel that does not tell.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    return 0.0


def _oom_kills(file: Path = Path("/proc/vmstat")) -> int:
    """Return the count of out-of-memory kills in a file of the kernel.

    By default, those of the machine.
    """
    with contextlib.suppress(OSError):
        match = re.search(r"^oom_kill (\d+)$", file.read_text(), re.MULTILINE)
        return int(match[1]) if match else 0
    return 0


def _signal_group(pid: int, signal_number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal_number)


@dataclass(frozen=True)
class ControlGroups:
    """Folder in which this user can make control groups.

    The kernel enforces their memory limits.

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
            self.set_limit(group, limit_mib)
        except OSError:
            group.rmdir()
            raise
        for file, value in (("memory.swap.max", "0"), ("memory.oom.group", "1"), ("memory.swappiness", "0")):
            with contextlib.suppress(OSError):  # depends on version and configuration of the kernel
                (group / file).write_text(value)
        return group

    def set_limit(self, group: Path, limit_mib: float) -> None:
        """Change the limit of a group."""
        (group / self.limit).write_text(str(int(limit_mib * _MIB)))

    def kills(self, group: Path) -> int:
        """Return how many processes were killed at the limit."""
        return _oom_kills(group / self.events)


def control_groups(prefix: str) -> ControlGroups | None:
    """Return where control groups can be made and entered, or None.

    Groups of agents that have ended are removed. Their names begin with ``prefix`` and the agent's process id.
    """
    for parent, is_v2 in _group_parents("memory"):
        limit, events = ("memory.max", "memory.events") if is_v2 else ("memory.limit_in_bytes", "memory.oom_control")
        candidate = ControlGroups(parent=parent, limit=limit, events=events)
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            _remove_old_groups(parent, prefix)
            if _can_enter(candidate.make(f"{prefix}{os.getpid()}-probe", 64.0)):
                return candidate
    return None


def cpu_groups(prefix: str) -> tuple[Path, str] | None:
    """Return where groups with CPU weights can be made, or None.

    With it comes the name of the file that holds the weight of a group.
    """
    for parent, is_v2 in _group_parents("cpu"):
        file, group = ("cpu.weight" if is_v2 else "cpu.shares"), parent / f"{prefix}{os.getpid()}-probe"
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            _remove_old_groups(parent, prefix)
            group.mkdir(exist_ok=True)
            has_weight = os.access(group / file, os.W_OK)
            if _can_enter(group) and has_weight:
                return parent, file
    return None


def _remove_old_groups(parent: Path, prefix: str) -> None:
    """Remove the groups of agents that have ended."""
    for old in parent.glob(f"{prefix}*"):
        agent_pid = old.name.removeprefix(prefix).partition("-")[0]
        if not (agent_pid.isdigit() and psutil.pid_exists(int(agent_pid))):
            with contextlib.suppress(OSError):
                old.rmdir()


def _can_enter(group: Path) -> bool:
    """Return whether a process can be started in a group, which is then removed."""
    try:
        entered = subprocess.run(["true"], preexec_fn=partial(_join_group, group), check=False, capture_output=True)
    finally:
        _remove_group(group)
    return entered.returncode == 0


def _group_parents(controller: str) -> Iterator[tuple[Path, bool]]:
    """Yield the folders in which this user may make groups.

    They are those of this process and above it. With each comes whether it is of version 2.
    """
    try:
        own = Path("/proc/self/cgroup").read_text().splitlines()
        mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    except OSError:
        return
    for line in own:
        _, controllers, path = line.split(":", 2)
        is_v2 = controllers == ""
        if not is_v2 and controller not in controllers.split(","):
            continue
        for mount in mounts:
            kind, options = mount[mount.index("-") + 1], mount[-1].split(",")
            if kind != ("cgroup2" if is_v2 else "cgroup") or not (is_v2 or controller in options):
                continue
            root = Path(mount[4])
            inside = path.removeprefix(mount[3]) if mount[3] != "/" else path
            parent = root / inside.lstrip("/")
            if not is_v2:
                yield parent, False
                continue
            # A group that enables a controller for its children has no processes itself, so it is above this one.
            for ancestor in (parent, *parent.parents):
                if not ancestor.is_relative_to(root):
                    break
                with contextlib.suppress(OSError):
                    if controller in (ancestor / "cgroup.subtree_control").read_text().split():
                        yield ancestor, True


def _prepare(parent: int | None, group: Path | None) -> None:
    """Prepare a forked process, before its program starts.

    It ends with ``parent``, where there is one.
    """
    if parent is not None:
        _LIBC.prctl(_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123 - in a fork
        file.write(_OOM_SCORE)
    if group is not None:
        _join_group(group)


def _join_group(group: Path) -> None:
    with (group / "cgroup.procs").open("w") as file:
        file.write("0")


def _remove_group(group: Path) -> None:
    for _ in range(50):  # a group is busy until its last process is gone
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.01)
        else:
            return


def mps_environment(folder: str) -> dict[str, str]:
    """Return the environment of programs that use the MPS in a folder."""
    return {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}


def start_mps(folder: str, pool: str) -> subprocess.Popen[bytes]:
    """Start MPS, and return its control process.

    NVIDIA's Multi-Process Service lets programs of one user run on a GPU at the same time instead of in turns.

    Raises
    ------
    OSError
        It does not start.
    """
    Path(folder).mkdir(mode=0o700)
    control = subprocess.Popen(
        [MPS_CONTROL, "-f"],
        env={**os.environ, **mps_environment(folder), POOL: pool},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=partial(_prepare, os.getpid(), None),  # noqa: PLW1509 - there are no threads here
    )
    deadline = time.monotonic() + _MPS_TIMEOUT_S
    while not (Path(folder) / "control").exists():
        if control.poll() is not None or time.monotonic() >= deadline:
            stop_mps(control, folder)
            raise OSError(f"{MPS_CONTROL} did not start (exit status {control.returncode})")
        time.sleep(0.02)
    return control


def stop_mps(control: subprocess.Popen[bytes], folder: str) -> None:
    """Stop MPS, and remove its folder."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        if control.poll() is None:
            environment = {**os.environ, **mps_environment(folder)}
            subprocess.run(
                [MPS_CONTROL],
                env=environment,
                input=b"quit\n",
                capture_output=True,
                check=False,
                timeout=_MPS_TIMEOUT_S,
            )
            control.wait(timeout=_MPS_TIMEOUT_S)
    _signal_group(control.pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
