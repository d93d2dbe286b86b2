"""Conformance suite for services.

The author of a service runs it on the service's class, as with ``check_estimator`` of scikit-learn.
"""

from __future__ import annotations

import copy
import dataclasses
import gc
import inspect
import math
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import islice
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pandas as pd

from helios.actions import (
    Action,
    JobAction,
    KeepAwake,
    NodeAction,
    PowerDown,
    PowerUp,
    Reorder,
    Revert,
    RevertNodes,
    SoftLimit,
)
from helios.choices import Domain
from helios.model import NODE_STATES, QUEUE, STEP_S, NodePower, Snapshot
from helios.ports import Service
from helios.services.registry import find_flaws, make_service
from helios.testing.builders import (
    NOON,
    Row,
    a_node,
    a_pending_job,
    a_running_job,
    a_snapshot,
    a_use,
    power_settings,
)

MOST_SHOWN = 12
MANY_JOBS = 5_000
"""Jobs of the largest queue, which is tried only on a service that passed on the small ones."""
MANY_NODES = 2_000
"""Nodes of the largest cluster that is tried."""
WEEK = 7 * 86_400 // STEP_S
NODE_ACTIONS = PowerDown | PowerUp | KeepAwake | RevertNodes
Make = Callable[[], Service]

CLOCK_FUNCTIONS = frozenset(
    {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "localtime"}
)
CLOCK_METHODS = frozenset({"datetime.now", "datetime.utcnow", "datetime.today", "date.today"})
CLOCK_NAMES = frozenset({"now", "utcnow", "today"})
OUTSIDE_MODULES = {
    "io": "the disk",
    "_io": "the disk",
    "posix": "the operating system",
    "nt": "the operating system",
    "_socket": "the network",
    "_posixsubprocess": "another program",
}
HARMLESS_FUNCTIONS = frozenset({"fspath", "text_encoding"})
_RANDOM_GENERATOR: Any = getattr(random.random, "__self__", None)
"""Generator behind ``random.random`` and similar functions. A service may use a seeded one of its own."""


def check_service(service: type[Any] | Service) -> None:
    """Check that a service keeps the contract of ``Service``.

    It is called with an empty cluster, an ordinary queue, one without predictions, one with all optional values
    missing, hostile texts, extreme numbers and 5,000 jobs. The contract:

    - It answers the same twice, whatever it was called with before.
    - It uses no clock, random numbers, disk or network.
    - It does not change the snapshot.
    - It names only pending jobs of the snapshot, each once.
    - Every action, and every place in an order, has a reason.

    A service that acts on nodes (``domain = Domain.NODES``) is also called with nodes in every state, with and without
    a record of their use. It must name only nodes of the snapshot, and put to sleep only those that are idle, awake
    and without ``excluded_reason``.

    Parameters
    ----------
    service : class or Service
        A class is instantiated with the defaults of its ``Options``. Pass an object to check other options.

    Raises
    ------
    AssertionError
        The contract is broken. The message lists everything found, with what to do about it.
    """
    complaints = list(islice(_complaints(service), MOST_SHOWN))
    if complaints:
        raise AssertionError("This is not yet a service of Helios:\n- " + "\n- ".join(complaints))


def _complaints(service: type[Any] | Service) -> Iterator[str]:
    service_class = service if isinstance(service, type) else type(service)
    flaws = find_flaws(service_class)
    yield from flaws
    if flaws:
        return
    for name in find_clocks(service_class):
        yield f"{name} asks the clock; the time is snapshot.taken_at, so that a replay sees its own"
    on_nodes = getattr(service_class, "domain", Domain.JOBS) is Domain.NODES
    make, cases = _service_maker(service), [*situations(), *(node_situations() if on_nodes else ())]
    is_sound = True
    for title, snapshot in cases:
        if len(snapshot.pending) < MANY_JOBS or is_sound:
            complaints = _complaints_about(make, title, snapshot, on_nodes=on_nodes)
            is_sound = is_sound and not complaints
            yield from complaints
    if is_sound:
        yield from _memory_complaints(make, [snapshot for _, snapshot in cases])


