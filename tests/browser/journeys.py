"""What people come for, by clicks from the first page: an admin's morning, a user's question, a manager's month.

Each function reads a live site, and returns the answer to each question as the page words it.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.browser.rig import Reader
from tests.browser.sites import ADMIN, BAD_NODE, MANAGER, LiveSite, ServedSite


def follow(reader: Reader, *names: str) -> None:
    """Click on links by their names, one after the other."""
    for name in names:
        reader.click(reader.page.get_by_role("link", name=name, exact=True).first)


def search(reader: Reader, text: str) -> None:
    """Type a text into the search, and press Enter."""
    field = reader.page.get_by_role("searchbox").first
    reader.click(field)
    field.fill(text)
    with reader.page.expect_navigation():
        reader.press("Enter")


def answer(reader: Reader) -> str:
    """Return what the open page says."""
    return reader.page.locator("main").inner_text()


def admins_morning(reader: Reader, waiting: str) -> dict[str, str]:
    """Look at the queue, at one waiting job, at what Helios did, and at one bad node."""
    reader.open("/")
    told = {"what waits": answer(reader)}
    follow(reader, "Queue", waiting)
    told["why it waits"] = answer(reader)
    follow(reader, "Helios", "Decisions")
    told["what Helios did"] = answer(reader)
    search(reader, BAD_NODE)
    told["what is wrong with the node"] = answer(reader)
    return told


def users_question(reader: Reader, waiting: str) -> dict[str, str]:
    """Look for an own job from the first page, and back to all own ones."""
    reader.open("/")
    told = {"what waits": answer(reader)}
    follow(reader, waiting)
    told["when it starts"] = answer(reader)
    follow(reader, "Now")
    told["what else waits"] = answer(reader)
    return told


def managers_month(reader: Reader) -> dict[str, str]:
    """Look at GPU hours by account, at one account, and at waits by partition, of four weeks."""
    reader.open("/")
    follow(reader, "History", "Accounts", "4 weeks")
    told = {"hours by account": answer(reader)}
    with reader.page.expect_download() as download:
        reader.click(reader.page.get_by_role("link", name="CSV"))
    told["as CSV"] = download.value.path().read_text(encoding="utf-8")
    follow(reader, "Partitions")
    told["waits by partition"] = answer(reader)
    return told


def past_week(reader: Reader) -> dict[str, str]:
    """Look, without a live Slurm, at who used the cluster, at the largest user, and at one job."""
    reader.open("/")
    told = {"what is loaded": answer(reader)}
    follow(reader, "History", "Users")
    reader.click(reader.page.locator("tbody a").first)
    told["what the largest user did"] = answer(reader)
    search(reader, reader.site.names["job"])
    told["what a job did"] = answer(reader)
    return told


def journeys(site: ServedSite) -> dict[str, tuple[str, Callable[[Reader], dict[str, str]]]]:
    """Return who makes which journeys on a site."""
    if not isinstance(site, LiveSite):
        return {"an admin's past week": (ADMIN, past_week)}
    return {
        "an admin's morning": (ADMIN, lambda reader: admins_morning(reader, site.waiting["bob"][0])),
        "a user's question": ("alice", lambda reader: users_question(reader, site.waiting["alice"][0])),
        "a manager's month": (MANAGER, managers_month),
    }
