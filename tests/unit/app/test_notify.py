"""Notices: really sent to real servers, each cause once, and never at the cost of a cycle."""

from __future__ import annotations

import socket
import subprocess
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from helios.app import notify
from helios.app.doctor import check_settings
from helios.app.notify import Notice, NoticeNotSent, Notices, check_notify, deliver, notices_in, send_test, try_servers
from helios.config import Settings, load_configuration
from helios.errors import ConfigurationInvalid, UsageError
from tests.servers import ChatServer, MailServer
from tests.unit.daemon.builders import a_cycle

NOON = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
PAUSED = Notice(event="suspended", cause="suspended jobs: paused", subject="nothing is done on jobs: paused <by> root")


@pytest.fixture(autouse=True)
def no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HELIOS_SMTP_PASSWORD", raising=False)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("certificate") / "server.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    words += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-out", path, "-keyout", path.with_suffix(".key")]
    subprocess.run(words, check=True, capture_output=True)
    return path


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "password"
    path.write_text("right\n")
    path.chmod(0o600)
    return path


def settings(folder: Path, **given: Any) -> Settings:
    return Settings.model_validate({"control": {"state_folder": str(folder)}, "notify": given})


def mailing(server: MailServer, certificate: Path, **given: Any) -> dict[str, Any]:
    known = {"mail_to": "admins@site.example, boss@site.example", "mail_from": "helios@site.example"}
    return known | {"smtp": f"localhost:{server.port}", "ca_file": str(certificate), "timeout_s": 5.0} | given


class Sender:
    """Notices with a clock that is moved by hand."""

    def __init__(self, found: Settings, sender: str = "jobs") -> None:
        self.now = NOON
        self.notices = Notices(found, sender=sender, cluster=lambda: "venus", clock=lambda: self.now)

    def after(self, seconds: float, *here: Notice, scope: str = "jobs") -> str:
        self.now += timedelta(seconds=seconds)
        self.notices.observe(scope, here)
        return self.notices.send_due()


@pytest.mark.parametrize("tls", ["starttls", "tls"])
def test_a_mail_is_sent_over_tls_after_a_login(tmp_path: Path, certificate: Path, secret: Path, tls: str) -> None:
    with MailServer(certificate, tls=tls) as server:
        given = mailing(server, certificate, tls=tls, user="helios", password_file=str(secret))
        assert send_test(settings(tmp_path, **given), cluster="venus") == {"mail": "sent"}
        assert try_servers(settings(tmp_path, **given).notify) == []
    (envelope,), (mail,) = server.taken, server.mails
    assert (envelope.mail_from, envelope.rcpt_tos) == (
        "helios@site.example",
        ["admins@site.example", "boss@site.example"],
    )
    assert mail["Subject"] == "Helios on venus: a test"
    assert mail["Auto-Submitted"] == "auto-generated" and mail["Date"] and mail["Message-ID"]
    assert "helios notify --test" in mail.get_content()


