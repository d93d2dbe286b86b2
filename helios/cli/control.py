"""What a person says to a Helios that acts: take a cycle, go so far and no further, stop, go on."""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer
from rich.markup import escape
from rich.table import Table

from helios.app.job_controller import MEMORY
from helios.app.live_cluster import configured_services, refuse_unknown_partitions
from helios.app.modes import PAUSE_FILE, modes_in_force, not_paused, pause, pause_here, resume, set_mode
from helios.app.operations import Operations
from helios.cli.options import AsJson, Cluster, configuration
from helios.cli.output import progress_bars, say, say_notes, show, show_json
from helios.control import CycleReport, NodeCycleReport, ServiceMode
from helios.errors import HeliosError, UsageError
from helios.model import Mode
from helios.ports import Domain
from helios.services.registry import domain_of, installed
from helios.warehouse import Warehouse

MOST_LINES = 40

Reason = Annotated[str, typer.Option("--reason", help="Why, for the audit and for whoever asks.")]
Hidden = Annotated[
    bool,
    typer.Option(
        "--hidden",
        help="Write 0 also to jobs that Helios had set and whose SiteFactor Slurm hides now (held, or not eligible). "
        "What an admin has written there since is lost; the audit has the priority before and after.",
    ),
]


def cycle_(
    cluster: Cluster = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Act, as far as each service's mode allows. Without it nothing is written.")
    ] = False,
    mode: Annotated[
        Mode | None, typer.Option("--as", help="Plan as if every service had this mode; not together with --apply.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Take one cycle: look at the queue, predict, decide, and say what would be changed. Nothing is written.

    With --apply the cycle is taken, in the modes that were set (helios mode). Example: helios cycle --as active
    """
    if apply and mode is not None:
        raise UsageError("--as only plans.", hint="Set the mode: helios mode SERVICE active; then helios cycle --apply")
    operations = Operations(configuration().settings, cluster=cluster)
    cycles = operations.cycles
    modes = cycles.modes() if mode is None else {name: ServiceMode(mode=mode) for name in cycles.services}
    report = cycles.cycle(modes=modes) if apply else cycles.plan(modes=modes)
    say_notes(report.notes)
    if as_json:
        show_json(_cycle_answer(report, modes))
        return
    _show_cycle(report, modes, applied=apply)


def mode_(
    service: Annotated[
        str | None, typer.Argument(help="The service; without one, the modes in force are shown.")
    ] = None,
    mode: Annotated[Mode | None, typer.Argument(help="off, shadow, canary or active.")] = None,
    partition: Annotated[
        list[str] | None, typer.Option("--partition", "-p", help="Canary: only jobs of this partition; several by -p.")
    ] = None,
    percent: Annotated[
        int | None, typer.Option("--percent", min=1, max=100, help="Canary: only this share of the jobs.")
    ] = None,
    cluster: Cluster = None,
    reason: Reason = "",
    as_json: AsJson = False,
) -> None:
    """Say how far a service may go; it holds from the service's next cycle on.

    off: it is not asked. shadow: it is asked, nothing is written, the audit says what would have been. canary: it acts
    on some jobs. active: on all. Example: helios mode qssf canary --percent 10 --reason 'first trial'
    """
    settings = configuration().settings
    services = configured_services(settings)
    name = _cluster_name(settings.database.url, cluster)
    if service is not None and mode is not None:
        if service not in services:
            raise UsageError(
                f"No service {service!r} is configured.",
                hint=f"Configured are: {', '.join(services)}. Add it to helios.toml: [services.{service}]",
            )
        if mode is Mode.CANARY:
            say_notes(refuse_unknown_partitions(settings.slurm, name, partition or ()))
        if mode in {Mode.CANARY, Mode.ACTIVE}:
            from helios.app.gain_check import refuse_without_gain  # noqa: PLC0415 - replays the history, which takes numba

            with progress_bars() as progress:
                say_notes(refuse_without_gain(settings, name, service, services[service], progress=progress))
        set_mode(
            settings.database.url,
            name,
            service,
            mode,
            partitions=tuple(partition or ()),
            percent=percent,
            by=getpass.getuser(),
            reason=reason,
            now=datetime.now(UTC),
        )
        if mode in {Mode.CANARY, Mode.ACTIVE}:
            from helios.app.doctor import hook_not_installed  # noqa: PLC0415 - no pause waits for what it imports

            for finding in hook_not_installed(settings, name):
                say(f"warning: {finding.message}. {finding.hint}")
    elif service is not None or partition or percent is not None:
        raise UsageError(
            "Both the service and its mode are needed.",
            hint=f"Set it: helios mode {service or 'qssf'} shadow. See what is set: helios mode",
        )
    modes = modes_in_force(settings.database.url, name, services)
    if as_json:
        show_json({service: _mode_answer(mode) for service, mode in modes.items()})
        return
    table = Table("Service", "Mode", "Acts on", box=None, pad_edge=False)
    for row_name, row_mode in modes.items():
        table.add_row(row_name, row_mode.mode.value, scope(row_mode, of=domain_of(services[row_name])))
    show(table)


def pause_(cluster: Cluster = None, reason: Reason = "", hidden: Hidden = False, as_json: AsJson = False) -> None:
    """Stop Helios at once: revert everything it set, verify that, and do nothing until helios resume.

    Nodes that it put to sleep are woken. It works without the daemon, and with the database gone. A value that bears
    Helios' mark and is in no record of it, or that Slurm hides, is left, named, and makes the exit status 1.

    Example: helios pause --reason 'maintenance'
    """
    settings = configuration().settings
    operations, by, now = Operations(settings, cluster=cluster), getpass.getuser(), datetime.now(UTC)
    folder, url = Path(settings.control.state_folder), settings.database.url
    # First of all, and whatever else is down: asking cluster and database for a name may take long, or fail.
    problems = pause_here(folder, by=by, reason=reason, now=now)
    name = cluster or _name_if_reachable(operations) or _name_in_the_warehouse(url)
    if name is not None:
        problems = pause(url, name, folder, by=by, reason=reason, now=now)
    elif problems:
        raise not_paused(problems)
    else:
        problems = ["which cluster is meant cannot be found out: Helios is paused on this machine only"]
    if problems and not _pauses_the_nodes_daemon(folder, by=by, reason=reason, now=now):
        beside = _of_the_nodes(folder)
        problems.append(f"the Helios that acts on nodes is not paused: as root, touch {beside / PAUSE_FILE}")
    if name is None or not _ever_worked(url, name):
        problems.append(
            f"no Helios has run a cycle with these settings; one that runs here has others and does not see {folder}"
        )
    for problem in problems:
        say(f"warning: {problem}")
    why = f"paused by {by}" + (f": {reason}" if reason else "")
    try:
        report, nodes, told = operations.everything_back(why, hidden=hidden)
    except HeliosError as problem:
        raise HeliosError(
            f"Helios is paused, but what it set may still stand: {problem.message}", hint=problem.hint
        ) from problem
    if as_json:
        show_json(
            {
                "paused": True,
                "cluster": name,
                "set_back": report.acted,
                "nodes_woken": [] if nodes is None else list(nodes.woken),
                "remaining": [],
                "audited": report.recorded and (nodes is None or nodes.recorded),
            }
        )
        return
    show(f"Paused by {folder / PAUSE_FILE}: {told}.", "To go on: helios resume")


def resume_(cluster: Cluster = None) -> None:
    """Let Helios go on after helios pause, helios-release.sh, or a PAUSED file; modes are as they were.

    Example: helios resume
    """
    settings = configuration().settings
    name = _cluster_name(settings.database.url, cluster)
    from helios.app.node_controller import forget_what_is_damaged  # noqa: PLC0415 - no pause waits for what it imports

    now = datetime.now(UTC)
    resume(settings.database.url, name, Path(settings.control.state_folder), now=now)
    with Warehouse.open(settings.database.url) as warehouse:
        warehouse.remember(name, MEMORY, "", at=now)
        forget_what_is_damaged(warehouse, name, at=now)
    _resumes_the_nodes_daemon(Path(settings.control.state_folder))
    modes = modes_in_force(settings.database.url, name, configured_services(settings))
    said = ", ".join(f"{service} is {mode.mode.value}" for service, mode in modes.items())
    show(f"Helios goes on with its next cycle: {said}.")


def nightly_(cluster: Cluster = None) -> None:
    """Do the nightly analysis once, for cron: read what came late, learn, report. It changes no job.

    Example crontab line: 30 2 * * * helios nightly
    """
    with progress_bars() as progress:
        told = Operations(configuration().settings, cluster=cluster).night(progress=progress)
    for line in told.did:
        show(line)
    told.line()


def scope(mode: ServiceMode, *, of: Domain = Domain.JOBS) -> str:
    """Say on which jobs, or nodes, a service acts."""
    if mode.mode in {Mode.OFF, Mode.SHADOW}:
        return "nothing"
    parts = [
        f"{mode.percent} % of the {of}" if mode.percent is not None else f"all {of}",
        f"of {', '.join(mode.partitions)}" if mode.partitions else "",
    ]
    return " ".join(part for part in parts if part)


def _ever_worked(url: str, cluster: str) -> bool:
    """Return whether a Helios with these settings has ever taken a cycle on the cluster."""
    try:
        with Warehouse.open(url) as warehouse:
            return any(warehouse.lease(cluster, domain=domain) is not None for domain in Domain)
    except HeliosError:
        return False


def _of_the_nodes(folder: Path) -> Path:
    """Return the state folder of ``helios-power.service``, beside that of ``helios.service``: as helios-release.sh."""
    return Path(f"{folder}-power")


def _pauses_the_nodes_daemon(folder: Path, *, by: str, reason: str, now: datetime) -> bool:
    """Pause the daemon of the nodes by its own file, which the database could not tell; False: it is not paused."""
    beside = _of_the_nodes(folder)
    if not beside.is_dir() or os.path.lexists(beside / PAUSE_FILE):
        return True
    return not pause_here(beside, by=by, reason=reason, now=now)


def _resumes_the_nodes_daemon(folder: Path) -> None:
    """Remove the pause file that ``helios-release.sh`` left to the daemon of the nodes, or say that it lies there."""
    file = _of_the_nodes(folder) / PAUSE_FILE
    try:
        file.unlink(missing_ok=True)
    except OSError:
        say(f"warning: {file} still pauses the Helios that acts on nodes: remove it as root")


def _show_cycle(report: CycleReport, modes: Mapping[str, ServiceMode], *, applied: bool) -> None:
    show(f"{report.pending:,} jobs pending ({report.gpus_pending:,} GPUs), {report.running:,} running.")
    if report.suspended:
        show("Nothing is done:", *(f"  {reason}" for reason in report.suspended))
    lines = report.decisions[~report.decisions["action"].isin(["Cycle"])]
    if len(lines):
        show(_decisions_table(lines.head(MOST_LINES)))
    if len(lines) > MOST_LINES:
        show(f"... and {len(lines) - MOST_LINES:,} more: --json shows all")
    for service, counts in report.counts.items():
        mode = modes[service].mode.value if service in modes else ""
        show(f"{service}{f' ({mode})' if mode else ''}: " + (", ".join(f"{r} {n:,}" for r, n in counts.items()) or "-"))
    if not applied:
        say("Nothing was written. To act as far as the modes allow: helios cycle --apply")


def _decisions_table(lines: pd.DataFrame) -> Table:
    table = Table("Job", "Service", "Action", "Before", "After", "Outcome", "Why", box=None, pad_edge=False)
    shown = ["target", "service", "action", "before", "after", "outcome", "reason"]
    for row in lines[shown].astype("object").where(lines[shown].notna(), "").itertuples(index=False):
        table.add_row(*map(escape, map(str, row)))
    return table


def _cycle_answer(report: CycleReport, modes: Mapping[str, ServiceMode]) -> dict[str, Any]:
    decisions = report.decisions.astype("object")
    return {
        "taken_at": report.taken_at.isoformat(),
        "pending": report.pending,
        "running": report.running,
        "acted": report.acted,
        "suspended": list(report.suspended),
        "modes": {service: _mode_answer(mode) for service, mode in modes.items()},
        "counts": {service: dict(counts) for service, counts in report.counts.items()},
        "decisions": decisions.where(report.decisions.notna(), None).to_dict("records"),
    }


def _mode_answer(mode: ServiceMode) -> dict[str, Any]:
    return {"mode": mode.mode.value, "partitions": list(mode.partitions), "percent": mode.percent}


def _name_if_reachable(operations: Operations) -> str | None:
    try:
        return operations.site.name
    except HeliosError as problem:
        say(f"warning: {problem.message}")
        return None


def _name_in_the_warehouse(url: str) -> str | None:
    try:
        return _cluster_name(url, None)
    except HeliosError as problem:
        say(f"warning: {problem.message}")
        return None


def _cluster_name(url: str, cluster: str | None) -> str:
    """Return the cluster that is meant: the one named, else the only one of the warehouse."""
    from helios.app.history import choose_cluster  # noqa: PLC0415 - only where it must be looked up

    if cluster is not None:
        return cluster
    with Warehouse.open(url) as warehouse:
        return str(choose_cluster(warehouse, None)["name"])


# ``helios power``: what the nodes do, one cycle on them, and a person's word that a node is mended.

power_commands = typer.Typer(no_args_is_help=True, help="Nodes: which sleep, which wake, and why.")


@power_commands.command("status", epilog="Example: helios power status --json")
def status(cluster: Cluster = None, as_json: AsJson = False) -> None:
    """Show how many nodes are busy, idle and asleep, what Helios did about it, and what needs a person."""
    from helios.app.explain_node import node_status  # noqa: PLC0415 - only where it is looked up

    found = node_status(Operations(configuration().settings, cluster=cluster).node_cycles)
    if as_json:
        show_json(found.to_json())
        return
    show(*found.parts())


@power_commands.command("run-cycle", epilog="Example: helios power run-cycle --as active")
def cycle(
    cluster: Cluster = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Act, as far as each service's mode allows. Without it nothing is written.")
    ] = False,
    mode: Annotated[
        Mode | None, typer.Option("--as", help="Plan as if every service had this mode; not together with --apply.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Take one cycle on the nodes: look, forecast, decide, and say what would be changed. Nothing is written.

    With --apply the cycle is taken, in the modes that were set (helios mode).
    """
    if apply and mode is not None:
        raise UsageError(
            "--as only plans.", hint="Set the mode: helios mode ces active; then helios power run-cycle --apply"
        )
    cycles = Operations(configuration().settings, cluster=cluster).node_cycles
    if not cycles.services:
        raise UsageError(
            "No configured service acts on nodes.", hint="Name one in helios.toml: [services.ces]; see docs/power.md"
        )
    modes = cycles.modes() if mode is None else {name: ServiceMode(mode=mode) for name in cycles.services}
    report = cycles.cycle(modes=modes) if apply else cycles.plan(modes=modes)
    say_notes(report.notes)
    if as_json:
        show_json(_answer(report, modes))
        return
    _show(report, modes, applied=apply)


@power_commands.command("clear", epilog="Example: helios power clear gpu17")
def clear(
    node: Annotated[
        str | None, typer.Argument(help="The node that was mended; none: all of them, and protected mode ends.")
    ] = None,
    cluster: Cluster = None,
    as_json: AsJson = False,
) -> None:
    """Say that a node which failed to wake was looked at, so that it may sleep again; without one, all of them."""
    cycles = Operations(configuration().settings, cluster=cluster).node_cycles
    before = cycles.remembered()
    if node is not None and node not in {*before.quarantined, *before.keep_off}:
        known = ", ".join({*before.quarantined, *before.keep_off}) or "none"
        raise UsageError(f"{node} is not set apart.", hint=f"Set apart are: {known}. See helios power status")
    memory = cycles.clear(node)
    if as_json:
        show_json({"quarantined": sorted(memory.quarantined), "protected": memory.protected})
        return
    left = ", ".join(sorted(memory.quarantined)) or "none"
    if node is not None:
        show(f"{node} is trusted again; if Slurm has it down: scontrol update nodename={node} state=resume")
    show(f"Nodes still set apart: {left}." + (f" {memory.protected}." if memory.protected else ""))


def _show(report: NodeCycleReport, modes: dict[str, ServiceMode], *, applied: bool) -> None:
    from helios.app.node_controller import count_states  # noqa: PLC0415 - only where it is shown

    show(", ".join(f"{number:,} {state}" for state, number in count_states(report).items()) + ".")
    if report.suspended:
        show("Nothing is done:", *(f"  {reason}" for reason in report.suspended))
    lines = report.decisions[report.decisions["action"] != "Cycle"]
    if len(lines):
        from helios.report.nodes import together  # noqa: PLC0415 - as above

        rows = together(lines)
        table = Table("Nodes", "Service", "Action", "Outcome", "Why", box=None, pad_edge=False)
        for row in rows[:MOST_LINES]:
            table.add_row(*map(escape, row))
        show(table)
        if len(rows) > MOST_LINES:
            show(f"... and {len(rows) - MOST_LINES:,} more: --json shows all")
    elif not report.suspended and not any(report.counts.values()):
        why = (
            "each service is asked again only after its own every_s"
            if applied
            else "whether nodes can sleep here at all says helios power status"
        )
        show(f"No service wants anything changed; {why}.")
    for service, counts in report.counts.items():
        mode = f" ({modes[service].mode.value}, {scope(modes[service], of=Domain.NODES)})" if service in modes else ""
        show(f"{service}{mode}: " + (", ".join(f"{r} {n:,}" for r, n in counts.items()) or "-"))
    if not applied:
        say("Nothing was written. To act as far as the modes allow: helios power run-cycle --apply")


def _answer(report: NodeCycleReport, modes: dict[str, ServiceMode]) -> dict[str, Any]:
    from helios.app.node_controller import count_states  # noqa: PLC0415 - only where it is shown

    decisions = report.decisions.astype("object")
    return {
        "taken_at": report.taken_at.isoformat(),
        "nodes": count_states(report),
        "slept": list(report.slept),
        "woken": list(report.woken),
        "weighed": list(report.weighed),
        "suspended": list(report.suspended),
        "protected": report.protected,
        "quarantined": sorted(report.memory.quarantined),
        "modes": {service: mode.mode.value for service, mode in modes.items()},
        "counts": {service: dict(counts) for service, counts in report.counts.items()},
        "decisions": decisions.where(report.decisions.notna(), None).to_dict("records"),
    }


# ``helios service``: what is installed.

service_commands = typer.Typer(no_args_is_help=True, help="Services: what is installed, and with which options.")


@service_commands.command("list", epilog="Example: helios service list")
def list_(as_json: AsJson = False) -> None:
    """List every installed service with its options; a broken one says why it is."""
    configured = configuration().settings.services
    found = installed().values()
    if as_json:
        show_json([asdict(it) | {"configured": it.name in configured} for it in found])
        return
    table = Table("Service", "Configured", "What it does", "Options", "From", box=None, pad_edge=False)
    for it in found:
        told = f"broken: {it.broken}" if it.broken else it.summary
        options = "\n".join(map(str, it.options))
        table.add_row(it.name, "yes" if it.name in configured else "", told, options, it.package)
    show(table)
