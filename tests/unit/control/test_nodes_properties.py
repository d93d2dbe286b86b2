"""Whatever services propose, whatever happens to the nodes, wherever it crashes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from helios.actions import KeepAwake, PowerDown, PowerUp, RevertNodes
from helios.actions import NodeSetting as Lever
from helios.changes import LIST, Change, nodes_named
from helios.control import Undo
from helios.testing import Crash, FakeNodes, a_node
from tests.examples import examples
from tests.unit.control.nodes_table import ACTIVE, ASLEEP, FALLING, OFF, SHADOW, WAKING, NodeTable, Says, active, canary

FEW = settings(max_examples=examples(15), deadline=None)
BOUND = 3  # of the nodes on their way: 0.3 of twelve, rounded down
NAMES = tuple(f"n{place}" for place in range(1, 13))
names = st.sampled_from((*NAMES, "nobody"))
some = st.lists(names, max_size=6, unique=True).map(tuple)

restores = st.builds(
    RevertNodes,
    setting=st.sampled_from(list(Lever)),
    own=some.map(lambda nodes: tuple((node, "7") for node in nodes)),
    reason=st.just("so"),
)
actions = st.one_of(
    st.builds(PowerDown, node=names, reason=st.just("so")),
    st.builds(PowerUp, node=names, reason=st.just("so")),
    st.builds(KeepAwake, nodes=some, reason=st.just("so")),
    restores,
)
everybody_down = st.just([PowerDown(node=node, reason="so") for node in NAMES])
proposals = everybody_down | st.lists(actions, max_size=10)
modes = st.sampled_from([ACTIVE, ACTIVE, ACTIVE, SHADOW, OFF, canary("a"), canary(percent=50)])
events = st.sampled_from(
    [
        *(("submit", number) for number in (1, 3, 8)),
        ("submit to a", 2),
        *(("end", 0), ("drain", 3), ("resume", 3), ("take down", 4), ("reconfigure", 0), ("wakes fail", 5)),
        *(("admin sleeps", 6), ("admin wakes", 7), ("admin weighs", 8), ("admin lists", 0), ("ledger fails", 0)),
        *(("cluster fails", 0), ("swallow", 0), ("nothing", 0), ("nothing", 0)),
    ]
)
waits = st.sampled_from([timedelta(seconds=30), timedelta(minutes=2), timedelta(minutes=15)])
cycles = st.lists(st.tuples(events, proposals, modes, st.lists(actions, max_size=3), modes, waits), max_size=8)


def partition_of(name: str) -> str:
    return "a" if name in NAMES[:5] else "b"


def a_table(**power: Any) -> NodeTable:
    """Twelve nodes of two partitions behind a door that lets everything pass, one excluded, one drained, one busy."""
    nodes = [
        a_node(name=name, partitions=partition_of(name), weight=20.0 * (1 + place % 3), features="all")
        for place, name in enumerate(NAMES)
    ]
    cluster = FakeNodes(nodes=nodes, keep_awake="n12", lax=True, suspend_timeout_s=90.0)
    cluster.drain("n11")
    cluster.submit(partition="b")
    table = NodeTable(cluster=cluster)
    bounds = {"most_in_transition": 0.3, "idle_s": 60, "payback_s": 60, "failures_to_protect": 2, **power}
    table.settings = table.settings.model_copy(update={"power": table.settings.power.model_copy(update=bounds)})
    return table


def happens(table: NodeTable, event: tuple[str, int]) -> None:
    what, number = event
    cluster, name = table.cluster, NAMES[number]
    activity: dict[str, Callable[[], object]] = {
        "submit": lambda: cluster.submit(nodes=number, partition="a,b"),
        "submit to a": lambda: cluster.submit(nodes=number, partition="a"),
        "end": lambda: cluster.end(next(iter(cluster._jobs))) if cluster._jobs else None,
        "drain": lambda: cluster.drain(name),
        "resume": lambda: cluster.resume(name),
        "take down": lambda: cluster.take_down(name),
        "reconfigure": cluster.reconfigure,
        "wakes fail": lambda: cluster.fail_wakes(name, "n1", "n2"),
        "admin sleeps": lambda: cluster.admin_powers_down(name),
        "admin wakes": lambda: cluster.admin_powers_up(name),
        "admin weighs": lambda: cluster.admin_sets_weight(name, 33),
        "admin lists": lambda: cluster.admin_sets_keep_awake("n[11-12]"),
        "ledger fails": lambda: table.ledger.fail_next(after=2),
        "cluster fails": cluster.fail_next,
        "swallow": cluster.swallow_writes,
        "nothing": lambda: None,
    }
    activity[what]()


def take_cycles(table: NodeTable, story: list[Any]) -> None:
    for event, first, mode, second, other_mode, wait in story:
        happens(table, event)
        table.cycle(
            active(Says(*first), name="ces", mode=mode),
            active(Says(*second), name="node_fill_order", mode=other_mode),
            after=wait,
        )


def nothing_of_helios_is_left(table: NodeTable) -> bool:
    return table.undo == Undo() and table.ledger.applied_changes().empty


@FEW
@given(story=cycles)
def test_no_busy_excluded_or_drained_node_is_ever_powered_down(story: list[Any]) -> None:
    table = a_table()
    take_cycles(table, story)
    for seen in table.cluster.power_downs:
        assert not seen.busy
        assert not seen.drained
        assert not seen.kept_awake
        assert seen.on_their_way < BOUND


@FEW
@given(story=cycles)
def test_no_cycle_starts_more_than_may_be_on_their_way(story: list[Any]) -> None:
    table = a_table()
    for event, first, mode, second, other_mode, wait in story:
        happens(table, event)
        table.cluster.tick(wait - timedelta(seconds=1))
        before = sum(len(table.cluster.in_state(power)) for power in (FALLING, WAKING))
        report = table.cycle(
            active(Says(*first), name="ces", mode=mode),
            active(Says(*second), name="node_fill_order", mode=other_mode),
            after=timedelta(0),
        )
        ahead = {action.node for action in (*first, *second) if isinstance(action, PowerUp)}
        room = max(0, BOUND - before)
        assert len(report.slept) + len(set(report.woken) - ahead) <= room
        # A wake ahead of need may go beyond, and then leaves no room for a sleep.
        assert not report.slept or len(report.slept) + len(report.woken) <= room


def nodes_in(change: Change[str]) -> set[str]:
    """Return the nodes that a change names."""
    if change.key == LIST:
        return set() if change.is_revert else set(nodes_named(change.value))
    return {change.target}


@FEW
@given(story=cycles, mechanism=st.sampled_from(["sleep", "keep_awake"]))
def test_no_node_outside_scope_and_record_is_ever_written(story: list[Any], mechanism: str) -> None:
    table = a_table(mechanism=mechanism)
    changed: set[str] = set()
    for step in story:
        table.cluster.steered.clear()
        take_cycles(table, [step])
        writers = [mode for mode in (step[2], step[4]) if mode.writes]
        may = {name for name in NAMES for mode in writers if mode.reaches(name, partitions=[partition_of(name)])}
        for change in (change for changes in table.cluster.steered for change in changes):
            if change.is_revert:
                assert nodes_in(change) <= changed
            else:
                assert nodes_in(change) <= may
                changed |= nodes_in(change)


@FEW
@given(story=cycles)
def test_a_pool_always_has_a_node_awake_or_down(story: list[Any]) -> None:
    table = a_table(most_asleep=1.0)
    take_cycles(table, story)
    for seen in table.cluster.power_downs:
        pool = set(NAMES[:5]) if seen.node in NAMES[:5] else set(NAMES[5:])
        assert seen.node in pool
    table.ledger.fail_next(times=0)  # the test's own reading is no part of the story
    ours = set(table.applied())
    for pool in (set(NAMES[:5]), set(NAMES[5:])):
        assert not pool <= ours


@FEW
@given(story=cycles, mechanism=st.sampled_from(["sleep", "keep_awake"]), how=st.sampled_from(["release", "pause"]))
def test_a_release_always_converges_to_nothing_of_helios(story: list[Any], mechanism: str, how: str) -> None:
    table = a_table(mechanism=mechanism)
    take_cycles(table, story)
    table.cluster.fail_next(times=0)
    table.cluster.swallow_writes(times=0)
    table.ledger.fail_next(times=0)
    weights = {node: table.cluster.weight_of(node) for node in NAMES}
    asleep_of_others = set(table.cluster.in_state(ASLEEP)) - set(table.applied()) - set(table.undo.asleep)
    own = dict(table.undo.weights)
    take_everything_back(table, how)
    assert nothing_of_helios_is_left(table)
    for node in NAMES:
        assert table.cluster.weight_of(node) in {own.get(node, weights[node]), weights[node]}
        if node not in own:
            assert table.cluster.weight_of(node) == weights[node]
    assert table.cluster.keep_awake in {"n12", "n[11-12]"}
    assert asleep_of_others <= set(table.cluster.in_state(ASLEEP))


def take_everything_back(table: NodeTable, how: str) -> None:
    """Ask until nothing is left but nodes that an admin has drained or set down; then again, when they are back."""
    if how == "pause":
        table.pause()
    ask_until_clean(table, how)
    left = {*table.undo.asleep, *table.applied()}
    assert left <= {name for name in NAMES if in_hand(table, name)}
    for name in left:
        table.cluster.resume(name)
    if left:
        ask_until_clean(table, how)


def ask_until_clean(table: NodeTable, how: str) -> None:
    for _ in range(4):
        report = table.cycle(after=timedelta(minutes=3)) if how == "pause" else table.release()
        if how == "release":
            table.cluster.tick(timedelta(minutes=3))
        if report.clean:
            return
    raise AssertionError(f"something remains: {report.remaining}")


def in_hand(table: NodeTable, name: str) -> bool:
    node = table.cluster._nodes[name]
    return bool(node.drained or node.down)


@FEW
@given(
    story=cycles,
    dies_writing=st.integers(0, 12),
    how=st.sampled_from(["release", "pause"]),
    lost=st.sampled_from(["nothing", "database", "undo file", "memory"]),
)
def test_after_a_crash_anywhere_everything_can_be_taken_back(
    story: list[Any], dies_writing: int, how: str, lost: str
) -> None:
    table = a_table()
    table.cluster.crash_after(writes=dies_writing)
    with suppress(Crash):
        take_cycles(table, story)
    table.cluster.crash_after(writes=None)
    table.cluster.fail_next(times=0)
    table.cluster.swallow_writes(times=0)
    table.ledger.fail_next(times=0)
    if lost == "database":
        table.ledger = type(table.ledger)(domain=table.ledger.domain)
    elif lost == "undo file":
        table.undo = Undo()
    elif lost == "memory":
        table.memory = type(table.memory)()
    slept = {seen.node for seen in table.cluster.power_downs}
    theirs = {name for name in NAMES if table.cluster.power_of(name) in {ASLEEP, FALLING}} - slept
    take_everything_back(table, how)
    assert nothing_of_helios_is_left(table)
    asleep = {name for name in NAMES if table.cluster.power_of(name) in {ASLEEP, FALLING}}
    assert asleep - theirs <= {NAMES[6]}  # which an admin may have put to sleep again after Helios had
