"""Command ``helios advise``."""

from __future__ import annotations

import getpass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import Annotated

from typer import Option

from helios.cli.options import AsJson, HistoryOptions, configuration, expand, moment, select_cluster
from helios.cli.output import print_notes, progress_bars, show_json, width
from helios.errors import UsageError


@expand
def advise_(
    *,
    source: HistoryOptions,
    since: Annotated[
        str | None,
        Option("-S", "--starttime", "--from", help="Begin of the window. Default: four weeks before its end."),
    ] = None,
    until: Annotated[
        str | None, Option("-E", "--endtime", "--to", help="End of the window. Default: now, of a file its last job.")
    ] = None,
    user: Annotated[
        list[str] | None, Option("-u", "--user", help="These users, separated by commas. Default: yourself.")
    ] = None,
    allusers: Annotated[bool, Option("-a", "--allusers", help="All users.")] = False,
    usage: Annotated[
        Path | None,
        Option(help="What jobs used, as sacct wrote it (docs/reports.md). Default: asked of this machine's Slurm."),
    ] = None,
    most: Annotated[int, Option(min=1, help="Most advices to print; --json has all.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Say which requests of your jobs do not fit what they need.

    Time limits far too long or too short, memory, CPUs and GPUs that were never used, and repeated small jobs that may
    share a GPU. Each advice names the jobs, the hours and the interval that it rests on. Of few alike jobs nothing is
    said.

    Example: helios advise --user alice --from 2026-11-01
    """
    if user and allusers:
        raise UsageError("--user and --allusers exclude each other.", hint="Give one of them.")
    named = [name.strip() for text in user or () for name in text.split(",") if name.strip()]
    users = () if allusers else tuple(named) or (getpass.getuser(),)
    from helios.app import advise  # noqa: PLC0415 - pandas, which the help needs not
    from helios.app.reports import ReportQuery  # noqa: PLC0415 - as above

    settings = configuration().settings
    of_file = None if usage is None else advise.usage_of_file(usage)
    with progress_bars() as progress:
        if source.trace is not None:
            loaded = source.read(progress)
            bounds = [moment(text, timezone=loaded.timezone) for text in (since, until)]
            found = advise.advise_on(loaded, since=bounds[0], until=bounds[1], users=users, used=of_file)
        else:
            source.refuse_file_options()
            ask = ReportQuery(
                url=settings.database.url,
                cluster=select_cluster(source.cluster),
                now=datetime.now(UTC),
                start=since or "now-4weeks",
                end=until,
                users=users,
            )
            live = partial(advise.usage_of_cluster, settings.slurm, users=users)
            found = advise.advise(ask, usage=live if of_file is None else lambda *_: (of_file, ()))
    print_notes(found.notes)
    if as_json:
        show_json(found.to_json())
        return
    for line in found.lines(most=most):
        print("\n".join(wrap(line, min(width(), 100), subsequent_indent="   ")) if line else "")
