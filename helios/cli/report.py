"""Commands ``helios report``, whose options are like those of sacct, and ``helios advise``."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Option

from helios.cli.options import (
    BY,
    DAY,
    AsJson,
    Cluster,
    Command,
    GpusPerNode,
    HistoryOptions,
    Machine,
    Nodes,
    Partitions,
    Report,
    Since,
    Until,
    Users,
    WindowOptions,
    configuration,
    expand,
    select_cluster,
    split_words,
)
from helios.cli.output import print_message, print_notes, progress_bars, show_json, width, write_page
from helios.dates import FORMS
from helios.errors import UsageError

if TYPE_CHECKING:  # pandas, which no help needs
    from helios.app.reports import ReportQuery
    from helios.report.admin.sacct_format import Field, ReportTable

commands = typer.Typer(
    no_args_is_help=True,
    help="Report waits, usage, prediction errors and decisions, with options as in sacct.\n\n"
    "By default the window is the last week. Of a history without a live Slurm it is its last four weeks.",
)
EVERYBODY = "all"
"""Name that stands for all users."""
MOST_ADVICE = 10
"""Pieces of advice that are printed; --json has all."""
MOST_MOVED = 10
"""Jobs that a shadow would have moved that are printed; --json has all."""


Start = Annotated[str | None, Option("-S", "--from", metavar="DATE", help=f"Begin of the window: {FORMS}.")]
End = Annotated[
    str | None,
    Option("-E", "--to", metavar="DATE", help="End of the window, as --from. A day or a month is included."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    """Options that select the jobs of a report."""

    cluster: Cluster = None
    start: Start = None
    end: End = None
    user: Users = None
    account: Annotated[
        list[str] | None, Option("-A", "--account", help="Only these accounts, separated by commas.")
    ] = None
    partition: Partitions = None

    def chosen(self) -> dict[str, list[str]]:
        """Return the users, accounts and partitions that were named."""
        given = {"users": self.user, "accounts": self.account, "partitions": self.partition}
        return {name: split_words(text) for name, text in given.items()}

    def query(self) -> ReportQuery:
        """Return the query of the report."""
        return _query(self.cluster, self.start, self.end, **self.chosen())


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """Options for the layout of a report."""

    fields: Annotated[
        str | None,
        Option(
            "-o",
            "--format",
            help="Fields, separated by commas, as Field%width, or Field%-width to align left. A wrong one, such as "
            "help, lists them.",
        ),
    ] = None
    noheader: Annotated[bool, Option("-n", "--noheader", help="Print no header.")] = False
    parsable2: Annotated[bool, Option("-P", "--parsable2", help="Print whole fields with | between them.")] = False
    json: AsJson = False

    def check(self, fields: Sequence[Field]) -> None:
        """Refuse contradictions and unknown fields before a database is opened."""
        from helios.report.admin.sacct_format import named_fields  # noqa: PLC0415 - pandas, which no help needs

        if self.parsable2 and self.json:
            raise UsageError("-P and --json are different forms of the answer.", hint="Give one of them.")
        named_fields(fields, self.fields)


def _command(name: str, example: str) -> Callable[[Command], Command]:
    """Return a decorator for commands with option groups."""
    return lambda command: commands.command(name, epilog=f"Example: helios report {example}")(expand(command))


@_command("queue", "queue -S now-1days -r gpu")
def queue(jobs: Jobs, form: Form) -> None:
    """Show who waits, by partition and user.

    Now, or at the time of -E. With -S, it shows the queue over time.
    """
    from helios.app import reports  # noqa: PLC0415 - pandas, which no help needs
    from helios.report.admin.usage import NOW, OVER_TIME  # noqa: PLC0415 - as above

    form.check(NOW if jobs.start is None else OVER_TIME)
    show_table(reports.queue_report(jobs.query()), form)


@_command("usage", "usage --by account -S 2026-11-01 -o Account,Jobs,GPUHours,P95Wait -P")
def usage(
    *,
    jobs: Jobs,
    by: Annotated[Literal["user", "account", "partition"], Option(help=BY)] = "user",
    form: Form,
) -> None:
    """Show hours, jobs, waits and failures of each user, account or partition.

    Hours are those held in the window; all else is of the jobs submitted in it.
    """
    from helios.app import reports  # noqa: PLC0415 - pandas, which no help needs
    from helios.report.admin.sacct_format import named_fields  # noqa: PLC0415 - as above
    from helios.report.admin.usage import OF_PREDICTIONS, fields_by  # noqa: PLC0415 - as above

    form.check(fields_by(by))
    named = {field.column for field in named_fields(fields_by(by), form.fields)} if form.fields else set()
    wanted = form.json or bool(named & {*OF_PREDICTIONS})
    show_table(reports.usage_report(jobs.query(), group=by, with_predictions=wanted), form)


@_command("predictions", "predictions -S now-4weeks --by user")
def predictions(
    *,
    jobs: Jobs,
    by: Annotated[Literal["all", "source", "size", "day", "partition", "user"] | None, Option(help=BY)] = None,
    form: Form,
) -> None:
    """Show how far off predicted run times were.

    They are compared with a rule without a model: the run time of the user's last job that had ended. Without --by,
    there are rows of all, of each source, size and day.
    """
    from helios.app import reports  # noqa: PLC0415 - pandas, which no help needs
    from helios.report.admin.predictions import FIELDS  # noqa: PLC0415 - as above

    form.check(FIELDS)
    show_table(reports.prediction_report(jobs.query(), by=by), form)


@_command("decisions", "decisions -S now-1hours --result refused,mismatch")
def decisions(
    *,
    jobs: Jobs,
    by: Annotated[Literal["service"] | None, Option(help=BY)] = None,
    service: Annotated[list[str] | None, Option(help="Only these services, separated by commas.")] = None,
    job_ids: Annotated[list[str] | None, Option("-j", "--jobs", help="Only these jobs, separated by commas.")] = None,
    result: Annotated[
        list[str] | None, Option(help="Only these results: done, would, refused, mismatch, failed, ...")
    ] = None,
    form: Form,
) -> None:
    """Show the audit log of decisions.

    Each entry says what was decided, when, for which job or node, why, and with what result. With --by service they are
    counted by day and service, with the cycles in which Helios was suspended.
    """
    from helios.app import reports  # noqa: PLC0415 - pandas, which no help needs
    from helios.report.admin.decisions import BY_SERVICE, LINES  # noqa: PLC0415 - as above

    form.check(LINES if by is None else BY_SERVICE)
    query, services = jobs.query(), split_words(service)
    if by is not None:
        if job_ids or result or any(jobs.chosen().values()):
            raise UsageError(
                "--by service counts the decisions on all jobs.", hint="Leave --user, --account, -r, -j, --result out."
            )
        show_table(reports.service_report(query, services=services), form)
        return
    found = reports.decision_report(query, services=services, job_ids=split_words(job_ids), results=split_words(result))
    show_table(found, form)


@_command("energy", "energy -S now-4weeks --by partition --report energy.html")
def energy(
    *,
    cluster: Cluster = None,
    start: Start = None,
    end: End = None,
    by: Annotated[
        Literal["day", "partition", "node"],
        Option(help=BY),
    ] = "day",
    report: Report = None,
    form: Form,
) -> None:
    """Show the energy use of nodes, and what sleep saved.

    Savings are against leaving all nodes on, and against Slurm's idle timer. It also shows what idle nodes cost. Nodes
    of the same partitions and GPUs count as one partition.
    """
    from helios.app.energy.ledger import energy_report  # noqa: PLC0415 - pandas, which no help needs
    from helios.report.energy import energy_answer, energy_sentences, fields_by  # noqa: PLC0415 - as above

    form.check(fields_by(by))
    found = energy_report(_query(cluster, start, end), energy=configuration().settings.energy, by=by)
    if report is not None:
        from helios.report.html import render_energy  # noqa: PLC0415 - drawing takes a second to import

        write_page(report, render_energy(found))
    if form.json:
        show_json(found.to_json())
        return
    show_table(energy_answer(found), form)
    if not form.parsable2:
        print_lines(["", *energy_sentences(found)])


@_command("shadow", "shadow --day 2026-11-20")
def shadow(
    cluster: Cluster = None,
    day: Annotated[str, Option("--day", metavar="DATE", help=DAY)] = "yesterday",
    nodes: Nodes = None,
    gpus_per_node: GpusPerNode = None,
    json: AsJson = False,
) -> None:
    """Estimate what a day's shadow decisions would have changed.

    The day is replayed without and with them.
    """
    from helios.app import reports  # noqa: PLC0415 - pandas, which no help needs
    from helios.report.admin.decisions import moved_table, shadow_table  # noqa: PLC0415 - as above

    machine = Machine(nodes=nodes, gpus_per_node=gpus_per_node).request_fields(configuration().settings)
    name, found = reports.shadow_report(_query(cluster, None, None), day=day, **machine)
    if json:
        show_json({"cluster": name, **found.to_json()})
        return
    print_lines([*found.sentences, ""])
    show_table(shadow_table(found, title=f"{name}: the shadow's day"), Form())
    if len(found.moved):
        print_lines([""])
        show_table(moved_table(found, most=MOST_MOVED), Form())


def _query(cluster: str | None, start: str | None, end: str | None, **chosen: Any) -> ReportQuery:
    from helios.app.reports import ReportQuery  # noqa: PLC0415 - pandas, which no help needs

    settings = configuration().settings
    return ReportQuery(
        url=settings.database.url,
        slurm=settings.slurm,
        cluster=select_cluster(cluster),
        start=start,
        end=end,
        now=datetime.now(UTC),
        **chosen,
    )


def show_table(report: ReportTable, form: Form) -> None:
    """Print a report on standard output, and its notes on standard error."""
    from helios.report.admin.sacct_format import (  # noqa: PLC0415 - pandas, which no help needs
        as_json,
        as_lines,
        as_parsable,
        chosen_fields,
    )

    if form.json:
        show_json(as_json(report))
        return
    fields = chosen_fields(report, form.fields)
    print_notes(report.notes)
    if form.parsable2:
        print_lines(as_parsable(report, fields, header=not form.noheader))
    else:
        print_message(report.title)
        print_lines([report.empty] if report.rows.empty else as_lines(report, fields, header=not form.noheader))


def print_lines(lines: Iterable[str]) -> None:
    """Print lines as they are."""
    # Not through rich, which would read [words] in a job's reason as markup and fold what a script reads.
    sys.stdout.writelines(f"{line}\n" for line in lines)


@expand
def advise_(
    *,
    source: HistoryOptions,
    since: Since = None,
    until: Until = None,
    user: Users = None,
    usage: Annotated[
        Path | None,
        Option(help="What jobs used, as sacct wrote it (docs/reports.md). Default: asked of this machine's Slurm."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say which requests of your jobs do not fit what they need.

    Time limits far too long or too short, memory, CPUs and GPUs that were never used, and repeated small jobs that may
    share a GPU. By default they are of the last four weeks and yourself, of a history of everybody; --user all is
    everybody too. Each advice names the jobs, the hours and the interval that it rests
    on. Of few alike jobs nothing is said.

    Example: helios advise --user alice --from 2026-11-01
    """
    from helios.app import advise  # noqa: PLC0415 - pandas, which the help needs not
    from helios.app.reports import ReportQuery  # noqa: PLC0415 - as above

    settings = configuration().settings
    named = split_words(user)
    users = () if named == [EVERYBODY] else tuple(named)
    used = None if usage is None else advise.usage_of_file(usage)
    with progress_bars() as progress:
        if source.trace is not None:
            loaded = source.read(progress)
            last = None if loaded.jobs.empty else loaded.jobs["submitted_at"].max().to_pydatetime()
            begin, end = WindowOptions(since=since, until=until).bounds(loaded.timezone, last)
            found = advise.advise_on(loaded, since=begin, until=end, users=users, used=used)
        else:
            ask = ReportQuery(
                url=settings.database.url,
                slurm=settings.slurm,
                cluster=select_cluster(source.cluster),
                exempt=settings.advice.exempt,
                now=datetime.now(UTC),
                start=since,
                end=until,
                length=advise.WINDOW,
                users=users,
            )
            own = "" if named else getpass.getuser()
            found = advise.advise(ask, usage=partial(advise.usage_of_cluster, settings.slurm), used=used, own=own)
    print_notes(found.notes)
    if as_json:
        show_json(found.to_json())
        return
    for line in found.lines(most=MOST_ADVICE):
        print("\n".join(wrap(line, min(width(), 100), subsequent_indent="   ")) if line else "")