def _complaints_about(make: Make, title: str, snapshot: Snapshot, *, on_nodes: bool) -> list[str]:
    try:
        return [f"{title}: {complaint}" for complaint in _answer_complaints(make, snapshot, on_nodes=on_nodes)]
    except Exception as raised:  # because a service is third-party code
        what = f"{type(raised).__name__}: {raised}"
        return [f"{title}: it raised {what}; return no action for what cannot be judged"]


def _service_maker(service: type[Any] | Service) -> Make:
    if isinstance(service, type):
        return lambda: make_service(service, service.Options(), name=service.__name__)
    return lambda: copy.deepcopy(service)


def _answer_complaints(make: Make, snapshot: Snapshot, *, on_nodes: bool) -> Iterator[str]:
    before = copy.deepcopy(snapshot)
    first = list(make().decide(snapshot))
    service = make()
    with watch_calls() as calls:
        second = list(service.decide(snapshot))
    yield from (f"{call}; decide on the snapshot alone" for call in dict.fromkeys(calls))
    if first != second or second != list(service.decide(snapshot)):
        yield "asked twice it answers differently; order every set and every tie, and keep nothing between calls"
    if not _is_same(before, snapshot):
        yield "it changed the snapshot, which other services see too; use frame.assign(...) or a copy"
    yield from check_node_changes(first, snapshot) if on_nodes else _action_complaints(first, snapshot)


def _action_complaints(answer: list[Action], snapshot: Snapshot) -> Iterator[str]:
    actions = [action for action in answer if isinstance(action, Reorder | SoftLimit | Revert)]
    foreign = [action for action in answer if not isinstance(action, Reorder | SoftLimit | Revert)]
    if foreign:
        on_nodes = "; to act on nodes, say domain = Domain.NODES" if isinstance(foreign[0], NODE_ACTIONS) else ""
        yield f"{foreign[0]!r} is not an action; return Reorder, SoftLimit or Revert of helios.actions{on_nodes}"
        return
    yield from _name_complaints(actions, snapshot)
    yield from _reason_complaints(actions)
    partitions = set(snapshot.pending["partition"].dropna().unique())
    for action in actions:
        if isinstance(action, Reorder) and action.partition not in partitions:
            yield f"no pending job is in partition {action.partition!r}; write it as the column partition does"


def _name_complaints(actions: list[JobAction], snapshot: Snapshot) -> Iterator[str]:
    pending, running = set(snapshot.pending["job_id"]), set(snapshot.running["job_id"])
    for job_id in dict.fromkeys(job_id for action in actions for job_id in _targets(action)):
        if job_id in running:
            yield f"it names job {job_id}, which runs already; only pending jobs can be changed"
        elif job_id not in pending:
            yield f"it names job {job_id!r}, which is not in the snapshot; take ids from snapshot.pending['job_id']"
    for kind in (Reorder, SoftLimit):
        counts = Counter(job_id for action in actions if isinstance(action, kind) for job_id in _targets(action))
        for job_id, times in counts.most_common(1):
            if times > 1:
                yield f"{kind.__name__} names job {job_id} {times} times; decide once for each job"


def _reason_complaints(actions: list[JobAction]) -> Iterator[str]:
    reasons = {type(action).__name__: action.reason for action in actions if not action.reason.strip()}
    yield from (f"a {kind} has no reason; say why, for the person who asks" for kind in reasons)
    places = [place for action in actions if isinstance(action, Reorder) for place in action.order]
    unexplained = [place.job_id for place in places if not place.reason.strip()]
    if unexplained:
        yield f"the place of job {unexplained[0]} has no reason; say why, for the user who asks"


