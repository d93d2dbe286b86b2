"""Commands that start and stop changes on the cluster."""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table
from typer import Argument, Option

from helios.choices import Domain, Mode
from helios.cli.options import (
    DAY,
    SLURM_CONF,
    AsJson,
    Cluster,
    Partitions,
    configuration,
    refuse_misplaced,
    select_cluster,
    split_words,
)
from helios.cli.output import print_message, print_notes, print_result, progress_bars, show, show_json
from helios.config import Settings
from helios.errors import HeliosError, NoSuchCluster, StrangersLeft, UsageError, WarehouseUnavailable
from helios.units import count_in_words

if TYPE_CHECKING:  # pandas and SQLAlchemy, which no help needs
    import pandas as pd

    from helios.control import CycleReport, NodeCycleReport, ServiceMode

MOST_LINES = 40
WEIGHTS_GO_IN = (
    "Put each line in place of the one that it names, as slurmctld ends at a second NodeName line of a node. Give "
    "every node the new slurm.conf, then: scontrol reconfigure"
)
WEIGHTS_BRING = (
    "On a week of Venus' jobs (133 nodes) Slurm's timer of 30 min put 54.6 nodes to sleep with such weights, and 48.9 "
    "without (docs/power.md)."
)
ALL_NODES = "all"
STOP = "Stop the daemon: systemctl stop helios helios-power."

Reason = Annotated[str, Option("--reason", help="Reason, recorded in the audit log.")]
Apply = Annotated[
    bool,
    Option("--apply", help="Make the changes, as far as each service's mode allows. Without it nothing is written."),
]
As = Annotated[
    Mode | None, Option("--as", help="Plan as if every service had this mode. Cannot be combined with --apply.")
]


def cycle_(
    domain: Annotated[Domain, Argument(help="What the cycle is about.")] = Domain.JOBS,
    cluster: Cluster = None,
    apply: Apply = False,
    mode: As = None,
    as_json: AsJson = False,
) -> None:
    """Show or apply what one control cycle would change.

    On jobs, Helios reads the queue, predicts run times and asks the services for changes. On nodes, it reads the nodes
    and forecasts how many will be needed. Without --apply nothing is written. With --apply it makes the changes that
    the services' modes allow (helios mode).

    Example: helios cycle nodes --as active
    """
    from helios.app.operations import Operations  # noqa: PLC0415 - pandas and SQLAlchemy; no help needs them

    if apply and mode is not None:
        raise UsageError(
            "--as only plans.", hint=f"Set the mode: helios mode SERVICE active; then helios cycle {domain} --apply"
        )
    operations = Operations(configuration().settings, cluster=cluster)
    if domain is Domain.NODES:
        _cycle_nodes(operations.node_cycles, apply=apply, mode=mode, as_json=as_json)
    else:
        _cycle_jobs(operations.cycles, apply=apply, mode=mode, as_json=as_json)
    if not apply and not as_json:
        print_message(f"Nothing was written. To act as far as the modes allow: helios cycle {domain} --apply")


def _cycle_jobs(cycles: Any, *, apply: bool, mode: Mode | None, as_json: bool) -> None:
    report, modes = _run_cycle(cycles, apply=apply, mode=mode)
    if as_json:
        pending, running = (report.pending, report.running) if report.seen and report.leads else (None, None)
        counts = {"pending": pending, "running": running, "acted": report.acted}
        show_json(
            _cycle_answer(report)
            | counts
            | {"modes": {name: _mode_answer(service_mode) for name, service_mode in modes.items()}}
        )
        return
    if report.seen and report.leads:
        show(f"{report.pending:,} jobs pending ({report.gpus_pending:,} GPUs), {report.running:,} running.")
    else:
        show("The queue was not read.")
    columns = ["target", "service", "action", "before", "after", "outcome", "reason"]
    rows = _decisions(report)[columns].astype("object").fillna("").itertuples(index=False)
    headers = ("Job", "Service", "Action", "Before", "After", "Outcome", "Why")
    _show_cycle(report, headers, list(rows), {name: service_mode.mode.value for name, service_mode in modes.items()})


