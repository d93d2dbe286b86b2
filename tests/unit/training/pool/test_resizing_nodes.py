"""Trials of changing size on several nodes, which here are agents on one machine."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from helios.training.model import Device, PoolAction, PoolSnapshot, StartTrial, TrialState
from helios.training.pool.devices import Node
from helios.training.pool.slots import fixed_slots
from tests.unit.training.pool.test_coordinator import Watched, pool_processes, run
from tests.unit.training.pool.test_resizing import (
    ELASTIC,
    FOUR,
    Resizes,
    elastic_sweep,
    go_on,
    of_kind,
    run_until,
    seen,
)

HERE = FOUR[:2]
THERE = tuple(replace(device, name=f"n2/{device.name}") for device in HERE)
BOTH = (*(device.name for device in HERE), *(device.name for device in THERE))


def another(devices: tuple[Device, ...] = THERE) -> Node:
    """A node whose agent runs on this machine."""
    environment = {device.name: {"HELIOS_DEVICE": device.name, "OMP_NUM_THREADS": "3"} for device in devices}
    gpus = dict.fromkeys(environment)
    return Node(name="n2", step=(), devices=devices, gpus=gpus, environment=environment, host="n2.cluster")


def test_each_node_of_a_trial_has_a_process_that_knows_the_first(tmp_path: Path) -> None:
    elastic = replace(ELASTIC, least=4)
    watched = Watched(go_on(tmp_path, "memory"))

    def decide(snapshot: PoolSnapshot) -> Iterable[PoolAction]:
        if (tmp_path / "seen").exists() and len(seen(tmp_path)) == 2:
            (tmp_path / "go").touch()
        return fixed_slots(snapshot)

    _, trials = run(
        elastic_sweep(tmp_path, elastic=elastic), devices=HERE, nodes=[another()], decide=decide, watched=watched
    )
    assert (trials[0].state, trials[0].devices, trials[0].attempts) == (TrialState.FINISHED, BOTH, 1)
    first, second = sorted((line["given"] for line in seen(tmp_path)), key=lambda given: given["node"])
    assert (first["nodes"], second["node"], len(second["devices"]), second["threads"]) == (2, 1, 2, 3)
    assert first["address"] == second["address"]
    assert int(first["address"].rpartition(":")[2]) > 0
    assert (tmp_path / "pool/trials/00000/log-1.txt").exists()


def test_more_nodes_are_a_start_from_the_checkpoint(tmp_path: Path) -> None:
    events, trials = run_until(tmp_path, Resizes(BOTH), "resized", devices=HERE, nodes=[another()])
    (resized,) = of_kind(events, "resized")
    assert (resized["devices"], resized["in_place"]) == ([*BOTH], False)
    assert (trials[0].attempts, trials[0].changes, trials[0].state) == (2, 1, TrialState.FINISHED)
    assert {line["device"] for line in seen(tmp_path) if line["step"]} == {"cpu:0,cpu:1", "n2/cpu:0,n2/cpu:1"}


def test_over_several_nodes_each_change_is_a_start_from_the_checkpoint(tmp_path: Path) -> None:
    events, trials = run_until(tmp_path, Resizes(BOTH, BOTH[:3]), "resized", count=2, devices=HERE, nodes=[another()])
    assert [event["in_place"] for event in of_kind(events, "resized")] == [False, False]
    assert trials[0].attempts == 3


def test_a_trial_of_two_nodes_shrinks_to_one(tmp_path: Path) -> None:
    decide = Resizes(BOTH, ("cpu:0",))
    events, trials = run_until(tmp_path, decide, "resized", count=2, devices=HERE, nodes=[another()])
    assert [event["devices"] for event in of_kind(events, "resized")] == [[*BOTH], ["cpu:0"]]
    assert trials[0].state is TrialState.FINISHED


def test_a_trial_goes_on_smaller_where_a_node_is_lost(tmp_path: Path) -> None:
    def decide(snapshot: PoolSnapshot) -> Iterable[PoolAction]:
        for trial in snapshot.trials:
            if trial.state in {TrialState.WAITING, TrialState.PAUSED}:
                names = tuple(device.name for device in snapshot.devices)
                if names == ("cpu:0", "cpu:1"):
                    (tmp_path / "go").touch()
                yield StartTrial(number=trial.number, devices=names, memory_limit_mib=None, reason="all")

    watched = Watched()
    sweep = elastic_sweep(tmp_path, "kills")
    end, trials = run(sweep, devices=HERE, nodes=[another()], decide=decide, watched=watched)
    assert [len(event["devices"]) for event in of_kind(watched.events, "started")] == [4, 4, 2]
    assert (trials[0].state, trials[0].failures) == (TrialState.FINISHED, 0)
    assert any("n2 is left out" in note for note in end.notes)
    assert pool_processes(tmp_path / "pool") == []


def test_a_process_that_fails_ends_those_of_other_nodes(tmp_path: Path) -> None:
    sweep = elastic_sweep(tmp_path, elastic=replace(ELASTIC, least=4), attempts=1)
    (tmp_path / "pool/trials/00000").mkdir(parents=True)
    (tmp_path / "pool/trials/00000/log-1.txt").mkdir()  # the second cannot write its log
    _, trials = run(sweep, devices=HERE, nodes=[another()])
    assert trials[0].state is TrialState.FAILED
    assert os.strerror(21) in trials[0].reason
    assert pool_processes(tmp_path / "pool") == []
