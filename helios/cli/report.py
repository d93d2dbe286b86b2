"""``helios report``: what an admin asks of history and audit, in sacct's habits."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from helios.app import reports
from helios.app.reports import ReportQuery
from helios.cli.options import AsJson, Cluster, configuration
from helios.cli.output import say, say_notes, show_json
from helios.errors import UsageError
from helios.report.admin import Field, ReportTable, as_json, as_lines, chosen_fields, listing
from helios.report.admin import decisions as decisions_report
from helios.report.admin import predictions as predictions_report
from helios.report.admin.queue import NOW, OVER_TIME
from helios.report.admin.sacct_format import WORDS, as_parsable
from helios.report.admin.shadow import moved_table, shadow_table
from helios.report.admin.usage import fields_by
from helios.report.energy import EnergyLedger, energy_answer, energy_sentences
from helios.report.energy import fields_by as fields_of_energy

commands = typer.Typer(
    no_args_is_help=True,
    help="Who waits, who used what, how far off predictions are, what was decided; options as sacct's.",
)


class EnergyGrouping(StrEnum):
    """What a row of the energy ledger is."""

    DAY = "day"
    PARTITION = "partition"
    NODE = "node"


class AccuracyGrouping(StrEnum):
    """What predictions are grouped by."""

    ALL = "all"
    SOURCE = "source"
    SIZE = "size"
    DAY = "day"
    PARTITION = "partition"
    USER = "user"


Start = Annotated[
    str | None, typer.Option("-S", "--starttime", help=f"Begin of the window ({WORDS}); else a week before the end.")
]
End = Annotated[str | None, typer.Option("-E", "--endtime", help="End of the window; else now.")]
Users = Annotated[list[str] | None, typer.Option("-u", "--user", "--uid", help="Only these users, by commas.")]
Accounts = Annotated[
    list[str] | None, typer.Option("-A", "--account", "--accounts", help="Only these accounts, by commas.")
]
Partitions = Annotated[list[str] | None, typer.Option("-r", "--partition", help="Only these partitions, by commas.")]
Services = Annotated[list[str] | None, typer.Option("--service", help="Only these services, by commas.")]
Fields = Annotated[
    str | None, typer.Option("-o", "--format", help="Fields by commas, as Field%width; to the left: Field%-width.")
]
Noheader = Annotated[bool, typer.Option("-n", "--noheader", help="No header.")]
Parsable = Annotated[bool, typer.Option("-p", "--parsable", help="Fields with | between and after them, uncut.")]
Parsable2 = Annotated[bool, typer.Option("-P", "--parsable2", help="Fields with | between them, uncut.")]
Helpformat = Annotated[bool, typer.Option("-e", "--helpformat", help="List the fields and what they mean.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """How the answer is written, as typed."""

    fields: str | None = None
    header: bool = True
    parsable: bool = False
    parsable2: bool = False
    json: bool = False


_PLAIN = _Form()


@commands.command("queue", epilog="Example: helios report queue -S now-1days -r gpu")
def queue(
    cluster: Cluster = None,
    start: Start = None,
    end: End = None,
    user: Users = None,
    account: Accounts = None,
    partition: Partitions = None,
    fields: Fields = None,
    noheader: Noheader = False,
    parsable: Parsable = False,
    parsable2: Parsable2 = False,
    helpformat: Helpformat = False,
    json: AsJson = False,
) -> None:
    """Show who waits now, or at -E, by partition and user; with -S the queue over time."""
    _list_fields(helpformat, NOW if start is None else OVER_TIME)
    ask = _ask(cluster, start, end, user, account, partition)
    form = _form(fields, noheader, parsable, parsable2, json)
    _show(reports.queue_report(ask), form)


@commands.command("users", epilog="Example: helios report users -S 2026-11-01 -o User,Jobs,GPUHours,P95Wait -P")
def users(
    cluster: Cluster = None,
    start: Start = None,
    end: End = None,
    user: Users = None,
    account: Accounts = None,
    partition: Partitions = None,
    fields: Fields = None,
    noheader: Noheader = False,
    parsable: Parsable = False,
    parsable2: Parsable2 = False,
    helpformat: Helpformat = False,
    json: AsJson = False,
) -> None:
    """Show jobs, hours, waits and failures of each user, of jobs submitted in the window."""
    _list_fields(helpformat, fields_by("user"))
    ask = _ask(cluster, start, end, user, account, partition)
    form = _form(fields, noheader, parsable, parsable2, json)
    _show(reports.usage_report(ask, group="user"), form)


@commands.command("accounts", epilog="Example: helios report accounts -S now-4weeks")
def accounts(
    cluster: Cluster = None,
    start: Start = None,
    end: End = None,
    user: Users = None,
    account: Accounts = None,
    partition: Partitions = None,
    fields: Fields = None,
    noheader: Noheader = False,
    parsable: Parsable = False,
    parsable2: Parsable2 = False,
    helpformat: Helpformat = False,
    json: AsJson = False,
) -> None:
    """Show jobs, hours, waits and failures of each account, of jobs submitted in the window."""
    _list_fields(helpformat, fields_by("account"))
    ask = _ask(cluster, start, end, user, account, partition)
    form = _form(fields, noheader, parsable, parsable2, json)
    _show(reports.usage_report(ask, group="account"), form)


@commands.command("partitions", epilog="Example: helios report partitions -S today --json")
def partitions(
    cluster: Cluster = None,
    start: Start = None,
    end: End = None,
    user: Users = None,
    account: Accounts = None,
    partition: Partitions = None,
    fields: Fields = None,
    noheader: Noheader = False,
    parsable: Parsable = False,
    parsable2: Parsable2 = False,
    helpformat: Helpformat = False,
    json: AsJson = False,
) -> None:
    """Show jobs, hours, waits and failures of each partition, of jobs submitted in the window."""
    _list_fields(helpformat, fields_by("partition"))
    ask = _ask(cluster, start, end, user, account, partition)
    form = _form(fields, noheader, parsable, parsable2, json)
    _show(reports.usage_report(ask, group="partition"), form)


@commands.command("predictions", epilog="Example: helios report predictions -S now-4weeks --by user")
def predictions(
    cluster: Cluster = None,
    start: Start = None,
    end: End = None,
    user: Users = None,
    account: Accounts = None,
    partition: Partitions = None,
    by: Annotated[
        AccuracyGrouping | None, typer.Option("--by", help="Group by this alone; else all, source, size and day.")
    ] = None,
    fields: Fields = None,
    noheader: Noheader = False,
    parsable: Parsable = False,
    parsable2: Parsable2 = False,
    helpformat: Helpformat = False,
    json: AsJson = False,
) -> None:
    """Show how far off predicted run times were, beside a rule without a model: the user's last ended run."""
    _list_fields(helpformat, predictions_report.FIELDS)
    ask = _ask(cluster, start, end, user, account, partition)
    form = _form(fields, noheader, parsable, parsable2, json)
    _show(reports.prediction_report(ask, by=by.value if by else None), form)


