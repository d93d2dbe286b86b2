"""Commands ``helios report``, whose options are like those of sacct, and ``helios advise``."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import Annotated, Any, Literal

import typer
from typer import Option

from helios.app import reports
from helios.app.reports import ReportQuery
from helios.cli.options import (
    AsJson,
    Cluster,
    Command,
    GpusPerNode,
    HistoryOptions,
    Machine,
    Since,
    Until,
    WindowOptions,
    configuration,
    expand,
    select_cluster,
    writable,
)
from helios.cli.output import print_message, print_notes, progress_bars, show_json, width, write_file
from helios.dates import FORMS
from helios.errors import UsageError
from helios.report.admin import decisions as decisions_report
from helios.report.admin import predictions as predictions_report
from helios.report.admin.decisions import moved_table, shadow_table
from helios.report.admin.sacct_format import (
    Field,
    ReportTable,
    as_json,
    as_lines,
    as_parsable,
    chosen_fields,
    listing,
)
from helios.report.admin.usage import NOW, OVER_TIME, fields_by
from helios.report.energy import EnergyLedger, energy_answer, energy_sentences
from helios.report.energy import fields_by as fields_of_energy

commands = typer.Typer(
    no_args_is_help=True, help="Report waits, usage, prediction errors and decisions, with options as in sacct."
)


Start = Annotated[
    str | None,
    Option("-S", "--starttime", metavar="DATE", help=f"Begin of the window ({FORMS}). Default: a week before the end."),
]
End = Annotated[
    str | None,
    Option("-E", "--endtime", metavar="DATE", help="End of the window; a day or month is included. Default: now."),
]
Services = Annotated[list[str] | None, Option("--service", help="Only these services, separated by commas.")]
Nodes = Annotated[
    str | None, Option(help="Nodes of each partition, such as gpu=16,cpu=4. Default: as the warehouse knows them.")
]
Day = Annotated[str, Option("--day", help="Day to report: yesterday, today, or a date such as 2026-11-20.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    """Options that select the jobs of a report."""

    cluster: Cluster = None
    start: Start = None
    end: End = None
    user: Annotated[
        list[str] | None, Option("-u", "--user", "--uid", help="Only these users, separated by commas.")
    ] = None
    account: Annotated[
        list[str] | None, Option("-A", "--account", "--accounts", help="Only these accounts, separated by commas.")
    ] = None
    partition: Annotated[
        list[str] | None, Option("-r", "--partition", help="Only these partitions, separated by commas.")
    ] = None

    def query(self) -> ReportQuery:
        """Return the query of the report."""
        chosen = {"users": self.user, "accounts": self.account, "partitions": self.partition}
        return _query(self.cluster, self.start, self.end, **{name: _split(text) for name, text in chosen.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """Options for the layout of a report."""

    fields: Annotated[
        str | None,
        Option("-o", "--format", help="Fields, separated by commas, as Field%width, or Field%-width to align left."),
    ] = None
    noheader: Annotated[bool, Option("-n", "--noheader", help="Print no header.")] = False
    parsable: Annotated[
        bool, Option("-p", "--parsable", help="Print whole fields with | between them and at the end.")
    ] = False
    parsable2: Annotated[bool, Option("-P", "--parsable2", help="Print whole fields with | between them.")] = False
    helpformat: Annotated[bool, Option("-e", "--helpformat", help="List the fields with their meanings.")] = False
    json: AsJson = False

    def check(self, fields: Iterable[Field]) -> None:
        """List the fields and exit, if asked to.

        As with sacct, that needs no database.
        """
        if self.helpformat:
            print_lines(listing(fields))
            raise typer.Exit
        if self.parsable + self.parsable2 + self.json > 1:
            raise UsageError("-p, -P and --json are different forms of the answer.", hint="Give one of them.")


def _command(name: str, example: str) -> Callable[[Command], Command]:
    """Return a decorator for commands with option groups."""
    return lambda command: commands.command(name, epilog=f"Example: helios report {example}")(expand(command))


@_command("queue", "queue -S now-1days -r gpu")
def queue(jobs: Jobs, form: Form) -> None:
    """Show who waits, by partition and user.

    Now, or at the time of -E. With -S, it shows the queue over time.
    """
    form.check(NOW if jobs.start is None else OVER_TIME)
    show_table(reports.queue_report(jobs.query()), form)


def _add_usage_command(group: str, example: str) -> None:
    def usage(jobs: Jobs, form: Form) -> None:
        form.check(fields_by(group))
        show_table(reports.usage_report(jobs.query(), group=group), form)

    usage.__doc__ = (
        f"Show hours, jobs, waits and failures of each {group}.\n\n"
        "Hours are those held in the window; all else is of the jobs submitted in it."
    )
    _command(f"{group}s", f"{group}s {example}")(usage)


_add_usage_command("user", "-S 2026-11-01 -o User,Jobs,GPUHours,P95Wait -P")
_add_usage_command("account", "-S now-4weeks")
_add_usage_command("partition", "-S today --json")


@_command("predictions", "predictions -S now-4weeks --by user")
def predictions(
    *,
    jobs: Jobs,
    by: Annotated[
        Literal["all", "source", "size", "day", "partition", "user"] | None,
        Option(help="Group by this only. Default: all, source, size and day."),
    ] = None,
    form: Form,
) -> None:
    """Show how far off predicted run times were.

    They are compared with a rule without a model: the run time of the user's last job that had ended.
    """
    form.check(predictions_report.FIELDS)
    show_table(reports.prediction_report(jobs.query(), by=by), form)


@_command("decisions", "decisions -S now-1hours --result refused,mismatch")
def decisions(
    *,
    jobs: Jobs,
    service: Services = None,
    job_ids: Annotated[list[str] | None, Option("-j", "--jobs", help="Only these jobs, separated by commas.")] = None,
    result: Annotated[
        list[str] | None, Option(help="Only these results: done, would, refused, mismatch, failed, ...")
    ] = None,
    mode: Annotated[list[str] | None, Option(help="Only these modes: shadow, canary, active.")] = None,
    action: Annotated[list[str] | None, Option(help="Only these actions: Reorder, SoftLimit, ...")] = None,
    form: Form,
) -> None:
    """Show the audit log of decisions.

    Each entry says what was decided, when, for which job or node, why, and with what result.
    """
    form.check(decisions_report.LINES)
    found = reports.decision_report(
        jobs.query(),
        services=_split(service),
        job_ids=_split(job_ids),
        results=_split(result),
        modes=_split(mode),
        actions=_split(action),
    )
    show_table(found, form)


@_command("services", "services -S now-2weeks")
def services(
    *, cluster: Cluster = None, start: Start = None, end: End = None, service: Services = None, form: Form
) -> None:
    """Show what each service asked for, by day, and with what results.

    Also in how many cycles Helios was suspended (it wrote nothing), and why.
    """
    form.check(decisions_report.BY_SERVICE)
    show_table(reports.service_report(_query(cluster, start, end), services=_split(service)), form)


@_command("energy", "energy -S now-4weeks --by partition --plot energy.html")
def energy(
    *,
    cluster: Cluster = None,
    start: Start = None,
    end: End = None,
    by: Annotated[
        Literal["day", "partition", "node"],
        Option(
            help="A row for each day, partition or node. Nodes of the same partitions and GPUs count as one partition."
        ),
    ] = "day",
    plot: Annotated[
        Path | None,
        Option(
            "--plot",
            callback=writable,
            help="Also write a plot to this .png file, or the whole report to this .html file.",
        ),
    ] = None,
    form: Form,
) -> None:
    """Show the energy use of nodes, and what sleep saved.

    Savings are against leaving all nodes on, and against Slurm's idle timer. It also shows what idle nodes cost.
    """
    form.check(fields_of_energy(by))
    found = reports.energy_report(_query(cluster, start, end), energy=configuration().settings.energy, by=by)
    if plot is not None:
        _draw(found, plot)
    if form.json:
        show_json(found.to_json())
        return
    show_table(energy_answer(found), form)
    if not (form.parsable or form.parsable2):
        print_lines(["", *energy_sentences(found)])


@_command("shadow", "shadow --day 2026-11-20")
def shadow(
    cluster: Cluster = None,
    day: Day = "yesterday",
    nodes: Nodes = None,
    gpus_per_node: GpusPerNode = None,
    most: Annotated[int, Option(min=0, help="Number of moved jobs to list.")] = 10,
    json: AsJson = False,
) -> None:
    """Estimate what a day's shadow decisions would have changed.

    The day is replayed without and with them.
    """
    machine = Machine(nodes=nodes, gpus_per_node=gpus_per_node).request_fields(configuration().settings)
    name, found = reports.shadow_report(_query(cluster, None, None), day=day, **machine)
    if json:
        show_json({"cluster": name, **found.to_json()})
        return
    print_lines([*found.sentences, ""])
    show_table(shadow_table(found, title=f"{name}: the shadow's day"), Form())
    if most and len(found.moved):
        print_lines([""])
        show_table(moved_table(found, most=most), Form())


@_command("nightly", "nightly --day yesterday && sendmail -t < FILE.eml")
def nightly(
    cluster: Cluster = None,
    day: Day = "yesterday",
    folder: Annotated[Path | None, Option(help="Folder to write to. Default: setting report.folder.")] = None,
    recipient: Annotated[str, Option("--to", help="Recipient of the mail.")] = "root",
    json: AsJson = False,
) -> None:
    """Write the report of a day as HTML page and mail.

    The mail holds the text, with the page attached, and is ready for sendmail -t.
    """
    from helios.app.nightly import nightly_pages  # noqa: PLC0415 - drawing takes a second to import

    settings = configuration().settings
    report = nightly_pages(
        settings,
        select_cluster(cluster),
        day,
        folder or Path(settings.report.folder),
        now=datetime.now(UTC),
        recipient=recipient,
    )
    if json:
        show_json(asdict(report))
        return
    print_lines([report.subject, *(str(path) for path in (report.page, report.mail))])


def _draw(found: EnergyLedger, path: Path) -> None:
    # Drawing takes a second to import, which no table should wait for.
    if path.suffix == ".png":
        from helios.report.charts import as_png  # noqa: PLC0415 - as above

        content = as_png(found)
    elif path.suffix in {".html", ".htm"}:
        from helios.report.html import render_energy  # noqa: PLC0415 - as above

        content = render_energy(found).encode()
    else:
        raise UsageError(f"--plot {path}: a plot is a .png or an .html file.", hint="Name it energy.png or energy.html")
    write_file(path, content, what=str(path), option="--plot")
    print_message(f"Drawn: {path}")


def _query(cluster: str | None, start: str | None, end: str | None, **chosen: Any) -> ReportQuery:
    url = configuration().settings.database.url
    return ReportQuery(url=url, cluster=select_cluster(cluster), start=start, end=end, now=datetime.now(UTC), **chosen)


def _split(given: list[str] | None) -> list[str]:
    return [word.strip() for text in given or [] for word in text.split(",") if word.strip()]


def show_table(report: ReportTable, form: Form) -> None:
    """Print a report on standard output, and its notes on standard error."""
    fields = chosen_fields(report, form.fields)
    if form.json:
        show_json(as_json(report))
        return
    print_notes(report.notes)
    if form.parsable or form.parsable2:
        print_lines(as_parsable(report, fields, header=not form.noheader, trailing=form.parsable))
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
    share a GPU. By default of the last four weeks. Each advice names the jobs, the hours and the interval that it rests
    on. Of few alike jobs nothing is said.

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
            last = None if loaded.jobs.empty else loaded.jobs["submitted_at"].max().to_pydatetime()
            begin, end = WindowOptions(since=since, until=until).bounds(loaded.timezone, last)
            found = advise.advise_on(loaded, since=begin, until=end, users=users, used=of_file)
        else:
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
