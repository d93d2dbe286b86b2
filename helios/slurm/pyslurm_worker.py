"""Worker process that answers requests through pyslurm.

Requests and answers are lines of JSON. ``import pyslurm`` ends the process where there is no Slurm configuration, and
its library can leak, hang and crash, so it is used here and nowhere else. The Python that has pyslurm, from 3.9 on and
usually the system's own, needs this one file: standard library and pyslurm only, nothing of Helios.
``pyslurm_backend.py`` starts it and talks to it. ``backend.py`` documents the records.

Quirks of pyslurm (read in 25.11.2): zero cannot be written as a number, only as the text ``"0"``; an unlimited time
limit and none both read as None; task 0 of an array reads as no task; text that is not UTF-8 raises.
"""

from __future__ import annotations

import contextlib
import ctypes
import grp
import json
import os
import platform
import pwd
import re
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import IO, Any

PROTOCOL = 1
CALLS = ("versions", "queue", "nodes", "configuration", "change", "change_nodes")

_STANDBY = 2027
"""ESLURM_IN_STANDBY_MODE, from a backup controller that has not taken over."""
_UNREACHABLE = frozenset([*range(1000, 1100), *range(1800, 1900), *range(5000, 5100), 110, 111, _STANDBY])
"""Slurm's error numbers for a controller that cannot be reached (slurm_errno.h). 110 and 111 are the system's own."""
_NOT_SENT = (111, 1001, 1800)
"""Those of them that mean that no connection was made."""
_NOT_ALLOWED = (2002, 2010)
"""ESLURM_ACCESS_DENIED, ESLURM_USER_ID_MISSING."""
_LIBRARY = {38: "22.05", 39: "23.02", 40: "23.11", 41: "24.05", 42: "24.11", 43: "25.05", 44: "25.11", 45: "26.05"}
"""Slurm's releases by the number of their library, libslurm.so.NN."""

OVER = frozenset({
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "RECONFIG_FAIL", "REVOKED", "TIMEOUT",
})  # fmt: skip
"""States of jobs that have ended."""
BASE_STATE = {
    **dict.fromkeys(["CONFIGURING", "POWER_UP_NODE", "RESIZING", "SIGNALING", "STOPPED"], "RUNNING"),
    "STAGE_OUT": "COMPLETING",
    **dict.fromkeys(["REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT"], "PENDING"),
}
"""Flags that Slurm names in place of the base state (slurm.h ``JOB_STATE_FLAGS``)."""

_GRES = re.compile(r"(?:gres[/:])?(?P<name>gpu|shard|mps)(?::(?P<kind>.+))?")

_NAMED_OTHERWISE = {
    "BOOT_TIME": "slurmctld_boot_time",
    "SLURM_CONF": "slurm_conf_path",
    "SLURM_VERSION": "version",
    "SuspendExcNodes": "suspend_exclude_nodes",
    "SuspendExcParts": "suspend_exclude_partitions",
    "SuspendExcStates": "suspend_exclude_states",
}
"""Keys whose attribute in pyslurm is not the key in snake case."""


@cache
def account_name(look_up: Callable[[int], Any], number: int | None) -> str | None:
    """Return the name of a user or a group.

    It is the number as text where the system has no name.
    """
    try:
        return None if number is None else str(look_up(number)[0])
    except KeyError:
        return str(number)


