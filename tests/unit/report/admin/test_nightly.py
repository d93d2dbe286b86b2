import re
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pandas as pd
import pytest

from helios.app.reports import shadow_day
from helios.model import in_submission_order
from helios.report.admin.nightly import (
    WIDTH,
    Digest,
    Night,
    as_mail,
    as_text,
    daily_waits,
    nightly_digest,
    render_nightly,
)
from helios.report.html import PageSection
from tests.builders import a_job, jobs_frame
from tests.unit.report.admin.frames import DAY, at, cycles_frame, decisions_frame, predicted, predictions_frame

END = DAY + pd.Timedelta(days=1)


def waited(seconds: float, started: pd.Timestamp, **overrides: Any) -> dict[str, Any]:
    return a_job(submitted_at=started - pd.Timedelta(seconds=seconds), started_at=started, **overrides)


def weeks_of(seconds: float) -> list[dict[str, Any]]:
    """A job a day in each of the four weeks before, that waited so long."""
    return [waited(seconds, DAY - pd.Timedelta(days=back) + pd.Timedelta(hours=12)) for back in range(1, 29)]


def a_night(*jobs: dict[str, Any], **overrides: Any) -> Night:
    frame = in_submission_order(jobs_frame(*jobs))
    decisions = overrides.get("decisions", decisions_frame())
    night: dict[str, Any] = {
        "cluster": "venus",
        "timezone": "UTC",
        "begin": DAY,
        "end": END,
        "jobs": frame,
        "past": frame,
        "predictions": predictions_frame(),
        "decisions": decisions,
        "cycles": cycles_frame(),
        "shadow": shadow_day(
            frame,
            decisions,
            begin=DAY,
            end=END,
            nodes={"gpu": 1},
            gpus_per_node=8,
            default_time_limit_s=3600,
        ),
    }
    return Night(**night | overrides)


def digest(*jobs: dict[str, Any], **overrides: Any) -> Digest:
    return nightly_digest(a_night(*jobs, **overrides))


def section(title: str, found: Digest) -> PageSection:
    return next(section for section in found.sections if section.title == title)


def waits(found: Digest) -> dict[str, float]:
    """Mean waits by line of the table of waits, s."""
    rows = section("How long jobs waited", found).tables[0].rows
    return dict(zip(rows["line"], rows["mean_wait_s"], strict=True))


def said(title: str, found: Digest) -> str:
    return " ".join(section(title, found).sentences)


def test_a_quiet_night_says_that_nothing_was_changed() -> None:
    found = digest()
    assert said("What Helios did", found) == "Helios changed nothing on the cluster."
    assert found.subject == "[helios] venus 2026-11-20: nothing changed; no waits known"
    assert not found.alarming


def test_real_changes_and_those_of_a_shadow_are_told_apart() -> None:
    decisions = decisions_frame({"outcome": "done", "mode": "active"}, {"outcome": "would"}, {"outcome": "would"})
    (services,) = section("What Helios did", digest(decisions=decisions)).tables
    assert services.rows[["done", "would"]].sum().tolist() == [1, 2]


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        ("mismatch: it reads SiteFactor 0", "read back than was written: 1 times: it reads SiteFactor 0 (1)"),
        ("failed: access denied", "did not answer: 1 times: access denied (1)"),
    ],
)
def test_what_went_wrong_is_an_alarm_in_the_subject_with_its_reason(outcome: str, words: str) -> None:
    found = digest(decisions=decisions_frame({"outcome": outcome, "mode": "active"}))
    assert found.alarming
    assert "ATTENTION" in found.subject
    assert words in said("What Helios did", found)


def test_nodes_that_did_not_wake_come_first_and_say_what_to_do() -> None:
    wakes = [{"action": "FailedWake", "target": node, "outcome": "failed: it is DOWN"} for node in ("n2", "n3")]
    found = digest(decisions=decisions_frame(*wakes, {"outcome": "done", "mode": "active"}))
    assert found.alarming
    first, *rest = section("What Helios did", found).sentences
    assert first.startswith("Failed to wake: n[2-3].") and "helios power --clear NODE" in first
    assert not any("did not answer" in sentence for sentence in rest)


