"""Users are mailed about GPUs that they did not use: where an admin says so, and at most once a week."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pandas as pd
import pytest

from helios.app.advice_mail import FOOT, mail_advice
from helios.app.notify import NoticeNotSent
from helios.config import Settings
from helios.model import GPU_USE, JOB_USE
from helios.warehouse import Warehouse
from helios.warehouse.revisions import LIVE_SOURCE
from tests.builders import a_batch, a_job
from tests.servers import MailServer
from tests.unit.app.sites import put_empty_database

NOW = datetime(2026, 11, 20, tzinfo=UTC)
KNOWN = {"source": "prometheus", "quality": "ok", "covered_s": 36_000.0, "longest_idle_s": 30_000.0}


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Return the database of a live cluster with idle jobs of three users."""
    url = put_empty_database(tmp_path / "helios.db")
    begin = NOW - timedelta(days=3)
    jobs = [
        a_job(job_id=f"{user}-{number}", user=user, submitted_at=begin + timedelta(minutes=number), run_time_s=36_000.0)
        for user in ("alice", "bob", "eve@elsewhere.example,x")
        for number in range(6)
    ]
    use = [
        {name: one[name] for name in ("submitted_at", "restart")} | {"job_id": f"{one['user']}-{place % 6}"} | KNOWN
        for place, one in enumerate(jobs)
    ]
    with Warehouse.open(url) as warehouse:
        warehouse.load([a_batch(*jobs)], cluster="venus", path="p", sha256="1", format="sacct", timezone="UTC")
        warehouse.add_coverage("venus", source=LIVE_SOURCE, started_at=begin, ended_at=NOW, read_at=NOW)
        frame = JOB_USE.conform(pd.DataFrame(use).assign(utilization=0.0, is_interactive=0.0))
        warehouse.add_job_use("venus", frame, GPU_USE.empty())
    return url


def settings(url: str, server: MailServer, domain: str = "site.example") -> Settings:
    return Settings.model_validate(
        {
            "database": {"url": url},
            "slurm": {"commands": str(Path(url.removeprefix("sqlite:///")).parent)},  # where there are none
            "advice": {"mail_domain": domain, "exempt_users": "bob"},
            "notify": {"smtp": f"127.0.0.1:{server.port}", "tls": "none", "mail_to": "admins@site.example"},
        }
    )


def mail_after(days: int, found: Settings) -> str:
    now = NOW + timedelta(days=days)
    with Warehouse.open(found.database.url) as warehouse:
        warehouse.add_coverage("venus", source=LIVE_SOURCE, started_at=NOW, ended_at=now, read_at=now)
    return mail_advice(found, "venus", now=now)


def test_a_user_is_mailed_once_a_week(url: str) -> None:
    with MailServer(None, tls="none") as server:
        found = settings(url, server)
        assert [mail_after(days, found) for days in (0, 1, 6, 7)] == ["1 mail of advice", "", "", "1 mail of advice"]
    assert [envelope.rcpt_tos for envelope in server.taken] == [["alice@site.example"]] * 2
    text = server.mails[0].get_content()
    assert "6 of 6 kept their GPUs below 1 % utilization" in text
    assert FOOT in text


def test_nobody_is_mailed_about_a_history_of_the_past(url: str) -> None:
    with MailServer(None, tls="none") as server:
        assert mail_advice(settings(url, server), "venus", now=NOW + timedelta(days=9)) == ""


def test_nobody_is_mailed_unless_an_admin_says_so(url: str) -> None:
    with MailServer(None, tls="none") as server:
        assert mail_advice(settings(url, server, domain=""), "venus", now=NOW) == ""
    assert server.taken == []


def test_a_refused_mail_is_tried_again(url: str) -> None:
    with MailServer(None, tls="none") as server:
        found = settings(url, server)
    with pytest.raises(NoticeNotSent, match="1 mail of advice"):
        mail_advice(found, "venus", now=NOW)
    with MailServer(None, tls="none") as server:
        assert mail_advice(settings(url, server), "venus", now=NOW) == "1 mail of advice"
