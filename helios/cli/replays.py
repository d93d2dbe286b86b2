"""What ``helios whatif`` calls to replay.

It is apart from the options, because all that trains and replays takes two seconds to import.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

import typer
from rich.table import Table

from helios.actions import Result
from helios.app.history import LoadedHistory
from helios.app.order_check import check_order
from helios.app.service_replay import ServiceReplay, replay_acting
from helios.app.whatif import WhatIfRequest, whatif
from helios.choices import Domain
from helios.cli.options import parse_service_options
from helios.cli.output import print_message, show, show_json, width, write_page
from helios.config import Settings
from helios.errors import UsageError
from helios.ports import Progress, Service
from helios.report.history import describe
from helios.report.whatif import WhatIf
from helios.report.whatif_tables import whatif_table
from helios.services.registry import build, domain_of

Choice = TypeVar("Choice", bound=StrEnum)


def write_whatif(path: Path, history: LoadedHistory, result: WhatIf) -> None:
    """Write the page of a what-if."""
    from helios.report.html import render_whatif  # noqa: PLC0415 - drawing takes a second to import

    description = describe(history.jobs, cluster=history.cluster, timezone=history.timezone)
    write_page(path, render_whatif(result, description=description))


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedWhatIf:
    """A what-if, with the services that acted in it."""

    whatif: WhatIf
    acted: ServiceReplay | None
    interrupted: bool


def replay_and_compare(
    history: LoadedHistory,
    request: WhatIfRequest,
    settings: Settings,
    services: Mapping[str, Service],
    *,
    draws: int,
    progress: Progress,
) -> FinishedWhatIf:
    """Run a what-if, then with services acting, then its draws.

    If it is interrupted, it returns what is finished. A verdict needs all of its draws.
    """
    result = whatif(history, request, progress=progress, keeps_finished=True)
    acted: ServiceReplay | None = None
    interrupted = result.interrupted
    try:
        if services and not interrupted:
            acted = replay_acting(
                history,
                request,
                services,
                site_factor_most=settings.slurm.site_factor_most,
                failures_to_suspend=settings.control.failures_to_suspend,
                most_of_one_user=settings.control.most_of_one_user,
                progress=progress,
            )
            result = replace(result, runs=(*result.runs, acted.run), notes=(*result.notes, *acted.notes))
        if draws and not interrupted:
            result = replace(result, verdict=check_order(history, request, draws=draws, progress=progress))
    except KeyboardInterrupt:
        interrupted = True
        note = "Interrupted before all replays and draws were made: only what is finished is shown."
        result = replace(result, notes=(*result.notes, note))
    return FinishedWhatIf(whatif=result, acted=acted, interrupted=interrupted)


def show_whatif(finished: FinishedWhatIf, *, as_json: bool, has_page: bool) -> None:
    """Show the replays of a what-if.

    Raises
    ------
    typer.Exit
        It was interrupted.
    """
    result, acted = finished.whatif, finished.acted
    if as_json:
        show_json(result.to_json() | ({} if acted is None else {"services": acted.to_json()}))
    else:
        show(whatif_table(result, width=width()))
        if acted is not None:
            show("", _service_table(acted))
            print_message(f"{acted.jobs_per_s:,.0f} jobs/s were replayed with the services acting.")
        if not has_page:
            print_message("Plots, and who gains and who pays: add --report whatif.html")
    if finished.interrupted:
        raise typer.Exit(130)


def split_words(texts: list[str] | None) -> list[str]:
    """Return the words of an option that takes several by commas."""
    return [word.strip() for text in texts or [] for word in text.split(",")]


def choices(texts: list[str] | None, kind: type[Choice], option: str) -> list[Choice]:
    """Parse the words of an option as members of ``kind``.

    Raises
    ------
    UsageError
        There is no such member.
    """
    words = split_words(texts)
    if unknown := [word for word in words if word not in list(kind)]:
        raise UsageError(f"{option} has no {', '.join(map(repr, unknown))}.", hint=f"Choose from: {', '.join(kind)}")
    return [kind(word) for word in words]


def requested_services(
    settings: Settings, *, names: list[str], options: list[str]
) -> tuple[dict[str, Service], list[str]]:
    """Return the named services, and the options that are not theirs.

    Their options are those of the configuration. The given ones have precedence.

    Parameters
    ----------
    names : list of str
        Each may hold several, separated by commas.
    options : list of str
        NAME.OPTION=VALUE, the value as TOML where it is that of a service.

    Raises
    ------
    UsageError
        An option is not understood, or a service acts on nodes.
    ServiceUnknown, ServiceInvalid
        A service is not installed, or cannot be built with its options.
    """
    chosen = split_words(names)
    theirs = [text for text in options if text.partition(".")[0].strip() in chosen]
    given = parse_service_options(theirs)
    built = {name: build(name, {**settings.services.get(name, {}), **given.get(name, {})}) for name in chosen}
    if on_nodes := [name for name, service in built.items() if domain_of(service) is Domain.NODES]:
        raise UsageError(
            f"{', '.join(on_nodes)} acts on nodes; this command replays services that act on jobs.",
            hint="To replay services that act on nodes: helios whatif energy",
        )
    return built, [text for text in options if text not in theirs]


def _service_table(result: ServiceReplay) -> Table:
    table = Table("Service", box=None, pad_edge=False, header_style="bold")
    for name in ("Calls", "Jobs changed", "Unchanged", "Not changed", "Raised"):
        table.add_column(name, justify="right")
    for active in result.active_services:
        done, unchanged = active.outcomes[Result.DONE], active.outcomes[Result.UNCHANGED]
        not_changed = sum(active.outcomes.values()) - done - unchanged
        raised = f"{sum(active.problems.values()):,}{', suspended' if active.suspended else ''}"
        table.add_row(active.name, f"{active.asked:,}", f"{done:,}", f"{unchanged:,}", f"{not_changed:,}", raised)
    return table
