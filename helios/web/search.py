"""Search of the site, by a job id or a name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import quote

from helios.app.subjects import NAMES, nearest_names
from helios.warehouse import Warehouse
from helios.web.page import PageMissing, Reader, Role
from helios.web.site import Site

JOB_ID = re.compile(r"\d+([_+.]\d+)*")
PATHS: Mapping[str, tuple[str, Role]] = {
    "user": ("/users/", Role.ADMIN),
    "account": ("/accounts/", Role.MANAGER),
    "partition": ("/partitions/", Role.MANAGER),
    "node": ("/nodes/", Role.ADMIN),
}
"""Page of what is found, and the least role of who may know that it is there."""


def find_pages(site: Site, reader: Reader, text: str) -> dict[str, str]:
    """Return the pages of what is called so, by what it is.

    A job id is not looked up here: its own page says whether the reader has such a job.

    Raises
    ------
    PageMissing
        Nothing is called so that the reader may see.
    """
    if JOB_ID.fullmatch(text):
        return {"job": f"/jobs/{text}"}
    found = {"user": f"/users/{quote(text)}"} if text and reader.may_see(text) and not reader.is_admin else {}
    near = ""
    if text and reader.sees_sums:
        with Warehouse.open(site.settings.database.url) as warehouse:
            cluster = site.name()
            kinds = warehouse.kinds_of_name(cluster, text)
            if not kinds:
                shown = [kind for kind in NAMES if reader.role.covers(PATHS[kind][1])]
                near = nearest_names(text, set().union(*(warehouse.names_of_jobs(cluster, kind) for kind in shown)))
        found |= {
            kind: path + quote(text)
            for kind, (path, least) in PATHS.items()
            if kind in kinds and reader.role.covers(least)
        }
    if not found:
        raise PageMissing(
            f"Nothing here is called {text!r}." if text else "Nothing is looked for.",
            hint=near or "Type a job id, or the whole name of a user, an account, a partition or a node.",
        )
    return found
