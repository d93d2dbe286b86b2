"""The nightly page: one self-contained HTML file in the look of the other reports."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.message import EmailMessage
from typing import Any

import numpy as np
import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.ticker import FuncFormatter, MultipleLocator
from numpy.typing import NDArray

from helios.report.admin.nightly import Digest
from helios.report.admin.sacct_format import Field, FieldKind, ReportTable, as_lines, chosen_fields, write_values
from helios.report.admin.shadow import shadow_table
from helios.report.charts import BLUE, GREY, ORANGE, PALE, canvas
from helios.report.energy import energy_answer, energy_sentences
from helios.report.energy_charts import nodes_over_time, saved_by_day
from helios.units import duration

# Figures of the nightly page: waits by day, and the day's queue by the hour.

TICKS_S = (1, 5, 15, 60, 300, 900, 3_600, 3 * 3_600, 6 * 3_600, 12 * 3_600, 86_400, 2 * 86_400, 7 * 86_400)


def waits_by_day(digest: Digest, *, narrow: bool = False) -> str | None:
    """Draw mean and p95 wait of the jobs that started on each day; None where no start is known."""
    daily = digest.daily
    if daily["mean_wait_s"].isna().all():
        return None
    days = _local(daily["time"], digest.timezone)
    with canvas("Mean and p95 wait of each day of the last four weeks", height=2.4, narrow=narrow) as drawing:
        axes = drawing.panels[0]
        colours = [PALE] * (len(days) - 1) + [ORANGE]
        axes.bar(days, daily["p95_wait_s"], color=colours, width=0.8, label="one in 20 waits longer")
        axes.plot(days, daily["mean_wait_s"], color=BLUE, marker="o", ms=3.5, lw=1.4, label="mean")
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_locator(MultipleLocator(_tick_s(float(daily["p95_wait_s"].max()))))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: duration(seconds) if seconds else "0"))
        _dates(axes, narrow=narrow)
        drawing.figure.legend(loc="outside lower center", ncols=2)
    return drawing.svg


def queue_by_hour(digest: Digest, *, narrow: bool = False) -> str | None:
    """Draw waiting and running jobs of the day, means of each hour; None where there were none."""
    hourly = digest.hourly
    if not (hourly["waiting"].any() or hourly["running"].any()):
        return None
    gpus = bool(hourly["running_gpus"].any() or hourly["waiting_gpus"].any())
    unit, suffix = ("GPUs", "_gpus") if gpus else ("jobs", "")
    # The last hour is drawn to its end.
    hourly = pd.concat([hourly, hourly.tail(1).assign(time=hourly["time"].iloc[-1] + pd.Timedelta(hours=1))])
    hours = _local(hourly["time"], digest.timezone)
    with canvas(f"Waiting and running {unit} of the day by hour", height=2.2, narrow=narrow) as drawing:
        axes = drawing.panels[0]
        axes.fill_between(hours, hourly[f"running{suffix}"], step="post", color=PALE, label=f"{unit} in use")
        axes.step(hours, hourly[f"waiting{suffix}"], where="post", color=BLUE, lw=1.8, label=f"{unit} waited for")
        axes.set_ylim(bottom=0)
        axes.set_ylabel(unit, color=GREY)
        _dates(axes, narrow=narrow)
        drawing.figure.legend(loc="outside lower center", ncols=2)
    return drawing.svg


def _tick_s(top_s: float) -> float:
    """Return the round length of time of which at most four fit below ``top_s``."""
    return next((tick for tick in TICKS_S if top_s <= 4 * tick), top_s / 4)


def _local(times: pd.Series, timezone: str) -> NDArray[np.datetime64]:
    """Return moments as the clock on the wall shows them, which is how the axis is to be labelled."""
    shown: NDArray[np.datetime64] = times.dt.tz_convert(timezone).dt.tz_localize(None).to_numpy(dtype="datetime64[s]")
    return shown


def _dates(axes: Axes, *, narrow: bool) -> None:
    locator = AutoDateLocator(minticks=3, maxticks=5 if narrow else 9)  # type: ignore[no-untyped-call]  # because matplotlib does not type it
    axes.xaxis.set_major_locator(locator)
    formatter = ConciseDateFormatter(locator, show_offset=False)  # type: ignore[no-untyped-call]  # because as above
    axes.xaxis.set_major_formatter(formatter)


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
        title=f"{digest.cluster}, {write_values(digest.begin, FieldKind.MOMENT, timezone=digest.timezone)[:10]}",
        digest=digest,
        themes=list(digest.sentences.items()),
        figures={
            "waits": inline(waits_by_day, digest),
            "queue": inline(queue_by_hour, digest),
            "nodes": energy and inline(nodes_over_time, energy.day),
            "saved": energy and inline(saved_by_day, energy.days),
        },
        energy_said=energy and [*energy_sentences(energy.day), *energy.before()],
        tables={
            "services": to_cells(digest.services),
            "days": to_cells(digest.days),
            "partitions": to_cells(digest.partitions),
            "waiting": to_cells(digest.waiting),
            "worst": to_cells(digest.worst),
            "energy": energy and to_cells(energy_answer(energy.day)),
            "shadow": to_cells(shadow_table(digest.shadow, title="The shadow's day")),
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCells:
    """A table as text: names above, and whether each column is of text; columns without any value are left out."""

    header: list[tuple[str, bool]]
    rows: list[tuple[str, ...]]


def to_cells(answer: ReportTable) -> TableCells | None:
    """Return the table, None where there is no row."""
    if answer.rows.empty:
        return None
    fields = [
        field
        for field in chosen_fields(answer, MOST_FIELDS.get(answer.title))
        if answer.rows[field.column].notna().any()
    ]
    columns = [[_cell(value, field, answer) for value in answer.rows[field.column].tolist()] for field in fields]
    header = [(field.name, field.kind is FieldKind.TEXT) for field in fields]
    return TableCells(header=header, rows=list(zip(*columns, strict=True)))


def _cell(value: Any, field: Field, answer: ReportTable) -> str:
    if field.kind is FieldKind.LENGTH and not pd.isna(value):
        return duration(float(value))
    return write_values(value, field.kind, timezone=answer.timezone)


def inline(draw: Callable[..., str | None], shown: Any) -> Markup | None:
    """Draw for a desk and for a phone; a figure is safe, for it is ours and its texts are escaped when drawn."""
    wide, narrow = draw(shown), draw(shown, narrow=True)
    if wide is None or narrow is None:
        return None
    return Markup('<div class="wide">{}</div><div class="narrow">{}</div>').format(Markup(wide), Markup(narrow))


# The nightly report as a mail: plain text that any reader shows, the page attached.

WIDTH = 76
"""Columns of the text; RFC 5322 asks for at most 78."""
TIE = "\N{NO-BREAK SPACE}"


def as_text(digest: Digest) -> str:
    """Return the digest as plain text of at most ``WIDTH`` columns, the most important first."""
    return "\n".join(line.rstrip() for line in _lines(digest)) + "\n"


def as_mail(digest: Digest, *, page: str, page_name: str, sender: str, recipient: str) -> bytes:
    """Return a message of the text with the page attached, such that ``sendmail -t < FILE`` sends it.

    The page is an attachment and not an alternative: mail readers do not draw the figures of an HTML body. Without a
    date, which sendmail adds, the same digest gives the same bytes.

    Parameters
    ----------
    page, page_name : str
        The HTML page and the name of its file.
    sender, recipient : str
        Addresses.
    """
    message = EmailMessage()
    message["Subject"] = digest.subject
    message["From"] = sender
    message["To"] = recipient
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(as_text(digest))
    message.add_attachment(page, subtype="html", filename=page_name)
    message.set_boundary(f"=_helios_{digest.begin:%Y%m%d}")
    return message.as_bytes()


def _lines(digest: Digest) -> Iterator[str]:
    yield from _wrapped(digest.subject)
    yield "=" * WIDTH
    for theme, sentences in digest.sentences.items():
        yield ""
        yield theme.upper()
        for sentence in sentences:
            yield from _wrapped(write_values(sentence, FieldKind.TEXT), "* ", "  ")
        for answer in _tables_of(theme, digest):
            yield ""
            yield from _table(answer)
    yield ""
    yield from _wrapped(f"Times on the cluster's own clock ({digest.timezone}).")


def _wrapped(text: str, first: str = "", then: str = "") -> Iterator[str]:
    """Yield lines of at most ``WIDTH`` columns that do not part a number from its unit."""
    tied = re.sub(r"(?<=\d) (?=(?:h|min|s|days?|%|weeks)\b)", TIE, text)
    for line in textwrap.wrap(tied, WIDTH, initial_indent=first, subsequent_indent=then):
        yield line.replace(TIE, " ")


def _tables_of(theme: str, digest: Digest) -> list[ReportTable]:
    tables = {
        "What Helios did": [digest.services],
        "How long jobs waited": [digest.days, digest.partitions],
        "Who waits longest": [digest.waiting],
        "How far off predictions were": [digest.worst],
    }
    return [answer for answer in tables.get(theme, []) if not answer.rows.empty]


NARROW = {
    "Services": "service%-9,mode%-6,turns,proposed,done,would,refused,mismatch,failed,still",
    "Partitions": "partition,jobs,meanwait,p50wait,p95wait,maxwait,failed",
    "Waiting longest": "partition%-12,user%-12,waiting,meanwait,oldest,oldestjob",
}
"""Fields of the tables that would else be wider than a mail."""


def _table(answer: ReportTable) -> Iterator[str]:
    yield answer.title
    for line in as_lines(answer, chosen_fields(answer, NARROW.get(answer.title))):
        yield line if len(line) <= WIDTH else line[: WIDTH - 1] + "+"
