"""Pages: one self-contained HTML file, figures inside, nothing fetched, fit for a phone and for printing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from helios.metrics import SIZE_CLASSES
from helios.report import figures
from helios.report.describe import Description
from helios.report.tables import CONTROL_NAMES, best_figures, named_missing
from helios.report.verdict import nobody_waits, verdict
from helios.report.whatif import WhatIf
from helios.report.words import change, duration, percent

_PAGES = Environment(
    loader=PackageLoader("helios.report"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_PAGES.filters.update(duration=duration, percent=percent, named_missing=named_missing)


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
        best=best_figures([result.baseline, *result.feasible]),
        sizes=SIZE_CLASSES,
        unit=result.unit,
        figures=_comparison(result),
        description=description,
        history=_history(description),
        evaluation=evaluation,
        control_names=CONTROL_NAMES,
        errors=_inline(figures.error_profile, evaluation) if evaluation else None,
        next_steps=list(next_steps),
    )


def render_description(description: Description) -> str:
    """Return the page of a history."""
    return _PAGES.get_template("description.html.j2").render(
        title=f"The history of {description.cluster}", description=description, history=_history(description)
    )


def _comparison(result: WhatIf) -> dict[str, Markup | None]:
    waited = not nobody_waits(result)
    return {
        "who_gains": _inline(figures.who_gains, result) if waited else None,
        "mean_and_longest": _inline(figures.mean_and_longest, result) if waited else None,
        "waits": _inline(figures.waits, result) if waited else None,
        "over_time": _inline(figures.over_time, result),
    }


def _history(description: Description | None) -> dict[str, Markup | None]:
    if description is None:
        return {}
    return {
        "Jobs by size": _inline(figures.sizes, description),
        "How long jobs run": _inline(figures.run_times, description) if description.run_time_cdf else None,
        "When jobs are submitted": _inline(figures.day_and_week, description),
        "Busiest users": _inline(figures.busiest_users, description) if description.busiest_users else None,
    }


def _inline(draw: Callable[..., str | None], shown: Any) -> Markup | None:
    """Draw for a desk and for a phone, of which the page shows one.

    A figure is marked as safe: it is ours, and its texts are escaped by the drawing library.
    """
    wide, narrow = draw(shown), draw(shown, narrow=True)
    if wide is None or narrow is None:
        return None
    return Markup('<div class="wide">{}</div><div class="narrow">{}</div>').format(Markup(wide), Markup(narrow))
