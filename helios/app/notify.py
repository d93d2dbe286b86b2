"""Notices by mail and webhook for the operators.

Sent notices are recorded in the state folder, so that they are not repeated after a restart. A cause that ended and
came back is sent again. A cycle only queues its causes. Another thread or process sends them, in bounded time.
"""

from __future__ import annotations

import json
import os
import smtplib
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email import message_from_bytes, policy
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from functools import partial
from pathlib import Path
from threading import Lock, Thread
from typing import Any
from urllib.parse import urlsplit

from helios import __version__
from helios.app.controller_state import CycleSummary, NodeCycleSummary, error_kind
from helios.config import PASSWORD_VARIABLE, Notify, Settings
from helios.errors import HeliosError, UsageError
from helios.private_files import make_folder, read_secret, write_private

MOST_S = 90.0
"""Longest time for one message by one channel, s. A timeout of the socket would not stop a very slow answer."""
LONGEST_TEXT = 3_000
"""Most characters of a notice in a chat, which refuses longer ones."""
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class NoticeNotSent(HeliosError):
    """A mail or webhook was not accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A notice for a person.

    Attributes
    ----------
    event : str
        One of ``helios.config.EVENTS``, or ``test``.
    cause : str
        Key of the cause. Notices with the same key are about the same cause.
    subject : str
    lines : tuple of str
    mail : Path, optional
        A message that is sent instead of the lines.
    """

    event: str
    cause: str
    subject: str
    lines: tuple[str, ...] = ()
    mail: Path | None = None


def notices_in(summary: CycleSummary | NodeCycleSummary) -> list[Notice]:
    """Return the notices of a control cycle."""
    domain = "nodes" if isinstance(summary, NodeCycleSummary) else "jobs"
    notices = [
        Notice(
            event="suspended",
            cause=f"suspended {domain}: {error_kind(reason)}",
            subject=f"nothing is done on {domain}: {reason}",
            lines=(f"Since this began, Helios changes no {domain}. See: helios doctor",),
        )
        for reason in summary.suspended[:1]  # the first reason is the cause, the others say what stays in effect
    ]
    if isinstance(summary, NodeCycleSummary) and summary.protected:
        notices.append(
            Notice(
                event="protected",
                cause="protected",
                subject=f"no node is put to sleep: {summary.protected}",
                lines=("A person ends it: helios power --clear all. Which nodes failed to wake: helios power",),
            )
        )
    return notices


def channels(settings: Notify) -> dict[str, Callable[[Notice, str], None]]:
    """Return the channels that the settings name.

    Each takes a notice and the name of the cluster, and raises an exception if it cannot send it.
    """
    channels_by_name: dict[str, Callable[[Notice, str], None]] = {}
    if settings.mail_to.strip():
        channels_by_name["mail"] = partial(_mail, settings)
    if settings.webhook:
        channels_by_name["webhook"] = partial(_post_json, settings)
    if settings.slack:
        channels_by_name["slack"] = partial(_post_to_slack, settings)
    return channels_by_name


def deliver(settings: Notify, name: str, notice: Notice, *, cluster: str) -> None:
    """Send a notice by one channel.

    Raises
    ------
    NoticeNotSent
        It was not accepted, or not in time.
    """
    problems: list[Exception] = []

    def work() -> None:
        try:
            channels(settings)[name](notice, cluster)
        except Exception as problem:  # raised in the calling thread
            problems.append(problem)

    thread = Thread(target=work, name=f"notify-{name}", daemon=True)
    thread.start()
    thread.join(MOST_S)
    if thread.is_alive():
        problems.append(TimeoutError(f"no end after {MOST_S:.0f} s"))
    if problems:
        raise _send_error(settings, name, problems[0]) from problems[0]


def _send_error(settings: Notify, name: str, problem: Exception) -> NoticeNotSent:
    server = settings.smtp if name == "mail" else urlsplit(getattr(settings, name)).netloc  # the path is a secret
    if isinstance(problem, HeliosError):
        return NoticeNotSent(f"No notice by {name} ({server}): {problem.message}", hint=problem.hint)
    description = " ".join(str(problem).split())[:200] or type(problem).__name__
    hint = "Try: helios notify --test"
    if isinstance(problem, ssl.SSLCertVerificationError):
        hint = "Name the authority behind the certificate: notify.ca_file"
    elif isinstance(problem, smtplib.SMTPNotSupportedError):
        hint = "See notify.tls and notify.user; a relay on this machine may know neither: notify.tls = none"
    return NoticeNotSent(f"No notice by {name} ({server}): {description}", hint=hint)