def test_a_refusal_is_told_with_its_commonest_reasons_and_is_no_alarm() -> None:
    decisions = decisions_frame(
        *({"outcome": f"refused: {why}"} for why in ("held", "held", "a reservation", "an array", "cron"))
    )
    found = digest(decisions=decisions)
    text = said("What Helios did", found)
    assert not found.alarming
    assert "5 changes were refused by guards: held (2)" in text
    assert text.count("(1)") == 2


def test_suspended_cycles_are_told_with_their_reason() -> None:
    text = said("What Helios did", digest(cycles=cycles_frame("paused by alice", "paused by alice", None)))
    assert "suspended (it wrote nothing) in 2 of 3 cycles, mostly because paused by alice" in text


def test_waits_are_compared_with_the_four_weeks_before() -> None:
    found = digest(*weeks_of(600), waited(1200, at("12:00")))
    assert waits(found) == {"2026-11-20": 1200, "4 weeks before, a day": 600}
    assert found.subject.endswith("mean wait 20 min (x 2.0)")


def test_of_a_young_history_only_the_days_known_are_compared() -> None:
    assert waits(digest(*weeks_of(600)[:3], waited(60, at("12:00")))) == {"2026-11-20": 60, "3 of the days before": 600}


def test_the_weeks_before_weigh_each_job_alike() -> None:
    days = [waited(1000, DAY - pd.Timedelta(hours=12))] * 1 + [
        waited(100, DAY - pd.Timedelta(hours=36) + pd.Timedelta(seconds=number)) for number in range(9)
    ]
    assert waits(digest(*days, waited(999, at("12:00"))))["2 of the days before"] == 190


def test_waits_of_a_day_are_those_of_jobs_started_in_it() -> None:
    night = a_night(waited(86_400 * 2, at("06:00")), waited(0, at("07:00")), waited(600, DAY - pd.Timedelta(hours=1)))
    daily = daily_waits(night)
    assert len(daily) == 29
    assert daily["started"].tolist()[-2:] == [1, 2]
    assert daily["mean_wait_s"].tolist()[-2:] == [600, 86_400]
    assert daily["p50_wait_s"].iloc[-1] == 86_400
    assert daily["p95_wait_s"].iloc[-1] == pytest.approx(np.quantile([0, 2 * 86_400], 0.95))


def test_who_waits_longest_at_the_end_of_the_day_is_named() -> None:
    pending = {"state": "PENDING", "started_at": None, "ended_at": None, "run_time_s": float("nan")}
    found = digest(
        a_job(user="bob", job_id="77", submitted_at=at("08:00"), **pending), a_job(submitted_at=at("09:00"), **pending)
    )
    (table,) = section("Who waits longest", found).tables
    assert table.title == "Waiting at the end of the day: 2 jobs of 2 users"
    assert table.rows[["user", "oldest_job", "oldest_wait_s"]].iloc[0].tolist() == ["bob", "77", 16 * 3600]
    assert table.rows["user"].tolist() == ["bob", "alice"]


def test_predictions_are_judged_on_the_jobs_that_ended_that_day() -> None:
    short = a_job(submitted_at=at("08:00"), run_time_s=99.0)
    old = a_job(submitted_at=DAY - pd.Timedelta(hours=20), run_time_s=30 * 3600.0)
    later = a_job(submitted_at=at("08:00"), run_time_s=99_999.0)
    predictions = predictions_frame(predicted(short, 99), predicted(old, 3600.0), predicted(later, 1.0))
    found = digest(short, old, later, predictions=predictions)
    accuracy, worst = section("How far off predictions were", found).tables
    assert accuracy.rows["jobs"].tolist() == [2]
    assert worst.rows["job_id"].tolist() == [old["job_id"], short["job_id"]]


def full_digest() -> Digest:
    """A night with something in every part, and with names that need care."""
    pending = {"state": "PENDING", "started_at": None, "ended_at": None, "run_time_s": float("nan")}
    ended = [waited(600, at(f"{hour:02d}:00"), user="<b>eve</b>", gpus=2) for hour in range(6, 18)]
    jobs = [*weeks_of(300), *ended, a_job(submitted_at=at("20:00"), user="ü" * 40, **pending)]
    decisions = decisions_frame(
        {"target": ended[0]["job_id"], "after": "urgency 0.5"},
        {"outcome": "mismatch: read <script>alert(1)</script> " + "and so on " * 20, "mode": "active"},
        {"outcome": "refused: the job is held"},
    )
    return digest(
        *jobs,
        decisions=decisions,
        cycles=cycles_frame("the history was read 3 h ago: " + "x" * 120, None),
        predictions=predictions_frame(*(predicted(job, 3600) for job in ended[1:]), predicted(ended[0], 1e40)),
    )