def test_a_login_that_fails_and_a_certificate_of_nobody_are_told(
    tmp_path: Path, certificate: Path, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with MailServer(certificate) as server:
        given = mailing(server, certificate, user="helios", password_file=str(secret))
        unknown = settings(tmp_path, **(given | {"ca_file": ""})).notify
        with pytest.raises(NoticeNotSent, match="CERTIFICATE_VERIFY_FAILED") as refused:
            deliver(unknown, "mail", PAUSED, cluster="venus")
        assert "notify.ca_file" in refused.value.hint
        monkeypatch.setenv("HELIOS_SMTP_PASSWORD", "wrong")
        with pytest.raises(NoticeNotSent, match="535") as refused:
            deliver(settings(tmp_path, **given).notify, "mail", PAUSED, cluster="venus")
        assert "wrong" not in str(refused.value)
        monkeypatch.setenv("HELIOS_SMTP_PASSWORD", "right")
        deliver(settings(tmp_path, **(given | {"password_file": ""})).notify, "mail", PAUSED, cluster="venus")
    assert len(server.taken) == 1


def test_a_server_without_tls_is_not_used_unless_it_is_said(tmp_path: Path, certificate: Path) -> None:
    with MailServer(certificate, tls="none") as server:
        given = mailing(server, certificate)
        with pytest.raises(NoticeNotSent, match="STARTTLS") as refused:
            deliver(settings(tmp_path, **given).notify, "mail", PAUSED, cluster="venus")
        assert "notify.tls" in refused.value.hint
        deliver(settings(tmp_path, **given, tls="none").notify, "mail", PAUSED, cluster="venus")
    assert len(server.taken) == 1
    far = settings(tmp_path, mail_to="a@b.example", smtp="192.0.2.1:25", tls="none", user="helios").notify
    with pytest.raises(NoticeNotSent, match="readable on its way"):
        deliver(far, "mail", PAUSED, cluster="venus")


def test_a_webhook_gets_json_and_a_chat_gets_text(tmp_path: Path) -> None:
    with ChatServer() as server:
        found = settings(tmp_path, webhook=server.url, slack=server.url).notify
        for name in ("webhook", "slack"):
            deliver(found, name, PAUSED, cluster="venus")
    plain, chat = server.bodies
    assert (plain["source"], plain["cluster"], plain["event"], plain["cause"]) == (
        "helios",
        "venus",
        "suspended",
        PAUSED.cause,
    )
    assert chat == {"text": "Helios on venus: nothing is done on jobs: paused &lt;by&gt; root\n"}


@pytest.mark.parametrize("status", [302, 404, 500])
def test_a_webhook_that_refuses_is_told_without_its_secret(tmp_path: Path, status: int) -> None:
    with ChatServer(status=status) as server, pytest.raises(NoticeNotSent, match=str(status)) as refused:
        deliver(settings(tmp_path, slack=server.url).notify, "slack", PAUSED, cluster="venus")
    assert "secret" not in str(refused.value)


def test_a_server_that_hangs_is_left_after_a_bounded_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "MOST_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        found = settings(tmp_path, mail_to="a@b.example", smtp=f"127.0.0.1:{port}", timeout_s=60.0).notify
        began_s = time.monotonic()
        with pytest.raises(NoticeNotSent, match="no end after"):
            deliver(found, "mail", PAUSED, cluster="venus")
        assert time.monotonic() - began_s < 30


def test_a_cause_is_told_once_and_again_when_it_came_back(tmp_path: Path) -> None:
    with ChatServer() as server:
        sender = Sender(settings(tmp_path, webhook=server.url, settle_s=300))
        assert sender.after(0, PAUSED) == ""  # it may end by itself
        assert sender.after(300, PAUSED) == f"told by webhook: {PAUSED.subject}"
        assert sender.after(3600, PAUSED) == ""
        assert sender.after(60) == "" and sender.after(60, PAUSED) == ""  # gone too short to have ended
        assert sender.after(60) == "" and sender.after(300) == ""
        assert sender.after(60, PAUSED) == ""
        assert sender.after(300, PAUSED).startswith("told")
    assert len(server.bodies) == 2


def test_a_restart_tells_nothing_again(tmp_path: Path) -> None:
    with ChatServer() as server:
        found = settings(tmp_path, webhook=server.url, settle_s=60)
        first = Sender(found)
        first.after(0, PAUSED)
        first.after(60, PAUSED)
        again = Sender(found)
        assert again.after(600, PAUSED) == "" and again.after(600, PAUSED) == ""
    assert len(server.bodies) == 1
    assert first.notices.path.stat().st_mode & 0o007 == 0


def test_what_was_not_taken_is_tried_again_by_that_channel_alone(tmp_path: Path) -> None:
    with ChatServer() as server:
        given = {"webhook": server.url, "mail_to": "a@b.example", "smtp": "127.0.0.1:1", "settle_s": 0}
        sender = Sender(settings(tmp_path, **given))
        for _ in range(2):
            with pytest.raises(NoticeNotSent, match=r"No notice by mail \(127.0.0.1:1\)"):
                sender.after(0, PAUSED)
    assert len(server.bodies) == 1


def test_with_an_unwritable_state_nothing_is_sent_twice(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where a folder should be")
    with ChatServer() as server:
        sender = Sender(settings(tmp_path / "state", webhook=server.url, settle_s=0))
        for _ in range(3):
            with pytest.raises(NoticeNotSent, match="cannot be written"):
                sender.after(0, PAUSED)
    assert len(server.bodies) == 1


@pytest.mark.parametrize("text", ["", "{", "[]", '{"told": 3}', '{"told": {"x": {"sent": 1}}}'])
def test_a_damaged_state_is_begun_anew(tmp_path: Path, text: str) -> None:
    (tmp_path / "notices-jobs.json").write_text(text)
    with ChatServer() as server:
        assert Sender(settings(tmp_path, webhook=server.url, settle_s=0)).after(0, PAUSED).startswith("told")


def test_only_events_of_the_settings_are_told(tmp_path: Path) -> None:
    with ChatServer() as server:
        sender = Sender(settings(tmp_path, webhook=server.url, settle_s=0, events="drift"))
        assert sender.after(0, PAUSED) == ""


def test_the_same_reason_with_other_figures_is_the_same_cause() -> None:
    old, older = (a_cycle(suspended=(f"the history was read {age} s ago",)) for age in (3601, 3661))
    assert [it.cause for it in notices_in(old)] == [it.cause for it in notices_in(older)]
    assert notices_in(a_cycle()) == []
    assert notices_in(a_cycle(suspended=("the breaker is open",)))[0].cause != notices_in(old)[0].cause


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"mail_to": "admins"}, "not a mail address"),
        ({"smtp": "smtp.site.example"}, "HOST:PORT"),
        ({"webhook": "http://chat.site.example/x"}, "https"),
        ({"events": "suspended, nightmare"}, "nightmare"),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, given: dict[str, str], told: str) -> None:
    environment = {f"HELIOS_NOTIFY_{name.upper()}": value for name, value in given.items()}
    with pytest.raises(ConfigurationInvalid, match=told):
        load_configuration(environment=environment, folder=tmp_path)


