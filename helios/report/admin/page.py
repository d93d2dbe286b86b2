"""The nightly page: one self-contained HTML file in the look of the other reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from helios.report.admin import figures
from helios.report.admin.answer import Answer, Field, Kind, chosen_fields, written
from helios.report.admin.nightly import Digest
from helios.report.admin.shadow import shadow_table
from helios.report.energy.figures import nodes_over_time, saved_by_day
from helios.report.energy.ledger import energy_answer, energy_sentences
from helios.report.words import duration

PAGES = Environment(
    loader=PackageLoader("helios.report"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
MOST_FIELDS = {"Services": "service,mode,turns,proposed,done,would,refused,mismatch,failed,still,stillreason"}


def render_nightly(digest: Digest) -> str:
    """Return the page of a night."""
    energy = digest.energy
    return PAGES.get_template("nightly.html.j2").render(
        title=f"{digest.cluster}, {written(digest.begin, Kind.MOMENT, timezone=digest.timezone)[:10]}",
        digest=digest,
        themes=list(digest.sentences.items()),
        figures={
            "waits": inline(figures.waits_by_day, digest),
            "queue": inline(figures.queue_by_hour, digest),
            "nodes": energy and inline(nodes_over_time, energy.day),
            "saved": energy and inline(saved_by_day, energy.days),
        },
        energy_said=energy and [*energy_sentences(energy.day), *energy.before()],
        tables={
            "services": cells_of(digest.services),
            "days": cells_of(digest.days),
            "partitions": cells_of(digest.partitions),
            "waiting": cells_of(digest.waiting),
            "worst": cells_of(digest.worst),
            "energy": energy and cells_of(energy_answer(energy.day)),
            "shadow": cells_of(shadow_table(digest.shadow, title="The shadow's day")),
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """A table as text: names above, and whether each column is of text; columns without any value are left out."""

    header: list[tuple[str, bool]]
    rows: list[tuple[str, ...]]


def cells_of(answer: Answer) -> Cells | None:
    """Return the table, None where there is no row."""
    if answer.rows.empty:
        return None
    fields = [
        field
        for field in chosen_fields(answer, MOST_FIELDS.get(answer.title))
        if answer.rows[field.column].notna().any()
    ]
    columns = [[_cell(value, field, answer) for value in answer.rows[field.column].tolist()] for field in fields]
    header = [(field.name, field.kind is Kind.TEXT) for field in fields]
    return Cells(header=header, rows=list(zip(*columns, strict=True)))


def _cell(value: Any, field: Field, answer: Answer) -> str:
    if field.kind is Kind.LENGTH and not pd.isna(value):
        return duration(float(value))
    return written(value, field.kind, timezone=answer.timezone)


def inline(draw: Callable[..., str | None], shown: Any) -> Markup | None:
    """Draw for a desk and for a phone; a figure is safe, for it is ours and its texts are escaped when drawn."""
    wide, narrow = draw(shown), draw(shown, narrow=True)
    if wide is None or narrow is None:
        return None
    return Markup('<div class="wide">{}</div><div class="narrow">{}</div>').format(Markup(wide), Markup(narrow))
