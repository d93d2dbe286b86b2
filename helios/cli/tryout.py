"""``helios try``: all of Helios once, on a made-up month."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from helios.app.tryout import TryOut, try_out
from helios.cli.options import AsJson
from helios.cli.screen import progress_bars, say, say_notes, show, show_json, width, write_page
from helios.report.tables import evaluation_table, whatif_table


class Profile(StrEnum):
    """Clusters whose published figures a month can be calibrated to."""

    VENUS = "venus"
    EARTH = "earth"
    SATURN = "saturn"
    URANUS = "uranus"


def try_(
    folder: Annotated[Path, typer.Option("--folder", help="Where everything is put.")] = Path("helios-try"),
    profile: Annotated[Profile, typer.Option("--profile", help="Cluster the month is calibrated to.")] = Profile.VENUS,
    days: Annotated[int, typer.Option("--days", min=2, max=366, help="Days to make.")] = 30,
    seed: Annotated[int, typer.Option("--seed", min=0, help="The same seed makes the same month.")] = 0,
    as_json: AsJson = False,
) -> None:
    """See Helios work on a made-up month of a GPU cluster: load, learn, replay, report.

    Nothing outside the folder is touched. Example: helios try --days 10 --folder /tmp/helios-try
    """
    with progress_bars() as progress:
        trial = try_out(
            folder, profile=profile.value, days=days, seed=seed, made_at=datetime.now(UTC), progress=progress
        )
    from helios.report.page import render_whatif  # noqa: PLC0415 - drawing takes a second to import

    page = (folder / "report.html").resolve()
    write_page(
        page,
        render_whatif(
            trial.result,
            description=trial.description,
            evaluation=trial.evaluation.to_json(),
            next_steps=_next_steps(),
        ),
    )
    if as_json:
        show_json({**trial.result.to_json(), "report": str(page), "evaluation": trial.evaluation.to_json()})
        return
    _tell(trial)


def _tell(trial: TryOut) -> None:
    say_notes(trial.result.notes)
    show(evaluation_table(trial.evaluation.to_json()), "", whatif_table(trial.result, width=width()), "")
    say("Next, with your own history (nothing touches the cluster):", *(f"  {step}" for step in _next_steps()))


def _next_steps() -> list[str]:
    return [
        "TZ=UTC sacct --allusers --duplicates --allocations --parsable "
        '--delimiter="$(cat /proc/sys/kernel/random/uuid)" -S 2026-09-01 -E 2026-10-01 '
        "--format=JobIDRaw,Cluster,User,Account,QOS,Partition,State,Submit,Eligible,Start,End,ElapsedRaw,Timelimit,"
        "NNodes,ReqCPUS,ReqTRES,AllocTRES,NodeList,JobName > september.txt",
        "helios trace load september.txt",
        "helios model evaluate",
        "helios whatif --nodes PARTITION=N --gpus-per-node 8 --report whatif.html",
    ]
