"""Pages: one self-contained HTML file, figures inside, nothing fetched, fit for a phone and for printing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from helios.metrics import SIZE_CLASSES
from helios.report import figures
from helios.report.describe import Description
from helios.report.tables import CONTROL_NAMES
from helios.report.verdict import verdict
from helios.report.whatif import WhatIf
from helios.report.words import change, duration, percent

_PAGES = Environment(
    loader=PackageLoader("helios.report"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_PAGES.filters.update(duration=duration, percent=percent)


def render_whatif(
    result: WhatIf,
    *,
    description: Description | None = None,
    evaluation: Mapping[str, Any] | None = None,
    next_steps: Sequence[str] = (),
) -> str:
    """Return the page of a what-if.

    Parameters
    ----------
    description : Description, optional
        Of the history that was replayed; shown below the comparison.
    evaluation : mapping, optional
        An evaluation's JSON: how good the predictions behind it are.
    next_steps : sequence of str
        Commands for the reader to type next.
    """
    return _PAGES.get_template("whatif.html.j2").render(
        title=f"What if? {result.cluster}",
        result=result,
        sentences=verdict(result),
        change=change,
        sizes=SIZE_CLASSES,
        unit=result.unit,
        comparison=_inline(
            figures.who_gains(result) if len(result.runs) > 1 else None,
            figures.mean_and_longest(result),
            figures.waits(result),
            figures.over_time(result),
        ),
        description=description,
        history=_history(description),
        evaluation=evaluation,
        control_names=CONTROL_NAMES,
        errors=Markup(figures.error_profile(evaluation)) if evaluation else None,
        next_steps=list(next_steps),
    )


def render_description(description: Description) -> str:
    """Return the page of a history."""
    return _PAGES.get_template("description.html.j2").render(
        title=f"The history of {description.cluster}", description=description, history=_history(description)
    )


def _history(description: Description | None) -> list[Markup | None]:
    if description is None:
        return []
    return _inline(
        figures.sizes(description),
        figures.run_times(description) if description.run_time_cdf else None,
        figures.day_and_week(description),
        figures.busiest_users(description) if description.busiest_users else None,
    )


def _inline(*drawn: str | None) -> list[Markup | None]:
    """Mark figures as safe: they are ours, and their texts are escaped by the drawing library."""
    return [None if svg is None else Markup(svg) for svg in drawn]
