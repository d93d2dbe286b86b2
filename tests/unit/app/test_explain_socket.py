"""What ``helios why`` asks of the daemon is answered as it would be without one, and only to those who may ask."""

from __future__ import annotations

import os
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from helios.app import explain_socket
from helios.app.explain import explain
from helios.app.explain_past import JobUnknown
from helios.app.explain_socket import NAME, Explain, ExplainServer, JobAnswer, ask_daemon
from helios.app.operations import Operations, job_explainer
from helios.cli.output import show_json
from helios.config import Settings
from helios.control import ServiceMode
from helios.errors import UsageError
from helios.model import Mode
from helios.predict.live_predictor import LivePredictor
from tests.unit.app.sites import FakeSite
from tests.waiting import TEST_TIMEOUT_S

ACTIVE = {"qssf": ServiceMode(mode=Mode.ACTIVE)}
KINDS = ("pending", "running", "ended")


@pytest.fixture
def fake_site(tmp_path: Path) -> FakeSite:
    fake_site = FakeSite(tmp_path)
    fake_site.learn()
    return fake_site


@contextmanager
def answering(settings: Settings, explain_job: Explain) -> Iterator[None]:
    Path(settings.control.state_folder).mkdir(parents=True, exist_ok=True)
    server = ExplainServer(settings, explain_job)
    try:
        yield
    finally:
        server.close()


def daemon_of(fake_site: FakeSite, monkeypatch: pytest.MonkeyPatch) -> Explain:
    """Return how the daemon of a fake site explains jobs: with a controller of its own."""
    cycles = fake_site.another()
    monkeypatch.setattr(Operations, "cycles", property(lambda _: cycles))
    return job_explainer(fake_site.settings, cluster=None)


def always(job_id: str, cluster: str | None) -> JobAnswer:
    return JobAnswer(values={"job_id": job_id, "cluster": cluster}, lines=("It waits.",))


def jobs_of(fake_site: FakeSite) -> dict[str, str]:
    """Submit a job that waits and one that runs, after a cycle that saw both; one has ended long ago."""
    pending, running = fake_site.cluster.submit(user="alice"), fake_site.cluster.submit(user="bob")
    fake_site.cycles.cycle(modes=ACTIVE)
    fake_site.cluster.start(running)
    fake_site.cluster.tick(timedelta(minutes=5))
    return {"pending": pending, "running": running, "ended": "alice3"}


