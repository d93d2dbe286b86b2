"""Command ``helios simulate``, and what ``helios whatif`` calls to replay.

It is apart from the options, because all that trains and replays takes two seconds to import.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.table import Table
from typer import Option

from helios.actions import Result
from helios.app.history import LoadedHistory
from helios.app.order_check import check_order, live_scenario, refuse_few
from helios.app.scenarios import Estimates, Scenario
from helios.app.service_replay import PREDICT_AGAIN_S, ServiceReplay, simulate_services
from helios.app.sweep import (
    FEWEST_REPEATS,
    Engine,
    SweepPlan,
    cross_options,
    read_sweep_plan,
    repeats,
    repredict_interval_s,
    run_on_dask,
    run_on_slurm,
    run_on_this_machine,
    sweep,
)
from helios.app.whatif import WhatIfRequest, whatif
from helios.choices import Domain, Policy, ResampledUnit, RunTimes
from helios.cli.options import (
    AsJson,
    HistoryOptions,
    Machine,
    ReplayOptions,
    Report,
    WindowOptions,
    configuration,
    described,
    duration,
    expand,
)
from helios.cli.output import (
    print_message,
    print_notes,
    print_result,
    progress_bars,
    show,
    show_json,
    width,
    write_file,
    write_page,
)
from helios.config import Settings
from helios.errors import UsageError
from helios.ports import Progress, Service
from helios.report.history import describe
from helios.report.significance import Differences, has_no_waits
from helios.report.sweep import Sweep, sweep_csv, sweep_tables
from helios.report.whatif import WhatIf
from helios.report.whatif_tables import differences_table, whatif_table
from helios.services.qssf import OrderRule, Qssf
from helios.services.registry import build, checked_options, domain_of

Choice = TypeVar("Choice", bound=StrEnum)

NOT_WITH_SWEEP = (
    "--policy",
    "--backfill",
    "--estimates",
    "--run-times",
    "--set",
    "--frontier",
    "--repeat",
    "--repeat-over",
)
NOT_WITH_FRONTIER = ("--policy", "--backfill", "--estimates", "--set")

POLICY_OF = {OrderRule.QSSF: Policy.QSSF, OrderRule.SIZE: Policy.FEWEST_GPUS, OrderRule.SERVICE: Policy.SERVICE}


def write_whatif(
    path: Path,
    history: LoadedHistory,
    result: WhatIf,
    differences: Differences | None = None,
    *,
    options: Sequence[str] | None = None,
) -> None:
    """Write the page of a what-if.

    ``options`` are those of the replays, as typed, for a command on the page. None where no command replays one alone.
    """
    from helios.report.html import render_whatif  # noqa: PLC0415 - drawing takes a second to import

    description = describe(history.jobs, cluster=history.cluster, timezone=history.timezone)
    write_page(path, render_whatif(result, description=description, differences=differences, options=options))


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedWhatIf:
    """Result of a what-if with its repeats."""

    whatif: WhatIf
    differences: Differences | None
    interrupted: bool


def replay_and_compare(
    history: LoadedHistory,
    request: WhatIfRequest,
    *,
    draws: int,
    times: int,
    over: ResampledUnit | None,
    engine: Callable[[], Engine],
    progress: Progress,
) -> FinishedWhatIf:
    """Run a what-if with its draws and repeats.

    If it is interrupted, it returns what is finished. A verdict or an interval needs all of its draws.
    """
    result = whatif(history, request, progress=progress, keeps_finished=True)
    differences: Differences | None = None
    interrupted = result.interrupted
    try:
        if draws and not interrupted:
            result = replace(result, check=check_order(history, request, draws=draws, progress=progress))
        if times and not interrupted:
            differences = repeats(history, request, times=times, over=over, engine=engine(), progress=progress)
    except KeyboardInterrupt:
        interrupted = True
        note = "Interrupted before all draws and repeats were made: only the replays of the window are shown."
        result = replace(result, notes=(*result.notes, note))
    return FinishedWhatIf(whatif=result, differences=differences, interrupted=interrupted)


def show_whatif(finished: FinishedWhatIf, *, as_json: bool, has_page: bool) -> None:
    """Show the replays of a what-if.

    Raises
    ------
    typer.Exit
        It was interrupted.
    """
    result, differences = finished.whatif, finished.differences
    if as_json:
        show_json(result.to_json() | {"differences": differences and differences.to_json()})
    else:
        show(whatif_table(result, width=width()))
        if differences and differences.others and not has_no_waits(result):
            show("", differences_table(differences))
        if not has_page:
            print_message("Plots, and who gains and who pays: add --report whatif.html")
    if finished.interrupted:
        raise typer.Exit(130)


def live_setting(settings: Settings) -> Scenario | None:
    """Return what the configured service qssf does live.

    None where it is not configured.
    """
    if "qssf" not in settings.services:
        return None
    chosen = checked_options(Qssf, settings.services["qssf"], name="qssf")
    order = OrderRule(chosen.order)
    options: dict[str, float | None] = {"bound_share": chosen.bound_share or None}
    if chosen.promote_after_s:
        options = {"patience_s": int(chosen.promote_after_s) if isfinite(chosen.promote_after_s) else None}
    if order is not OrderRule.SERVICE:
        options |= {"wait_share": chosen.wait_share, "large_divisor": chosen.large_divisor}
    run_times = None if order is OrderRule.SIZE else RunTimes.PREDICTED
    return live_scenario(POLICY_OF[order], run_times=run_times, options=tuple(sorted(options.items())))


def refuse_contradictions(context: typer.Context) -> None:
    """Refuse options of ``helios whatif`` that are contradictory or have no effect.

    Too few repeats or draws are refused, too.
    """
    # Options of the command line itself, such as that for completion, have no value here.
    values = {option.opts[0]: context.params.get(str(option.name)) for option in context.command.params}
    sweeps, repeat = values["--sweep"] is not None, context.params["repeat"]
    ignored = [name for name in ((*NOT_WITH_SWEEP, "--report") if sweeps else ("--out", "--csv")) if values[name]]
    if ignored and sweeps:
        raise UsageError(f"{', '.join(ignored)} cannot be used with --sweep.", hint="Write it into the plan instead.")
    if ignored:
        raise UsageError(f"{', '.join(ignored)} is for sweeps only.", hint="Give a plan: --sweep PLAN.toml")
    if 0 < repeat < FEWEST_REPEATS:
        raise UsageError(
            f"{repeat} repeats are too few to tell a difference from chance.",
            hint=f"Use --repeat 20, at least {FEWEST_REPEATS}.",
        )
    if values["--draws"]:
        refuse_few(values["--draws"])
    if values["--frontier"] and (ignored_options := [name for name in NOT_WITH_FRONTIER if values[name]]):
        raise UsageError(f"--frontier chooses the replays itself, so {', '.join(ignored_options)} has no meaning.")


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


def read_estimate(word: str) -> Estimates:
    """Parse a value of ``--estimates``.

    Raises
    ------
    UsageError
        It is not understood.
    """
    if word.isdecimal() and int(word) > 0:
        return int(word)
    try:
        return RunTimes(word)
    except ValueError as reason:
        raise UsageError(
            f"--estimates has no {word!r}.", hint="Write limit, predicted, expected, true or a number of seconds."
        ) from reason


def engine_for(*, dask: str | None, workers: int, plan: SweepPlan | None = None) -> Engine:
    """Return what runs the replays.

    Raises
    ------
    UsageError
        The plan does not describe the Slurm jobs.
    """
    if dask != "slurm":
        return partial(run_on_dask, address=dask) if dask else partial(run_on_this_machine, workers=workers)
    if plan is None or not plan.slurm:
        raise UsageError(
            "--dask slurm needs a plan with a table [slurm], which says what jobs to submit.",
            hint="Give --sweep PLAN.toml, and write jobs, cores, memory, walltime, queue and account in its [slurm].",
        )
    options = {name: value for name, value in plan.slurm.items() if name not in ("jobs", "wait")}
    return partial(run_on_slurm, jobs=int(plan.slurm.get("jobs", 1)), options=options)


def all_cores() -> int:
    """Return how many cores this process may use, 1 without Dask."""
    cores = len(os.sched_getaffinity(0))
    if cores > 1 and find_spec("distributed") is None:
        print_message(
            "note: Dask is not installed, so one process replays; pip install 'helios-slurm[dask]' for all cores."
        )
        return 1
    return cores


def run_sweep(
    path: Path,
    history: LoadedHistory,
    base: WhatIfRequest,
    *,
    out: Path | None,
    dask: str | None,
    workers: int | None,
    progress: Progress,
) -> Sweep:
    """Replay every combination of the plan in ``path``.

    Other options are those of ``base``.

    Raises
    ------
    UsageError
        The plan cannot be used, or the results cannot be written.
    """
    plan = read_sweep_plan(path)
    scenarios = cross_options(plan, base=base, timezone=history.timezone)
    engine = engine_for(dask=dask, workers=workers or (1 if dask else all_cores()), plan=plan)
    results_path = out or path.with_suffix(".results.jsonl")
    try:
        return sweep(history, scenarios, out=results_path, engine=engine, progress=progress)
    except KeyboardInterrupt:
        print_message(f"Stopped. What was replayed is in {results_path}; the same command goes on from there.")
        raise


def show_sweep(result: Sweep, *, csv: Path | None, as_json: bool) -> None:
    """Show the results of a sweep.

    Raises
    ------
    UsageError
        ``csv`` cannot be written.
    typer.Exit
        Cells failed.
    """
    print_notes(result.notes)
    if csv is not None:
        write_file(csv, sweep_csv(result), what="The CSV", option="--csv FILE")
    if as_json:
        show_json(result.to_json())
    else:
        show(sweep_tables(result))
        print_message(f"Results: {result.results}")
    if result.failed:
        raise typer.Exit(1)


@expand
def simulate_(
    *,
    service: Annotated[
        list[str] | None,
        Option(
            help="Service that acts. If repeated, they act together. Default: the configured services.",
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        Option(
            "--set",
            help="Set an option of a service: SERVICE.OPTION=VALUE, with the names of section services.SERVICE in "
            "helios.toml. May be repeated.",
        ),
    ] = None,
    every: Annotated[
        str | None,
        Option(help="Shortest time between two calls of a service, such as 5min. Default: each service's own."),
    ] = None,
    source: HistoryOptions,
    machine: Machine,
    window: WindowOptions,
    replay: ReplayOptions,
    report: Report = None,
    as_json: AsJson = False,
) -> None:
    """Replay a cluster's jobs with services acting, and compare the waits.

    It runs the code of the services that act live, with the same guards. The replay begins with an empty cluster, and
    run times are predicted from the jobs that had ended by then. It is compared with two baselines: plain FIFO
    with EASY backfill, and fewest GPUs first, which needs no model. Nothing touches a cluster.

    Example: helios simulate --service qssf --set qssf.promote_after_s=7200 --trace sacct.txt --nodes gpu=16
    """
    settings = configuration().settings
    services, again = requested_services(settings, names=service, options=option or []), replay.predict_again
    with progress_bars() as progress:
        history = source.read(progress)
        history = described(history, settings=settings, window=window, machine=machine, resource=replay.resource)
        request = WhatIfRequest(
            scenarios=(),
            **window.request_fields(history),
            **machine.request_fields(settings, history.capacity),
            **replay.request_fields(settings),
        )
        result = simulate_services(
            history,
            request,
            services,
            every=duration(every) if every is not None else None,
            site_factor_most=settings.slurm.site_factor_most,
            failures_to_suspend=settings.control.failures_to_suspend,
            most_of_one_user=settings.control.most_of_one_user,
            predict_again_s=PREDICT_AGAIN_S if again is None else repredict_interval_s(again),
            progress=progress,
        )
    print_notes(result.whatif.notes)
    if report is not None:
        write_whatif(report, history, result.whatif)
    table = whatif_table(result.whatif, width=width())
    print_result(result.to_json(), table, "", _service_table(result), as_json=as_json)
    if not as_json:
        print_message(f"{result.jobs_per_s:,.0f} jobs/s were replayed with the services acting.")


def requested_services(settings: Settings, *, names: list[str] | None, options: list[str]) -> dict[str, Service]:
    """Return the named services, else the configured ones.

    Their options are those of the configuration. The given ones have precedence.

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
    options_of_service = _parse_service_options(options)
    if unused := sorted(set(options_of_service) - set(chosen)):
        raise UsageError(
            f"--set has an option for {', '.join(unused)}, which does not act in this replay.",
            hint=f"Add --service {unused[0]}, or set options of: {', '.join(chosen) or 'none'}",
        )
    built = {
        name: build(name, {**settings.services.get(name, {}), **options_of_service.get(name, {})}) for name in chosen
    }
    on_nodes = [name for name, service in built.items() if domain_of(service) is Domain.NODES]
    if on_nodes and (names or len(on_nodes) == len(built)):
        raise UsageError(
            f"{', '.join(on_nodes)} acts on nodes; this command replays services that act on jobs.",
            hint="To replay services that act on nodes: helios energy whatif",
        )
    return {name: service for name, service in built.items() if name not in on_nodes}


def _parse_service_options(options: list[str]) -> Mapping[str, dict[str, Any]]:
    """Parse SERVICE.OPTION=VALUE, the value as TOML."""
    options_of_service: dict[str, dict[str, Any]] = {}
    for text in options:
        key, equals, value = text.partition("=")
        service, dot, name = key.strip().partition(".")
        if not (equals and dot and service and name):
            raise UsageError(
                f"--set {text!r} is not SERVICE.OPTION=VALUE.", hint="Write --set qssf.promote_after_s=7200"
            )
        try:
            options_of_service.setdefault(service, {})[name] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError as reason:
            raise UsageError(
                f"--set {text!r}: {value!r} is not a TOML value.", hint="Quote text: 'name=\"text\"'"
            ) from reason
    return options_of_service


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