def _mail(settings: Notify, notice: Notice, cluster: str) -> None:
    if notice.mail is not None:
        message = message_from_bytes(notice.mail.read_bytes(), policy=policy.default)
        assert isinstance(message, EmailMessage)  # which is what that policy makes
        for name in ("From", "To"):
            del message[name]
    else:
        message = EmailMessage()
        message["Subject"] = " ".join(f"Helios on {cluster}: {notice.subject}".split())[:200]
        message.set_content("\n\n".join([f"{notice.subject}.", *notice.lines, f"Helios {__version__}"]))
    message["From"] = settings.mail_from or f"helios@{socket.gethostname()}"
    message["To"] = settings.mail_to
    for name, value in (
        ("Date", formatdate()),
        ("Message-ID", make_msgid("helios")),
        ("Auto-Submitted", "auto-generated"),
    ):
        if name not in message:
            message[name] = value
    with _smtp(settings) as server:
        if refused := server.send_message(message):
            raise NoticeNotSent(f"refused for {', '.join(refused)}", hint="See notify.mail_to")


def _smtp(settings: Notify) -> smtplib.SMTP:
    """Return a connection to the mail server, logged in."""
    host, _, port = settings.smtp.rpartition(":")
    host = host.strip("[]")
    if settings.user and settings.tls == "none" and host not in LOOPBACK:
        raise UsageError("a password would be readable on its way.", hint="Set notify.tls = starttls, or tls")
    context = ssl.create_default_context(cafile=settings.ca_file or None)
    server: smtplib.SMTP
    if settings.tls == "tls":
        server = smtplib.SMTP_SSL(host, int(port), timeout=settings.timeout_s, context=context)
    else:
        server = smtplib.SMTP(host, int(port), timeout=settings.timeout_s)
    try:
        if settings.tls == "starttls":
            server.starttls(context=context)
        if settings.user:
            server.login(settings.user, password(settings))
        server.ehlo_or_helo_if_needed()
    except BaseException:
        server.close()
        raise
    return server


def password(settings: Notify) -> str:
    """Return the password of the mail server.

    Raises
    ------
    UsageError
        There is none, or others can read its file.
    """
    if password_text := os.environ.get(PASSWORD_VARIABLE):
        return password_text
    if not settings.password_file:
        raise UsageError(
            f"notify.user is {settings.user}, and no password is known.",
            hint=f"Name a file: notify.password_file; or set {PASSWORD_VARIABLE} in /etc/helios/environment",
        )
    return read_secret(Path(settings.password_file), made_by="cat")  # a person types the password


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """HTTP handler that refuses redirects."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _post(settings: Notify, address: str, body: Mapping[str, Any]) -> None:
    headers = {"Content-Type": "application/json", "User-Agent": f"helios/{__version__}"}
    request = urllib.request.Request(address, json.dumps(body).encode(), headers, method="POST")
    context = ssl.create_default_context(cafile=settings.ca_file or None)
    opener = urllib.request.build_opener(_NoRedirect, urllib.request.HTTPSHandler(context=context))
    try:
        with opener.open(request, timeout=settings.timeout_s):
            pass
    except urllib.error.HTTPError as error:
        raise OSError(f"it answered {error.code}") from error


def _post_json(settings: Notify, notice: Notice, cluster: str) -> None:
    body = {
        "source": "helios",
        "version": __version__,
        "cluster": cluster,
        "event": notice.event,
        "cause": notice.cause,
        "subject": notice.subject,
        "text": "\n".join(notice.lines),
    }
    _post(settings, settings.webhook, body)


def _post_to_slack(settings: Notify, notice: Notice, cluster: str) -> None:
    lines = "\n".join(notice.lines)
    text = f"Helios on {cluster}: {notice.subject}\n{lines}"[:LONGEST_TEXT]
    _post(settings, settings.slack, {"text": text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")})


class Notices:
    """Notices of current causes, and the channels that have sent them.

    Parameters
    ----------
    settings : Settings
    sender : str
        Name of the process among those with the same state folder.
    cluster : callable
        Returns the name of the cluster.
    clock : callable
        Returns the time, aware.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        sender: str,
        cluster: Callable[[], str],
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.settings, self._cluster, self._clock = settings.notify, cluster, clock
        self.path = Path(settings.control.state_folder) / f"notices-{sender}.json"
        self._lock = Lock()
        self._observed: dict[str, tuple[Sequence[Notice], datetime]] = {}
        self._causes: dict[str, dict[str, Any]] | None = None
        self._written = ""

    def observe(self, scope: str, notices: Sequence[Notice]) -> None:
        """Record the current causes of a scope, for ``send_due``.

        It neither waits nor fails, so that a cycle may call it.
        """
        events = {name.strip() for name in self.settings.events.split(",")}
        with self._lock:
            self._observed[scope] = ([notice for notice in notices if notice.event in events], self._clock())

    def send_due(self) -> str:
        """Send new notices and return a summary.

        Raises
        ------
        NoticeNotSent
            A notice could not be sent, or the state not be written. The other notices were sent.
        """
        with self._lock:
            observed = dict(self._observed)
        causes, due = self._update(observed)
        channels_by_name, problems = channels(self.settings), []
        sent: dict[str, list[str]] = {}
        for notice in due:
            entry = causes[notice.cause]
            for name in [name for name in channels_by_name if name not in entry["sent"]]:
                entry["sent"].append(name)  # before it is sent: it may have arrived when this process ends
                problems += self._write(causes)
                try:
                    deliver(self.settings, name, notice, cluster=self._cluster())
                    sent.setdefault(notice.subject, []).append(name)
                except HeliosError as problem:
                    entry["sent"].remove(name)
                    problems.append(problem)
        problems += self._write(causes)
        if problems:
            raise NoticeNotSent(
                "; ".join(dict.fromkeys(problem.message for problem in problems)), hint=problems[0].hint
            )
        return "; ".join(f"told by {' and '.join(names)}: {subject}" for subject, names in sent.items())

    def _update(
        self, observed: Mapping[str, tuple[Sequence[Notice], datetime]]
    ) -> tuple[dict[str, dict[str, Any]], list[Notice]]:
        """Return the causes that continue, and the notices that are due."""
        if self._causes is None:
            self._causes = read_causes(self.path)
        causes, due = self._causes, []
        for scope, (notices, at) in observed.items():
            settle_s = self.settings.settle_s if scope in {"jobs", "nodes"} else 0
            current = {notice.cause: notice for notice in notices}
            for cause, entry in [(cause, entry) for cause, entry in causes.items() if entry["scope"] == scope]:
                if cause in current:
                    entry["gone_at"] = None
                    continue
                entry["gone_at"] = entry["gone_at"] or at.isoformat()
                if (at - datetime.fromisoformat(entry["gone_at"])).total_seconds() >= settle_s or not entry["sent"]:
                    del causes[cause]
            for cause, notice in current.items():
                new_entry: dict[str, Any] = {"scope": scope, "began_at": at.isoformat(), "gone_at": None, "sent": []}
                entry = causes.setdefault(cause, new_entry)
                entry["subject"] = notice.subject
                if (at - datetime.fromisoformat(entry["began_at"])).total_seconds() >= settle_s:
                    due.append(notice)
        return causes, due

    def _write(self, causes: Mapping[str, Any]) -> list[HeliosError]:
        text = json.dumps({"told": causes}, indent=1)
        if text == self._written:
            return []
        try:
            make_folder(self.path.parent)
            write_private(self.path, text.encode())
            self._written = text
        except OSError as reason:
            problem = f"{self.path} cannot be written: {reason.strerror}; after a restart notices come again."
            return [NoticeNotSent(problem, hint="Check control.state_folder and the room on its disk.")]
        return []


