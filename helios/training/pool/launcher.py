"""What runs where in a pool, and the agents that start it."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from helios.errors import HeliosError
from helios.training.model import NUMBERS, Device, ShareTrial, StartTrial, Trial, TrialState, node_name, placement
from helios.training.pool.agent import AgentProcess
from helios.training.pool.attempts import Attempt, Attempts, count_parts
from helios.training.pool.clock import steady_s
from helios.training.pool.devices import THREADS, Node, device_environment, gpu_id, join_environments
from helios.training.pool.endings import Endings
from helios.training.pool.fusing import FusedProcess
from helios.training.pool.mps import mps_environment
from helios.training.pool.notes import Notes
from helios.training.pool.processes import TRIAL, kill_leftovers
from helios.training.pool.readings import Readings
from helios.training.pool.reports import write_request
from helios.training.pool.sweep import FUSED_TASK, ElasticProgram, FusedProgram
from helios.training.pool.trials import PoolSweep, Sweeps

_AGENT_DEATHS = 5
"""After so many ends of the agent on this node the pool ends."""
_NODE_DEATHS = 2
"""After so many ends of its agent another node is left out."""
_OTHER_NODES_S = 60.0
"""How long the other processes of a trial may run when the one of a node has ended well, s."""
_MPS_LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
"""Variable with the memory that a program of MPS may have on each of the GPUs that it sees."""
_DEVICE_VARIABLES = ("HELIOS_DEVICE", "CUDA_VISIBLE_DEVICES")
"""What differs between trials of the environment that a device gives."""


class Launcher:
    """Starts trials on devices, by an agent on each node.

    Parameters
    ----------
    devices : sequence of Device
        Those of this node.
    nodes : sequence of Node
        Other nodes of the allocation.
    warm : sequence of str
        Modules that a warm process imports once for all trials.
    mps : bool
        Whether to run NVIDIA's MPS on each node.

    Attributes
    ----------
    agents : dict of str to AgentProcess
        By the names of nodes, empty for this one.
    devices : tuple of Device
        Those of all nodes that are not left out.
    """

    def __init__(
        self,
        *,
        sweeps: Sweeps,
        attempts: Attempts,
        readings: Readings,
        endings: Endings,
        notes: Notes,
        devices: Sequence[Device],
        nodes: Sequence[Node],
        warm: Sequence[str],
        mps: bool,
    ) -> None:
        self._sweeps, self._attempts, self._readings = sweeps, attempts, readings
        self._endings, self._notes = endings, notes
        self._nodes = {node.name: node for node in nodes}
        self.devices = (*devices, *(device for node in nodes for device in node.devices))
        self._by_name = {device.name: device for device in self.devices}
        self._warm = list(warm)
        self._pool = sweeps[0].state.pool
        # The path of its sockets must be short, and on a disk of the node.
        self._mps = f"{tempfile.gettempdir()}/helios-mps-{self._pool[:12]}" if mps else ""
        self._segments = {trials.state.pool: self._segment(trials.source) for trials in sweeps}
        self.agents: dict[str, AgentProcess] = {}
        self._agent_deaths: Counter[str] = Counter()
        self._divided: dict[str, dict[int, float]] = {}  # shares that agents know, by device
        self._made = 0

    def _segment(self, source: PoolSweep) -> dict[str, Any] | None:
        """Return the order to start a sweep's container, None without one."""
        if source.container is None:
            return None
        common = dict(mps_environment(self._mps)) if self._mps else {}
        common |= device_environment(self.devices[0])
        common = {name: value for name, value in common.items() if name not in _DEVICE_VARIABLES}
        common |= {name: os.environ[name] for name in THREADS if name in os.environ}  # which stay outside else
        return source.container.segment(
            source.folder, source.sweep, self._warm, pool=source.state.pool, environment=common
        )

    def start_agents(self) -> None:
        """Start an agent on each node."""
        for name in ("", *self._nodes):
            self._start_agent(name)

    def close(self) -> None:
        """End the agents and all that they started."""
        for each in self.agents.values():
            each.close()
        for source in [trials.source for trials in self._sweeps]:
            if source.container is not None:
                source.container.remove_left(source.state.pool, source.folder)

    def end_interrupted(self) -> None:
        """End what pools that were killed have left on this machine."""
        left = 0
        for source in [trials.source for trials in self._sweeps]:
            for pool in source.state.interrupted:
                left += kill_leftovers(pool)
                if source.container is not None:
                    source.container.remove_left(pool, source.folder)
            source.state.interrupted.clear()
        if left:
            self._notes.note(f"{left} processes of the pool's last run were ended")

    def start(self, action: StartTrial) -> None:
        """Start a trial where a service wants it, if it may."""
        trials = self._sweeps.of(action.number)
        trial = trials.waiting.get(action.number)
        devices = tuple(self._by_name[name] for name in dict.fromkeys(action.devices) if name in self._by_name)
        if trial is None or len(devices) < max(1, len(action.devices)) or trials.state.problem:
            return
        least = trials.sweep.elastic.least if trials.sweep.elastic else 1
        if len(devices) < least:
            about = f"Trial {trial.label} is not started on fewer than {least} devices, as its sweep says"
            self._notes.note(about, key=f"{trial.number} least")
            return
        if len(placement(action.devices)) > 1 and trials.sweep.elastic is None:
            names = " and ".join(action.devices)
            self._notes.note(
                f"Trial {trial.label} is not started on {names}: its size is fixed, and it runs on one node"
            )
            return
        if action.into is not None:
            beside = self._attempts.running.get(action.into)
            if beside is not None and beside.process is not None and _may_join(trial, beside):
                self._start(trial, beside.devices, action, beside.process)
        elif all(self.may_start(trial, device) for device in devices):
            self._start(trial, devices, action)

    def launch(self) -> None:
        """Start new processes, and send all their trials.

        Those without trials are told that none will come.
        """
        for process in list(self._attempts.processes.values()):
            trials = self._sweeps.of(process.number)
            if not process.trials and not process.closed:
                process.closed = True
                process.add_message({"close": True})
            try:
                process.write()
            except OSError as reason:  # they are told when there is room
                trials.pause_starts(reason.strerror or str(reason))
                continue
            if not process.started and not process.trials:
                del self._attempts.processes[process.number]
            elif not process.started:
                assert trials.sweep.fused is not None
                process.started = True
                words = [sys.executable, "-P", "-m", FUSED_TASK, trials.sweep.fused.program, str(process.file)]
                log = str(process.folder / "log.txt")
                order = {"number": process.number, "argv": words, "log": log, "limit_mib": process.limit_mib}
                self._order_start(process.devices, order, {})

    def end(self, attempt: Attempt, grace_s: float) -> None:
        """Have the agent end a trial's process."""
        for name in attempt.nodes:
            if (of_node := self.agents.get(name)) is not None and name not in attempt.ends:
                of_node.send({"do": "end", "number": attempt.process_number, "grace_s": grace_s})

    def end_on_node(self, attempt: Attempt, node: str, event: Mapping[str, Any]) -> None:
        """Take a process's end, and end the trial's other ones."""
        peak_mib, parts = event["peak_memory_mib"], count_parts(attempt.on_node(node) or attempt.devices)
        attempt.ends[node] = {**event, "peak_memory_mib": peak_mib and peak_mib / parts * attempt.parts}
        if len(attempt.ends) < len(attempt.nodes):
            wait_s = 0.0 if event["status"] else _OTHER_NODES_S
            attempt.terminate_at_s = min(attempt.terminate_at_s, steady_s() + wait_s)
            return
        ends = attempt.ends.values()  # of which the first that went wrong says why
        end = next((each for each in ends if each["status"]), event)
        peaks = [peak for each in ends if (peak := each["peak_memory_mib"]) is not None]
        of_memory = any(each["out_of_memory"] for each in ends)
        self._endings.end(attempt, {**end, "peak_memory_mib": max(peaks, default=None), "out_of_memory": of_memory})

    def limit(self, attempt: Attempt) -> None:
        """Tell an agent the memory limit and the GPUs of a trial."""
        for name in attempt.nodes:
            devices, of_node = attempt.on_node(name), self.agents.get(name)
            if devices and of_node is not None:
                limit_mib = attempt.limit_mib * count_parts(devices)
                order = {"number": attempt.trial.number, "limit_mib": limit_mib, "gpus": self._gpus(devices)}
                of_node.send({"do": "limit", **order})

    def worker_environments(self, devices: Sequence[Device], limit_mib: float) -> list[dict[str, str]]:
        """Return the additions to the environment of each device's worker."""
        chosen = "CUDA_VISIBLE_DEVICES"
        limit = {_MPS_LIMIT: f"0={int(limit_mib)}M"} if self._mps else {}  # of the only GPU that it sees
        return [
            {chosen: has[chosen], **limit} if chosen in (has := self._environment(each)) else {} for each in devices
        ]

    def _environment(self, device: Device) -> Mapping[str, str]:
        node = self._nodes.get(node_name(device.name))
        return device_environment(device) if node is None else node.environment[device.name]

    def _gpus(self, devices: Sequence[Device]) -> list[str | None]:
        """Return what CUDA calls some devices, but for the CPU."""
        nodes = [(self._nodes.get(node_name(each.name)), each) for each in devices if each.kind == "gpu"]
        return [gpu_id(each) if node is None else node.gpus[each.name] for node, each in nodes]

    def share(self, action: ShareTrial) -> None:
        """Take over what a service gives a trial of its device's time."""
        attempt = self._attempts.running.get(action.number)
        if attempt is None or attempt.share == action.share:
            return
        if action.share is not None and not 0 < action.share <= 1:
            self._notes.note(f"A share of {action.share} is none: shares are above 0 and at most 1", key="share")
            return
        if len(attempt.devices) > 1:
            self._notes.note("A trial on several devices has them all the time: a share is not given to it")
            return
        if attempt.process is not None and len(attempt.process.trials) > 1:
            note = "The trials of a process cannot be held back one by one: their share is that of the process"
            self._notes.note(note)
        attempt.share = action.share
        which = self._sweeps.of(action.number).identify(action.number)
        self._notes.publish({"event": "shared", **which, "share": action.share, "reason": action.reason})

    def divide_devices(self) -> None:
        """Tell agents how their devices' time is divided, where that has changed."""
        for device in self.devices:
            shares = self._attempts.divide(device)
            before = self._divided.get(device.name, {})
            if shares == before:
                continue
            self._divided[device.name] = shares
            order = {"device": device.name, "shares": shares, "places": device.places, "gpu": device.kind == "gpu"}
            if (of_node := self.agents.get(node_name(device.name))) is not None:
                of_node.send({"do": "share", **order})
            for attempt in self._attempts.on(device):
                attempt.trial = replace(attempt.trial, share=shares.get(attempt.process_number))
                if not shares or not before:  # else speeds are of the time in which it runs, by whatever share
                    attempt.beside_since = None

    def restart_agent(self, name: str) -> None:
        """Restart a dead agent and all its trials.

        A node whose agent dies again and again is given up.
        """
        self._agent_deaths[name] += 1
        self.agents.pop(name).close()
        if not name:
            for trials in self._sweeps:
                kill_leftovers(trials.state.pool)
        for process in [each for each in self._attempts.processes.values() if node_name(each.devices[0].name) == name]:
            del self._attempts.processes[process.number]
        for attempt in [each for each in self._attempts.running.values() if {*each.nodes} - {*each.ends} >= {name}]:
            for device in attempt.devices:
                self._divided.pop(device.name, None)
            event = {"status": -signal.SIGKILL, "seconds": steady_s() - attempt.began_s, "peak_memory_mib": None}
            asked = bool(self._attempts.stop_reason)
            self.end_on_node(attempt, name, {**event, "out_of_memory": False, "asked": asked})
        if self._agent_deaths[name] >= (_NODE_DEATHS if name else _AGENT_DEATHS):
            self.devices = tuple(device for device in self.devices if node_name(device.name) != name)
            self._by_name = {device.name: device for device in self.devices}
            if not self.devices or not name:
                raise HeliosError(
                    "The process that starts trials was killed again and again.", hint="Start the pool again."
                )
            self._notes.note(f"Node {name} is left out: the process that starts trials there ended again and again")
            return
        self._notes.note("The process that starts trials was killed; its trials are started again")
        self._start_agent(name)

    def _start_agent(self, name: str) -> None:
        step = self._nodes[name].step if name else ()
        self.agents[name] = AgentProcess(self._pool, step, mps=self._mps)

    def may_start(self, trial: Trial, device: Device) -> bool:
        """Return whether a trial may join those that a device has."""
        beside = self._attempts.on(device)
        processes = {each.process_number for each in beside}
        if len(processes) >= device.slots:
            return False
        alone = any(self._needs_device_alone(other.trial) for other in beside)
        return not alone and not (beside and self._needs_device_alone(trial))

    def _needs_device_alone(self, trial: Trial) -> bool:
        return self._sweeps.of(trial.number).needs_device_alone(trial.number)

    def _start(
        self, trial: Trial, devices: tuple[Device, ...], action: StartTrial, process: FusedProcess | None = None
    ) -> None:
        trials = self._sweeps.of(trial.number)
        folder = trials.folder(trial.number)
        most_mib = min(device.memory_mib for device in devices)
        limit = min(action.memory_limit_mib or most_mib, most_mib)
        if trials.needs_device_alone(trial.number):
            limit = most_mib
        try:
            (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
            write_request(folder / "requests", None)
            if trials.sweep.fused is not None:
                process = process or self._idle_process(trial, devices, limit)
                process = process or self._new_process(trial, devices, limit, trials.sweep.fused)
                process.add_message(
                    {"trial": trial.number % NUMBERS, "parameters": dict(trial.parameters), "folder": str(folder)}
                )
                process.trials.add(trial.number)
                limit = process.limit_mib
        except OSError as reason:
            trials.pause_starts(reason.strerror or str(reason))
            return
        nodes = tuple(dict.fromkeys(node_name(device.name) for device in devices))
        devices = tuple(device for name in nodes for device in devices if node_name(device.name) == name)
        names = tuple(device.name for device in devices)
        trials.state.record_started(
            trial.number % NUMBERS,
            devices=names,
            memory_limit_mib=limit,
            why=action.reason,
            log="" if process is None else str(process.folder / "log.txt"),
        )
        if trials.state.problem:
            return
        now = steady_s()
        started = replace(
            trial,
            state=TrialState.RUNNING,
            devices=names,
            started_s=now,
            attempts=trial.attempts + 1,
            memory_limit_mib=limit,
            memory_mib=None,
            process=None if process is None else process.number,
        )
        del trials.waiting[trial.number]
        attempt = Attempt(
            trial=started,
            devices=devices,
            limit_mib=limit,
            folder=folder,
            began_s=now,
            sized_s=now,
            kept_until_s=now + (trials.sweep.elastic.every_s if trials.sweep.elastic else 0.0),
            nodes=nodes,
            process=process,
        )
        self._attempts.add(attempt)
        self._readings.restore(attempt)
        if process is None:
            self._send_start(attempt)
        self._notes.publish(
            {
                "event": "started",
                **trials.identify(trial.number),
                "parameters": dict(trial.parameters),
                "devices": names,
                "memory_limit_mib": round(limit, 1),
                "attempt": started.attempts,
                "reason": action.reason,
            }
        )

    def _send_start(self, attempt: Attempt) -> None:
        """Have the agent start the program of a trial."""
        trial, folder = attempt.trial, attempt.folder
        own = {
            "HELIOS_TRIAL_FOLDER": str(folder),
            "HELIOS_PARAMETERS": json.dumps(dict(trial.parameters)),
            "HELIOS_REPORT": str(folder / "report.jsonl"),
            "HELIOS_REQUESTS": str(folder / "requests"),
            "HELIOS_CHECKPOINTS": str(folder / "checkpoints"),
        }
        order = {
            "number": trial.number,
            "argv": self._sweeps.of(trial.number).sweep.fill(
                trial.parameters, trial=trial.number % NUMBERS, checkpoints=folder / "checkpoints"
            ),
            "limit_mib": attempt.limit_mib,
        }
        several = len(attempt.nodes) > 1
        common = {"address": self._address(attempt.nodes[0]), "key": secrets.token_hex(16)} if several else {}
        for place, name in enumerate(attempt.nodes):
            if (elastic := self._sweeps.of(trial.number).sweep.elastic) is not None:
                told = self._describe_elastic(attempt, elastic, name)
                told |= {"node": place, "nodes": len(attempt.nodes), **common}
                own["HELIOS_ELASTIC"] = json.dumps(told)
            log = attempt.log.with_name(f"log-{place}.txt") if place else attempt.log
            self._order_start(attempt.on_node(name), {**order, "log": str(log)}, own)

    def _address(self, node: str) -> str:
        """Return a node, and a port that is free here, where processes meet."""
        with socket.socket() as free:
            free.bind(("", 0))
            host = self._nodes[node].host if node else socket.gethostname()
            return f"{host}:{free.getsockname()[1]}"

    def _describe_elastic(self, attempt: Attempt, elastic: ElasticProgram, node: str) -> dict[str, Any]:
        """Return what a program of changing size is told on a node at its start."""
        devices = attempt.on_node(node)
        threads = {**os.environ, **self._environment(devices[0])}
        threads |= self._sweeps.of(attempt.trial.number).sweep.env
        return {
            "devices": self.worker_environments(devices, attempt.limit_mib),
            "batch": elastic.batch,
            "local_batch": elastic.local_batch,
            "threads": int(threads.get("OMP_NUM_THREADS") or 1),
        }

    def _order_start(self, devices: Sequence[Device], order: Mapping[str, Any], own: Mapping[str, str]) -> None:
        """Have the agent of some devices start a process."""
        trials, name = self._sweeps.of(order["number"]), node_name(devices[0].name)
        on_device = join_environments([self._environment(each) for each in devices])
        gpus = self._gpus(devices)
        if (threads := trials.sweep.env.get("OMP_NUM_THREADS")) is not None:
            # PyTorch takes the larger one of two variables, which would not be what the sweep file says.
            on_device = {name: threads if name in THREADS else value for name, value in on_device.items()}
        if self._mps:
            # It fails what a trial asks for above its limit on each of the GPUs that it sees.
            limits = ",".join(f"{place}={int(order['limit_mib'])}M" for place in range(len(gpus)))
            limited = {_MPS_LIMIT: limits}
            on_device = {**on_device, **mps_environment(self._mps), **limited}
        self.agents[name].send(
            {
                "do": "start",
                "pool": trials.state.pool,
                "trial": str(order["number"] % NUMBERS if order["number"] >= 0 else order["number"]),
                **order,
                "limit_mib": order["limit_mib"] * count_parts(devices),
                "environment": {**on_device, **trials.sweep.env, **own},
                "own": [*own, *_DEVICE_VARIABLES, TRIAL],
                "warm": self._warm,
                "segment": self._segments[trials.state.pool],
                "folder": str(trials.sweep.cwd),
                "gpus": gpus,
            }
        )

    def _idle_process(self, trial: Trial, devices: Sequence[Device], limit: float) -> FusedProcess | None:
        """Return an idle process that may take a trial."""
        if trial.number in self._sweeps.of(trial.number).fusion.separate or trial.out_of_memory_mib is not None:
            return None
        idle = (
            each
            for each in self._attempts.processes.values()
            if not each.trials and not each.closed and self._sweeps.of(each.number) is self._sweeps.of(trial.number)
        )
        return next((each for each in idle if each.devices == devices and each.limit_mib == limit), None)

    def _new_process(
        self, trial: Trial, devices: tuple[Device, ...], limit: float, program: FusedProgram
    ) -> FusedProcess:
        """Return a process for a trial, which is launched later."""
        place, own_number = divmod(trial.number, NUMBERS)
        folder = self._sweeps[place].source.folder / "fused" / f"{own_number:05d}-{trial.attempts + 1}"
        folder.mkdir(parents=True, exist_ok=True)
        self._made += 1
        process = FusedProcess(number=-place * NUMBERS - self._made, devices=devices, folder=folder, limit_mib=limit)
        process.file.unlink(missing_ok=True)  # of a start that could not be recorded
        process.add_message({"settings": dict(program.settings), "limit_mib": limit})
        self._attempts.processes[process.number] = process
        return process


def _may_join(trial: Trial, beside: Attempt) -> bool:
    """Return whether a trial may join another one's process."""
    process = beside.process
    return (
        process is not None
        and not process.closed
        and trial.fusible == beside.trial.fusible != ""
        and len(process.trials) < trial.most_fused
    )