def _memory_complaints(make: Make, snapshots: list[Snapshot]) -> Iterator[str]:
    service = make()
    try:
        answers = [list(service.decide(snapshot)) for snapshot in reversed(snapshots)]
    except Exception as raised:  # because a service is third-party code
        yield f"asked several times it raised {type(raised).__name__}: {raised}; keep nothing between calls"
        return
    expected = [list(make().decide(snapshot)) for snapshot in reversed(snapshots)]
    if answers != expected:
        yield "its answer depends on what it was asked before; keep nothing between calls but the options"


def _targets(action: JobAction) -> Iterable[str]:
    if isinstance(action, Reorder):
        return [place.job_id for place in action.order]
    return [action.job_id] if isinstance(action, SoftLimit) else action.job_ids or ()


def _is_same(before: Snapshot, after: Snapshot) -> bool:
    frames = [(getattr(before, name), getattr(after, name)) for name in ("pending", "running", "nodes")]
    recent = [{} if seen.use is None else seen.use.recent for seen in (before, after)]
    return all(
        old.equals(new) and old.index.equals(new.index) and list(old.dtypes) == list(new.dtypes) for old, new in frames
    ) and all(np.array_equal(used, recent[1][pool]) for pool, used in recent[0].items())


def check_node_changes(answer: list[Action], snapshot: Snapshot) -> Iterator[str]:
    """Yield faults in the answer of a node service."""
    actions = [action for action in answer if isinstance(action, NODE_ACTIONS)]
    foreign = [action for action in answer if not isinstance(action, NODE_ACTIONS)]
    if foreign:
        yield (
            f"{foreign[0]!r} is not an action on nodes; return PowerDown, PowerUp or KeepAwake of "
            "helios.actions, or act on jobs: without domain = Domain.NODES"
        )
        return
    yield from _node_name_complaints(actions, snapshot)
    unexplained = {type(action).__name__ for action in actions if not action.reason.strip()}
    yield from (f"a {kind} has no reason; say why, for the person who asks" for kind in sorted(unexplained))
    yield from _sleep_complaints([action for action in actions if isinstance(action, PowerDown)], snapshot)


def _node_name_complaints(actions: list[NodeAction], snapshot: Snapshot) -> Iterator[str]:
    known = set(snapshot.nodes["name"])
    for node in dict.fromkeys(node for action in actions for node in _named_nodes(action)):
        if node not in known:
            yield f"it names node {node!r}, which is not in the snapshot; take names from snapshot.nodes['name']"
    powered = Counter(action.node for action in actions if isinstance(action, PowerDown | PowerUp))
    for node, times in powered.most_common(1):
        if times > 1:
            yield f"it names node {node} {times} times; decide once for each node"
    if sum(isinstance(action, KeepAwake) for action in actions) > 1:
        yield "it returned several KeepAwake; each names all nodes to keep awake, so return one"


def _sleep_complaints(sleeps: list[PowerDown], snapshot: Snapshot) -> Iterator[str]:
    nodes = snapshot.nodes.drop_duplicates("name").set_index("name")
    for sleep in sleeps:
        if sleep.node not in nodes.index:
            continue
        node = nodes.loc[sleep.node]
        if isinstance(node["excluded_reason"], str):
            yield f"it puts node {sleep.node} to sleep, which must be left alone: {node['excluded_reason']}"
        elif node["state"] != "IDLE" or node["power"] != NodePower.AWAKE:
            yield f"it puts node {sleep.node} to sleep, which is not idle and awake: see state and power"


def _named_nodes(action: NodeAction) -> Iterable[str]:
    if isinstance(action, PowerDown | PowerUp):
        return [action.node]
    if isinstance(action, KeepAwake):
        return action.nodes
    return [node for node, _ in action.own if node]


def situations() -> Iterator[tuple[str, Snapshot]]:
    """Yield the snapshots that ``check_service`` tries, each with a title."""
    yield "a cluster without jobs or nodes", a_snapshot(nodes=[])
    yield "an ordinary queue", _ordinary()
    yield "a queue at night", _ordinary(at=NOON + timedelta(hours=14))
    yield "a queue without predictions", _queue(a_pending_job(job_id=str(n), gpus=n) for n in range(1, 9))
    yield "jobs of which all is missing that can be", _queue(_row_without_values(str(n)) for n in range(1, 4))
    yield "texts that nobody expects", _queue(_with_odd_texts())
    yield "numbers that nobody expects", _queue(_with_odd_numbers())
    yield f"{MANY_JOBS:,} jobs", _large_queue(MANY_JOBS)