@commands.command("decisions", epilog="Example: helios report decisions -S now-1hours --result refused,mismatch")
def decisions(
    cluster: Cluster = None,
    start: Start = None,
    end: End = None,
    user: Users = None,
    account: Accounts = None,
    partition: Partitions = None,
    service: Services = None,
    jobs: Annotated[list[str] | None, typer.Option("-j", "--jobs", help="Only these jobs, by commas.")] = None,
    result: Annotated[
        list[str] | None, typer.Option("--result", help="Only these: done, would, refused, mismatch, failed, ...")
    ] = None,
    mode: Annotated[list[str] | None, typer.Option("--mode", help="Only these: shadow, canary, active.")] = None,
    action: Annotated[list[str] | None, typer.Option("--action", help="Only these: Reorder, SoftLimit, ...")] = None,
    fields: Fields = None,
    noheader: Noheader = False,
    parsable: Parsable = False,
    parsable2: Parsable2 = False,
    helpformat: Helpformat = False,
    json: AsJson = False,
) -> None:
    """Show the audit: what was decided when, for which job, why, and what came of it."""
    _list_fields(helpformat, decisions_report.LINES)
    ask = _ask(cluster, start, end, user, account, partition)
    form = _form(fields, noheader, parsable, parsable2, json)
    answer = reports.decision_report(
        ask,
        services=_listed(service),
        job_ids=_listed(jobs),
        results=_listed(result),
        modes=_listed(mode),
        actions=_listed(action),
    )
    _show(answer, form)


