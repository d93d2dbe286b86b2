"""What people come for is answered on the pages that links and the search lead to."""

from __future__ import annotations

import csv
import re
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.browser.conftest import Opener
from tests.browser.journeys import admins_morning, answer, follow, managers_month, past_week, search, users_question
from tests.browser.sites import BAD_NODE, MANAGER, USERS, LiveSite, TraceSite


def query(address: str) -> dict[str, list[str]]:
    """Return the parameters of an address."""
    return parse_qs(urlsplit(address).query)


def cells(text: str, name: str) -> list[str]:
    """Return the cells of the table row that begins with a name."""
    (row,) = (line for line in text.splitlines() if line.startswith(f"{name}\t"))
    return row.split("\t")


def test_an_admin_finds_why_a_job_waits_and_what_helios_did(reader: Opener, live_site: LiveSite) -> None:
    told = admins_morning(reader(live_site), live_site.waiting["bob"][0])
    assert "60 jobs wait, 6 run on" in told["what waits"]
    assert "its user already holds as many GPUs as the QOS allows" in told["why it waits"]
    assert "Reorder" in told["what Helios did"] and "qssf" in told["what Helios did"]
    assert "GPU 4 fell off the bus" in told["what is wrong with the node"]


def test_a_user_finds_when_an_own_job_starts(reader: Opener, live_site: LiveSite) -> None:
    own = live_site.waiting["alice"][0]
    told = users_question(reader(live_site, user="alice", width=360), own)
    assert "12 jobs wait, 2 run" in told["what waits"]
    assert re.search(r"Starts between 12:\d\d UTC and \d\d:\d\d UTC", told["when it starts"])
    assert own in told["what else waits"]


def test_a_user_reads_no_name_of_another_user(reader: Opener, live_site: LiveSite) -> None:
    told = " ".join(users_question(reader(live_site, user="alice"), live_site.waiting["alice"][0]).values())
    assert not re.search("|".join(user for user in USERS if user != "alice"), told)


def test_a_manager_takes_the_hours_of_accounts_home_as_csv(reader: Opener, live_site: LiveSite) -> None:
    told = managers_month(reader(live_site, user=MANAGER))
    rows = {row["account"]: row for row in csv.DictReader(told["as CSV"].splitlines())}
    assert set(rows) == set(USERS.values())
    hours = float(rows["vision"]["gpu_hours"])
    assert f"{hours:,.1f}" in cells(told["hours by account"], "vision")
    assert len(cells(told["waits by partition"], "gpu")) > 5


def test_a_history_without_slurm_tells_of_its_users_and_jobs(reader: Opener, venus_site: TraceSite) -> None:
    told = past_week(reader(venus_site))
    assert "15,000 jobs are loaded" in told["what is loaded"]
    assert told["what the largest user did"].startswith("Users\nUser ")
    assert "Job 1 of" in told["what a job did"]


def test_a_question_is_answered_by_keyboard_alone(reader: Opener, live_site: LiveSite) -> None:
    somebody = reader(live_site)
    page = somebody.open("/")
    for _ in range(40):
        somebody.press("Tab")
        if page.evaluate("document.activeElement.name") == "q":
            break
    page.keyboard.type(BAD_NODE)
    with page.expect_navigation():
        somebody.press("Enter")
    assert "GPU 4 fell off the bus" in answer(somebody)


def test_every_stop_of_the_keyboard_shows_where_it_is(reader: Opener, live_site: LiveSite) -> None:
    somebody = reader(live_site)
    page, unseen = somebody.open("/accounts"), []
    for _ in range(25):
        somebody.press("Tab")
        unseen += page.evaluate("""() => {
            const at = document.activeElement, style = getComputedStyle(at), box = at.getBoundingClientRect();
            const seen = style.outlineStyle != "none" && box.width > 0 && box.bottom > 0;
            return at == document.body || seen ? [] : [at.outerHTML.slice(0, 100)];
        }""")
    assert unseen == []


def test_the_window_that_was_picked_stays_in_all_links(reader: Opener, live_site: LiveSite) -> None:
    somebody = reader(live_site)
    somebody.open("/users")
    follow(somebody, "4 weeks")
    picked = query(somebody.page.url)["from"]
    follow(somebody, "alice")
    assert query(somebody.page.url)["from"] == picked
    follow(somebody, "Helios", "Energy")
    assert query(somebody.page.url)["from"] == picked


def test_the_search_keeps_the_window(reader: Opener, live_site: LiveSite) -> None:
    somebody = reader(live_site)
    somebody.open("/users?from=now-4weeks")
    search(somebody, "alice")
    assert (urlsplit(somebody.page.url).path, query(somebody.page.url)["from"]) == ("/users/alice", ["now-4weeks"])


def test_going_back_shows_the_page_as_it_was(reader: Opener, live_site: LiveSite) -> None:
    somebody = reader(live_site)
    page = somebody.open("/users?from=now-4weeks&sort=Jobs")
    before = answer(somebody)
    follow(somebody, "alice")
    page.go_back()
    assert (query(page.url), answer(somebody)) == ({"from": ["now-4weeks"], "sort": ["Jobs"]}, before)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("20000", "/jobs/20000"),
        ("alice", "/users/alice"),
        ("vision", "/accounts/vision"),
        ("short", "/partitions/short"),
        ("n3", "/nodes/n3"),
    ],
)
def test_the_search_leads_to_what_is_called_so(reader: Opener, live_site: LiveSite, text: str, path: str) -> None:
    somebody = reader(live_site)
    somebody.open("/")
    search(somebody, text)
    assert urlsplit(somebody.page.url).path == path


def test_a_search_for_nothing_known_says_what_to_type(reader: Opener, live_site: LiveSite) -> None:
    somebody = reader(live_site)
    somebody.open("/")
    search(somebody, "nobody")
    somebody.problems.clear()  # it answers 404
    assert "Type a job id" in answer(somebody)


def test_a_click_on_a_head_sorts_the_rows(reader: Opener, live_site: LiveSite) -> None:
    somebody = reader(live_site)
    page = somebody.open("/users?from=now-4weeks")
    for direction in ("descending", "ascending"):
        somebody.click(page.get_by_role("columnheader", name="Jobs").get_by_role("link"))
        shown = [int(text) for text in page.locator("tbody td[data-head=Jobs]").all_inner_texts()]
        assert shown == sorted(shown, reverse=direction == "descending")
        assert page.locator("th[aria-sort]").get_attribute("aria-sort") == direction


def test_pages_of_a_table_have_each_row_once(reader: Opener, live_site: LiveSite) -> None:
    somebody = reader(live_site)
    page = somebody.open("/queue")
    seen = page.locator("tbody td[data-head=Job]").all_inner_texts()
    follow(somebody, "Next")
    seen += page.locator("tbody td[data-head=Job]").all_inner_texts()
    assert sorted(seen) == sorted(job for jobs in live_site.waiting.values() for job in jobs)


def test_a_filter_leaves_the_rows_with_its_text(reader: Opener, live_site: LiveSite) -> None:
    somebody = reader(live_site)
    page = somebody.open("/queue")
    page.get_by_label("Rows with").fill("carol")
    somebody.click(page.get_by_role("button", name="Find"))
    assert page.locator("tbody td[data-head=Job]").all_inner_texts() == live_site.waiting["carol"]
    assert query(page.url)["find"] == ["carol"]
