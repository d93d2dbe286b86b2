"""The systemd units agree with the daemon they start."""

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from helios.app.controller_state import DaemonRuns
from helios.cli.main import import_command
from helios.config import DaemonSettings
from helios.daemon import daemon
from helios.errors import StrangersLeft
from helios.listener import MOST_CONNECTIONS

UNITS = Path(__file__).parents[3] / "deploy" / "systemd"
ANALYZE = shutil.which("systemd-analyze")


class Unit(configparser.RawConfigParser):
    def __init__(self, name: str) -> None:
        super().__init__(strict=False, delimiters=("=",))
        self.read(UNITS / name)

    def optionxform(self, optionstr: str) -> str:
        return optionstr

    def seconds(self, key: str) -> float:
        return float(self["Service"][key])


@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize(
    "name",
    ["helios.service", "helios-power.service", "helios-nightly.service", "helios-nightly.timer", "helios-web.service"],
)
def test_systemd_understands_every_line(tmp_path: Path, name: str) -> None:
    for path in [*UNITS.glob("*.service"), *UNITS.glob("*.timer")]:
        text = re.sub(r"^(Exec\w+=)-?/opt/.*", r"\1/bin/true", path.read_text(), flags=re.MULTILINE)
        (tmp_path / path.name).write_text(text)
    done = subprocess.run(
        [str(ANALYZE), "verify", "--man=no", str(tmp_path / name)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert str(tmp_path) not in done.stderr


@pytest.mark.parametrize(
    "name", ["helios.service", "helios-power.service", "helios-nightly.service", "helios-web.service"]
)
def test_what_a_unit_starts_is_a_command_of_helios(name: str) -> None:
    program, command, *options = Unit(name)["Service"]["ExecStart"].split()
    known = import_command(command)
    assert program == "/opt/helios/bin/helios"
    with known.make_context(command, options):
        pass


def test_the_daemon_leaves_the_night_to_the_timer() -> None:
    assert "--no-nightly" in Unit("helios.service")["Service"]["ExecStart"]


def test_systemd_waits_longer_than_the_daemon_takes_to_stop() -> None:
    longest_s = daemon.WRITER_S + daemon.RELEASE_S + 3 * daemon.READER_S
    assert Unit("helios.service").seconds("TimeoutStopSec") > longest_s


def test_the_watchdog_outlasts_the_stop_and_several_heartbeats() -> None:
    watchdog_s = Unit("helios.service").seconds("WatchdogSec")
    assert watchdog_s > daemon.WRITER_S + daemon.RELEASE_S + 3 * daemon.READER_S
    assert watchdog_s >= 3 * 10


def test_the_timer_keeps_the_hour_that_the_settings_promise() -> None:
    assert Unit("helios-nightly.timer")["Timer"]["OnCalendar"] == f"*-*-* {DaemonSettings().nightly}:00"


def test_jobs_and_nodes_have_an_identity_a_state_and_a_port_each() -> None:
    jobs, nodes = Unit("helios.service")["Service"], Unit("helios-power.service")["Service"]
    for key in ("User", "Group", "StateDirectory", "CacheDirectory", "ExecStart", "ExecStopPost"):
        assert jobs[key] != nodes[key]
    text = (UNITS / "helios-power.service").read_text()
    assert "HELIOS_CONTROL_STATE_FOLDER=/var/lib/helios-power\n" in text
    assert f"HELIOS_DAEMON_LISTEN={DaemonSettings().listen}" not in text
    assert "HELIOS_DAEMON_LISTEN=" in text


def test_each_unit_keeps_to_its_domain() -> None:
    for name, domain, other in (("helios.service", "jobs", "nodes"), ("helios-power.service", "nodes", "jobs")):
        unit = Unit(name)["Service"]
        assert f"--domain {domain}" in unit["ExecStart"]
        assert f"--{domain}-only" in unit["ExecStopPost"]
        assert other not in unit["ExecStart"] + unit["ExecStopPost"]


def test_the_accounting_is_read_by_one_daemon() -> None:
    assert "--no-ingest" in Unit("helios-power.service")["Service"]["ExecStart"]
    assert "--no-ingest" not in Unit("helios.service")["Service"]["ExecStart"]


def test_numba_may_compile() -> None:
    assert "MemoryDenyWriteExecute" not in Unit("helios.service")["Service"]


class Crash:
    """What runs after the daemon's end, with a release script that only writes down that it ran."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        self.state.mkdir()
        self.paused = self.state / "PAUSED"
        self._script = folder / "helios-after-crash.sh"
        shutil.copy(UNITS / self._script.name, self._script)
        self._release = folder / "helios-release.sh"
        self.release_answers(0)

    def release_answers(self, code: int) -> None:
        self._release.write_text(f'#!/bin/sh\ntouch "{self.paused}" "{self.state}/released"\nexit {code}\n')
        self._release.chmod(0o755)

    def after(self, result: str, **more: str) -> int:
        environment = {
            "PATH": "/usr/bin:/bin",
            "HELIOS_CONTROL_STATE_FOLDER": str(self.state),
            "SERVICE_RESULT": result,
            **more,
        }
        return subprocess.run([str(self._script)], env=environment, capture_output=True, check=False).returncode

    def released(self) -> bool:
        return (self.state / "released").exists()


def test_after_a_clean_stop_nothing_is_touched(tmp_path: Path) -> None:
    crash = Crash(tmp_path)
    assert crash.after("success") == 0
    assert not crash.released()


def test_a_second_daemon_reverts_nothing_and_is_tried_again(tmp_path: Path) -> None:
    crash = Crash(tmp_path)
    assert crash.after("exit-code", EXIT_STATUS=str(DaemonRuns.exit_code)) == 0
    assert not crash.released()
    unit = Unit("helios.service")["Service"]
    assert unit["Restart"] == "on-failure"
    assert str(DaemonRuns.exit_code) not in unit["RestartPreventExitStatus"].split()


@pytest.mark.parametrize(
    "name", ["helios.service", "helios-power.service", "helios-nightly.service", "helios-web.service"]
)
def test_what_a_unit_writes_is_closed_to_other_accounts(name: str) -> None:
    unit = Unit(name)["Service"]
    assert {unit[key] for key in ("StateDirectoryMode", "CacheDirectoryMode")} == {"0750"}
    assert int(unit["UMask"], 8) & 0o007 == 0o007


@pytest.mark.parametrize("name", sorted(path.name for path in UNITS.glob("*.service")))
def test_a_unit_has_descriptors_for_twice_the_connections_and_bounded_tasks(name: str) -> None:
    unit = Unit(name)["Service"]
    assert int(unit["LimitNOFILE"]) >= 2 * MOST_CONNECTIONS
    assert int(unit["TasksMax"]) <= 512


@pytest.mark.parametrize("result", ["signal", "watchdog", "oom-kill", "exit-code", "timeout"])
def test_after_any_other_end_everything_is_reverted(tmp_path: Path, result: str) -> None:
    crash = Crash(tmp_path)
    assert crash.after(result) == 0
    assert crash.released()
    assert not crash.paused.exists()


def test_a_crash_does_not_end_an_admin_s_pause(tmp_path: Path) -> None:
    crash = Crash(tmp_path)
    crash.paused.touch()
    crash.after("signal")
    assert crash.paused.exists()


def test_after_a_crash_the_script_waits_no_longer_than_systemd_allows() -> None:
    waits_s = re.search(r"--wait (\d+)", (UNITS / "helios-after-crash.sh").read_text())
    assert waits_s
    assert 2 * float(waits_s[1]) < Unit("helios-power.service").seconds("TimeoutStopSec")


def test_a_release_that_failed_is_seen_in_the_unit_s_result(tmp_path: Path) -> None:
    crash = Crash(tmp_path)
    crash.release_answers(1)
    assert crash.after("signal") == 1


def test_a_crash_that_leaves_only_strangers_values_is_no_failed_release(tmp_path: Path) -> None:
    crash = Crash(tmp_path)
    crash.release_answers(StrangersLeft.exit_code)
    assert crash.after("signal") == 0


def test_a_stop_that_leaves_only_strangers_values_is_no_failure() -> None:
    assert Unit("helios.service")["Service"]["SuccessExitStatus"].split() == [str(StrangersLeft.exit_code)]
