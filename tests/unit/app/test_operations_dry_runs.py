"""Commands that say that they change nothing leave every table of the database as it was."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from helios.app import clusters
from helios.app.operations import Operations
from helios.cli.main import application
from helios.testing import FakeCluster
from helios.warehouse import Warehouse
from tests.builders import a_batch, a_job
from tests.unit.app.node_sites import FakeNodeSite
from tests.unit.app.sites import put_empty_database

OF_THE_CLUSTER = [
    "cycle",
    "cycle --as active",
    "cycle nodes",
    "cycle nodes --as active",
    "power",
    "power --json",
    "status",
    "why JOB",
    "why n1",
]
"""What they show comes from the cluster, so that they work with any database."""
COMMANDS = [
    *OF_THE_CLUSTER,
    "doctor",
    "mode",
    *(f"report {name}" for name in ("queue", "predictions", "decisions", "decisions --by service", "energy", "shadow")),
]


@pytest.mark.parametrize("loaded", [True, False], ids=["another cluster", "fresh"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_only_shows_leaves_every_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, loaded: bool
) -> None:
    (tmp_path / "fake_site").mkdir()
    fake_site, file = FakeNodeSite(tmp_path / "fake_site"), tmp_path / "helios.db"
    url = put_empty_database(file)
    if loaded:
        with Warehouse.open(url) as warehouse:
            warehouse.load([a_batch(a_job())], cluster="venus", path="a", sha256="1", format="sacct", timezone="UTC")
    (tmp_path / "helios.toml").write_text(
        f'database.url = "{url}"\ncontrol.state_folder = "{tmp_path / "state"}"\n[services.qssf]\n[services.ces]\n'
    )
    monkeypatch.setattr(clusters, "has_slurm", lambda _: True)
    monkeypatch.setenv("HELIOS_CONFIG", str(tmp_path / "helios.toml"))
    jobs = FakeCluster(name="dev")
    job = jobs.submit()
    here = {
        "open_cluster": lambda _: replace(fake_site.live_cluster(), cluster=jobs),
        "clock": lambda: fake_site.nodes.now,
    }
    monkeypatch.setattr(Operations.__init__, "__kwdefaults__", Operations.__init__.__kwdefaults__ | here)
    before = dump(file)
    result = CliRunner().invoke(application, command.replace("JOB", job).split())
    assert result.exit_code == 0 or command not in OF_THE_CLUSTER, result.output
    assert dump(file) == before, result.output


def dump(file: Path) -> list[str]:
    """Return all tables of a database as SQL."""
    connection = sqlite3.connect(file)
    try:
        return list(connection.iterdump())
    finally:
        connection.close()
