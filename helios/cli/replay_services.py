"""Command ``helios simulate``, which lets services act on a replay of a history."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Annotated, Any

from rich.table import Table
from typer import Option

from helios.actions import Result
from helios.app.service_replay import PREDICT_AGAIN_S, ServiceReplay, simulate_services
from helios.app.sweep import repredict_interval_s
from helios.app.whatif import WhatIfRequest
from helios.choices import Domain
from helios.cli.options import (
    AsJson,
    HistoryOptions,
    IfOversized,
    Machine,
    OfResource,
    Oversized,
    PredictAgain,
    Report,
    WindowOptions,
    configuration,
    duration,
    expand,
    rename_services,
)
from helios.cli.output import answer, progress_bars, say, say_notes, width
from helios.config import Settings
from helios.errors import UsageError
from helios.ports import Service
from helios.report.tables import whatif_table
from helios.services.registry import build, domain_of


@expand
def simulate_(
    *,
    service: Annotated[
        list[str] | None,
        Option(
            "--service",
            callback=rename_services,
            help="Service that acts. If repeated, they act together. Default: the configured services.",
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        Option(
            "--set",
            callback=rename_services,
            help="Set an option of a service: SERVICE.OPTION=VALUE, with the names of section services.SERVICE in "
            "helios.toml. May be repeated.",
        ),
    ] = None,
    every: Annotated[
        str | None,
        Option(
            "--every", help="Shortest time between two calls of a service, such as 5min. Default: each service's own."
        ),
    ] = None,
    source: HistoryOptions,
    machine: Machine,
    window: WindowOptions,
    predict_again: PredictAgain = None,
    resource: OfResource = None,
    oversized: IfOversized = Oversized.FAIL,
    report: Report = None,
    as_json: AsJson = False,
) -> None:
    """Replay a cluster's jobs with services acting, and compare the waits.

    It runs the code of the services that act live, with the same guards. The replay begins with an empty cluster, and
    run times are predicted from the jobs that had ended by then. Two baselines stand beside it: the order that the site
    has today, and fewest GPUs first, which needs no model. Nothing touches a cluster.

    Example: helios simulate --service qssf --set qssf.promote_after_s=7200 --trace sacct.txt --nodes gpu=16
    """
    settings = configuration().settings
    services = services_asked_for(settings, names=service, options=option or [])
    with progress_bars() as progress:
        history = source.read(progress)
        request = WhatIfRequest(
            plans=(),
            **window.of(history),
            **machine.of(settings, history.machine),
            resource=resource,
            skip_oversized=oversized is Oversized.SKIP,
            seed=settings.model.seed,
        )
        result = simulate_services(
            history,
            request,
            services,
            every=duration(every) if every is not None else None,
            site_factor_most=settings.slurm.site_factor_most,
            failures_to_suspend=settings.control.failures_to_suspend,
            most_of_one_user=settings.control.most_of_one_user,
            predict_again_s=repredict_interval_s(predict_again) if predict_again is not None else PREDICT_AGAIN_S,
            progress=progress,
        )
    say_notes(result.whatif.notes)
    if report is not None:
        from helios.cli.replays import write_whatif  # noqa: PLC0415 - only a page needs it

        write_whatif(report, history, result.whatif)
    table = whatif_table(result.whatif, width=width())
    answer(result.to_json(), table, "", _active_services(result), as_json=as_json)
    if not as_json:
        say(f"{result.jobs_per_s:,.0f} jobs/s were replayed with the services acting.")


def services_asked_for(settings: Settings, *, names: list[str] | None, options: list[str]) -> dict[str, Service]:
    """Return the named services, else the configured ones.

    Their options are those of the configuration and the given ones, which win.

    Parameters
    ----------
    names : list of str, optional
        Each may hold several, separated by commas.
    options : list of str
        SERVICE.OPTION=VALUE, the value as TOML.

    Raises
    ------
    UsageError
        An option is not understood, or names a service that does not act.
    ServiceUnknown, ServiceInvalid
        A service is not installed, or cannot be built with its options.
    """
    chosen = [name.strip() for text in names or settings.services for name in text.split(",")]
    said = _said(options)
    strangers = sorted(set(said) - set(chosen))
    if strangers:
        raise UsageError(
            f"--set has an option for {', '.join(strangers)}, which does not act in this replay.",
            hint=f"Add --service {strangers[0]}, or set options of: {', '.join(chosen) or 'none'}",
        )
    built = {name: build(name, {**settings.services.get(name, {}), **said.get(name, {})}) for name in chosen}
    on_nodes = [name for name, service in built.items() if domain_of(service) is Domain.NODES]
    if on_nodes and (names or len(on_nodes) == len(built)):
        raise UsageError(
            f"{', '.join(on_nodes)} acts on nodes; this command replays services that act on jobs.",
            hint="To replay services that act on nodes: helios energy whatif",
        )
    return {name: service for name, service in built.items() if name not in on_nodes}


def _said(options: list[str]) -> Mapping[str, dict[str, Any]]:
    """Parse SERVICE.OPTION=VALUE, the value as TOML."""
    said: dict[str, dict[str, Any]] = {}
    for text in options:
        key, equals, value = text.partition("=")
        service, dot, name = key.strip().partition(".")
        if not (equals and dot and service and name):
            raise UsageError(
                f"--set {text!r} is not SERVICE.OPTION=VALUE.", hint="Write --set qssf.promote_after_s=7200"
            )
        try:
            said.setdefault(service, {})[name] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError as reason:
            raise UsageError(
                f"--set {text!r}: {value!r} is not a TOML value.", hint="Quote text: 'name=\"text\"'"
            ) from reason
    return said


def _active_services(result: ServiceReplay) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("Service")
    for name in ("Calls", "Jobs changed", "Unchanged", "Not changed", "Raised"):
        table.add_column(name, justify="right")
    for active in result.active_services:
        done, unchanged = active.outcomes[Result.DONE], active.outcomes[Result.UNCHANGED]
        rest = sum(active.outcomes.values()) - done - unchanged
        raised = f"{sum(active.problems.values()):,}{', suspended' if active.suspended else ''}"
        table.add_row(active.name, f"{active.asked:,}", f"{done:,}", f"{unchanged:,}", f"{rest:,}", raised)
    return table