def _cycle_nodes(cycles: Any, *, apply: bool, mode: Mode | None, as_json: bool) -> None:
    if not cycles.services:
        raise UsageError(
            "No configured service acts on nodes.", hint="Name one in helios.toml: [services.ces]; see docs/power.md"
        )
    report, modes = _run_cycle(cycles, apply=apply, mode=mode)
    from helios.app.controllers import count_states  # noqa: PLC0415 - only where it is shown
    from helios.report.nodes import group_decisions  # noqa: PLC0415 - as above

    if as_json:
        changes = {
            "nodes": count_states(report),
            "slept": list(report.slept),
            "woken": list(report.woken),
            "weighed": list(report.weighed),
            "protected": report.protected,
            "quarantined": sorted(report.memory.quarantined),
            "modes": {service: mode.mode.value for service, mode in modes.items()},
        }
        show_json(_cycle_answer(report) | changes)
        return
    show(", ".join(f"{number:,} {state}" for state, number in count_states(report).items()) + ".")
    rows = group_decisions(_decisions(report))
    in_words = {name: f"{mode.mode.value}, {scope(mode, of=Domain.NODES)}" for name, mode in modes.items()}
    if not rows and not report.suspended and not any(report.counts.values()):
        why = (
            "each service is asked again only after its own every_s"
            if apply
            else "helios power says whether nodes can sleep here at all"
        )
        show(f"No service requests a change; {why}.")
    _show_cycle(report, ("Nodes", "Service", "Action", "Outcome", "Why"), rows, in_words)


def mode_(
    service: Annotated[
        str | None,
        Argument(help="Name of a service. Without one, all are listed."),
    ] = None,
    mode: Annotated[Mode | None, Argument(help="off, shadow, canary or active.")] = None,
    partition: Partitions = None,
    percent: Annotated[
        int | None, Option(min=1, max=100, help="Canary: act only on this percentage of the jobs or nodes.")
    ] = None,
    cluster: Cluster = None,
    reason: Reason = "",
    as_json: AsJson = False,
) -> None:
    """Show the services and their modes, or set a mode.

    A mode limits what a service may change. Without a service it lists all that are installed, with their options; for
    a broken one it says why it cannot be used. off: the service is not asked. shadow: it is asked, nothing is written,
    and the audit log says what it would have done. canary: it acts on some jobs or nodes. active: it acts on all. A new
    mode holds from the service's next cycle on.

    Example: helios mode qssf canary --percent 10 --reason 'first trial'
    """
    from helios.app.live_cluster import refuse_unknown_partitions  # noqa: PLC0415 - as above
    from helios.app.modes import current_modes, set_mode  # noqa: PLC0415 - as above
    from helios.app.services import configured_services  # noqa: PLC0415 - as above
    from helios.services.registry import domain_of  # noqa: PLC0415 - as above

    settings, partitions = configuration().settings, split_words(partition)
    if service is None and mode is None and not partitions and percent is None:
        _list_services(settings, cluster, as_json=as_json)
        return
    services = configured_services(settings)
    name = _cluster_name(settings.database.url, cluster)
    if service is not None and mode is not None:
        if service not in services:
            raise UsageError(
                f"No service {service!r} is configured.",
                hint=f"Configured are: {', '.join(services)}. Add it to helios.toml: [services.{service}]",
            )
        if mode is Mode.CANARY:
            print_notes(refuse_unknown_partitions(settings.slurm, name, partitions))
        if mode in {Mode.CANARY, Mode.ACTIVE}:
            from helios.app.gain_check import refuse_without_gain  # noqa: PLC0415 - replays the history, which takes numba

            with progress_bars() as progress:
                print_notes(refuse_without_gain(settings, name, service, services[service], progress=progress))
        set_mode(
            settings.database.url,
            name,
            service,
            mode,
            partitions=tuple(partitions),
            percent=percent,
            by=getpass.getuser(),
            reason=reason,
            now=datetime.now(UTC),
        )
        if mode in {Mode.CANARY, Mode.ACTIVE}:
            from helios.app.doctor import hook_not_installed  # noqa: PLC0415 - no pause waits for what it imports

            for finding in hook_not_installed(settings, name):
                print_message(f"warning: {finding.message}. {finding.hint}")
    else:
        raise UsageError(
            "Both the service and its mode are needed.",
            hint=f"Set it: helios mode {service or 'qssf'} shadow. See what is set: helios mode",
        )
    modes = current_modes(settings.database.url, name, services)
    table = Table("Service", "Mode", "Acts on", box=None, pad_edge=False)
    for row_name, service_mode in modes.items():
        table.add_row(row_name, service_mode.mode.value, scope(service_mode, of=domain_of(services[row_name])))
    print_result({name: _mode_answer(service_mode) for name, service_mode in modes.items()}, table, as_json=as_json)


