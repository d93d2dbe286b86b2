"""Which way into Slurm is taken, and what the cluster that is opened through it is told."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from helios.config import SlurmSettings
from helios.errors import ClusterUnavailable, ConfigurationInvalid
from helios.slurm import connect
from helios.slurm.commands import CommandsBackend
from tests.unit.slurm.test_commands import Program, program, show_config

__all__ = ["program"]  # a fixture

NOW = datetime(2026, 11, 21, 10, tzinfo=UTC)
SETTINGS: dict[str, Any] = {"site_factor_most": 1234, "writes_per_cycle": 7, "timeout_s": 9.0}


@pytest.fixture
def slurm(program: Program) -> Path:
    return program("scontrol", show_config("ClusterName             = lab"))


def settings(folder: Path, **changed: Any) -> SlurmSettings:
    return SlurmSettings(
        **(SETTINGS | {"backend": "commands", "commands": str(folder), "python": "/no/python"} | changed)
    )


def environment() -> dict[str, str]:
    return {"PATH": os.defpath}


@pytest.mark.parametrize("door", ["SlurmCluster", "SlurmNodes"])
def test_an_opened_cluster_has_its_name_and_the_configured_bounds(
    slurm: Path, monkeypatch: pytest.MonkeyPatch, door: str
) -> None:
    told: dict[str, Any] = {}
    monkeypatch.setattr(
        connect, door, lambda backend, *operations, **words: told.update(words, backend=backend, operations=operations)
    )
    if door == "SlurmCluster":
        connect.open_cluster(settings(slurm), environment=environment(), clock=lambda: NOW)
        assert told["sprio"].shell.folder == str(slurm)
    else:
        connect.open_nodes(settings(slurm), racks="r1=n[1-2]", environment=environment(), clock=lambda: NOW)
        (operations,) = told["operations"]
        assert (dict(operations.racks), operations.shell.folder) == ({"n1": "r1", "n2": "r1"}, str(slurm))
    assert (told["name"], told["site_factor_most"], told["writes_per_cycle"]) == ("lab", 1234, 7)
    assert told["clock"]() == NOW
    assert len(told["notes"]) == 1
    assert told["backend"].shell.timeout_s == 9.0
    assert told["backend"].shell.environment == environment()


def test_racks_that_make_no_sense_are_refused_before_anything_is_asked(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationInvalid, match="racks"):
        connect.open_nodes(settings(tmp_path), racks="r1")


def test_without_pyslurm_commands_are_used_and_a_note_says_why(slurm: Path) -> None:
    way = connect.connect(settings(slurm, backend="auto"), environment=environment())
    assert isinstance(way.backend, CommandsBackend)
    assert way.shell is way.backend.shell
    assert "/no/python" in way.notes[0]


def test_a_way_that_was_asked_for_is_not_replaced_by_another(slurm: Path) -> None:
    with pytest.raises(ClusterUnavailable, match="/no/python"):
        connect.connect(settings(slurm, backend="pyslurm"), environment=environment())
    commands = connect.connect(settings(slurm), environment=environment())
    assert "/no/python" not in commands.notes[0]
    assert "commands" in commands.notes[0]


def test_pyslurm_is_given_the_time_and_the_surroundings_of_the_settings(
    slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[str, Any] = {}

    def backend(**words: Any) -> None:
        told.update(words)
        raise ClusterUnavailable("not here")

    monkeypatch.setattr("helios.slurm.pyslurm_backend.PyslurmBackend", backend)
    with pytest.raises(ClusterUnavailable):
        connect.connect(settings(slurm, backend="pyslurm"), environment=environment())
    assert told == {"python": "/no/python", "timeout_s": 9.0, "environment": environment()}