@commands.command("services", epilog="Example: helios report services -S now-2weeks")
def services(
    cluster: Cluster = None,
    start: Start = None,
    end: End = None,
    service: Services = None,
    fields: Fields = None,
    noheader: Noheader = False,
    parsable: Parsable = False,
    parsable2: Parsable2 = False,
    helpformat: Helpformat = False,
    json: AsJson = False,
) -> None:
    """Show per service and day what it proposed, what came of it, and when and why Helios suspended."""
    _list_fields(helpformat, decisions_report.BY_SERVICE)
    ask = _ask(cluster, start, end, None, None, None)
    form = _form(fields, noheader, parsable, parsable2, json)
    _show(reports.service_report(ask, services=_listed(service)), form)


@commands.command("energy", epilog="Example: helios report energy -S now-4weeks --by partition --plot energy.html")
def energy(
    cluster: Cluster = None,
    start: Annotated[
        str | None,
        typer.Option("-S", "--starttime", "--from", help=f"Begin of the window ({WORDS}); else a week before the end."),
    ] = None,
    end: Annotated[str | None, typer.Option("-E", "--endtime", "--to", help="End of the window; else now.")] = None,
    by: Annotated[
        EnergyGrouping,
        typer.Option("--by", help="A row for each: nodes of the same partitions and GPUs are one partition."),
    ] = EnergyGrouping.DAY,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Also draw it here: .png, or .html for a page with all of it.")
    ] = None,
    fields: Fields = None,
    noheader: Noheader = False,
    parsable: Parsable = False,
    parsable2: Parsable2 = False,
    helpformat: Helpformat = False,
    json: AsJson = False,
) -> None:
    """Show what nodes did and drew, what sleep saved against Slurm's idle timer, and what idle nodes cost."""
    _list_fields(helpformat, fields_of_energy(by.value))
    form = _form(fields, noheader, parsable, parsable2, json)
    found = reports.energy_report(
        _ask(cluster, start, end, None, None, None), energy=configuration().settings.energy, by=by.value
    )
    if plot is not None:
        _draw(found, plot)
    if json:
        show_json(found.to_json())
        return
    _show(energy_answer(found), form)
    if not (parsable or parsable2):
        _print(["", *energy_sentences(found)])


@commands.command("shadow", epilog="Example: helios report shadow --day 2026-11-20")
def shadow(
    cluster: Cluster = None,
    day: Annotated[str, typer.Option("--day", help="The day: yesterday, today, 2026-11-20.")] = "yesterday",
    nodes: Annotated[
        str | None, typer.Option("--nodes", help="PARTITION=N[,PARTITION=N...]; else as the warehouse knows them.")
    ] = None,
    gpus_per_node: Annotated[
        int | None, typer.Option("--gpus-per-node", min=1, help="GPUs of a node; else whatif.gpus_per_node.")
    ] = None,
    most: Annotated[int, typer.Option("--most", min=0, help="Moved jobs to name.")] = 10,
    json: AsJson = False,
) -> None:
    """Show what a day's shadow decisions would have changed, by replaying that day without and with them."""
    from helios.app.replay_cluster import parse_nodes  # noqa: PLC0415 - no other report replays, which takes numba

    settings = configuration().settings
    name, found = reports.shadow_report(
        _ask(cluster, None, None, None, None, None),
        day=day,
        nodes=parse_nodes(nodes) if nodes is not None else None,
        gpus_per_node=gpus_per_node or settings.whatif.gpus_per_node,
        default_time_limit_s=settings.whatif.default_time_limit_s,
    )
    if json:
        show_json({"cluster": name, **found.to_json()})
        return
    for sentence in found.sentences:
        typer.echo(sentence)
    typer.echo()
    table = shadow_table(found, title=f"{name}: the shadow's day")
    _show(table, _PLAIN)
    if most and len(found.moved):
        typer.echo()
        _show(moved_table(found, most=most), _PLAIN)


