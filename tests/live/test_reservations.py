"""Reservations of a real Slurm."""

from __future__ import annotations

from datetime import timedelta

from helios.slurm.connect import live_site
from helios.slurm.reservations import read_reservations
from helios.slurm.shell import Shell
from tests.live.rig import Rig


def test_reservations_are_read_as_they_were_made(rig: Rig) -> None:
    shell = Shell(environment=rig.environment)
    assert read_reservations(shell).empty
    options = ("starttime=now+1hour", "duration=120", "nodes=n[1-2]", "users=alice,bob", "flags=maint")
    rig.run("scontrol", "create", "reservation", "reservation=upgrade", *options)
    try:
        (found,) = read_reservations(shell).to_dict("records")
    finally:
        rig.run("scontrol", "delete", "reservation=upgrade")
    assert (found["name"], found["state"], found["nodes"], found["node_list"]) == ("upgrade", "INACTIVE", 2, "n[1-2]")
    assert found["ends_at"] - found["begins_at"] == timedelta(hours=2)
    assert set(found["users"].split(",")) == {"alice", "bob"}
    assert "MAINT" in found["flags"]
    assert read_reservations(shell).empty


def test_qos_of_the_accounting_are_among_the_rules(rig: Rig) -> None:
    assert "normal" in {qos.name for qos in live_site(Shell(environment=rig.environment)).qos}
