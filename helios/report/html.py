"""Pages: one self-contained HTML file, figures inside, nothing fetched, fit for a phone and for printing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from helios.metrics.queue import SIZE_CLASSES
from helios.report import charts, whatif_charts
from helios.report.history import Description
from helios.report.significance import CRITERIA, Differences, of_one_replay
from helios.report.tables import CONTROL_NAMES, best_figures, named_missing
from helios.report.whatif import GroupGain, WhatIf, biggest_users, by_size, by_user, losing_jobs
from helios.report.whatif_text import nobody_waits, propose_scenario, verdict
from helios.units import change, duration, percent


def _longer(seconds: float) -> str:
    """Write a difference of waits with its sign: ``+3h05m``."""
    text = duration(abs(seconds))
    return text if text == "0s" else f"{'+' if seconds > 0 else '-'}{text}"


def _moment(at_s: int) -> str:
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M}"


_PAGES = Environment(
    loader=PackageLoader("helios.report"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_PAGES.filters.update(duration=duration, percent=percent, named_missing=named_missing, longer=_longer, moment=_moment)


def render_whatif(
    result: WhatIf,
    *,
    description: Description | None = None,
    evaluation: Mapping[str, Any] | None = None,
    differences: Differences | None = None,
    next_steps: Sequence[str] = (),
) -> str:
    """Return the page of a what-if.

    Parameters
    ----------
    description : Description, optional
        Of the history that was replayed; shown below the comparison.
    evaluation : mapping, optional
        An evaluation's JSON: how good the predictions behind it are.
    differences : Differences, optional
        How sure the differences are, over repeats; None: as far as the one replay tells.
    next_steps : sequence of str
        Commands for the reader to type next.
    """
    chosen = None if nobody_waits(result) else propose_scenario(result)
    users = by_user(chosen, result) if chosen is not None else []
    return _PAGES.get_template("whatif.html.j2").render(
        title=f"What if? {result.cluster}",
        result=result,
        sentences=verdict(result, differences),
        change=change,
        best=best_figures([result.baseline, *result.feasible]),
        sizes=SIZE_CLASSES,
        unit=result.unit,
        chosen=chosen,
        by_size=by_size(chosen, result) if chosen is not None else [],
        users=users,
        named_users=biggest_users(users),
        losing_jobs=losing_jobs(chosen, result) if chosen is not None else [],
        sure=_how_sure(result, differences),
        figures=_comparison(result) | _gains(result, users),
        description=description,
        history=_history(description),
        evaluation=evaluation,
        control_names=CONTROL_NAMES,
        errors=_inline(charts.error_profile, evaluation) if evaluation else None,
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
        "who_gains": _inline(charts.who_gains, result) if waited else None,
        "mean_and_longest": _inline(charts.mean_and_longest, result) if waited else None,
        "waits": _inline(charts.waits, result) if waited else None,
        "over_time": _inline(charts.over_time, result),
    }


def _gains(result: WhatIf, users: Sequence[GroupGain]) -> dict[str, Markup | None]:
    waited = not nobody_waits(result)
    return {
        "users": _inline(partial(whatif_charts.users, reference=result.reference), users),
        "cumulative_gain": _inline(whatif_charts.cumulative_gain, result) if waited else None,
        "by_partition": _inline(whatif_charts.by_partition, result) if waited else None,
    }


def _how_sure(result: WhatIf, differences: Differences | None) -> dict[str, Any] | None:
    """Return what the page says of chance: how each replay differs from the baseline, and between what that lies."""
    found = differences if differences is not None else of_one_replay(result)
    if nobody_waits(result) or not found.others:
        return None
    shown = [name for name in CRITERIA if any(other.differences[name] for other in found.others)]
    return {
        "told": f"{found.told} {found.not_covered}",
        "header": [CRITERIA[name] for name in shown],
        "baseline": (found.baseline.label, [duration(found.baseline.figures[name]) for name in shown]),
        "rows": [(other.label, [other.differences[name] for name in shown]) for other in found.others],
    }


def _history(description: Description | None) -> dict[str, Markup | None]:
    if description is None:
        return {}
    return {
        "Jobs by size": _inline(charts.sizes, description),
        "How long jobs run": _inline(charts.run_times, description) if description.run_time_cdf else None,
        "When jobs are submitted": _inline(charts.day_and_week, description),
        "Busiest users": _inline(charts.busiest_users, description) if description.busiest_users else None,
    }


def _inline(draw: Callable[..., str | None], shown: Any) -> Markup | None:
    """Draw for a desk and for a phone, of which the page shows one.

    A figure is marked as safe: it is ours, and its texts are escaped by the drawing library.
    """
    wide, narrow = draw(shown), draw(shown, narrow=True)
    if wide is None or narrow is None:
        return None
    return Markup('<div class="wide">{}</div><div class="narrow">{}</div>').format(Markup(wide), Markup(narrow))
