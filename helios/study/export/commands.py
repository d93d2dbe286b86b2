"""Command ``helios trace export``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType
from typer import Option

from helios.choices import ExportLayout
from helios.cli.options import (
    AsJson,
    HistoryOptions,
    Out,
    Since,
    Until,
    configuration,
    duration,
    expand,
    moment,
)
from helios.cli.output import print_message, print_notes, print_result, progress_bars
from helios.errors import UsageError

if TYPE_CHECKING:
    pass

commands = typer.Typer()


@commands.command("export", epilog="Example: helios trace export --cluster venus --anonymous --out venus-export")
@expand
def export(
    *,
    out: Out,
    source: HistoryOptions,
    since: Since = None,
    until: Until = None,
    layouts: Annotated[
        str, Option("--layout", help="Files to write, by commas: parquet holds all columns, helios and swf some.")
    ] = ",".join(ExportLayout),
    anonymous: Annotated[
        bool,
        Option(
            "--anonymous",
            help="Replace names by keyed pseudonyms, blur and move times, and report the risk and the loss.",
        ),
    ] = False,
    round_: Annotated[
        str | None,
        Option(
            "--round",
            help="With --anonymous: submissions are true to this step only, such as 1h; the minutes within it are "
            "dealt out anew. Default: 1d.",
        ),
    ] = None,
    accept_risk: Annotated[
        bool, Option("--accept-risk", help="With --anonymous: export whatever the risk is, and leave no job out.")
    ] = False,
    key: Annotated[
        Path | None,
        Option(
            "--key",
            help="With --anonymous: file of the key, made if missing; the same key gives the same pseudonyms. Default: "
            "a new key for each export, in the folder export-keys of setting control.state_folder.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write history to files, as it is or anonymous.

    The files load again with helios trace load. A plain export holds personal data. An anonymous one has cohorts for
    users, leaves jobs out that give their user away, and is refused where too many still do.
    """
    from helios.study.export.export import export_history  # noqa: PLC0415 - the simulator; most commands need none
    from helios.study.export.report import loss_table, risk_table  # noqa: PLC0415 - as above
    from helios.study.export.request import RISK_BOUND, ExportRequest  # noqa: PLC0415 - the simulator; most commands need none

    settings = configuration().settings
    chosen = {
        "round_s": None if round_ is None else round(duration(round_).total_seconds()),
        "accept_risk": accept_risk or None,
        "key_file": key,
    }
    chosen = {name: value for name, value in chosen.items() if value is not None}
    if chosen and not anonymous:
        raise UsageError(
            "A plain export writes everything as it is: --round, --accept-risk and --key are for anonymous ones.",
            hint="Add --anonymous, or leave them out.",
        )
    wanted = _layouts(layouts)
    with progress_bars() as progress:
        history = source.read(progress)
        request = ExportRequest(
            out=out,
            layouts=wanted,
            since=moment(since, timezone=history.timezone),
            until=moment(until, timezone=history.timezone, is_end=True),
            anonymous=anonymous,
            key_folder=Path(settings.control.state_folder) / "export-keys",
            **chosen,  # type: ignore[arg-type]  # because mypy does not know which option is which
        )
        result = export_history(history, request, progress=progress)
    print_notes(result.notes)
    for name, columns in result.lost.items():
        print_message(f"note: {name} has no place for {', '.join(columns)}.")
    if result.key_file is not None:
        print_message(
            f"Key: {result.key_file} (keep it at the site, or delete it so that nobody can repeat the pseudonyms)"
        )
    found: list[RenderableType] = [
        f"{result.jobs:,} jobs of {result.cluster} exported to {out}: {', '.join(p.name for p in result.files)}."
    ]
    if result.risk is not None and result.loss is not None:
        found += ["", risk_table(result.risk, bound=RISK_BOUND), "", loss_table(result.loss)]
    print_result(result.to_json(), *found, as_json=as_json)


def _layouts(text: str) -> tuple[ExportLayout, ...]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or set(words) - set(ExportLayout):
        raise UsageError(f"--layout {text!r} is not understood.", hint=f"Write some of {','.join(ExportLayout)}")
    return tuple(dict.fromkeys(map(ExportLayout, words)))