def _queue(rows: Iterable[Row], *, at: Any = NOON) -> Snapshot:
    return a_snapshot(pending=list(rows), running=[a_running_job(job_id="900001", gpus=4)], taken_at=at)


def _ordinary(*, at: Any = NOON) -> Snapshot:
    partitions = ("gpu", "long", "gpu,long")
    rows = (
        a_pending_job(job_id=str(n), user=f"user{n % 5}", gpus=2 ** (n % 5), p50_s=60.0 * 3**n, time_limit_s=1e6)
        | {"partition": partitions[n % 3], "submitted_at": pd.Timestamp(at) - pd.Timedelta(minutes=37 * n)}
        for n in range(1, 13)
    )
    nodes = [a_node(name=f"node{n}", gpus_held=n) for n in range(3)]
    return a_snapshot(pending=list(rows), running=[a_running_job(job_id="900001")], nodes=nodes, taken_at=at)


def _row_without_values(job_id: str) -> Row:
    return {
        "job_id": job_id,
        "partition": "gpu",
        "state": "PENDING",
        "submitted_at": pd.Timestamp(NOON),
        "urgency": 0.0,
    }


def _with_odd_texts() -> Iterator[Row]:
    texts = ("Ünïcødé 训练 🚀", "two\nlines", "a,b|c;d", "'quoted\" $(x)", " ", "%s {0}", "x" * 5_000)
    for number, text in enumerate(texts, start=1):
        yield a_pending_job(job_id=f"{number}_[0-9%2]", name=text, user=text, account=text, qos=text, p50_s=600.0)
    yield a_pending_job(job_id="77", partition="gpu-ä", p50_s=60.0)


def _with_odd_numbers() -> Iterator[Row]:
    long_ago = pd.Timestamp("2001-01-01T00:00:00Z")
    tomorrow = pd.Timestamp(NOON) + pd.Timedelta(days=1)
    yield a_pending_job(job_id="1", gpus=0, p50_s=0.0)
    yield a_pending_job(job_id="2", gpus=100_000, nodes=12_500.0, p50_s=1e9, time_limit_s=math.inf)
    yield a_pending_job(job_id="3", submitted_at=long_ago, p50_s=1e-3, time_limit_s=0.0)
    yield a_pending_job(job_id="4", submitted_at=tomorrow, eligible_at=tomorrow)
    yield a_pending_job(job_id="5", eligible_at=None, p50_s=math.inf)
    yield a_pending_job(job_id="6", priority=0.0, excluded_reason="held", urgency=1.0, p50_s=5.0)
    yield a_pending_job(job_id="7", tasks=1_000_000, urgency=-1.0, soft_limit_s=420.0, p50_s=60.0)


def _large_queue(n_jobs: int) -> Snapshot:
    number = np.arange(n_jobs)
    row = a_snapshot(pending=[a_pending_job(p50_s=1.0)]).pending
    pending = row.loc[row.index.repeat(n_jobs)].reset_index(drop=True)
    pending = pending.assign(
        job_id=pd.Series(number + 1).astype(str),
        user=pd.Series(number % 97).map("user{}".format).astype("category"),
        gpus=(1 + number % 8).astype(np.float64),
        p50_s=10.0 + 37 * number,
        p90_s=30.0 + 111 * number,
        submitted_at=row["submitted_at"].iloc[0] - pd.to_timedelta(number * 7919 % 86_400, unit="s"),
    )
    return dataclasses.replace(a_snapshot(), pending=QUEUE.conform(pending))