class PyslurmApi:
    """The calls of the protocol, answered through pyslurm.

    Parameters
    ----------
    pyslurm : module
        The imported package.
    """

    def __init__(self, pyslurm: Any) -> None:
        self.pyslurm = pyslurm

    def versions(self) -> dict[str, Any]:
        """Return the versions that must agree.

        The controller's is None where it does not answer.
        """
        try:
            controller = self.pyslurm.slurmctld.Config.load().version
        except self.pyslurm.RPCError:
            controller = None
        return {"pyslurm": self.pyslurm.__version__, "library": _library(), "controller": controller}

    def queue(self, job_ids: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Return the records of jobs that have not ended.

        Of ``job_ids`` and their tasks alone where it names any: reading is fast, describing takes most of the time.
        """
        account_name.cache_clear()  # names may have changed since the last call
        wanted = set(map(int, job_ids))
        jobs = self.pyslurm.Jobs.load(preload_passwd_info=False).values()
        return [
            raw_job(job)
            for job in jobs
            if job.state not in OVER and (not wanted or job.id in wanted or job.array_id in wanted)
        ]

    def nodes(self) -> list[dict[str, Any]]:
        """Return all nodes."""
        return [raw_node(node) for node in self.pyslurm.Nodes.load().values()]

    def configuration(self) -> dict[str, str]:
        """Return Helios' settings of interest as ``scontrol show config`` writes them."""
        loaded = self.pyslurm.slurmctld.Config.load()
        return {key: write(read(loaded, attribute)) for key, (attribute, write) in SETTINGS.items()}

    def change(self, job_id: str, site_factor: int | None, time_min: int | None) -> str:
        """Change one job, and return Slurm's message.

        It is empty where Slurm accepted the change.
        """
        wanted: dict[str, Any] = {}
        if site_factor is not None:
            wanted["site_factor"] = str(site_factor)  # the number 0 would be dropped silently
        if time_min is not None:
            wanted["time_limit_min"] = time_min  # the text "0" would raise
        job = self.pyslurm.Job(int(job_id))
        return self._answer(lambda: job.modify(self.pyslurm.JobSubmitDescription(**wanted)))

    def change_nodes(self, nodes: str, state: str, weight: int | None) -> str:
        """Change the power or the weight of nodes.

        ``nodes`` is a list such as ``n[1-4,7]``. Returns Slurm's message as :meth:`change` does.
        """
        wanted: dict[str, Any] = {"state": state} if state else {"weight": str(weight)}
        return self._answer(lambda: self.pyslurm.Node(nodes).modify(self.pyslurm.Node(**wanted)))

    def _answer(self, write: Callable[[], None]) -> str:
        try:
            write()
        except self.pyslurm.RPCError as refusal:
            if _kind(refusal) == "unavailable":
                raise
            return str(refusal) or f"Slurm's error {refusal.errno}"
        return ""


def raw_job(job: Any) -> dict[str, Any]:
    """Return a job as ``backend.RawJob``."""
    state = BASE_STATE.get(job.state, job.state)
    pending = state == "PENDING"
    array_tasks = _array_tasks(job)
    tres = job.tres  # parsed anew by each access, like the others of this kind
    # The request counts where the site does not account for GPUs as TRES.
    per_task = job.tres_per_task
    lists = (tres.gres if tres else None, job.gres_per_node, per_task.gres if per_task else None)
    times = (_number(job.num_nodes) or 1, _number(job.ntasks) or 1)
    gpus, shards, mps = (_count_held(lists, times, name) for name in ("gpu", "shard", "mps"))
    memory = tres.mem if tres else None
    reason = read(job, "state_reason")
    return {
        "job_id": str(job.id),
        "restart": job.requeue_count or 0,
        "array_job_id": str(job.array_id) if job.array_id else None,
        "array_tasks": array_tasks,
        "tasks": count_tasks(array_tasks) if array_tasks and pending else 1,
        "het_job_id": str(job.heterogeneous_id) if job.heterogeneous_id else None,
        "het_job_offset": (job.heterogeneous_offset or 0) if job.heterogeneous_id else None,
        "name": read(job, "name"),
        "user": account_name(pwd.getpwuid, job.user_id),
        "group": account_name(grp.getgrgid, job.group_id),
        "account": read(job, "account"),
        "qos": read(job, "qos"),
        "partition": read(job, "partition"),
        "state": state,
        "reason": None if reason in (None, "None") else str(reason).replace(" ", "_"),  # as squeue writes it
        "submitted": job.submit_time or 0,
        "eligible": job.eligible_time,
        "started": None if pending else job.start_time,
        "planned_start": job.start_time if pending else None,
        "time_limit_s": 60 * job.time_limit if job.time_limit else "UNLIMITED",
        "time_min_s": 60 * job.time_limit_min if job.time_limit_min else None,
        "nodes": _number(job.num_nodes),
        "cpus": _number(job.cpus),
        "gpus": gpus["count"],
        "gpu_type": gpus["kind"],
        "shards": shards["count"],
        "mps": mps["count"],
        "memory_mib": float(memory.count) if memory else _number(job.memory),
        "node_list": None if pending else read(job, "allocated_nodes"),
        "priority": _number(job.priority),
        "reservation": read(job, "reservation"),
        "cron": bool(job.is_cronjob),
        "nice": job.nice or 0,
    }


def raw_node(node: Any) -> dict[str, Any]:
    """Return a node as ``backend.RawNode``."""
    state, *flags = node.state.replace("*", "+NOT_RESPONDING").split("+")
    has, held = node.configured_gres or {}, node.allocated_gres or {}
    gpus, names = count_gpus(has), ("gpu", "shard", "mps")
    return {
        "name": node.name,
        "partitions": ",".join(node.partitions),
        "state": state,
        "flags": "+".join(dict.fromkeys(flags)) or None,
        "cpus": node.total_cpus,
        "cpus_held": node.allocated_cpus,
        "gpus": gpus["count"],
        "gpus_held": gpus_held(
            gpus["count"], {name: (count_gpus(held, name)["count"], count_gpus(has, name)["count"]) for name in names}
        ),
        "gres": ",".join(f"{name}:{getattr(count, 'count', count)}" for name, count in has.items()) or None,
        "gpu_type": gpus["kind"],
        "memory_mib": node.real_memory,
        "weight": node.weight or 0,  # pyslurm reads a weight of 0 as None
        "features": ",".join(node.active_features) or None,
        "idle_since": node.last_busy_time if state == "IDLE" else None,
        "reason": read(node, "reason"),
    }


def read(record: Any, attribute: str) -> Any:
    """Return an attribute of a pyslurm object.

    Text that is not UTF-8 has surrogate escapes.
    """
    try:
        return getattr(record, attribute)
    except UnicodeDecodeError as reason:
        return reason.object.decode("utf-8", "surrogateescape")


def count_gpus(counts: Any, name: str = "gpu") -> dict[str, Any]:
    """Return number and type of the GPUs in GRES or TRES.

    With another ``name``, those of its shares.

    GPUs that are listed both with and without a type count once.
    """
    plain, kinds = 0, {}
    for listed, count in (counts or {}).items():
        found = _GRES.fullmatch(listed)
        if not found or found["name"] != name:
            continue
        if found["kind"]:
            kinds[found["kind"]] = int(getattr(count, "count", count))
        else:
            plain = int(getattr(count, "count", count))
    return {"count": max(plain, sum(kinds.values())), "kind": next(iter(kinds)) if len(kinds) == 1 else None}


def gpus_held(gpus: int, held: dict[str, tuple[int, int]]) -> float:
    """Return the GPUs of a node that jobs hold.

    Shards and MPS shares are parts of one. ``held`` has, by the name of the GRES, how many are held and how many the
    node's ``gpus`` are divided into.
    """
    parts = sum(gpus * used / total for name, (used, total) in held.items() if name != "gpu" and total)
    return held["gpu"][0] + parts


def _count_held(lists: Sequence[Any], times: tuple[int, int], name: str) -> dict[str, Any]:
    """Return what a job holds of a GRES, else what it asks for."""
    counted, by_node, by_task = (count_gpus(counts, name) for counts in lists)
    asked = max(by_node["count"] * times[0], by_task["count"] * times[1])
    kinds = {found["kind"] for found in (counted, by_node, by_task)} - {None}
    return {"count": counted["count"] or asked, "kind": kinds.pop() if len(kinds) == 1 else None}


def count_tasks(tasks: str) -> int:
    """Return the number of array tasks in ``0,3,6,20-29%2``.

    Steps as in ``0-9:3`` are supported.
    """
    count = 0
    for part in tasks.partition("%")[0].split(","):
        span, _, step = part.partition(":")
        first, _, last = span.partition("-")
        if first.isdigit():
            count += (int(last or first) - int(first)) // int(step or 1) + 1
    return max(count, 1)


def _array_tasks(job: Any) -> str | None:
    if not job.array_id:
        return None
    if not job.array_tasks_waiting:
        return str(job.array_task_id or 0)
    at_once = _number(job.array_tasks_parallel)
    return f"{job.array_tasks_waiting}%{at_once}" if at_once else str(job.array_tasks_waiting)


def _number(value: Any) -> int | None:
    """Return a count, or None for UNLIMITED and no value."""
    return value if isinstance(value, int) else None


def _as_text(value: Any) -> str:
    if isinstance(value, dict):
        return ",".join(key if given is True else f"{key}={given}" for key, given in value.items()) or "(null)"
    if isinstance(value, (list, tuple)):
        return ",".join(value) or "(null)"
    return "(null)" if value is None else str(value)


def _as_flags(value: Any) -> str:
    return ",".join(value or ())


def _as_lower(value: Any) -> str:
    return ",".join(value or ()).lower() or "none"


def _as_count(value: Any) -> str:
    return "INFINITE" if value == "UNLIMITED" else str(value or 0)


def _as_seconds(value: Any) -> str:
    return "INFINITE" if value == "UNLIMITED" else f"{value or 0} sec"


_WRITERS: dict[Callable[[Any], str], str] = {
    _as_lower: "AccountingStorageEnforce PrivateData",
    _as_text: (
        "AccountingStorageHost AccountingStorageTRES AccountingStorageType AuthType ClusterName GresTypes "
        "JobSubmitPlugins PreemptMode PreemptType PrioritySiteFactorPlugin PriorityType PriorityWeightTRES "
        "ReconfigFlags ResumeProgram SLURM_CONF SLURM_VERSION SchedulerParameters SchedulerType ScronParameters "
        "SelectType SelectTypeParameters SlurmctldParameters StateSaveLocation SuspendExcNodes SuspendExcParts "
        "SuspendExcStates SuspendProgram"
    ),
    _as_count: (
        "AccountingStoragePort BOOT_TIME MaxArraySize MaxJobCount NEXT_JOB_ID PriorityWeightAge PriorityWeightAssoc "
        "PriorityWeightFairShare PriorityWeightJobSize PriorityWeightPartition PriorityWeightQOS SlurmctldPort"
    ),
    _as_seconds: "MessageTimeout MinJobAge ResumeTimeout SlurmctldTimeout SlurmdTimeout SuspendTime SuspendTimeout",
    _as_flags: "PriorityFlags",
}
"""Keys of ``scontrol show config`` that Helios may ask for, by their output format. Times are in s since the epoch."""
SETTINGS = {
    key: (_NAMED_OTHERWISE.get(key) or re.sub("(?<=[a-z])(?=[A-Z])", "_", key).lower(), write)
    for write, keys in _WRITERS.items()
    for key in keys.split()
}
"""Keys of ``scontrol show config``, each with pyslurm's attribute and scontrol's output format."""


def main() -> None:
    """Answer requests until standard input closes."""
    # Whatever C libraries print on descriptor 1 then goes to standard error.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _send(answers, {"protocol": PROTOCOL, "python": platform.python_version()})
    try:
        import pyslurm  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415 - may end the process: after the greeting
    except Exception as reason:
        _send(answers, {"error": {"kind": "missing", "message": f"{type(reason).__name__}: {reason}"}})
        return
    slurm = PyslurmApi(pyslurm)
    _send(answers, slurm.versions())
    for line in sys.stdin.buffer:
        _send(answers, answer(slurm, json.loads(line)))


def answer(slurm: PyslurmApi, request: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to one request, also for an error."""
    try:
        if (call := request["call"]) not in CALLS:
            raise ValueError(f"there is no call {call!r}")
        result = getattr(slurm, call)(**request.get("args", {}))
    except Exception as reason:
        sent = getattr(reason, "errno", None) not in _NOT_SENT
        error = {"kind": _kind(reason), "message": f"{type(reason).__name__}: {reason}", "sent": sent}
        return {"id": request.get("id"), "ok": False, "error": error}
    return {"id": request["id"], "ok": True, "result": result}


def _kind(reason: Exception) -> str:
    number = getattr(reason, "errno", None)
    if number in _NOT_ALLOWED:
        return "refused"
    return "unavailable" if number in _UNREACHABLE else "failed"


def _library() -> str | None:
    try:
        number = int(ctypes.CDLL(None).slurm_api_version()) >> 16
    except (AttributeError, OSError):
        return None
    return _LIBRARY.get(number, f"libslurm {number}")


def _send(answers: IO[bytes], line: dict[str, Any]) -> None:
    answers.write(json.dumps(line).encode("ascii") + b"\n")
    answers.flush()


if __name__ == "__main__":
    os.environ["SLURM_BITSTR_LEN"] = "0"  # array tasks written out in full, not "0,3,6,..."
    os.environ["TZ"] = "UTC"
    with contextlib.suppress(BrokenPipeError):
        main()
    sys.stderr.flush()
    os._exit(0)  # no Slurm library code at the end: it may hang or crash
