"""``helios model``: train a duration predictor, keep it, judge it."""

from __future__ import annotations

import getpass
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from helios.app.expectation import judge, learn
from helios.app.machine import parse_nodes
from helios.app.models import settle, training_history
from helios.cli import charge
from helios.cli.options import (
    AsJson,
    Cluster,
    Format,
    GpusPerNode,
    Nodes,
    Timezone,
    Trace,
    configuration,
    duration,
    history_from,
    moment,
)
from helios.cli.screen import progress_bars, say_notes, show, show_json
from helios.errors import Misuse
from helios.model import ModelRecord
from helios.report.models import outcome_text
from helios.report.tables import evaluation_table
from helios.report.value import Value, notes_of, value_table

commands = typer.Typer(no_args_is_help=True, help="Predict run times from history, and judge the prediction.")


@commands.command("train", epilog="Example: helios model train --cluster venus --until 2020-09-01")
def train(
    cluster: Cluster = None,
    until: Annotated[
        str | None, typer.Option("--until", help="Learn only from jobs that had ended before; else from all.")
    ] = None,
    dask: Annotated[
        str | None,
        typer.Option(
            "--dask",
            help="Train on the workers of this Dask scheduler, as tcp://HOST:8786; else model.dask, else here.",
        ),
    ] = None,
    promote: Annotated[
        bool, typer.Option("--promote", help="Put it in charge, whatever its backtest says and whatever is in charge.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train a duration model on a loaded cluster and keep it in the warehouse.

    The first model takes charge if its backtest is ahead of the controls; a later one does not: helios model compare,
    then promote. helios model nightly trains, judges and promotes in one go.
    """
    settings = configuration().settings
    with progress_bars() as progress:
        history = training_history(settings.database.url, cluster, progress=progress)
        record = learn(
            history,
            url=settings.database.url,
            until=moment(until, timezone=history.timezone),
            seed=settings.model.seed,
            made_at=datetime.now(UTC),
            dask=settings.model.dask if dask is None else dask,
            progress=progress,
        )
    outcome = settle(settings.database.url, record, promote_it=promote, by=getpass.getuser(), now=datetime.now(UTC))
    if as_json:
        show_json(_manifest(record) | {"outcome": outcome.to_json()})
        return
    show(
        f"Model {record.model_id} learned from {record.jobs:,} jobs of {record.cluster} "
        f"that had ended by {record.trained_until:%Y-%m-%d %H:%M} UTC.",
        *outcome_text(outcome.to_json()),
    )


@commands.command("evaluate", epilog="Example: helios model evaluate --train-until 2020-08-01 --json")
def evaluate(
    cluster: Cluster = None,
    train_until: Annotated[
        str | None,
        typer.Option("--train-until", help="Train on what had ended by then, test on what was submitted since."),
    ] = None,
    test_fraction: Annotated[
        float | None,
        typer.Option("--test-fraction", help="Without a date: test on this last part, by submission order."),
    ] = None,
    gpu_only: Annotated[bool, typer.Option("--gpu-only", help="Judge GPU jobs alone.")] = False,
    value: Annotated[
        bool, typer.Option("--value/--no-value", help="Also replay the judged jobs: what the order makes of the queue.")
    ] = True,
    nodes: Nodes = None,
    gpus_per_node: GpusPerNode = None,
    promote_after: Annotated[
        str | None,
        typer.Option("--promote-after", help="In the replay: bound on waiting (12h); else by the waits under FIFO."),
    ] = None,
    refit_every: Annotated[
        str | None,
        typer.Option("--refit-every", help="Grow the trees anew so often during the test, as the night does (7d)."),
    ] = None,
    trace: Trace = None,
    trace_format: Format = None,
    timezone: Timezone = None,
    as_json: AsJson = False,
) -> None:
    """Judge predicted run times on later jobs, beside the naive controls.

    The controls: user_last (the user's last ended job), time_limit, size_only (median of that size), shrinkage (history
    alone, nothing trained).

    p10 and p90 are judged as a job would have got them at its submission: calibrated by what had ended by then.

    The judged jobs are also replayed on the machine of --nodes (else on one as large as their peak demand, where hardly
    any job waits): by predicted service with EASY backfill, between FIFO with EASY, which a Slurm site has today, and
    the order of true run times.
    """
    if train_until is not None and test_fraction is not None:
        raise Misuse("--train-until and --test-fraction both say where to split.", remedy="Give one of them.")
    if test_fraction is not None and not 0 < test_fraction < 1:
        raise Misuse(f"--test-fraction {test_fraction:g} is not between 0 and 1.", remedy="Write 0.3")
    from helios.app.value import Site, value_or_reason  # noqa: PLC0415 - numba and LightGBM; the other commands need none

    settings = configuration().settings
    with progress_bars() as progress:
        history = history_from(
            trace=trace, cluster=cluster, trace_format=trace_format, timezone=timezone, progress=progress
        )
        evaluation = judge(
            history,
            train_until=moment(train_until, timezone=history.timezone),
            test_fraction=test_fraction or settings.model.test_fraction,
            gpu_only=gpu_only,
            refit_every=duration(refit_every) if refit_every else None,
            seed=settings.model.seed,
            progress=progress,
        )
        worth = None
        if value:
            worth = value_or_reason(
                history,
                Site(
                    nodes=parse_nodes(nodes) if nodes is not None else None,
                    gpus_per_node=gpus_per_node or settings.whatif.gpus_per_node,
                    default_time_limit_s=settings.whatif.default_time_limit_s,
                    promote_after=duration(promote_after) if promote_after else None,
                ),
                train_until=moment(train_until, timezone=history.timezone),
                test_fraction=test_fraction or settings.model.test_fraction,
                gpu_only=gpu_only,
                seed=settings.model.seed,
                progress=progress,
            )
    say_notes([*history.notes, *evaluation.notes, *notes_of(worth)])
    if as_json:
        show_json(evaluation.to_json() | {"value": worth.to_json() if isinstance(worth, Value) else None})
        return
    show(evaluation_table(evaluation.to_json()))
    if isinstance(worth, Value):
        show("", value_table(worth))


@commands.command("explain", epilog="Example: helios model explain 12345")
def explain_(
    job: Annotated[str, typer.Argument(help="Job id, of an array 123 or 123_7.")],
    cluster: Cluster = None,
    model_id: Annotated[
        str | None, typer.Option("--model", help="Explain by this model; else by the one of the job's day.")
    ] = None,
    restart: Annotated[
        int | None, typer.Option("--restart", min=0, help="Which run of a requeued job, from 0; else the last.")
    ] = None,
    trace: Trace = None,
    trace_format: Format = None,
    timezone: Timezone = None,
    as_json: AsJson = False,
) -> None:
    """Say why a job's run time is predicted as it is: step by step, and by the past jobs most like it.

    Works for jobs of the history, as it was known when they were submitted, and for jobs that wait or run now. Of a
    trace file without --model, a model is trained on what had ended before the job.
    """
    from helios.app.explain import explain, kept_model, model_of_that_day, queue_of  # noqa: PLC0415 - only this command needs it
    from helios.report.explain import explanation_screen  # noqa: PLC0415 - as above

    settings = configuration().settings
    with progress_bars() as progress:
        history = history_from(
            trace=trace, cluster=cluster, trace_format=trace_format, timezone=timezone, progress=progress
        )
        if trace is not None and model_id is None:
            choose = model_of_that_day(history, seed=settings.model.seed, progress=progress)
        else:
            choose = kept_model(history, url=settings.database.url, model_id=model_id)
        look = None if trace is not None else queue_of(settings, history.cluster)
        told = explain(history, job, choose=choose, look=look, restart=restart)
    say_notes(history.notes)
    if as_json:
        show_json(told.to_json())
        return
    show(explanation_screen(told))


charge.add_to(commands)


def _manifest(record: ModelRecord) -> dict[str, Any]:
    return {
        "model_id": record.model_id,
        "cluster": record.cluster,
        "trained_at": record.trained_at.isoformat(),
        "trained_until": record.trained_until.isoformat(),
        "jobs": record.jobs,
        **record.manifest,
    }
