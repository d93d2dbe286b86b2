"""``helios power``: what the nodes do, one turn on them, and a person's word that a node is mended."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from helios.app.chores import Desk
from helios.cli.acting import scope
from helios.cli.options import AsJson, Cluster, configuration
from helios.cli.screen import say, say_notes, show, show_json
from helios.control import ServiceMode
from helios.control.nodes import NodeTurnReport
from helios.errors import Misuse
from helios.model import Mode
from helios.ports import Office

MOST_LINES = 40

commands = typer.Typer(no_args_is_help=True, help="Nodes: which sleep, which wake, and why.")


@commands.command("status", epilog="Example: helios power status --json")
def status(cluster: Cluster = None, as_json: AsJson = False) -> None:
    """Show how many nodes are busy, idle and asleep, what Helios did about it, and what needs a person."""
    from helios.app.node_status import node_status  # noqa: PLC0415 - only where it is looked up

    found = node_status(Desk(configuration().settings, cluster=cluster).node_turns)
    if as_json:
        show_json(found.to_json())
        return
    show(*found.parts())


@commands.command("turn", epilog="Example: helios power turn --as active")
def turn(
    cluster: Cluster = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Act, as far as each service's mode allows. Without it nothing is written.")
    ] = False,
    mode: Annotated[
        Mode | None, typer.Option("--as", help="Plan as if every service had this mode; not together with --apply.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Take one turn on the nodes: look, forecast, decide, and say what would be changed. Nothing is written.

    With --apply the turn is taken, in the modes that were set (helios mode).
    """
    if apply and mode is not None:
        raise Misuse("--as only plans.", remedy="Set the mode: helios mode ces active; then helios power turn --apply")
    turns = Desk(configuration().settings, cluster=cluster).node_turns
    if not turns.services:
        raise Misuse(
            "No configured service acts on nodes.", remedy="Name one in helios.toml: [services.ces]; see docs/power.md"
        )
    modes = turns.modes() if mode is None else {name: ServiceMode(mode=mode) for name in turns.services}
    report = turns.turn(modes=modes) if apply else turns.plan(modes=modes)
    say_notes(report.notes)
    if as_json:
        show_json(_answer(report, modes))
        return
    _show(report, modes, applied=apply)


@commands.command("clear", epilog="Example: helios power clear gpu17")
def clear(
    node: Annotated[
        str | None, typer.Argument(help="The node that was mended; none: all of them, and protected mode ends.")
    ] = None,
    cluster: Cluster = None,
    as_json: AsJson = False,
) -> None:
    """Say that a node which failed to wake was looked at, so that it may sleep again; without one, all of them."""
    turns = Desk(configuration().settings, cluster=cluster).node_turns
    before = turns.remembered()
    if node is not None and node not in {*before.quarantined, *before.keep_off}:
        known = ", ".join({*before.quarantined, *before.keep_off}) or "none"
        raise Misuse(f"{node} is not set apart.", remedy=f"Set apart are: {known}. See helios power status")
    memory = turns.clear(node)
    if as_json:
        show_json({"quarantined": sorted(memory.quarantined), "protected": memory.protected})
        return
    left = ", ".join(sorted(memory.quarantined)) or "none"
    if node is not None:
        show(f"{node} is trusted again; if Slurm has it down: scontrol update nodename={node} state=resume")
    show(f"Nodes still set apart: {left}." + (f" {memory.protected}." if memory.protected else ""))


def _show(report: NodeTurnReport, modes: dict[str, ServiceMode], *, applied: bool) -> None:
    from helios.app.node_turns import counted  # noqa: PLC0415 - only where it is shown

    show(", ".join(f"{number:,} {state}" for state, number in counted(report).items()) + ".")
    if report.still:
        show("Nothing is done:", *(f"  {reason}" for reason in report.still))
    lines = report.decisions[report.decisions["action"] != "Turn"]
    if len(lines):
        from helios.report.nodes import together  # noqa: PLC0415 - as above

        rows = together(lines)
        table = Table("Nodes", "Service", "Action", "Outcome", "Why", box=None, pad_edge=False)
        for row in rows[:MOST_LINES]:
            table.add_row(*map(escape, row))
        show(table)
        if len(rows) > MOST_LINES:
            show(f"... and {len(rows) - MOST_LINES:,} more: --json shows all")
    elif not report.still and not any(report.counts.values()):
        why = (
            "each service is asked again only after its own every_s"
            if applied
            else "whether nodes can sleep here at all says helios power status"
        )
        show(f"No service wants anything changed; {why}.")
    for service, counts in report.counts.items():
        mode = f" ({modes[service].mode.value}, {scope(modes[service], of=Office.NODES)})" if service in modes else ""
        show(f"{service}{mode}: " + (", ".join(f"{r} {n:,}" for r, n in counts.items()) or "-"))
    if not applied:
        say("Nothing was written. To act as far as the modes allow: helios power turn --apply")


def _answer(report: NodeTurnReport, modes: dict[str, ServiceMode]) -> dict[str, Any]:
    from helios.app.node_turns import counted  # noqa: PLC0415 - only where it is shown

    decisions = report.decisions.astype("object")
    return {
        "taken_at": report.taken_at.isoformat(),
        "nodes": counted(report),
        "slept": list(report.slept),
        "woken": list(report.woken),
        "weighed": list(report.weighed),
        "still": list(report.still),
        "protected": report.protected,
        "quarantined": sorted(report.memory.quarantined),
        "modes": {service: mode.mode.value for service, mode in modes.items()},
        "counts": {service: dict(counts) for service, counts in report.counts.items()},
        "decisions": decisions.where(report.decisions.notna(), None).to_dict("records"),
    }
