"""A daemon's life as systemd and an admin see it: a process of its own, real signals, a real port."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.json_lines import whole_lines
from tests.waiting import TEST_TIMEOUT_S

TOY = Path(__file__).with_name("toy_daemon.py")


def eventually(holds: Callable[[], bool]) -> bool:
    pause = threading.Event()
    for _ in range(int(TEST_TIMEOUT_S / 0.05)):
        if holds():
            return True
        pause.wait(0.05)
    return holds()


class Site:
    """A folder with a toy cluster in it, and the daemons that were started there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._ear = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._ear.bind(str(folder / "notify"))
        self._ear.settimeout(1)
        self._logs = 0

    @property
    def environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("HELIOS_")}
        return inherited | {
            "TOY_FOLDER": str(self.folder),
            "NOTIFY_SOCKET": str(self.folder / "notify"),
            "HELIOS_CONTROL_STATE_FOLDER": str(self.folder / "state"),
            "HELIOS_DAEMON_LISTEN": "127.0.0.1:0",
            "HELIOS_DAEMON_LOGS": "json",
            "HELIOS_DAEMON_CYCLE_S": "5",
        }

    def start(self, **environment: str) -> subprocess.Popen[bytes]:
        """Start a daemon and wait until it says that it is ready."""
        self._logs += 1
        with self._log.open("wb") as log:
            daemon = subprocess.Popen(
                [sys.executable, str(TOY), "daemon"],
                cwd=self.folder,
                env=self.environment | environment,
                stderr=log,
            )
        self._daemons.append(daemon)
        self.hear("READY=1")
        return daemon

    def hear(self, word: str) -> None:
        """Wait until a daemon says ``word``; where all have ended, nobody will."""
        limit = time.monotonic() + TEST_TIMEOUT_S
        while time.monotonic() < limit:
            try:
                if self._ear.recv(4096).decode() == word:
                    return
            except TimeoutError:
                assert any(daemon.poll() is None for daemon in self._daemons), self._log.read_text()
        raise AssertionError(f"no {word} within {TEST_TIMEOUT_S:g} s")

    def ask(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port()}{path}", timeout=TEST_TIMEOUT_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refusal:
            return refusal.code, refusal.read().decode()

    def port(self) -> int:
        (line,) = [line["message"] for line in self.log() if line["source"] == "http"]
        return int(re.findall(r"port (\d+)", line)[0])

    def log(self) -> list[dict[str, Any]]:
        return whole_lines(self._log)

    def diary(self) -> list[str]:
        file = self.folder / "diary"
        return file.read_text().splitlines() if file.exists() else []

    def acts(self) -> bool:
        return (self.folder / "standing").exists()

    def end(self) -> None:
        for daemon in self._daemons:
            daemon.kill()
            daemon.wait()
        self._ear.close()

    @property
    def _log(self) -> Path:
        return self.folder / f"log{self._logs}"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.end()


def test_it_says_ready_is_well_and_a_stop_takes_everything_back(site: Site) -> None:
    daemon = site.start()
    assert eventually(lambda: site.ask("/healthz")[0] == 200)
    assert site.acts()
    status, figures = site.ask("/metrics")
    assert status == 200
    assert 'helios_cycles_total{outcome="acted"} ' in figures
    daemon.send_signal(signal.SIGTERM)
    site.hear("STOPPING=1")
    assert daemon.wait(TEST_TIMEOUT_S) == 0
    assert not site.acts()
    assert site.diary()[-1] == "release SIGTERM"
    assert json.loads((site.folder / "state" / "health.json").read_text())["state"] == "stopped"
    assert {line["message"] for line in site.log()} >= {"stops: SIGTERM", "release SIGTERM", "ended"}


def test_control_c_ends_it_just_as_well(site: Site) -> None:
    daemon = site.start()
    assert eventually(site.acts)
    daemon.send_signal(signal.SIGINT)
    assert daemon.wait(TEST_TIMEOUT_S) == 0
    assert not site.acts()


def test_what_a_killed_daemon_left_is_taken_back_by_the_next(site: Site) -> None:
    killed = site.start()
    assert eventually(site.acts)
    killed.kill()
    assert killed.wait(TEST_TIMEOUT_S) == -signal.SIGKILL
    assert site.acts()
    assert "release" not in " ".join(site.diary())
    following = site.start()
    following.terminate()
    assert following.wait(TEST_TIMEOUT_S) == 0
    assert not site.acts()


def test_accounting_that_is_away_makes_it_unwell_and_does_not_end_it(site: Site) -> None:
    (site.folder / "no accounting").touch()
    daemon = site.start()
    assert eventually(lambda: "slurmdbd does not answer" in site.ask("/healthz")[1])
    status, text = site.ask("/healthz")
    report = json.loads(text)
    assert status == 503
    assert any("slurmdbd does not answer" in reason for reason in report["reasons"])
    assert report["tasks"]["cycle"]["failures"] == 0
    assert daemon.poll() is None


def second(site: Site, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(TOY), "daemon"],
        cwd=site.folder,
        env=site.environment | environment,
        capture_output=True,
        text=True,
        timeout=TEST_TIMEOUT_S,
        check=False,
    )


def test_a_second_daemon_on_one_state_folder_names_the_first_and_stops(site: Site) -> None:
    first = site.start()
    ended = second(site)
    assert ended.returncode == 75
    assert f"Another helios daemon (process {first.pid}) acts on jobs" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert first.poll() is None


def test_an_address_that_is_not_of_this_machine_is_a_mistake(site: Site) -> None:
    ended = second(site, HELIOS_DAEMON_LISTEN="192.0.2.1:9842")
    assert ended.returncode == 2
    assert "daemon.listen 192.0.2.1:9842 cannot be bound" in ended.stderr


def test_a_daemon_whose_port_somebody_took_first_acts_and_says_so(site: Site) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        site.start(HELIOS_DAEMON_LISTEN=listen)
        assert eventually(site.acts)
        assert any(f"another process listens on {listen}" in line["message"] for line in site.log())
