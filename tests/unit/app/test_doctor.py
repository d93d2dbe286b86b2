"""What the doctor says of Helios' own state, whatever the cluster says."""

from __future__ import annotations

import json
import os
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from helios.app import doctor
from helios.app.controllers import NODES_MEMORY
from helios.app.live_cluster import BACK_END, preflight
from helios.app.modes import pause, set_mode
from helios.app.status import HEALTH_FILE
from helios.cli.main import application
from helios.config import Settings
from helios.control import NodeControllerState, ServiceMode
from helios.control.state import Failure
from helios.errors import HookTableInvalid
from helios.model import Mode
from helios.slurm.hook_table import TABLE, HookRow, publish, read_table, render
from helios.slurm.preflight import HOOK, FindingLevel, PreflightFinding
from tests.unit.app.sites import FakeSite
from tests.unit.slurm.test_commands import Program, program, show_config

__all__ = ["program"]  # a fixture


@pytest.fixture
def fake_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSite:
    silent = PreflightFinding(check="controller", verdict=FindingLevel.FAIL, message="slurmctld is away")
    monkeypatch.setattr(doctor, "preflight", lambda _: [silent])
    fake_site = FakeSite(tmp_path)
    fake_site.learn()
    return fake_site


def finding(fake_site: FakeSite, check: str, **sections: dict[str, object]) -> PreflightFinding:
    settings = fake_site.another(**sections).settings
    found = doctor.diagnose(settings, cluster=None, now=fake_site.cluster.now)
    return next(it for it in found if it.check == check)


def daemon_says(
    fake_site: FakeSite, *, state: str, ago_s: float = 5, suspended: tuple[str, ...] = (), note: str = ""
) -> None:
    told = {
        "written_at": (fake_site.cluster.now - timedelta(seconds=ago_s)).isoformat(),
        "state": state,
        "reasons": [],
        "note": note,
        "cycle": {"suspended": list(suspended)},
    }
    (fake_site.folder / "state").mkdir(exist_ok=True)
    (fake_site.folder / "state" / HEALTH_FILE).write_text(json.dumps(told))


def test_with_the_controller_away_the_doctor_tells_what_the_warehouse_knows(fake_site: FakeSite) -> None:
    pause(fake_site.url, "dev", fake_site.folder / "elsewhere", by="root", reason="enough", now=fake_site.cluster.now)
    assert "enough" in finding(fake_site, "pause").message
    assert "80 jobs" in finding(fake_site, "history").message


def test_no_daemon_is_a_warning(fake_site: FakeSite) -> None:
    assert finding(fake_site, "daemon").verdict is FindingLevel.WARN


def test_a_working_daemon_is_well_and_a_silent_one_is_not(fake_site: FakeSite) -> None:
    daemon_says(fake_site, state="at work")
    assert finding(fake_site, "daemon").verdict is FindingLevel.OK
    daemon_says(fake_site, state="at work", ago_s=1000)
    assert "silent for 1000 s" in finding(fake_site, "daemon").message


def test_why_a_daemon_is_suspended_is_told(fake_site: FakeSite) -> None:
    daemon_says(fake_site, state="suspended", suspended=("the breaker is open",))
    said = finding(fake_site, "daemon")
    assert (said.verdict, said.message) == (FindingLevel.WARN, "suspended; the breaker is open")


def test_what_the_daemon_notes_though_it_is_well_is_told(fake_site: FakeSite) -> None:
    daemon_says(fake_site, state="at work", note="another process listens on 127.0.0.1:9842")
    assert finding(fake_site, "daemon").message == "at work; another process listens on 127.0.0.1:9842"


def test_files_that_other_accounts_can_read_are_named_with_what_closes_them(fake_site: FakeSite) -> None:
    fake_site.folder.chmod(0o755)
    fake_site.cycles.cycle(modes={"qssf": ServiceMode(mode=Mode.SHADOW)})
    reports, state = fake_site.folder / "reports", fake_site.folder / "state"
    reports.mkdir(mode=0o750)
    (reports / "dev-2026-11-20.html").touch()  # behind a door that is shut
    of_reports = {"report": {"folder": str(reports)}}
    assert finding(fake_site, "permissions", **of_reports).verdict is FindingLevel.OK
    (state / "health.json").touch()
    for path in (state, state / "health.json"):
        path.chmod(0o755)
    said = finding(fake_site, "permissions", **of_reports)
    assert said.verdict is FindingLevel.WARN
    assert said.hint == f"chmod g-w,o-rwx {state} {state / 'health.json'}"


def test_a_lease_is_told_by_what_is_left_of_it(fake_site: FakeSite) -> None:
    fake_site.cycles.cycle(modes={"qssf": ServiceMode(mode=Mode.SHADOW)})
    assert finding(fake_site, "lease").message == "this Helios holds the lease for another 180 s"