def read_causes(path: Path) -> dict[str, dict[str, Any]]:
    """Return the causes in a state file.

    Empty where there is none, or where it is damaged.
    """
    try:
        causes = json.loads(path.read_text(encoding="utf-8"))["told"]
        return {
            str(cause): {name: entry[name] for name in ("scope", "began_at", "gone_at", "sent", "subject")}
            for cause, entry in causes.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def send_test(settings: Settings, *, cluster: str) -> dict[str, str]:
    """Send a test message by every channel.

    Raises
    ------
    UsageError
        No channel is set.
    """
    names = channels(settings.notify)
    if not names:
        raise UsageError(
            "Nobody is told anything: no mail and no webhook is set.",
            hint="Set notify.mail_to, notify.webhook or notify.slack. See docs/operate.md",
        )
    notice = Notice(event="test", cause="test", subject="a test", lines=("Somebody typed: helios notify --test",))
    results = {}
    for name in names:
        try:
            deliver(settings.notify, name, notice, cluster=cluster)
            results[name] = "sent"
        except NoticeNotSent as problem:
            results[name] = f"{problem.message} {problem.hint}".strip()
    return results


def check_notify(settings: Notify) -> list[HeliosError]:
    """Return the problems of the settings."""
    problems: list[HeliosError] = []
    if settings.mail_to and settings.user:
        try:
            password(settings)
        except HeliosError as problem:
            problems.append(problem)
    if settings.ca_file:
        try:
            ssl.create_default_context(cafile=settings.ca_file)
        except (OSError, ssl.SSLError) as reason:
            message = f"notify.ca_file {settings.ca_file} cannot be used: {reason}"
            problems.append(UsageError(message, hint="Name a PEM file"))
    return problems


def try_servers(settings: Notify) -> list[NoticeNotSent]:
    """Return an error for each server that cannot be reached, without sending anything."""
    problems = []
    for name in channels(settings):
        try:
            if name == "mail":
                _smtp(settings).quit()
                continue
            parts = urlsplit(getattr(settings, name))
            port = parts.port or (443 if parts.scheme == "https" else 80)
            socket.create_connection((parts.hostname or "", port), timeout=settings.timeout_s).close()
        except (OSError, smtplib.SMTPException, HeliosError) as problem:
            problems.append(_send_error(settings, name, problem))
    return problems