def _list_services(settings: Settings, cluster: str | None, *, as_json: bool) -> None:
    """List every installed service with its mode and options.

    Without a history there are no modes; a broken service leaves the others unharmed.
    """
    from helios.app.modes import current_modes  # noqa: PLC0415 - as above
    from helios.services.registry import POOL_GROUP, InstalledService, installed  # noqa: PLC0415 - as above

    try:
        modes = current_modes(settings.database.url, _cluster_name(settings.database.url, cluster), settings.services)
    except NoSuchCluster as reason:
        if cluster is not None:
            raise
        modes = {}
        print_notes([f"No mode is in force. {reason.message}"])
    table = Table("Service", "Mode", "Acts on", "What it does", "Options", "From", box=None, pad_edge=False)
    rows = {}
    found = installed()
    gone = [
        InstalledService(name=name, target="", package="", broken="it is not installed")
        for name in settings.services
        if name not in found
    ]
    for service in (*found.values(), *gone, *installed(POOL_GROUP).values()):
        mode = modes.get(service.name) if service.domain else None
        shown = ("-", "trials of pools")
        if mode is not None and service.domain:
            shown = (mode.mode.value, scope(mode, of=service.domain))
        elif service.domain:
            why = "no cluster is known" if service.name in settings.services else "it is not configured"
            shown = ("-", f"nothing, as {why}")
        summary = f"broken: {service.broken}" if service.broken else service.summary
        table.add_row(service.name, *shown, summary, "\n".join(map(str, service.options)), service.package)
        rows[service.name] = (
            (_mode_answer(mode) if mode else {"mode": None, "partitions": [], "percent": None})
            | asdict(service)
            | {"configured": service.name in settings.services, "domain": service.domain or "pools"}
        )
    print_result(rows, table, as_json=as_json)