def test_a_password_that_is_missing_or_open_is_found_by_the_check(tmp_path: Path, secret: Path) -> None:
    given = {"mail_to": "a@b.example", "user": "helios"}
    (missing,) = check_notify(settings(tmp_path, **given).notify)
    assert "no password is known" in missing.message
    secret.chmod(0o644)
    (wide,) = check_notify(settings(tmp_path, **given, password_file=str(secret)).notify)
    assert "Others can read" in wide.message
    wrong = settings(tmp_path, ca_file=str(tmp_path / "none.pem"))
    assert "notify.ca_file" in "".join(problem.message for problem in check_settings(wrong))


def test_the_secret_of_a_webhook_is_not_shown(tmp_path: Path) -> None:
    environment = {"HELIOS_NOTIFY_SLACK": "https://hooks.slack.example/services/T0/B0/secret"}
    listing = load_configuration(environment=environment, folder=tmp_path).listing()
    (shown,) = [setting.value for setting in listing if setting.key == "notify.slack"]
    assert shown == "https://hooks.slack.example/***"


def test_a_test_without_a_channel_says_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Nobody is told anything") as refused:
        send_test(settings(tmp_path), cluster="venus")
    assert "notify.mail_to" in refused.value.hint


def test_the_nightly_mail_arrives_with_its_page(tmp_path: Path, certificate: Path) -> None:
    mail = tmp_path / "venus-2026-11-19.eml"
    mail.write_bytes(
        b'To: root\nSubject: night\nMIME-Version: 1.0\nContent-Type: multipart/mixed; boundary="x"\n\n'
        b"--x\nContent-Type: text/plain\n\nall is well\n"
        b"--x\nContent-Type: text/html\nContent-Disposition: attachment; filename=p.html\n\n<p>night</p>\n--x--\n"
    )
    night = Notice(event="nightly", cause="venus-2026-11-19", subject="night", mail=mail)
    with MailServer(certificate, tls="none") as server:
        sender = Sender(settings(tmp_path, **mailing(server, certificate, tls="none")), "nightly")
        for _ in range(2):
            sender.after(0, night, scope="nightly venus")
    (found,) = server.mails
    assert (found["To"], found["Subject"]) == ("admins@site.example, boss@site.example", "night")
    assert [part.get_filename() for part in found.iter_attachments()] == ["p.html"]