def node_situations() -> Iterator[tuple[str, Snapshot]]:
    """Yield snapshots for a service that acts on nodes, with titles.

    Such a service is called with those of :func:`situations` too.
    """
    yield "nodes in every state", _snapshot(_in_every_state())
    yield "nodes at night", _snapshot(_in_every_state(at=NOON + timedelta(hours=14)), at=NOON + timedelta(hours=14))
    yield "all nodes idle", _snapshot(_idle(16), busy=[0.0] * WEEK)
    yield "all nodes asleep", _snapshot([row | {"power": "asleep"} for row in _idle(16)], busy=[0.0] * WEEK)
    yield "jobs that wait for nodes", _snapshot(_in_every_state(), pending=_waiting())
    yield "use that nobody knows", a_snapshot(nodes=_in_every_state(), power=power_settings())
    yield "nobody asked how nodes are powered", a_snapshot(nodes=_in_every_state(), use=a_use())
    yield "nodes that cannot sleep", _snapshot(_idle(8), can_sleep=False, why_not="SuspendProgram is not set")
    yield "a history of an hour", _snapshot(_idle(8), busy=[2.0] * 6)
    yield "use that jumps", _snapshot(_idle(16), busy=[float(16 * (step % 5 == 0)) for step in range(WEEK)])
    yield "use of other pools", _snapshot([a_node(partitions="cpu")])
    yield "nodes of which all is missing that can be", _snapshot([{"name": "n1", "partitions": "gpu", "state": "IDLE"}])
    yield (
        "names that nobody expects",
        _snapshot([a_node(name=name, features="ä,b") for name in ("n-1.x", "ü", "x" * 99)]),
    )
    yield f"{MANY_NODES:,} nodes", _many_nodes(MANY_NODES)


def _snapshot(
    nodes: Iterable[Row], *, at: Any = NOON, busy: list[float] | None = None, pending: Iterable[Row] = (), **power: Any
) -> Snapshot:
    rows = list(nodes)
    return a_snapshot(
        nodes=rows,
        pending=list(pending),
        running=[a_running_job(job_id="900001", node_list="busy1", gpus=8)],
        taken_at=at,
        power=power_settings(**power),
        use=a_use(None if busy is None else {"gpu": _by_minute(busy)}, nodes=len(rows), at=at),
    )