def pause_(
    cluster: Cluster = None,
    reason: Reason = "",
    hidden: Annotated[
        bool,
        Option(
            "--hidden",
            help="Write 0 also to jobs that Helios had set and whose SiteFactor Slurm hides now (held, or not "
            "eligible). What an admin has set there since is lost. The audit log has the priority before and after.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Stop Helios at once and revert everything it set.

    The revert is verified, and nodes that Helios put to sleep are woken. Then Helios does nothing until helios resume.
    Neither the daemon nor the database is needed. A value of Helios that Slurm hides is left and named, and the exit
    status is 1. So it is if something could not be reverted, read or, on a full disk, written: all is reverted there,
    too. A value that carries Helios' mark but is in none of its records is another's: it is left and named too, and if
    only such values are left, the exit status is 3.

    Example: helios pause --reason 'maintenance'
    """
    from helios.app.modes import PAUSE_FILE, is_paused_here, pause, pause_here  # noqa: PLC0415 - as above
    from helios.app.operations import Operations  # noqa: PLC0415 - as above

    settings = configuration().settings
    operations, by, now = Operations(settings, cluster=cluster), getpass.getuser(), datetime.now(UTC)
    folder, url = Path(settings.control.state_folder), settings.database.url
    # Before anything else, because asking cluster and database for a name may take long or fail.
    unwritten = problems = pause_here(folder, by=by, reason=reason, now=now)
    paused = is_paused_here(folder)
    nameless: list[str] = []
    lookups = (lambda: operations.site.name, lambda: _cluster_name(url, None))
    name = cluster or next(filter(None, (_find_name(lookup, problems=nameless) for lookup in lookups)), None)
    if name is not None:
        paused, problems = pause(url, name, folder, by=by, reason=reason, now=now)
    else:
        where = "on this machine only" if paused else "nowhere"
        nameless.append(f"which cluster is meant cannot be found out: Helios is paused {where}")
    problems = [*nameless, *problems]
    if problems and not _pause_nodes_daemon(folder, by=by, reason=reason, now=now):
        nodes_folder = _nodes_folder(folder)
        problems.append(f"the Helios that acts on nodes is not paused: as root, touch {nodes_folder / PAUSE_FILE}")
    if name is None or not _has_run_cycles(url, name):
        problems.append(
            f"no Helios has run a cycle with these settings; one that runs here has others and does not see {folder}"
        )
    why = f"paused by {by}" + (f": {reason}" if reason else "")
    state = "Helios is paused" if paused else "Helios is not paused, so a running daemon sets its changes again"
    try:
        report, nodes, summary = operations.revert_everything(why, hidden=hidden)
    except HeliosError as problem:
        raise HeliosError(
            f"{state}; and not all of its changes could be reverted: {problem.message}",
            hint=problem.hint if paused else f"{STOP} {problem.hint}",
        ) from problem
    finally:  # not before, as printing may wait or fail too
        for text in problems:
            print_message(f"warning: {text}")
    answer = {
        "paused": paused,
        "cluster": name,
        "set_back": report.acted,
        "nodes_woken": [] if nodes is None else list(nodes.woken),
        "remaining": [],
        "strangers": list(report.strangers),
        "audited": report.recorded and (nodes is None or nodes.recorded),
    }
    place = folder / PAUSE_FILE if is_paused_here(folder) else "the database"
    lines = (f"Paused by {place}: {summary}.", "To go on: helios resume") if paused else (f"Not paused: {summary}.",)
    print_result(answer, *lines, as_json=as_json)
    if not paused:
        raise HeliosError(f"{state}.", hint=f"{STOP} Then see that {folder} can be written, and again: helios pause")
    if unwritten:
        raise typer.Exit(1)
    if report.strangers:
        raise typer.Exit(StrangersLeft.exit_code)


def resume_(cluster: Cluster = None, as_json: AsJson = False) -> None:
    """Let Helios act again after a pause.

    It ends a pause by helios pause, by helios-release.sh or by a PAUSED file. The modes are as they were before.

    Example: helios resume
    """
    from helios.app.controllers import JOBS_MEMORY, delete_damaged_state  # noqa: PLC0415 - as above
    from helios.app.modes import PAUSE_FILE, current_modes, resume, resume_here, still_paused  # noqa: PLC0415 - as above
    from helios.app.services import configured_services  # noqa: PLC0415 - as above
    from helios.warehouse import Warehouse  # noqa: PLC0415 - as above

    settings = configuration().settings
    folder = Path(settings.control.state_folder)
    try:
        name = _cluster_name(settings.database.url, cluster)
    except WarehouseUnavailable as problem:
        raise still_paused(problem) from problem
    except NoSuchCluster as error:
        # A warehouse without a cluster has no pause either.
        if _has_clusters(settings.database.url) or not resume_here(folder):
            raise
        _resume_nodes_daemon(folder)
        print_result(
            {"cluster": None, "modes": {}}, f"{folder / PAUSE_FILE} was removed. {error.message}", as_json=as_json
        )
        return
    now = datetime.now(UTC)
    resume(settings.database.url, name, folder, now=now)
    with Warehouse.open(settings.database.url) as warehouse:
        warehouse.remember(name, JOBS_MEMORY, "", at=now)
        delete_damaged_state(warehouse, name, at=now)
    _resume_nodes_daemon(folder)
    modes = current_modes(settings.database.url, name, configured_services(settings))
    in_words = ", ".join(f"{service} is {mode.mode.value}" for service, mode in modes.items())
    answer = {"cluster": name, "modes": {service: _mode_answer(mode) for service, mode in modes.items()}}
    print_result(answer, f"Helios goes on with its next cycle: {in_words}.", as_json=as_json)


def nightly_(
    cluster: Cluster = None,
    show_it: Annotated[bool, Option("--show", help="Run nothing: print the report of an earlier night.")] = False,
    day: Annotated[str | None, Option("--day", metavar="DATE", help=DAY)] = None,
    as_json: AsJson = False,
) -> None:
    """Run the nightly analysis once, or show what it found.

    It reads accounting records that came late, trains a model, checks whether the queue order helps, and writes the
    nightly report as a page and a mail. It changes no job. With --show, the newest report is printed, or that of --day.

    Example crontab line: 30 2 * * * helios nightly
    """
    from helios.app.operations import Operations  # noqa: PLC0415 - as above

    if show_it:
        from helios.app.nightly import stored_report  # noqa: PLC0415 - it draws, and no pause waits for that

        found = stored_report(configuration().settings, select_cluster(cluster), day, now=datetime.now(UTC))
        print_result(found.to_json(), escape(found.text), f"Page: {found.page}", f"Mail: {found.mail}", as_json=as_json)
        return
    if day is not None:
        raise UsageError("--day chooses a report that is shown.", hint=f"helios nightly --show --day {day}")
    with progress_bars() as progress:
        result = Operations(configuration().settings, cluster=cluster).night(progress=progress)
    problems = [{"message": problem.message, "hint": problem.hint} for problem in result.problems]
    print_result({"done": list(result.done), "problems": problems}, *map(escape, result.done), as_json=as_json)
    result.line()


def scope(mode: ServiceMode, *, of: Domain = Domain.JOBS) -> str:
    """Return on which jobs or nodes a service acts, in words."""
    if mode.mode in {Mode.OFF, Mode.SHADOW}:
        return "nothing"
    parts = [
        f"{mode.percent} % of the {of}" if mode.percent is not None else f"all {of}",
        f"of {', '.join(mode.partitions)}" if mode.partitions else "",
    ]
    return " ".join(part for part in parts if part)


def _has_run_cycles(url: str, cluster: str) -> bool:
    """Return whether a control cycle ever ran with these settings."""
    from helios.warehouse import Warehouse  # noqa: PLC0415 - as above

    try:
        with Warehouse.open(url) as warehouse:
            return any(warehouse.lease(cluster, domain=domain) is not None for domain in Domain)
    except HeliosError:
        return False


def _has_clusters(url: str) -> bool:
    from helios.warehouse import Warehouse  # noqa: PLC0415 - as above

    with Warehouse.open(url) as warehouse:
        return not warehouse.clusters().empty


def _nodes_folder(folder: Path) -> Path:
    """Return the state folder of ``helios-power.service``.

    It is next to that of ``helios.service``. helios-release.sh finds it in the same way.
    """
    return Path(f"{folder}-power")


def _pause_nodes_daemon(folder: Path, *, by: str, reason: str, now: datetime) -> bool:
    """Pause the daemon that acts on nodes by its own pause file.

    Returns whether it is paused.

    Without the file, the daemon would learn of the pause only from the database.
    """
    from helios.app.modes import is_paused_here, pause_here  # noqa: PLC0415 - as above

    nodes_folder = _nodes_folder(folder)
    if os.path.lexists(nodes_folder) and not is_paused_here(nodes_folder):
        pause_here(nodes_folder, by=by, reason=reason, now=now)
        return is_paused_here(nodes_folder)
    return True


def _resume_nodes_daemon(folder: Path) -> None:
    """Remove the pause file of the daemon that acts on nodes.

    ``helios-release.sh`` may have left one. Where it cannot be removed, a warning says so.
    """
    from helios.app.modes import PAUSE_FILE  # noqa: PLC0415 - as above

    file = _nodes_folder(folder) / PAUSE_FILE
    try:
        file.unlink(missing_ok=True)
    except OSError:
        print_message(f"warning: {file} still pauses the Helios that acts on nodes: remove it as root")


def _run_cycle(cycles: Any, *, apply: bool, mode: Mode | None) -> tuple[Any, dict[str, ServiceMode]]:
    """Return the report and modes of a cycle on jobs or nodes."""
    from helios.control import ServiceMode  # noqa: PLC0415 - as above

    modes = cycles.modes() if mode is None else {name: ServiceMode(mode=mode) for name in cycles.services}
    report = cycles.cycle(modes=modes) if apply else cycles.plan(modes=modes)
    print_notes(report.notes)
    return report, modes


def _decisions(report: CycleReport | NodeCycleReport) -> pd.DataFrame:
    """Return the decisions about jobs or nodes."""
    return report.decisions[report.decisions["action"] != "Cycle"]


def _show_cycle(
    report: CycleReport | NodeCycleReport,
    headers: Sequence[str],
    rows: Sequence[Iterable[object]],
    modes: Mapping[str, str],
) -> None:
    """Show the decisions and results of a cycle."""
    if report.suspended:
        show("Nothing is done:", *(f"  {reason}" for reason in report.suspended))
    if rows:
        table = Table(*headers, box=None, pad_edge=False)
        for row in rows[:MOST_LINES]:
            table.add_row(*map(escape, map(str, row)))
        show(table)
    if len(rows) > MOST_LINES:
        show(f"... and {len(rows) - MOST_LINES:,} more: --json shows all")
    for service, counts in report.counts.items():
        mode = f" ({modes[service]})" if service in modes else ""
        show(f"{service}{mode}: " + (", ".join(f"{result} {count:,}" for result, count in counts.items()) or "-"))


def _cycle_answer(report: CycleReport | NodeCycleReport) -> dict[str, Any]:
    """Return the common fields of cycles as plain values."""
    decisions = report.decisions.astype("object")
    return {
        "taken_at": report.taken_at.isoformat(),
        "suspended": list(report.suspended),
        "counts": {service: dict(counts) for service, counts in report.counts.items()},
        "decisions": decisions.where(report.decisions.notna(), None).to_dict("records"),
    }


def _mode_answer(mode: ServiceMode) -> dict[str, Any]:
    return {"mode": mode.mode.value, "partitions": list(mode.partitions), "percent": mode.percent}


def _find_name(look_up: Callable[[], str], *, problems: list[str]) -> str | None:
    try:
        return look_up()
    except HeliosError as problem:
        problems.append(problem.message)
        return None


def _cluster_name(url: str, cluster: str | None) -> str:
    """Return the given, default or only cluster."""
    from helios.app.clusters import choose_cluster  # noqa: PLC0415 - only where it must be looked up
    from helios.warehouse import Warehouse  # noqa: PLC0415 - as above

    if cluster is not None:
        return cluster
    with Warehouse.open(url) as warehouse:
        return str(choose_cluster(warehouse, select_cluster(None))["name"])


power_commands = typer.Typer()


@power_commands.callback(invoke_without_command=True)
def power_(
    context: typer.Context,
    clear: Annotated[
        str | None,
        Option(
            "--clear",
            metavar="NODE",
            help="Let this repaired node sleep again after a failed wake; all: every node, which ends protected mode.",
        ),
    ] = None,
    cluster: Cluster = None,
    as_json: AsJson = False,
) -> None:
    """Show busy, idle and sleeping nodes, or clear a failed wake.

    Also what Helios did to them, and which need an administrator. In protected mode no node is put to sleep, because
    too many did not wake. What one control cycle would do now, says helios cycle nodes.

    Example: helios power --clear gpu17
    """
    if context.invoked_subcommand is not None:
        return
    from helios.app.operations import Operations  # noqa: PLC0415 - as above

    cycles = Operations(configuration().settings, cluster=cluster).node_cycles
    if clear is not None:
        _clear(cycles, clear, as_json=as_json)
        return
    from helios.app.explain import node_status  # noqa: PLC0415 - only where it is looked up

    status_report = node_status(cycles)
    print_result(status_report.to_json(), *status_report.parts(), as_json=as_json)


def _clear(cycles: Any, node: str, *, as_json: bool) -> None:
    before = cycles.remembered()
    if node != ALL_NODES and node not in {*before.quarantined, *before.keep_off}:
        known = ", ".join({*before.quarantined, *before.keep_off}) or "none"
        raise UsageError(f"Node {node} has no failed wake to clear.", hint=f"These have: {known}. See helios power")
    memory = cycles.clear(None if node == ALL_NODES else node)
    allowed = f"{node} may be put to sleep again; if Slurm has it down: scontrol update nodename={node} state=resume"
    remaining = f"Nodes with failed wakes that are not cleared: {', '.join(sorted(memory.quarantined)) or 'none'}."
    lines = [
        *([] if node == ALL_NODES else [allowed]),
        remaining + (f" {memory.protected}." if memory.protected else ""),
    ]
    answer = {"quarantined": sorted(memory.quarantined), "protected": memory.protected}
    print_result(answer, *lines, as_json=as_json)


@power_commands.command("weights", epilog="Example: helios power weights --slurm-conf /etc/slurm/slurm.conf")
def weights(
    context: typer.Context,
    slurm_conf: Annotated[Path | None, Option(help=SLURM_CONF)] = None,
    as_json: AsJson = False,
) -> None:
    """Print node weights for slurm.conf that fill nodes in blocks of eight.

    Slurm fills the lowest weight first, so that the other nodes become empty and can sleep. Nodes of one kind get a
    series of weights, in which those of one partition and rack follow each other. Weights that you have set keep
    their order. Without --slurm-conf it reads the file that scontrol names. Nothing is written.
    """
    from helios.app.live_cluster import plan_node_weights  # noqa: PLC0415 - as above

    refuse_misplaced(context, write="helios power weights --slurm-conf FILE")
    plan = plan_node_weights(configuration().settings, slurm_conf)
    if as_json:
        show_json(plan.to_json())
        return
    show(*map(escape, plan.lines))
    n_weights = len({block.weight for block in plan.blocks})
    n_nodes = sum(len(block.nodes) for block in plan.blocks)
    print_notes(plan.notes)
    print_message(
        f"{n_nodes:,} nodes in blocks of {plan.block_nodes}, {count_in_words(n_weights, 'weight')}. {WEIGHTS_BRING}",
        WEIGHTS_GO_IN if plan.lines else "slurm.conf has these weights: no line needs a change.",
    )
