import json
import logging
import os
import signal
import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from helios.app.controller_state import DaemonRuns
from helios.app.explain_socket import NAME, JobAnswer, ask_daemon
from helios.config import Control, DaemonSettings, Settings
from helios.daemon import daemon as daemon_module
from helios.daemon.health import TaskTimes
from helios.errors import ClusterUnavailable, ConfigurationInvalid, StrangersLeft
from helios.listener import MOST_CONNECTIONS
from tests.unit.daemon.builders import PATIENCE_S, Blocked, HandSet, ToyChores, a_cycle, eventually


class Manager:
    """A service manager that listens."""

    def __init__(self, folder: Path) -> None:
        self._ear = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._ear.bind(str(folder / "notify"))
        self.environment = {"NOTIFY_SOCKET": str(folder / "notify"), "WATCHDOG_USEC": "60000"}
        self.words: list[str] = []

    def hears(self, word: str) -> bool:
        """Wait until a word is said that begins so."""
        self._ear.settimeout(PATIENCE_S)
        while not any(said.startswith(word) for said in self.words):
            try:
                self.words.append(self._ear.recv(4096).decode())
            except TimeoutError:
                return False
        return True

    def all_words(self) -> list[str]:
        self._ear.setblocking(False)
        try:
            while True:
                self.words.append(self._ear.recv(4096).decode())
        except BlockingIOError:
            return self.words

    def close(self) -> None:
        self._ear.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    listening = Manager(tmp_path)
    yield listening
    listening.close()


def settings(folder: Path, **daemon: Any) -> Settings:
    return Settings(control=Control(state_folder=str(folder)), daemon=DaemonSettings(**{"listen": "", **daemon}))


def a_daemon(
    toys: ToyChores,
    folder: Path,
    *,
    manager: Manager | None = None,
    times: TaskTimes | None = None,
    **daemon: Any,
) -> daemon_module.Daemon:
    return daemon_module.Daemon(
        tasks=toys.tasks(),
        settings=settings(folder, **daemon),
        nightly=False,
        environment={} if manager is None else manager.environment,
        times=times,
    )


def lived(toys: ToyChores, folder: Path, **daemon: Any) -> daemon_module.Ending:
    """Start, wait for the first cycle, stop."""
    living = a_daemon(toys, folder, **daemon)
    living.start()
    assert eventually(lambda: toys.count("cycle") > 0)
    return living.stop(why="SIGTERM")


def test_a_stop_takes_everything_back_and_nothing_comes_after(tmp_path: Path) -> None:
    toys = ToyChores()
    ending = lived(toys, tmp_path)
    assert (ending.code, ending.stuck) == (0, False)
    assert toys.called[-1] == "release SIGTERM"
    assert not any(thread.name == "APScheduler" for thread in threading.enumerate())


def test_a_stop_waits_for_the_cycle_that_runs(tmp_path: Path) -> None:
    slow = Blocked()
    toys = ToyChores(
        does={"cycle": slow, "release": lambda: toys.called.append(f"cycle was over: {slow.left.is_set()}")}
    )
    living = a_daemon(toys, tmp_path)
    living.start()
    assert slow.enter.wait(PATIENCE_S)
    threading.Timer(0.05, slow.let_go).start()
    assert living.stop(why="SIGTERM").code == 0
    assert toys.called[-1] == "cycle was over: True"


def stopped_during(task: str, folder: Path) -> tuple[ToyChores, daemon_module.Ending]:
    """Stop a daemon while ``task`` hangs; return what was called, and how it ended."""
    slow = Blocked()
    toys = ToyChores(does={task: slow})
    living = a_daemon(toys, folder)
    living.start()
    assert slow.enter.wait(PATIENCE_S)
    ending = living.stop(why="SIGTERM")
    slow.let_go()
    return toys, ending


def test_nothing_is_written_beside_a_cycle_that_never_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(daemon_module, "WRITER_S", 0.05)
    toys, ending = stopped_during("cycle", tmp_path)
    assert (ending.code, ending.stuck) == (1, True)
    assert toys.count("release") == 0
    assert any("helios-release.sh" in record.getMessage() for record in caplog.records)


def test_nothing_is_taken_back_beside_a_table_that_is_being_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon_module, "WRITER_S", 0.05)
    toys, ending = stopped_during("hook", tmp_path)
    assert (ending.code, ending.stuck) == (1, True)
    assert toys.count("release") == 0


def test_a_reading_that_never_ends_does_not_keep_values_from_being_reverted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon_module, "READER_S", 0.05)
    toys, ending = stopped_during("ingest", tmp_path)
    assert (ending.code, ending.stuck) == (0, True)
    assert toys.count("release") == 1