def _by_minute(busy: list[float]) -> list[int]:
    return [int(nodes) for nodes in busy for _ in range(STEP_S // 60)]


def _idle(count: int, *, at: Any = NOON) -> list[Row]:
    return [
        a_node(
            name=f"n{number:02}",
            idle_since=at - timedelta(hours=number),
            rack=f"r{number % 3}",
            weight=1.0 + number % 2,
        )
        for number in range(1, count + 1)
    ]


def _in_every_state(*, at: Any = NOON) -> list[Row]:
    busy = {"state": "ALLOCATED", "gpus_held": 8, "cpus_held": 64.0}
    return [
        *_idle(8, at=at),
        *(a_node(name=f"busy{number}", **busy) for number in range(1, 5)),
        a_node(name="mixed", state="MIXED", gpus_held=1, cpus_held=4.0),
        a_node(name="drained", flags="DRAIN", excluded_reason="it is drained", idle_since=at - timedelta(days=3)),
        a_node(name="down", state="DOWN", power=None, excluded_reason="it is down"),
        a_node(name="kept", kept_awake=1, idle_since=at - timedelta(days=3)),
        a_node(name="asleep1", power="asleep", flags="POWERED_DOWN"),
        a_node(name="asleep2", power="asleep", flags="POWERED_DOWN", rack="r1"),
        a_node(name="falling", power="falling asleep", flags="POWERING_DOWN"),
        a_node(name="waking", power="waking", flags="POWERING_UP"),
        a_node(name="only", features="nvme", gpu_type="h100", idle_since=at - timedelta(days=9)),
    ]


def _waiting() -> list[Row]:
    return [
        a_pending_job(job_id="1", reason="Resources", nodes=6.0, gpus=48),
        a_pending_job(job_id="2", reason="Priority", nodes=1.0),
        a_pending_job(job_id="3", reason="QOSMaxJobsPerUserLimit", nodes=500.0, gpus=4_000),
        a_pending_job(job_id="4", reason="Dependency", eligible_at=None),
        a_pending_job(job_id="5", reason="Resources", partition="gpu,nowhere", nodes=None),
    ]


def _many_nodes(count: int) -> Snapshot:
    number = np.arange(count)
    row = a_snapshot(nodes=[a_node(idle_since=NOON)]).nodes
    nodes = row.loc[row.index.repeat(count)].reset_index(drop=True)
    nodes = nodes.assign(
        name=pd.Series(number).map("n{:04}".format),
        state=pd.Series(np.where(number % 3 == 0, "ALLOCATED", "IDLE")),
        gpus_held=np.where(number % 3 == 0, 8.0, 0.0),
        cpus_held=np.where(number % 3 == 0, 64.0, 0.0),
        rack=pd.Series(number // 20).map("r{}".format),
        idle_since=row["idle_since"].iloc[0] - pd.to_timedelta(number * 7919 % 86_400, unit="s"),
    )
    nodes["idle_since"] = nodes["idle_since"].mask(nodes["state"] == "ALLOCATED")
    use = a_use({"gpu": count // 3}, nodes=count)
    snapshot = a_snapshot(power=power_settings(), use=use)
    return dataclasses.replace(snapshot, nodes=NODE_STATES.conform(nodes))


@contextmanager
def watch_calls() -> Iterator[list[str]]:
    """Collect calls to the clock, random numbers, files or the network.

    Each call is one sentence with its place in the source. Only calls made by Python code in this context are
    collected. :func:`find_clocks` finds clocks that compiled code reads by itself (``pd.Timestamp.now``).
    """
    calls: list[str] = []
    previous, random_states = sys.getprofile(), _random_states()

    def watch(frame: FrameType, event: str, called: Any) -> None:
        description = _describe_call(called) if event == "c_call" else ""
        if description:
            calls.append(f"{description}, at {frame.f_code.co_filename}:{frame.f_lineno}")

    with _without_garbage_collection():
        sys.setprofile(watch)
        try:
            yield calls
        finally:
            sys.setprofile(previous)
    if _random_states() != random_states:
        calls.append("numpy.random asks chance")


def find_clocks(service_class: type[Any]) -> list[str]:
    """Return the functions that name ``now``, ``utcnow`` or ``today``.

    These are functions of the class and of its module.
    """
    module = inspect.getmodule(service_class)
    functions_of_module = [function for _, function in inspect.getmembers(module, inspect.isfunction)]
    functions = [
        *inspect.getmembers(service_class, inspect.isfunction),
        *(
            (function.__name__, function)
            for function in functions_of_module
            if function.__module__ == service_class.__module__
        ),
    ]
    return sorted({name for name, function in functions if _uses_clock(function)})


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Disable the garbage collector in this context.

    Otherwise callbacks of the collector, as of a test framework that times it, would count as calls of the service.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _describe_call(called: Any) -> str:
    module, name = getattr(called, "__module__", None), getattr(called, "__qualname__", "")
    if (module == "time" and name in CLOCK_FUNCTIONS) or name in CLOCK_METHODS:
        return f"{name} asks the clock"
    if getattr(called, "__self__", None) is _RANDOM_GENERATOR or name == "urandom":
        return f"{name} asks chance"
    outside = OUTSIDE_MODULES.get(module or "", "")
    return f"{name} asks {outside}" if outside and name not in HARMLESS_FUNCTIONS else ""


def _random_states() -> tuple[int, ...]:
    state: Any = np.random.get_state(legacy=False)
    return (int(state["state"]["pos"]), *map(int, state["state"]["key"][:4]))


def _uses_clock(function: Callable[..., Any]) -> bool:
    return any(CLOCK_NAMES & set(code.co_names) for code in _codes(inspect.unwrap(function).__code__))


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