@commands.command("nightly", epilog="Example: helios report nightly --day yesterday && sendmail -t < FILE.eml")
def nightly(
    cluster: Cluster = None,
    day: Annotated[str, typer.Option("--day", help="The day: yesterday, today, 2026-11-20.")] = "yesterday",
    folder: Annotated[Path | None, typer.Option("--folder", help="Where to; else report.folder.")] = None,
    recipient: Annotated[str, typer.Option("--to", help="To whom the mail is addressed.")] = "root",
    json: AsJson = False,
) -> None:
    """Write the report of a day: an HTML page, a plain text, and a mail with both, ready for sendmail -t."""
    from helios.app.nightly import nightly_pages  # noqa: PLC0415 - drawing takes a second to import

    settings = configuration().settings
    report = nightly_pages(
        settings.database.url,
        cluster,
        day,
        folder or Path(settings.report.folder),
        now=datetime.now(UTC),
        keep=settings.report.keep,
        gpus_per_node=settings.whatif.gpus_per_node,
        default_time_limit_s=settings.whatif.default_time_limit_s,
        energy=settings.energy,
        recipient=recipient,
    )
    if json:
        show_json(asdict(report))
        return
    _print([report.subject, *(str(path) for path in (report.page, report.text, report.mail))])


def _draw(found: EnergyLedger, path: Path) -> None:
    # Drawing takes a second to import, which no table should wait for.
    if path.suffix == ".png":
        from helios.report.energy_charts import as_png  # noqa: PLC0415 - as above

        content = as_png(found)
    elif path.suffix in {".html", ".htm"}:
        from helios.report.html import render_energy  # noqa: PLC0415 - as above

        content = render_energy(found).encode()
    else:
        raise UsageError(f"--plot {path}: a plot is a .png or an .html file.", hint="Name it energy.png or energy.html")
    try:
        path.write_bytes(content)
    except OSError as reason:
        raise UsageError(f"{path} cannot be written: {reason}", hint="Choose another place: --plot") from reason
    say(f"Drawn: {path}")


def _ask(
    cluster: str | None,
    start: str | None,
    end: str | None,
    user: list[str] | None,
    account: list[str] | None,
    partition: list[str] | None,
) -> ReportQuery:
    return ReportQuery(
        url=configuration().settings.database.url,
        cluster=cluster,
        start=start,
        end=end,
        users=_listed(user),
        accounts=_listed(account),
        partitions=_listed(partition),
        now=datetime.now(UTC),
    )


def _listed(given: list[str] | None) -> list[str]:
    return [word.strip() for text in given or [] for word in text.split(",") if word.strip()]


def _form(fields: str | None, noheader: bool, parsable: bool, parsable2: bool, json: bool) -> _Form:
    if sum((parsable, parsable2, json)) > 1:
        raise UsageError("-p, -P and --json are different forms of the answer.", hint="Give one of them.")
    return _Form(
        fields=fields,
        header=not noheader,
        parsable=parsable,
        parsable2=parsable2,
        json=json,
    )


def _list_fields(asked: bool, fields: Iterable[Field]) -> None:
    """Print the fields there are, where asked for, and end; as in sacct that needs no database."""
    if asked:
        _print(listing(fields))
        raise typer.Exit


def _show(answer: ReportTable, form: _Form) -> None:
    """Print the answer on standard output, and what to know about it on standard error."""
    fields = chosen_fields(answer, form.fields)
    if form.json:
        show_json(as_json(answer))
        return
    say_notes(answer.notes)
    if form.parsable or form.parsable2:
        _print(as_parsable(answer, fields, header=form.header, trailing=form.parsable))
    elif answer.rows.empty:
        say(answer.title)
        _print([answer.empty])
    else:
        say(answer.title)
        _print(as_lines(answer, fields, header=form.header))


def _print(lines: Iterable[str]) -> None:
    # Not through rich, which would read [words] in a job's reason as markup and fold what a script reads.
    sys.stdout.writelines(f"{line}\n" for line in lines)
