"""The nightly report as a mail: plain text that any reader shows, the page attached."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from email.message import EmailMessage

from helios.report.admin.answer import Answer, Kind, as_lines, chosen_fields, written
from helios.report.admin.nightly import Digest

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
            yield from _wrapped(written(sentence, Kind.TEXT), "* ", "  ")
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


def _tables_of(theme: str, digest: Digest) -> list[Answer]:
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


def _table(answer: Answer) -> Iterator[str]:
    yield answer.title
    for line in as_lines(answer, chosen_fields(answer, NARROW.get(answer.title))):
        yield line if len(line) <= WIDTH else line[: WIDTH - 1] + "+"
