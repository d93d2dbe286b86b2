"""A Slurm in memory: a backend and its ``sprio`` that keep the rules seen on running clusters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from helios.errors import ClusterUnavailable
from helios.slurm.backend import Backend, JobUpdate, NodeUpdate, RawJob, RawNode
from helios.slurm.commands import SiteFactor
from helios.slurm.power_config import PowerConfig, power_config

START = 1_795_255_200
"""2026-11-21 10:00 UTC."""


def a_raw_job(job_id: str, **overrides: Any) -> RawJob:
    """Return a pending job of alice's: one GPU, an hour's limit."""
    job: dict[str, Any] = dict.fromkeys(RawJob.__annotations__)
    job |= {"job_id": job_id, "restart": 0, "tasks": 1, "name": "train", "user": "alice", "group": "alice"}
    job |= {"account": "vision", "qos": "normal", "partition": "gpu", "state": "PENDING", "reason": "Priority"}
    job |= {"submitted": START, "eligible": START, "time_limit_s": 3600.0, "nodes": 1, "cpus": 4, "gpus": 1}
    job |= {"shards": 0, "mps": 0}
    job |= {"memory_mib": 100.0, "priority": 100_000, "cron": False, "nice": 0}
    unknown = set(overrides) - set(job)
    assert not unknown, f"a raw job has no {unknown}"
    return job | overrides  # type: ignore[return-value]  # because the keys were just checked


def a_raw_node(name: str, **overrides: Any) -> RawNode:
    """Return an idle node of eight GPUs."""
    node: dict[str, Any] = dict.fromkeys(RawNode.__annotations__)
    node |= {"name": name, "partitions": "gpu", "state": "IDLE", "cpus": 64, "cpus_held": 0, "gpus": 8}
    node |= {"gpus_held": 0, "gpu_type": "a100", "memory_mib": 512_000.0, "weight": 1}
    return node | overrides  # type: ignore[return-value]  # because a builder's caller names real keys


class MemorySlurm(Backend):
    """Jobs by id, their site factors, and what goes wrong on demand."""

    name = "memory"

    def __init__(self, *jobs: RawJob, version: str = "25.11.2", parameters: str = "time_min_as_soft_limit") -> None:
        self.jobs: dict[str, dict[str, Any]] = {job["job_id"]: dict(job) for job in jobs}
        self.site: dict[str, int] = {}
        self.direct: set[str] = set()
        self.settings = {"SLURM_VERSION": version, "SchedulerParameters": parameters, "ClusterName": "venus"}
        self.changes: list[JobUpdate] = []
        self.answers: dict[str, str] = {}
        self.swallowed: set[str] = set()
        self.down_after: int | None = None
        self.between: list[Any] = []
        self.meanwhile: list[Any] = []
        self.closed = False
        self.now = START

    def queue(self, job_ids: Sequence[str] = ()) -> list[RawJob]:
        self._answer()
        rows = [job | {"priority": self._priority(job)} for job in self.jobs.values()]
        return [row for row in rows if not job_ids or {row["job_id"], row["array_job_id"]} & set(job_ids)]  # type: ignore[misc]

    def nodes(self) -> list[RawNode]:
        self._answer()
        return [a_raw_node("n2"), a_raw_node("n1")]

    def configuration(self) -> dict[str, str]:
        self._answer()
        return self.settings

    def sprio(self, job_ids: Sequence[str] = ()) -> dict[str, SiteFactor]:
        self._answer()
        named = [job_id for job_id in self.jobs if not job_ids or job_id in job_ids]
        seen = {job_id: self._factor(job_id) for job_id in named if self._is_eligible(self.jobs[job_id])}
        while self.meanwhile:
            self.meanwhile.pop()()
        return seen

    def change(self, changes: Sequence[JobUpdate]) -> list[str]:
        self._answer()
        answers = [self._changed(change) for change in changes]
        while self.between and changes:
            self.between.pop()()
        return answers

    def change_nodes(self, changes: Sequence[NodeUpdate]) -> list[str]:
        raise NotImplementedError("this Slurm has jobs; SleepySlurm has nodes that sleep")

    def close(self) -> None:
        self.closed = True

    def _changed(self, change: JobUpdate) -> str:
        self.changes.append(change)
        job = self.jobs.get(change.job_id)
        if job is None:
            return f"Invalid job id specified for job {change.job_id}"
        if change.job_id in self.answers:
            return self.answers[change.job_id]
        if (change.time_min or 0) * 60 > float(str(job["time_limit_s"] or "inf").replace("UNLIMITED", "inf")):
            return "Invalid time-min specification (exceeds job's time or other limits)"
        if change.job_id not in self.swallowed:
            self._write(change, job)
        return ""

    def _write(self, change: JobUpdate, job: dict[str, Any]) -> None:
        family = [other for other in self.jobs.values() if job["tasks"] > 1 and other["array_job_id"] == job["job_id"]]
        for member in [job, *family]:
            if change.site_factor is not None:
                self.site[member["job_id"]] = change.site_factor
            if change.time_min is not None and member["state"] == "PENDING":
                member["time_min_s"] = change.time_min * 60.0 or None

    def _factor(self, job_id: str) -> SiteFactor:
        direct = job_id in self.direct
        return SiteFactor(value=0 if direct else self.site.get(job_id, 0), direct=direct)

    def _priority(self, job: dict[str, Any]) -> int:
        own = job["priority"] == 0 or job["job_id"] in self.direct
        return int(job["priority"]) + (0 if own else self.site.get(job["job_id"], 0))

    def _is_eligible(self, job: dict[str, Any]) -> bool:
        return bool(job["state"] == "PENDING" and job["priority"] and (job["eligible"] or 1e12) <= self.now)

    def _answer(self) -> None:
        if self.down_after is not None:
            if self.down_after == 0:
                raise ClusterUnavailable("slurmctld was told not to answer")
            self.down_after -= 1


class SleepySlurm(MemorySlurm):
    """Nodes that sleep and wake as Slurm's do: what it ignores it ignores without a word (22.05.8, 26.05.5)."""

    def __init__(self, *nodes: RawNode, version: str = "25.11.2", **settings: str) -> None:
        super().__init__(version=version)
        self.node: dict[str, dict[str, Any]] = {node["name"]: dict(node) for node in nodes}
        self.settings |= {
            "SuspendProgram": "/usr/sbin/suspend",
            "ResumeProgram": "/usr/sbin/resume",
            "SuspendTime": "604800 sec",
            "SuspendTimeout": "30 sec",
            "ResumeTimeout": "300 sec",
            "SuspendExcNodes": "(null)",
        } | settings
        self.racks: dict[str, str] = {}
        self.written: list[NodeUpdate] = []
        self.lists: list[str] = []
        self.looks = 0
        self.before_look: dict[int, Callable[[], None]] = {}

    def nodes(self) -> list[RawNode]:
        self._answer()
        self.looks += 1
        self.before_look.pop(self.looks, lambda: None)()
        return [dict(node) for node in self.node.values()]  # type: ignore[misc]  # because they were raw nodes before

    def __call__(self) -> PowerConfig:
        """Be the desk too."""
        self._answer()
        return power_config(self.settings, racks=self.racks)

    def keep_awake(self, keep_awake: str) -> str:
        self._answer()
        self.lists.append(keep_awake)
        if "list" not in self.swallowed:
            self.settings["SuspendExcNodes"] = keep_awake or "(null)"
        return self.answers.get("list", "")

    def change_nodes(self, changes: Sequence[NodeUpdate]) -> list[str]:
        self._answer()
        return [self._node_changed(change) for change in changes]

    def passes(self) -> None:
        """Let so much time pass that who falls asleep is asleep, and who wakes is awake."""
        down, woken = "POWERED_DOWN", "POWER_UP+POWERED_DOWN"
        done: dict[str | None, str | None] = {"POWER_DOWN": down, "POWERING_DOWN": down, woken: None}
        for node in self.node.values():
            if node["state"] == "IDLE":
                node["flags"] = done.get(node["flags"], node["flags"])

    def _node_changed(self, change: NodeUpdate) -> str:
        self.written.append(change)
        if change.node not in self.node:
            return "Invalid node name specified"
        if change.node in self.answers:
            return self.answers[change.node]
        if change.node not in self.swallowed:
            self._node_write(change, self.node[change.node])
        return ""

    def _node_write(self, change: NodeUpdate, node: dict[str, Any]) -> None:
        if change.weight is not None:
            node["weight"] = change.weight
        elif change.state == "POWER_DOWN":
            node["flags"] = "+".join(filter(None, ((node["flags"] or "").replace("DRAIN", ""), "POWER_DOWN")))
        elif node["flags"] == "POWERED_DOWN":
            node["flags"] = "POWER_UP+POWERED_DOWN"