def test_a_release_that_fails_is_said_and_shown_in_the_exit_status(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    toys = ToyChores(raises={"release": ClusterUnavailable("slurmctld is away", hint="run helios-release.sh")})
    assert lived(toys, tmp_path).code == 1
    assert any("not all is reverted: slurmctld is away" in record.getMessage() for record in caplog.records)


def test_a_release_that_leaves_only_strangers_values_ends_with_3(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    toys = ToyChores(raises={"release": StrangersLeft("1 jobs bear Helios' mark and are in no record: 4")})
    assert lived(toys, tmp_path).code == 3
    assert any("in no record: 4" in record.getMessage() for record in caplog.records)
    assert not any(record.levelno >= logging.ERROR for record in caplog.records)


def test_a_release_that_hangs_does_not_keep_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_module, "RELEASE_S", 0.05)
    hanging = Blocked()
    ending = lived(ToyChores(does={"release": hanging}), tmp_path)
    hanging.let_go()
    assert (ending.code, ending.stuck) == (1, True)


def test_a_site_may_keep_what_was_set(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    toys = ToyChores()
    assert lived(toys, tmp_path, release_on_stop=False).code == 0
    assert toys.count("release") == 0
    assert any("what Helios set stands" in record.getMessage() for record in caplog.records)


def test_a_standby_does_not_take_back_what_another_set(tmp_path: Path) -> None:
    toys = ToyChores(cycle=a_cycle(lease_held=False))
    living = a_daemon(toys, tmp_path)
    living.start()
    assert eventually(lambda: (tmp_path / "health.json").exists() and toys.count("cycle") > 0)
    assert living.stop(why="SIGTERM").code == 0
    assert toys.count("release") == 0


def test_a_daemon_without_a_good_cycle_takes_everything_back(tmp_path: Path) -> None:
    toys = ToyChores(raises={"cycle": ClusterUnavailable("away")})
    lived(toys, tmp_path)
    assert toys.count("release") == 1


def test_the_service_manager_hears_of_start_life_and_end(tmp_path: Path, manager: Manager) -> None:
    living = a_daemon(ToyChores(), tmp_path, manager=manager)
    living.start()
    assert manager.hears("READY=1")
    assert manager.hears("WATCHDOG=1")
    assert manager.hears("STATUS=")
    living.stop(why="SIGTERM")
    assert manager.hears("STOPPING=1")


def test_a_cluster_that_is_away_does_not_keep_the_daemon_from_starting(tmp_path: Path, manager: Manager) -> None:
    toys = ToyChores(raises={"cycle": ClusterUnavailable("away"), "ingest": ClusterUnavailable("away")})
    living = a_daemon(toys, tmp_path, manager=manager)
    living.start()
    assert manager.hears("READY=1")
    living.stop(why="SIGTERM")


def test_the_watchdog_is_fed_only_while_cycles_make_progress(
    tmp_path: Path, manager: Manager, caplog: pytest.LogCaptureFixture
) -> None:
    hand = HandSet()
    living = a_daemon(ToyChores(), tmp_path, manager=manager, times=hand.times, cycle_s=60)
    living.send_heartbeat()
    assert manager.all_words().count("WATCHDOG=1") == 1
    hand.move(301)
    living.send_heartbeat()
    living.send_heartbeat()
    assert manager.all_words().count("WATCHDOG=1") == 1
    assert len([record for record in caplog.records if "watchdog is no longer fed" in record.getMessage()]) == 1


def test_a_scheduler_without_a_heartbeat_is_dead(tmp_path: Path) -> None:
    hand = HandSet()
    living = a_daemon(ToyChores(), tmp_path, times=hand.times)
    hand.move(89)
    assert not living.is_dead()
    hand.move(2)
    assert living.is_dead()
    living.send_heartbeat()
    assert not living.is_dead()


def test_the_health_file_tells_of_life_and_of_the_end(tmp_path: Path) -> None:
    def state() -> Any:
        file = tmp_path / "health.json"
        return json.loads(file.read_text())["state"] if file.exists() else None

    living = a_daemon(ToyChores(), tmp_path)
    living.send_heartbeat()
    assert state() == "waiting"
    living.start()
    living.stop(why="SIGTERM")
    assert state() == "stopped"


def test_health_is_served_where_the_settings_say(tmp_path: Path) -> None:
    toys = ToyChores()
    living = a_daemon(toys, tmp_path, listen="127.0.0.1:0")
    living.start()

    def answers() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{living.port}/healthz", timeout=PATIENCE_S) as answer:
                return bool(json.load(answer)["healthy"])
        except urllib.error.HTTPError:
            return False

    assert eventually(answers)
    living.stop(why="SIGTERM")


def test_with_its_address_taken_the_daemon_acts_and_serves_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hand, toys = HandSet(), ToyChores()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        living = a_daemon(toys, tmp_path, listen=f"127.0.0.1:{port}", times=hand.times)
        living.start()
        assert eventually(lambda: toys.count("cycle") > 0)
        living.send_heartbeat()
        hand.move(daemon_module.BIND_S)
        living.send_heartbeat()
        note = json.loads((tmp_path / "health.json").read_text())["note"]
        assert f"another process listens on 127.0.0.1:{port}" in note
        assert sum(note in record.getMessage() for record in caplog.records) == 1
    living.send_heartbeat()
    assert living.port is None  # not yet
    hand.move(daemon_module.BIND_S)
    living.send_heartbeat()
    assert living.port == port
    assert json.loads((tmp_path / "health.json").read_text())["note"] == ""
    living.stop(why="SIGTERM")


def test_a_foreign_address_ends_the_start_before_any_task(tmp_path: Path) -> None:
    toys = ToyChores()
    living = a_daemon(toys, tmp_path, listen="192.0.2.1:9842")
    with pytest.raises(ConfigurationInvalid):
        living.start()
    assert toys.called == []
    assert lived(toys, tmp_path).code == 0  # no lock was left behind


def test_a_second_daemon_on_one_state_folder_names_the_first(tmp_path: Path) -> None:
    toys, first = ToyChores(), a_daemon(ToyChores(), tmp_path)
    first.start()
    with pytest.raises(DaemonRuns, match=rf"process {os.getpid()}\) acts on jobs") as refusal:
        a_daemon(toys, tmp_path).start()
    assert toys.called == []
    assert refusal.value.exit_code == 75
    first.stop(why="SIGTERM")
    assert lived(toys, tmp_path).code == 0


def test_a_second_daemon_serves_nothing_before_it_finds_the_lock(tmp_path: Path) -> None:
    first, second = a_daemon(ToyChores(), tmp_path), a_daemon(ToyChores(), tmp_path, listen="127.0.0.1:0")
    first.start()
    with pytest.raises(DaemonRuns):
        second.start()
    assert second.port is None
    first.stop(why="SIGTERM")


def test_many_open_connections_leave_files_for_a_cycle(tmp_path: Path) -> None:
    toys = ToyChores(does={"cycle": (tmp_path / "by a cycle").touch})
    living = a_daemon(toys, tmp_path, listen="127.0.0.1:0", cycle_s=1)
    living.start()
    with ExitStack() as clients:
        for _ in range(400):
            clients.enter_context(socket.create_connection(("127.0.0.1", living.port or 0)))
        before = toys.count("cycle")
        assert eventually(lambda: toys.count("cycle") > before)
        of_daemon = sum(1 for _ in Path("/proc/self/fd").iterdir()) - 400
        assert of_daemon < 100 + MOST_CONNECTIONS
    living.stop(why="SIGTERM")


def test_hangup_changes_nothing_and_sigterm_ends(
    tmp_path: Path, manager: Manager, caplog: pytest.LogCaptureFixture
) -> None:
    before = signal.getsignal(signal.SIGTERM)

    def operator() -> None:
        if manager.hears("READY=1"):
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGTERM)

    toys = ToyChores()
    typing = threading.Thread(target=operator)
    typing.start()
    with caplog.at_level(logging.INFO):
        ending = daemon_module.run(
            toys.tasks(), settings=settings(tmp_path), nightly=False, environment=manager.environment
        )
    typing.join(PATIENCE_S)
    assert ending.code == 0
    assert toys.called[-1] == "release SIGTERM"
    assert any("SIGHUP changes nothing" in record.getMessage() for record in caplog.records)
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_daemon_explains_jobs_while_a_cycle_is_under_way(tmp_path: Path) -> None:
    toys, blocked = ToyChores(), Blocked()
    toys.does["cycle"] = blocked
    living = a_daemon(toys, tmp_path)
    living.start()
    assert blocked.enter.wait(PATIENCE_S)
    answer = ask_daemon(settings(tmp_path), "7", cluster="dev")
    blocked.let_go()
    living.stop(why="SIGTERM")
    assert isinstance(answer, JobAnswer) and answer.lines == ("It waits.",)
    assert "explain 7 of dev" in toys.called


def test_a_stopped_daemon_is_not_asked(tmp_path: Path) -> None:
    lived(ToyChores(), tmp_path)
    assert ask_daemon(settings(tmp_path), "7", cluster=None) == ""


def test_a_question_that_is_worked_on_does_not_hold_up_a_stop(tmp_path: Path) -> None:
    toys, blocked = ToyChores(), Blocked()
    toys.does["explain"] = blocked
    living = a_daemon(toys, tmp_path)
    living.start()
    asking = threading.Thread(target=ask_daemon, args=(settings(tmp_path), "7"), kwargs={"cluster": None}, daemon=True)
    asking.start()
    assert blocked.enter.wait(PATIENCE_S)
    assert living.stop(why="SIGTERM").code == 0
    assert not blocked.left.is_set()
    blocked.let_go()
    asking.join(PATIENCE_S)


def test_a_second_daemon_leaves_the_questions_to_the_first(tmp_path: Path) -> None:
    first = a_daemon(ToyChores(), tmp_path)
    first.start()
    with pytest.raises(DaemonRuns):
        a_daemon(ToyChores(), tmp_path).start()
    assert isinstance(ask_daemon(settings(tmp_path), "7", cluster=None), JobAnswer)
    first.stop(why="SIGTERM")


def test_where_no_socket_can_be_made_the_daemon_works_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / NAME).mkdir()
    toys = ToyChores()
    assert lived(toys, tmp_path).code == 0
    assert "helios why cannot ask this daemon" in caplog.text