@pytest.mark.parametrize("kind", KINDS)
def test_the_daemon_says_what_is_said_without_it(
    fake_site: FakeSite, kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = jobs_of(fake_site)[kind]
    without = explain(fake_site.cycles, job)
    with answering(fake_site.settings, daemon_of(fake_site, monkeypatch)):
        answer = ask_daemon(fake_site.settings, job, cluster=None)
    assert isinstance(answer, JobAnswer)
    assert answer.lines == tuple(without.lines())
    show_json(without.to_json())
    show_json(answer.values)
    printed = capsys.readouterr().out
    assert printed[: len(printed) // 2] == printed[len(printed) // 2 :]


def test_the_daemon_says_of_an_unknown_job_what_is_said_without_it(
    fake_site: FakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(JobUnknown) as without:
        explain(fake_site.cycles, "404")
    with answering(fake_site.settings, daemon_of(fake_site, monkeypatch)), pytest.raises(UsageError) as told:
        ask_daemon(fake_site.settings, "404", cluster=None)
    assert (str(told.value), told.value.exit_code) == (str(without.value), without.value.exit_code)


def test_the_daemon_learns_its_history_once_for_all_questions(
    fake_site: FakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    learned: list[int] = []
    learn = LivePredictor.__init__

    def counted(predictor: LivePredictor, history: object, **rest: object) -> None:
        learned.append(1)
        learn(predictor, history, **rest)  # type: ignore[arg-type]  # because it is passed on as it came

    jobs = jobs_of(fake_site)
    monkeypatch.setattr(LivePredictor, "__init__", counted)
    with answering(fake_site.settings, daemon_of(fake_site, monkeypatch)):
        for kind in (*KINDS, *KINDS):
            ask_daemon(fake_site.settings, jobs[kind], cluster=None)
    assert learned == [1]


def test_a_job_that_is_submitted_later_is_known_at_once(fake_site: FakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(fake_site.settings, daemon_of(fake_site, monkeypatch)):
        ask_daemon(fake_site.settings, fake_site.cluster.submit(user="alice"), cluster=None)
        answer = ask_daemon(fake_site.settings, fake_site.cluster.submit(user="bob"), cluster=None)
    assert isinstance(answer, JobAnswer) and answer.values["queued"] == 2


def test_without_a_daemon_there_is_no_answer_and_nothing_to_say(fake_site: FakeSite) -> None:
    assert ask_daemon(fake_site.settings, "1", cluster=None) == ""


def test_a_socket_that_a_killed_daemon_left_is_nothing_to_speak_of(fake_site: FakeSite) -> None:
    with explain_socket._reachable(Path(fake_site.settings.control.state_folder)) as path:
        socket.socket(socket.AF_UNIX).bind(path)
    assert ask_daemon(fake_site.settings, "1", cluster=None) == ""
    with answering(fake_site.settings, always):
        assert isinstance(ask_daemon(fake_site.settings, "1", cluster=None), JobAnswer)


def test_a_daemon_of_another_release_does_not_answer(fake_site: FakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(fake_site.settings, always):
        monkeypatch.setattr(explain_socket, "__version__", "0.0.1")
        answer = ask_daemon(fake_site.settings, "1", cluster=None)
    assert isinstance(answer, str) and "another version" in answer


@pytest.mark.parametrize(
    "changed", [{"database": {"url": "sqlite:///other.db"}}, {"history": {"jobs_for_predictions": 5000}}]
)
def test_a_daemon_with_other_settings_does_not_answer(fake_site: FakeSite, changed: dict[str, object]) -> None:
    other = Settings.model_validate(fake_site.settings.model_dump() | changed)
    with answering(fake_site.settings, always):
        answer = ask_daemon(other, "1", cluster=None)
    assert isinstance(answer, str) and "other settings" in answer


def test_how_a_daemon_logs_is_no_other_setting(fake_site: FakeSite) -> None:
    other = Settings.model_validate(fake_site.settings.model_dump() | {"daemon": {"logs": "json"}})
    with answering(other, always):
        assert isinstance(ask_daemon(fake_site.settings, "1", cluster=None), JobAnswer)


def test_a_daemon_of_another_cluster_does_not_answer(fake_site: FakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(fake_site.settings, daemon_of(fake_site, monkeypatch)):
        answer = ask_daemon(fake_site.settings, "1", cluster="elsewhere")
    assert isinstance(answer, str) and "not on elsewhere" in answer


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b'{"values": 1}', b"\xff\xfe"])
def test_a_garbled_answer_is_none(fake_site: FakeSite, text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def handle(handler: explain_socket._Handler) -> None:
        handler.rfile.readline()
        handler.wfile.write(text)

    monkeypatch.setattr(explain_socket._Handler, "handle", handle)
    with answering(fake_site.settings, always):
        assert ask_daemon(fake_site.settings, "1", cluster=None) == "the daemon's answer cannot be read"


def test_a_defect_is_said_and_the_next_question_answered(fake_site: FakeSite) -> None:
    def fails_once(job_id: str, cluster: str | None) -> JobAnswer:
        if job_id == "1":
            raise ZeroDivisionError
        return always(job_id, cluster)

    with answering(fake_site.settings, fails_once):
        answer = ask_daemon(fake_site.settings, "1", cluster=None)
        assert isinstance(answer, str) and "ZeroDivisionError" in answer
        assert isinstance(ask_daemon(fake_site.settings, "2", cluster=None), JobAnswer)


def test_who_connects_and_asks_nothing_does_not_hold_up_others(
    fake_site: FakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explain_socket._Handler, "timeout", 0.05)
    with answering(fake_site.settings, always), ExitStack() as stack:
        for _ in range(3):
            silent = stack.enter_context(socket.socket(socket.AF_UNIX))
            with explain_socket._reachable(Path(fake_site.settings.control.state_folder)) as path:
                silent.connect(path)
        assert isinstance(ask_daemon(fake_site.settings, "1", cluster=None), JobAnswer)


def test_the_socket_is_closed_to_other_accounts(fake_site: FakeSite) -> None:
    with answering(fake_site.settings, always):
        mode = (Path(fake_site.settings.control.state_folder) / NAME).stat().st_mode
    assert stat.S_IMODE(mode) == 0o600


@pytest.mark.parametrize("seen_by_daemon", [True, False])
def test_another_account_is_neither_answered_nor_believed(
    fake_site: FakeSite, seen_by_daemon: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def explain_job(job_id: str, cluster: str | None) -> JobAnswer:
        asked.append(job_id)
        return always(job_id, cluster)

    def peer(_: socket.socket) -> int:
        is_daemon = threading.current_thread() is not threading.main_thread()
        return 4_000_000 if is_daemon is seen_by_daemon else os.geteuid()

    monkeypatch.setattr(explain_socket, "_peer", peer)
    with answering(fake_site.settings, explain_job):
        assert isinstance(ask_daemon(fake_site.settings, "1", cluster=None), str)
    assert not (seen_by_daemon and asked)


def test_the_name_of_the_state_folder_may_be_long(tmp_path: Path) -> None:
    settings = Settings.model_validate({"control": {"state_folder": str(tmp_path / ("long" * 40))}})
    with answering(settings, always):
        assert isinstance(ask_daemon(settings, "1", cluster=None), JobAnswer)


def test_an_endless_answer_is_not_read_to_its_end(fake_site: FakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain_socket, "LONGEST_ANSWER", 1000)
    long = JobAnswer(values="x" * 10_000_000, lines=())
    with answering(fake_site.settings, lambda *_: long):
        assert ask_daemon(fake_site.settings, "1", cluster=None) == "the daemon's answer cannot be read"


def test_twenty_clients_may_wait_for_their_turn(fake_site: FakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(fake_site.settings.control.state_folder)  # unix(7) allows a path of 107 bytes
    with answering(fake_site.settings, always), ExitStack() as stack:
        for _ in range(20):
            client = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            client.settimeout(TEST_TIMEOUT_S)
            client.connect(NAME)
