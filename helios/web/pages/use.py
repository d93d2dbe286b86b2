"""The pages of use and waits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from helios.app import reports
from helios.web.page import Page, Reader
from helios.web.pages.report_page import CHOICE, report_page
from helios.web.site import Site


def usage_page(
    group: Literal["user", "account", "partition"], site: Site, reader: Reader, given: Mapping[str, str]
) -> Page:
    """Return the page of use by user, account or partition."""
    answer = reports.usage_report(site.report_query(reader, given, sums=group != "user"), group=group)
    fields = [name for name in CHOICE if reader.is_admin or name != "user"]
    return report_page(f"Use by {group}", answer, form_fields=fields)