def test_no_line_of_the_mail_is_longer_than_a_mail_s() -> None:
    lines = as_text(full_digest()).splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert not [line for line in lines if line != line.rstrip()]


def test_the_most_important_comes_first() -> None:
    text = as_text(full_digest())
    assert text.startswith("[helios] venus 2026-11-20: ATTENTION")
    order = ["WHAT HELIOS DID", "HOW LONG JOBS WAITED", "WHO WAITS LONGEST", "HOW FAR OFF", "WHAT THE SHADOW"]
    places = [text.index(theme) for theme in order]
    assert places == sorted(places)


def test_a_number_is_not_parted_from_its_unit() -> None:
    text = as_text(full_digest())
    assert not re.search(r"\d$\n +(h|min|s|days|%)\b", text, flags=re.MULTILINE)


def test_the_mail_is_one_that_sendmail_takes() -> None:
    found = full_digest()
    raw = as_mail(found, page="<p>page</p>\n", page_name="venus.html", recipient="ops@site")
    message = message_from_bytes(raw, policy=default)
    assert isinstance(message, EmailMessage)
    assert (message["To"], message["From"]) == ("ops@site", "helios")
    assert message["Subject"] == found.subject
    text, page = message.iter_parts()
    assert text.get_content_type() == "text/plain"
    assert text.get_content() == as_text(found)
    assert (page.get_content_type(), page.get_filename()) == ("text/html", "venus.html")
    assert page.get_content() == "<p>page</p>\n"
    assert max(map(len, raw.splitlines())) <= 998
    assert b"\r" not in raw


def test_page_and_mail_say_the_same() -> None:
    found = full_digest()
    page, mail = ("".join(text.split()) for text in (" ".join(read(render_nightly(found)).text), as_text(found)))
    for part in found.sections:
        for sentence in (*part.sentences, *part.notes):
            assert "".join(sentence.split()) in page and "".join(sentence.split()) in mail
        for table in part.tables:
            assert table.rows.empty or "".join(table.title.split()) in mail


def test_the_same_night_gives_the_same_page_and_mail_to_the_byte() -> None:
    found = full_digest()
    pages = [render_nightly(found) for _ in range(2)]
    mails = [as_mail(found, page=page, page_name="a.html", recipient="c@d") for page in pages]
    assert pages[0] == pages[1]
    assert mails[0] == mails[1]


class _Tags(HTMLParser):
    void = frozenset({"meta", "path", "use", "rect", "line", "circle", "br", "image"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.text: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.links += [value or "" for name, value in attrs if name in {"src", "href"}]
        if tag not in self.void:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.void:
            assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(page: str) -> _Tags:
    tags = _Tags()
    tags.feed(page)
    assert tags.open == []
    return tags


def test_the_page_is_whole_fetches_nothing_and_shows_names_as_text() -> None:
    tags = read(render_nightly(full_digest()))
    assert not {"script", "link", "img", "iframe", "b"} & tags.seen
    assert all(link.startswith("#") for link in tags.links)
    text = " ".join(tags.text)
    assert "<script>alert(1)</script>" in text
    assert "<b>eve</b>" not in render_nightly(full_digest())
    assert "Nothing on the cluster was read or changed." not in text


def test_an_empty_night_has_a_page_too() -> None:
    tags = read(render_nightly(digest()))
    assert "svg" not in tags.seen
    assert "Helios changed nothing on the cluster." in " ".join(tags.text)


def test_the_page_draws_waits_and_queue() -> None:
    page = render_nightly(full_digest())
    assert page.count("<svg") == 4
    assert "Mean and p95 wait of each day" in page and "Waiting and running GPUs of the day" in page


def test_a_day_that_is_not_over_is_told_up_to_now() -> None:
    waits = a_job(submitted_at=DAY + pd.Timedelta(hours=9), started_at=None, ended_at=None, state="PENDING")
    (table,) = section("Who waits longest", digest(waits, end=DAY + pd.Timedelta(hours=11))).tables
    assert table.title == "Waiting at 11:00, the day not being over: 1 job of 1 user"
