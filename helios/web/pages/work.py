"""The pages of predictions, decisions, services and energy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

from helios.app import reports
from helios.app.energy.ledger import energy_report
from helios.errors import UsageError
from helios.report.energy import energy_answer, energy_sentences
from helios.web.page import Page, Reader
from helios.web.pages.report_page import CHOICE, WINDOW, report_page
from helios.web.site import Site

LOOKS_BACK = timedelta(days=14)
"""Time before the window in which a user's last run is looked for. All runs of 10^6 jobs would take seconds."""


def predictions_page(site: Site, reader: Reader, given: Mapping[str, str]) -> Page:
    """Return the page of the predictions' errors."""
    by = given.get("by") or "day"
    if by not in {"all", "source", "size", "day", "partition"}:
        raise UsageError(f"by={by} is not known.", hint="Choose all, source, size, day or partition.")
    found = reports.prediction_report(site.report_query(reader, given), by=by, looks_back=LOOKS_BACK)
    note = f"The user's last run is looked for in the {LOOKS_BACK.days} days before the window."
    return report_page(
        "Accuracy of predictions", replace(found, notes=(*found.notes, note)), form_fields=(*WINDOW, "by")
    )


def decisions_page(site: Site, reader: Reader, given: Mapping[str, str]) -> Page:
    """Return the page of the audit log."""
    start = {"from": "now-1days"} if not given.get("from") else {}
    results = (given["result"],) if given.get("result") else ()
    answer = reports.decision_report(site.report_query(reader, {**given, **start}), results=results)
    return report_page("Decisions", answer, form_fields=(*CHOICE, "result"))


def services_page(site: Site, reader: Reader, given: Mapping[str, str]) -> Page:
    """Return the page of services' requests by day."""
    return report_page("Services", reports.service_report(site.report_query(reader, given)), form_fields=WINDOW)


def energy_page(site: Site, reader: Reader, given: Mapping[str, str]) -> Page:
    """Return the page of node hours and energy."""
    ledger = energy_report(site.report_query(reader, given), energy=site.settings.energy)
    found = report_page("Energy", energy_answer(ledger), form_fields=WINDOW, sentences=energy_sentences(ledger))
    return replace(found, values=ledger.to_json())
