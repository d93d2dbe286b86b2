"""An admin sets a mail server and a chat, and tries them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from helios.app.doctor import _notices
from helios.config import Settings
from tests.servers import ChatServer
from tests.story.shell import shell


def test_a_test_says_what_became_of_each_channel(tmp_path: Path) -> None:
    with ChatServer() as chat:
        helios = shell(
            tmp_path,
            HELIOS_NOTIFY_SLACK=chat.url,
            HELIOS_NOTIFY_MAIL_TO="admins@site.example",
            HELIOS_NOTIFY_SMTP="127.0.0.1:1",
            HELIOS_CONTROL_STATE_FOLDER=str(tmp_path),
        )
        found = helios("notify", "--test", "--json", code=1).json
        assert found["slack"] == "sent"
        assert "127.0.0.1:1" in found["mail"] and "refused" in found["mail"]
        assert chat.bodies[0]["text"].startswith("Helios on this machine: a test")
        shown = helios("config")
        assert "hook/secret" not in shown.out and "127.0.0.1" in shown.out
    refused = shell(tmp_path)("notify", "--test", code=2)
    assert "notify.mail_to" in refused.err


def test_what_lasts_is_listed(tmp_path: Path) -> None:
    helios = shell(tmp_path, HELIOS_CONTROL_STATE_FOLDER=str(tmp_path))
    assert "Nothing lasts" in helios("notify").out
    entry = {"scope": "jobs", "began_at": datetime(2026, 11, 20, tzinfo=UTC).isoformat(), "gone_at": None}
    told = {"suspended jobs: paused": entry | {"sent": ["mail"], "subject": "nothing is done: [paused]"}}
    (tmp_path / "notices-jobs.json").write_text(json.dumps({"told": told}))
    assert "nothing is done: [paused]" in helios("notify").out
    (cause,) = helios("notify", "--json").json["causes"]
    assert (cause["cause"], cause["sent"]) == ("suspended jobs: paused", ["mail"])


def test_the_doctor_asks_the_servers_and_sends_nothing(tmp_path: Path) -> None:
    with ChatServer() as chat:
        (well,) = _notices(Settings.model_validate({"notify": {"slack": chat.url}}))
        assert (well.verdict.value, well.message) == ("ok", "by slack")
    (away,) = _notices(Settings.model_validate({"notify": {"slack": chat.url}}))
    assert away.verdict.value == "fail" and "secret" not in away.message
    assert chat.bodies == []
    (nobody,) = _notices(Settings())
    assert "nobody is told" in nobody.message
