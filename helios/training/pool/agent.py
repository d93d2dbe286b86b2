"""Process that runs trials on one machine.

The coordinator starts it as a program of its own and talks to it in lines of JSON on its standard input and output. It
is small, so that a fork is cheap. If the coordinator is killed, the end of standard input ends every trial. Orphans of
a trial become children of the agent (``PR_SET_CHILD_SUBREAPER``), which ends them too. If the agent itself is killed,
the kernel ends the processes that it started (``PR_SET_PDEATHSIG``), and the next pool of the folder ends the rest.

It imports nothing of Helios but small modules beside it.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from helios.training.pool.control_groups import MIB, ControlGroups, control_groups, oom_kills, remove_group
from helios.training.pool.device_shares import PAUSE, DeviceShares
from helios.training.pool.mps import start_mps, stop_mps
from helios.training.pool.processes import (
    LIBC,
    OOM_SCORE,
    POOL,
    SET_PDEATHSIG,
    TRIAL,
    child_pids,
    descendants,
    environment_variable,
    gpu_memory_mib,
    gpu_use,
    is_ending,
    is_running,
    prepare_child,
    proportional_bytes,
    resident_bytes,
    signal_group,
)
from helios.training.pool.running import RunningTrial, Segment, WarmProcess, fill_placeholders, send_line

_SET_SUBREAPER = 36
"""Option of ``prctl`` from ``linux/prctl.h``."""
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
        send_line(self._process, order)

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
    LIBC.prctl(_SET_SUBREAPER, 1, 0, 0, 0)
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
        self._running: dict[int, RunningTrial] = {}  # by number
        self._groups = control_groups(f"helios-{pool}-")
        self._shares = DeviceShares(f"helios-{pool}-", self._running, self._roots)
        self._segments: dict[int, Segment] = {}  # by process id
        self._segments_made = 0
        self._warm: dict[str, WarmProcess] = {}  # by the identity of the sweep's folder
        # Trials that the warm process has not reported yet, by number, and ends of such trials, by process id.
        self._pending: dict[int, tuple[dict[str, Any], RunningTrial]] = {}
        self._ended_early: dict[int, tuple[int, float, float]] = {}
        self._own_peak_mib = 0.0
        self._energy_j: dict[str, float | None] = {}  # counter of each GPU when it was last read
        self._watch_at_s = 0.0

    def handle(self, order: dict[str, Any]) -> None:
        """Start or end a trial, or divide a device, as the coordinator orders."""
        if order["do"] == "start":
            self.start(order)
        elif order["do"] == "share":
            self._shares.set(order)
        elif order["do"] == "limit":
            self._limit(order)
        else:
            self.end(int(order["number"]), float(order["grace_s"]))

    def start(self, order: dict[str, Any]) -> None:
        """Start a trial as a session of its own.

        Its output is appended to the log.
        """
        number, limit_mib, gpus = int(order["number"]), order.get("limit_mib"), tuple(order.get("gpus", ()))
        if order.get("segment"):
            self._start_in_segment(order, number, limit_mib)
            return
        group = None if gpus else self._make_group(f"helios-{self._pool}-{os.getpid()}-{number}", limit_mib)
        own = {POOL: order["pool"], TRIAL: order["trial"]}
        environment = {**os.environ, **order["environment"], **own}
        trial = RunningTrial(
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
                    preexec_fn=partial(prepare_child, os.getpid(), group),  # noqa: PLW1509 - there are no threads here
                )
        except (OSError, ValueError, subprocess.SubprocessError) as reason:
            self._report_not_started(number, group, reason)
            return
        process.returncode = 0  # it is waited for with all others, not by this object
        self._report_started(trial, process.pid)

    def _limit(self, order: dict[str, Any]) -> None:
        """Change the memory limit and the GPUs of a trial."""
        trial = self._running.get(int(order["number"]))
        if trial is None:
            return
        trial.limit_mib, trial.gpus = order["limit_mib"], tuple(order["gpus"])
        if trial.group is not None and self._groups is not None:
            with contextlib.suppress(OSError):  # more is in use, and it is killed when that is seen
                self._groups.set_limit(trial.group, trial.limit_mib)

    def _make_group(self, name: str, limit_mib: float | None) -> Path | None:
        """Return a new control group with a limit, or None.

        Without one the limit is kept by watching.
        """
        if limit_mib is not None and self._groups is not None:
            with contextlib.suppress(OSError):
                return self._groups.make(name, limit_mib)
        return None

    def _report_not_started(self, number: int, group: Path | None, reason: Exception) -> None:
        if group is not None:
            remove_group(group)
        self._send_event({"event": "not_started", "number": number, "reason": str(reason)})

    def _report_started(self, trial: RunningTrial, pid: int) -> None:
        trial.pid, trial.kernel_kills = pid, oom_kills()
        self._running[trial.number] = trial
        self._shares.divide_soon(trial.number)
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
        segment.trial = RunningTrial(
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
            run["data_limit"] = int(_DATA_LIMIT_RATIO * limit_mib * MIB)
        send_line(segment.process, {"do": "run", **run, "clear": False, "oom_score": OOM_SCORE, "group": ""})
        self._report_started(segment.trial, pid)

    def _free_segment(
        self, pool: str, groups: ControlGroups | None, limit_mib: float | None, *, keeps_limit: bool
    ) -> Segment | None:
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

    def _new_segment(self, order: dict[str, Any], limit_mib: float | None) -> Segment:
        template = order["segment"]
        self._segments_made += 1
        name = f"helios-{order['pool']}-{os.getpid()}-{self._segments_made}"
        group = None if order.get("gpus") or template["keeps_limit"] else self._make_group(name, limit_mib)
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
                    preexec_fn=partial(prepare_child, None, group),  # noqa: PLW1509 - as in start
                )
        except BaseException:
            if group is not None:
                remove_group(group)
            raise
        process.returncode = 0  # as in start
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        root = fill_placeholders(template["root_file"], segment=name, limit_mib=limit_mib)
        segment = self._segments[process.pid] = Segment(
            process=process,
            pool=order["pool"],
            limit_mib=limit_mib,
            group=group,
            remove=[fill_placeholders(word, segment=name, limit_mib=limit_mib) for word in template["remove"]],
            root_file=Path(root) if root else None,
        )
        return segment

    def _read_segment(self, segment: Segment) -> None:
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

    def _kill_segment(self, segment: Segment) -> None:
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
            descendants = [process for process in descendants if process not in roots and not is_ending(process.pid)]
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

    def _segment_ended(self, segment: Segment, status: int, peak_mib: float, cpu_s: float) -> None:
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
            remove_group(segment.group)

    def _start_warm(self, order: dict[str, Any], trial: RunningTrial, environment: dict[str, str]) -> bool:
        """Start a trial as a fork of the process with the imports.

        Returns False where there is none.
        """
        warm = self._warm.setdefault(order["pool"], WarmProcess())
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
                    preexec_fn=partial(LIBC.prctl, SET_PDEATHSIG, signal.SIGKILL),  # noqa: PLW1509 - as above
                )
            except OSError as reason:
                warm.failed = True
                self._send_event({"event": "warm_failed", "reason": str(reason)})
        if warm.process is None or warm.process.stdin is None:
            return False
        self._pending[trial.number] = (order, trial)
        message = {**order, "environment": environment, "oom_score": OOM_SCORE, "group": str(trial.group or "")}
        if not send_line(warm.process, message):
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

    def _read_warm(self, pool: str, warm: WarmProcess) -> None:
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
                    remove_group(trial.group)
                self.start({**order, "warm": None})

    def end(self, number: int, grace_s: float) -> None:
        """Ask a trial's processes to end, and kill them after ``grace_s``."""
        if number in self._pending:
            self._pending[number][1].ended_by_us = True
        trial = self._running.get(number)
        if trial is None:
            return
        trial.ended_by_us = True
        self._shares.release(trial)
        self._shares.divide_soon(number)
        if grace_s > 0 and trial.segment is not None:
            send_line(trial.segment.process, {"do": "end"})
        elif grace_s > 0:
            signal_group(trial.pid, signal.SIGTERM)
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

    def _report_ended(self, trial: RunningTrial, status: int, peak_mib: float, cpu_s: float) -> None:
        seconds = time.monotonic() - trial.began_s
        returncode = os.waitstatus_to_exitcode(status)
        if trial.segment is None:
            self._kill_tree(trial)
        del self._running[trial.number]
        self._shares.divide_soon(trial.number)
        if trial.cpu_group is not None:
            remove_group(trial.cpu_group)
        # The kernel's peak of a forked process begins with the memory of its parent, which is this process.
        if not trial.gpus and (peak_mib > self._own_peak_mib or not trial.peak_mib):
            trial.peak_mib = max(trial.peak_mib, peak_mib)
        killed = returncode == -signal.SIGKILL and not trial.ended_by_us
        out_of_memory = trial.over_limit or (killed and oom_kills() > trial.kernel_kills)
        if trial.group is not None and self._groups is not None:
            out_of_memory |= self._groups.kills(trial.group) > trial.group_kills and returncode != 0
            if trial.segment is None:
                remove_group(trial.group)
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
        due = [self._watch_at_s, self._shares.due_s]
        due += [trial.kill_at_s for trial in self._running.values() if trial.kill_at_s is not None]
        return max(0.0, min(due) - time.monotonic())

    def tick(self) -> None:
        """Kill trials, change turns and measure, where that is due."""
        now = time.monotonic()
        for trial in list(self._running.values()):
            if trial.kill_at_s is not None and trial.kill_at_s <= now:
                trial.kill_at_s = now + 1.0  # until it is gone
                self._kill_tree(trial)
        self._shares.divide_due(now)
        if self._running and now >= self._watch_at_s:
            self._watch()
            cost_s = time.monotonic() - now
            pause_s = min(max(_SHORTEST_WATCH_S, PAUSE * cost_s), _LONGEST_WATCH_S)
            self._watch_at_s = time.monotonic() + pause_s

    def _watch(self) -> None:
        """Measure memory and GPUs, and kill trials above their limit."""
        self._own_peak_mib = max(self._own_peak_mib, psutil.Process().memory_info().rss / MIB)
        trees = self._process_trees()
        self._measure_gpus()
        for number, processes in trees.items():
            trial = self._running[number]
            if trial.gpus:
                pids = {process.pid for process in processes}
                trial.memory_mib = max(gpu_memory_mib(gpu, pids) for gpu in trial.gpus)
            else:
                trial.memory_mib = sum(resident_bytes(process) for process in processes) / MIB
            over_limit = trial.limit_mib is not None and trial.memory_mib > trial.limit_mib
            if over_limit and not trial.gpus and len(processes) > 1:
                # Resident memory counts shared pages once for each process, proportional memory only once.
                trial.memory_mib = sum(proportional_bytes(process) for process in processes) / MIB
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

    def _roots(self, trial: RunningTrial) -> list[int]:
        """Return the processes of a trial that are children of this one."""
        others = {other.pid for other in self._running.values()} | self._segments.keys()
        orphans = [pid for pid in child_pids() if pid not in others and self._trial_of_orphan(pid) == trial.number]
        return [trial.pid, *orphans]

    def _measure_gpus(self) -> None:
        """Divide the energy of each GPU among its trials, and record its utilization."""
        ran_s = {trial.number: trial.ran_since_s() for trial in self._running.values() if trial.gpus}
        for gpu in {gpu for trial in self._running.values() for gpu in trial.gpus}:
            on_gpu = [trial for trial in self._running.values() if gpu in trial.gpus]
            energy_j, utilization = gpu_use(gpu)
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
                tree = {process.pid: process for root in roots for process in (root, *descendants(root, children))}
                trees[segment.trial.number] = list(tree.values())
        for process in children.get(os.getpid(), ()):
            if process.pid in segment_pids:
                continue
            number = leaders.get(process.pid)
            if number is None:
                number = self._trial_of_orphan(process.pid)
            if number is not None:
                trees[number] += [process, *descendants(process, children)]
        return trees

    def _trial_of_orphan(self, pid: int) -> int | None:
        for trial in self._running.values():
            if pid in trial.orphans or _is_part_of(pid, trial):
                trial.orphans.add(pid)
                return trial.number
        return None

    def _kill_tree(self, trial: RunningTrial) -> None:
        """Kill all processes of a trial."""
        if trial.segment is not None:
            self._kill_segment(trial.segment)
            return
        signal_group(trial.pid, signal.SIGKILL)
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
            while is_running(pid):
                if time.monotonic() >= deadline:
                    self._kill_segment(segment)
                time.sleep(0.005)
            segment.trial = None
            self._segment_ended(segment, 0, 0.0, 0.0)
        for number in [number for number, trial in self._running.items() if trial.segment is not None]:
            del self._running[number]
        while children := child_pids():
            for pid in children:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            for pid in children:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)
        for trial in self._running.values():
            for group in (trial.group, trial.cpu_group):
                if group is not None:
                    remove_group(group)


def _kill_orphans(trial: RunningTrial, leaders: set[int]) -> None:
    """Kill what the leader of a trial left behind."""
    waited: set[int] = set()
    for _ in range(100):  # the children of a killed process become children of this one
        orphans = [pid for pid in child_pids() if pid not in leaders]
        own = [pid for pid in orphans if _is_part_of(pid, trial)]
        for pid in own:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        # The trial of a process that is ending cannot be read any more, and it may still have children.
        ending = {pid for pid in orphans if pid not in own and pid not in waited and is_ending(pid)}
        for pid in ending:
            with contextlib.suppress(OSError):
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        waited |= ending
        if not own and not ending:
            return


def _is_part_of(pid: int, trial: RunningTrial) -> bool:
    """Return whether a process belongs to a trial."""
    with contextlib.suppress(psutil.Error, OSError):
        # The environment of a fork of the warm process reads as that of the warm process.
        process = psutil.Process(pid)
        return os.getsid(pid) == trial.pid or all(
            environment_variable(process, name) == value for name, value in trial.own.items()
        )
    return False


if __name__ == "__main__":
    main(*sys.argv[1:])
