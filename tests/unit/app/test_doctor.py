"""What the doctor says of Helios' own state, whatever the cluster says."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from helios.app import doctor
from helios.app.live_cluster import BACK_END, preflight
from helios.app.modes import pause, set_mode
from helios.config import Settings
from helios.control import ServiceMode
from helios.errors import HookTableInvalid
from helios.model import Mode
from helios.slurm.hook_table import TABLE, HookRow, publish, read_table, render
from helios.slurm.preflight import HOOK, FindingLevel, PreflightFinding
from tests.unit.app.sites import Town
from tests.unit.slurm.test_commands import Program, program, show_config

__all__ = ["program"]  # a fixture


@pytest.fixture
def town(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Town:
    silent = PreflightFinding(check="controller", verdict=FindingLevel.FAIL, message="slurmctld is away")
    monkeypatch.setattr(doctor, "preflight", lambda _: [silent])
    town = Town(tmp_path)
    town.learn()
    return town


def finding(town: Town, check: str, **sections: dict[str, object]) -> PreflightFinding:
    settings = town.another(**sections).settings
    found = doctor.diagnose(settings, cluster=None, now=town.cluster.now)
    return next(it for it in found if it.check == check)


def daemon_says(town: Town, *, state: str, ago_s: float = 5, suspended: tuple[str, ...] = (), note: str = "") -> None:
    told = {
        "written_at": (town.cluster.now - timedelta(seconds=ago_s)).isoformat(),
        "state": state,
        "reasons": [],
        "note": note,
        "cycle": {"suspended": list(suspended)},
    }
    (town.folder / "state").mkdir(exist_ok=True)
    (town.folder / "state" / doctor.HEALTH_FILE).write_text(json.dumps(told))


def test_with_the_controller_away_the_doctor_tells_what_the_warehouse_knows(town: Town) -> None:
    pause(town.url, "dev", town.folder / "elsewhere", by="root", reason="enough", now=town.cluster.now)
    assert "enough" in finding(town, "pause").message
    assert "80 jobs" in finding(town, "history").message


def test_no_daemon_is_a_warning(town: Town) -> None:
    assert finding(town, "daemon").verdict is FindingLevel.WARN


def test_a_working_daemon_is_well_and_a_silent_one_is_not(town: Town) -> None:
    daemon_says(town, state="at work")
    assert finding(town, "daemon").verdict is FindingLevel.OK
    daemon_says(town, state="at work", ago_s=1000)
    assert "silent for 1000 s" in finding(town, "daemon").message


def test_why_a_daemon_is_suspended_is_told(town: Town) -> None:
    daemon_says(town, state="suspended", suspended=("the breaker is open",))
    said = finding(town, "daemon")
    assert (said.verdict, said.message) == (FindingLevel.WARN, "suspended; the breaker is open")


def test_what_the_daemon_notes_though_it_is_well_is_told(town: Town) -> None:
    daemon_says(town, state="at work", note="another process listens on 127.0.0.1:9842")
    assert finding(town, "daemon").message == "at work; another process listens on 127.0.0.1:9842"


def test_files_that_other_accounts_can_read_are_named_with_what_closes_them(town: Town) -> None:
    town.folder.chmod(0o755)
    town.cycles.cycle(modes={"qssf": ServiceMode(mode=Mode.SHADOW)})
    reports, state = town.folder / "reports", town.folder / "state"
    reports.mkdir(mode=0o750)
    (reports / "dev-2026-11-20.html").touch()  # behind a door that is shut
    of_reports = {"report": {"folder": str(reports)}}
    assert finding(town, "permissions", **of_reports).verdict is FindingLevel.OK
    (state / "health.json").touch()
    for path in (state, state / "health.json"):
        path.chmod(0o755)
    said = finding(town, "permissions", **of_reports)
    assert said.verdict is FindingLevel.WARN
    assert said.hint == f"chmod g-w,o-rwx {state} {state / 'health.json'}"


def test_a_lease_is_told_by_what_is_left_of_it(town: Town) -> None:
    town.cycles.cycle(modes={"qssf": ServiceMode(mode=Mode.SHADOW)})
    assert finding(town, "lease").message == "this Helios holds the lease for another 180 s"


def test_a_lease_that_runs_out_between_cycles_is_a_warning(town: Town) -> None:
    assert "standby" in finding(town, "rhythm", control={"lease_s": 60}, daemon={"cycle_s": 60}).message
    with pytest.raises(StopIteration):
        finding(town, "rhythm")


def test_a_warehouse_that_cannot_be_written_is_no_warehouse(town: Town) -> None:
    read_only = f"sqlite:///file:{town.folder / 'helios.db'}?mode=ro&uri=true"
    assert finding(town, "warehouse").verdict is FindingLevel.OK
    said = finding(town, "helios", database={"url": read_only})
    assert said.verdict is FindingLevel.FAIL and "readonly" in said.message


def test_without_a_model_the_doctor_says_how_to_train_one(town: Town) -> None:
    said = finding(town, "model")
    assert said.verdict is FindingLevel.WARN
    assert "There is no model for cluster 'dev'." in said.message and "shrinkage" in said.message
    assert "helios model train" in said.hint


def test_a_model_that_can_be_read_is_well(town: Town) -> None:
    town.put_promoted()
    assert finding(town, "model").verdict is FindingLevel.OK


def test_an_unreadable_model_is_named_with_the_way_to_another(town: Town) -> None:
    record = town.put_promoted(damaged=True)
    said = finding(town, "model")
    assert said.verdict is FindingLevel.FAIL
    assert f"Model {record.model_id} cannot be read" in said.message
    assert "helios model train --promote" in said.hint and "nothing is written" in said.hint


WITHOUT_LUA = PreflightFinding(
    check=HOOK, verdict=FindingLevel.WARN, message="JobSubmitPlugins is (null)", hint="Install it."
)


def orders(town: Town, mode: Mode = Mode.ACTIVE, **scope: Any) -> None:
    set_mode(town.url, "dev", "qssf", mode, by="root", reason="", now=town.cluster.now, **scope)


def publishes(town: Town, *rows: HookRow, ago: timedelta = timedelta(0)) -> None:
    text = render(rows, generation=1, now=town.cluster.now - ago, lasts=timedelta(hours=2))
    publish(town.folder / "state" / TABLE, text)


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
    town: Town, mode: Mode, scope: dict[str, Any], verdict: FindingLevel
) -> None:
    orders(town, mode, **scope)
    said = finding(town, "hook")
    assert said.verdict is verdict
    assert ("publish = true" in said.hint) == (verdict is FindingLevel.FAIL)


def test_a_missing_empty_or_old_table_fails_where_a_service_acts(town: Town) -> None:
    asked = {"hook": {"publish": True}}
    assert finding(town, "hook", **asked).verdict is FindingLevel.WARN
    orders(town)
    assert finding(town, "hook", **asked).verdict is FindingLevel.FAIL
    publishes(town)
    assert "0 rows" in (said := finding(town, "hook", **asked)).message and said.verdict is FindingLevel.FAIL
    publishes(town, ROW, ago=timedelta(hours=3))
    assert finding(town, "hook", **asked).verdict is FindingLevel.FAIL
    publishes(town, ROW)
    assert finding(town, "hook", **asked).verdict is FindingLevel.OK


@pytest.mark.parametrize("put", ["hook/table", "hook/PAUSED", "PAUSED"])
def test_a_pipe_in_place_of_the_table_fails_without_a_wait(town: Town, put: str) -> None:
    publishes(town, ROW)
    path = town.folder / "state" / put
    path.unlink(missing_ok=True)
    os.mkfifo(path, 0o600)
    said = finding(town, "hook", hook={"publish": True})
    assert (said.verdict, str(path) in said.message) == (FindingLevel.FAIL, True)
    assert "remove it" in said.hint


def test_a_link_in_place_of_the_hooks_table_fails(town: Town) -> None:
    publishes(town, ROW)
    table = town.folder / "state" / TABLE
    table.rename(table.with_name("elsewhere"))
    table.symlink_to("elsewhere")
    assert "no plain file" in finding(town, "hook", hook={"publish": True}).message


@pytest.mark.parametrize(("place", "mode"), [("hook/table", 0o664), ("hook", 0o770), (".", 0o777)])
def test_a_table_that_other_accounts_can_replace_fails(town: Town, place: str, mode: int) -> None:
    publishes(town, ROW)
    (town.folder / "state" / place).chmod(mode)
    said = finding(town, "hook", hook={"publish": True})
    assert said.verdict is FindingLevel.FAIL and "other than Helios' own" in said.message


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file away")
def test_a_table_of_another_account_fails(town: Town) -> None:
    publishes(town, ROW)
    os.chown(town.folder / "state" / TABLE, 65_534, 65_534)
    assert "other than Helios' own" in finding(town, "hook", hook={"publish": True}).message


def test_a_pipe_in_place_of_the_table_is_read_as_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "table")
    with pytest.raises(HookTableInvalid, match="no plain file"):
        read_table(tmp_path / "table", datetime.now(UTC))


def test_a_controller_that_asks_no_hook_fails_where_a_service_orders_jobs(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "preflight", lambda _: [WITHOUT_LUA])
    assert finding(town, HOOK).verdict is FindingLevel.WARN
    orders(town)
    assert (said := finding(town, HOOK)).verdict is FindingLevel.FAIL and said.hint == "Install it."


def test_while_helios_is_paused_no_hook_is_missing(town: Town) -> None:
    orders(town)
    pause(town.url, "dev", town.folder / "state", by="root", reason="enough", now=town.cluster.now)
    assert finding(town, "hook").verdict is FindingLevel.OK


def test_who_lets_a_service_act_is_told_what_the_hook_lacks(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "preflight", lambda _: [WITHOUT_LUA])
    assert doctor.hook_not_installed(town.settings, "dev") == []
    orders(town)
    lacking = [it.message for it in doctor.hook_not_installed(town.settings, "dev")]
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