def test_a_lease_that_runs_out_between_cycles_is_a_warning(fake_site: FakeSite) -> None:
    assert "standby" in finding(fake_site, "rhythm", control={"lease_s": 60}, daemon={"cycle_s": 60}).message
    with pytest.raises(StopIteration):
        finding(fake_site, "rhythm")


def test_a_warehouse_that_cannot_be_written_is_no_warehouse(fake_site: FakeSite) -> None:
    read_only = f"sqlite:///file:{fake_site.folder / 'helios.db'}?mode=ro&uri=true"
    assert finding(fake_site, "warehouse").verdict is FindingLevel.OK
    said = finding(fake_site, "warehouse", database={"url": read_only})
    assert said.verdict is FindingLevel.FAIL and "readonly" in said.message


def test_kept_sums_that_differ_from_the_jobs_are_found_and_made_anew(fake_site: FakeSite) -> None:
    assert finding(fake_site, "sums").verdict is FindingLevel.OK
    with sqlite3.connect(fake_site.folder / "helios.db") as database:
        database.execute("UPDATE job_sums SET submitted = submitted + 1")
    said = finding(fake_site, "sums")
    assert (said.verdict, said.hint) == (FindingLevel.FAIL, "Make them anew: helios db upgrade --sums")
    done = CliRunner().invoke(application, said.hint.split()[-3:], env={"HELIOS_DATABASE_URL": fake_site.url})
    assert done.exit_code == 0, done.output
    assert finding(fake_site, "sums").verdict is FindingLevel.OK


def test_nodes_that_failed_to_wake_are_named(fake_site: FakeSite) -> None:
    sleeper: dict[str, object] = {"ces": {}}
    assert finding(fake_site, "nodes", services=sleeper).message == "none is quarantined"
    failed = Failure(node="gpu7", at=fake_site.cluster.now, what="no answer in 600 s")
    memory = NodeControllerState(quarantined={"gpu7": failed})
    with fake_site.warehouse() as warehouse:
        warehouse.remember("dev", NODES_MEMORY, memory.to_json(), at=fake_site.cluster.now)
    said = finding(fake_site, "nodes", services=sleeper)
    assert said.verdict is FindingLevel.WARN and "gpu7" in said.message


def test_without_a_model_the_doctor_says_how_to_train_one(fake_site: FakeSite) -> None:
    said = finding(fake_site, "model")
    assert said.verdict is FindingLevel.WARN
    assert "There is no model for cluster 'dev'." in said.message and "shrinkage" in said.message
    assert "helios model train" in said.hint


def test_a_model_that_can_be_read_is_well(fake_site: FakeSite) -> None:
    fake_site.put_promoted()
    assert finding(fake_site, "model").verdict is FindingLevel.OK


def test_an_unreadable_model_is_named_with_the_way_to_another(fake_site: FakeSite) -> None:
    record = fake_site.put_promoted(damaged=True)
    said = finding(fake_site, "model")
    assert said.verdict is FindingLevel.FAIL
    assert f"Model {record.model_id} cannot be read" in said.message
    assert "helios model train --promote" in said.hint and "nothing is written" in said.hint


WITHOUT_LUA = PreflightFinding(
    check=HOOK, verdict=FindingLevel.WARN, message="JobSubmitPlugins is (null)", hint="Install it."
)


def orders(fake_site: FakeSite, mode: Mode = Mode.ACTIVE, **scope: Any) -> None:
    set_mode(fake_site.url, "dev", "qssf", mode, by="root", reason="", now=fake_site.cluster.now, **scope)


def publishes(fake_site: FakeSite, *rows: HookRow, ago: timedelta = timedelta(0)) -> None:
    text = render(rows, generation=1, now=fake_site.cluster.now - ago, lasts=timedelta(hours=2))
    publish(fake_site.folder / "state" / TABLE, text)


ROW = HookRow(user="alice", partition="gpu", site_factor=4037)


@pytest.mark.parametrize(
    ("mode", "scope", "verdict"),
    [
        (Mode.SHADOW, {}, FindingLevel.OK),
        (Mode.CANARY, {"percent": 10}, FindingLevel.OK),
        (Mode.CANARY, {"partitions": ("gpu",)}, FindingLevel.FAIL),
        (Mode.ACTIVE, {}, FindingLevel.FAIL),
    ],
)
def test_a_service_that_orders_jobs_needs_a_published_table(
    fake_site: FakeSite, mode: Mode, scope: dict[str, Any], verdict: FindingLevel
) -> None:
    orders(fake_site, mode, **scope)
    said = finding(fake_site, "hook")
    assert said.verdict is verdict
    assert ("publish = true" in said.hint) == (verdict is FindingLevel.FAIL)


def test_a_missing_empty_or_old_table_fails_where_a_service_acts(fake_site: FakeSite) -> None:
    asked = {"hook": {"publish": True}}
    assert finding(fake_site, "hook", **asked).verdict is FindingLevel.WARN
    orders(fake_site)
    assert finding(fake_site, "hook", **asked).verdict is FindingLevel.FAIL
    publishes(fake_site)
    assert "0 rows" in (said := finding(fake_site, "hook", **asked)).message and said.verdict is FindingLevel.FAIL
    publishes(fake_site, ROW, ago=timedelta(hours=3))
    assert finding(fake_site, "hook", **asked).verdict is FindingLevel.FAIL
    publishes(fake_site, ROW)
    assert finding(fake_site, "hook", **asked).verdict is FindingLevel.OK


