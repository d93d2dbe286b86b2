"""A canary on a partition that is none would act on nothing, and nobody would know why."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from helios.app.modes import current_modes, set_mode
from helios.cli.main import application
from helios.model import Mode
from tests.unit.slurm.test_commands import Program, program, show_config

__all__ = ["program"]

SCONTROL = f"""case "$*" in
*config) {show_config("ClusterName = dev")};;
*partition) echo "PartitionName=gpu Nodes=n1"; echo "PartitionName=debug Nodes=PartitionName=trap";;
esac"""


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HELIOS_DATABASE_URL", f"sqlite:///{tmp_path / 'helios.db'}")
    monkeypatch.setenv("HELIOS_SLURM_COMMANDS", str(tmp_path))
    return f"sqlite:///{tmp_path / 'helios.db'}"


def canary(*partitions: str, cluster: str = "dev") -> Result:
    scope = [word for name in partitions for word in ("-r", name)]
    return CliRunner().invoke(application, ["mode", "qssf", "canary", *scope, "--cluster", cluster])


def acts_on(url: str, cluster: str = "dev") -> tuple[str, ...]:
    return current_modes(url, cluster, ["qssf"])["qssf"].partitions


def test_a_partition_that_is_there_is_taken(url: str, program: Program) -> None:
    program("scontrol", SCONTROL)
    assert "note" not in canary("gpu", "debug").output
    assert acts_on(url) == ("gpu", "debug")


def test_a_partition_that_is_not_there_is_refused_with_those_there_are(url: str, program: Program) -> None:
    program("scontrol", SCONTROL)
    refused = canary("gpu", "trap")
    assert str(refused.exception) == "Cluster dev has no partition 'trap'.\nThere are: gpu, debug"
    assert current_modes(url, "dev", ["qssf"])["qssf"].mode is Mode.SHADOW


@pytest.mark.parametrize("cluster", ["dev", "venus"])
def test_where_the_cluster_cannot_be_asked_that_is_said(url: str, program: Program, cluster: str) -> None:
    program("scontrol", "exit 1" if cluster == "dev" else SCONTROL)
    said = " ".join(canary("nosuch", cluster=cluster).output.split())
    assert "note: Whether there is a partition 'nosuch' was not checked" in said
    assert acts_on(url, cluster) == ("nosuch",)


def test_a_canary_by_percent_alone_asks_nobody(url: str, program: Program) -> None:
    program("scontrol", "exit 1")
    said = CliRunner().invoke(application, ["mode", "qssf", "canary", "--percent", "10", "--cluster", "dev"])
    assert said.exit_code == 0 and "note" not in said.output


def test_who_activates_a_service_is_told_that_new_jobs_get_no_place(url: str, program: Program) -> None:
    program("scontrol", SCONTROL)
    said = " ".join(canary("gpu").output.split())
    assert "warning: no table is published (hook.publish is false). Set publish = true" in said
    shadow = CliRunner().invoke(application, ["mode", "qssf", "shadow", "--cluster", "dev"])
    assert "warning" not in shadow.output


def test_services_are_listed_with_modes_and_a_broken_one(url: str, tmp_path: Path) -> None:
    (tmp_path / "helios.toml").write_text("[services.qssf]\n[services.absent]\n")
    set_mode(url, "dev", "qssf", Mode.SHADOW, by="ann", reason="", now=datetime(2026, 11, 20, tzinfo=UTC))
    found = json.loads(CliRunner().invoke(application, ["mode", "--cluster", "dev", "--json"]).stdout)
    assert (found["qssf"]["mode"], found["qssf"]["configured"]) == ("shadow", True)
    assert (found["ces"]["mode"], found["ces"]["configured"]) == (None, False)
    assert found["absent"]["broken"] and found["packing"]["domain"] == "pools"