@pytest.mark.parametrize("put", ["hook/table", "hook/PAUSED", "PAUSED"])
def test_a_pipe_in_place_of_the_table_fails_without_a_wait(fake_site: FakeSite, put: str) -> None:
    publishes(fake_site, ROW)
    path = fake_site.folder / "state" / put
    path.unlink(missing_ok=True)
    os.mkfifo(path, 0o600)
    said = finding(fake_site, "hook", hook={"publish": True})
    assert (said.verdict, str(path) in said.message) == (FindingLevel.FAIL, True)
    assert "remove it" in said.hint


def test_a_link_in_place_of_the_hooks_table_fails(fake_site: FakeSite) -> None:
    publishes(fake_site, ROW)
    table = fake_site.folder / "state" / TABLE
    table.rename(table.with_name("elsewhere"))
    table.symlink_to("elsewhere")
    assert "no plain file" in finding(fake_site, "hook", hook={"publish": True}).message


@pytest.mark.parametrize(("place", "mode"), [("hook/table", 0o664), ("hook", 0o770), (".", 0o777)])
def test_a_table_that_other_accounts_can_replace_fails(fake_site: FakeSite, place: str, mode: int) -> None:
    publishes(fake_site, ROW)
    (fake_site.folder / "state" / place).chmod(mode)
    said = finding(fake_site, "hook", hook={"publish": True})
    assert said.verdict is FindingLevel.FAIL and "other than Helios' own" in said.message


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file away")
def test_a_table_of_another_account_fails(fake_site: FakeSite) -> None:
    publishes(fake_site, ROW)
    os.chown(fake_site.folder / "state" / TABLE, 65_534, 65_534)
    assert "other than Helios' own" in finding(fake_site, "hook", hook={"publish": True}).message


def test_a_pipe_in_place_of_the_table_is_read_as_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "table")
    with pytest.raises(HookTableInvalid, match="no plain file"):
        read_table(tmp_path / "table", datetime.now(UTC))


def test_a_controller_that_asks_no_hook_fails_where_a_service_orders_jobs(
    fake_site: FakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "preflight", lambda _: [WITHOUT_LUA])
    assert finding(fake_site, HOOK).verdict is FindingLevel.WARN
    orders(fake_site)
    assert (said := finding(fake_site, HOOK)).verdict is FindingLevel.FAIL and said.hint == "Install it."


def test_while_helios_is_paused_no_hook_is_missing(fake_site: FakeSite) -> None:
    orders(fake_site)
    pause(fake_site.url, "dev", fake_site.folder / "state", by="root", reason="enough", now=fake_site.cluster.now)
    assert finding(fake_site, "hook").verdict is FindingLevel.OK


def test_who_lets_a_service_act_is_told_what_the_hook_lacks(
    fake_site: FakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "preflight", lambda _: [WITHOUT_LUA])
    assert doctor.hook_not_installed(fake_site.settings, "dev") == []
    orders(fake_site)
    lacking = [it.message for it in doctor.hook_not_installed(fake_site.settings, "dev")]
    assert lacking == [WITHOUT_LUA.message, "no table is published (hook.publish is false)"]


def test_the_doctor_names_the_back_end_and_why_it_was_chosen(program: Program) -> None:
    program("scontrol", show_config("ClusterName = dev"))
    folder = program("squeue", "echo 'slurm-wlm 22.05.8'")
    ways = {"commands": "as configured", "auto": "pyslurm cannot be used"}
    for backend, why in ways.items():
        settings = Settings.model_validate({"slurm": {"backend": backend, "commands": str(folder), "python": "/no"}})
        (said,) = (found for found in preflight(settings) if found.check == BACK_END)
        assert said.verdict is FindingLevel.OK
        assert "Slurm's commands" in said.message and why in said.message and "22.05.8" in said.message


def test_a_back_end_that_cannot_be_used_is_a_failed_check(program: Program) -> None:
    program("scontrol", show_config("ClusterName = dev"))
    folder = program("squeue", "echo 'slurm-wlm 22.05.8'")
    settings = Settings.model_validate({"slurm": {"backend": "pyslurm", "commands": str(folder), "python": "/no"}})
    (said,) = (found for found in preflight(settings) if found.check == BACK_END)
    assert said.verdict is FindingLevel.FAIL and "/no" in said.message and said.hint


def test_a_prometheus_that_is_away_is_said(fake_site: FakeSite) -> None:
    found = finding(fake_site, "prometheus", prometheus={"url": "http://127.0.0.1:1"})
    assert found.verdict is FindingLevel.WARN
    assert "does not answer" in found.message
