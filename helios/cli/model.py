"""``helios model``: train a duration predictor, keep it, judge it."""

from __future__ import annotations

import getpass
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from helios.app import model_registry
from helios.app.history import choose_cluster
from helios.app.model_registry import SHRINKAGE, TrainingOutcome, settle, training_history
from helios.app.replay_cluster import parse_nodes
from helios.app.training import judge, learn
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
from helios.cli.output import progress_bars, say_notes, show, show_json, width
from helios.errors import UsageError
from helios.model import ModelRecord
from helios.report.models import (
    OrderValue,
    comparison_table,
    drift_tables,
    model_notes,
    models_table,
    outcome_text,
    value_table,
)
from helios.report.tables import evaluation_table
from helios.warehouse import Warehouse

# ``helios model list | compare | promote | rollback | nightly | drift``: which model is in charge, and why.

ModelId = Annotated[str, typer.Argument(help="A model's id, as helios model list shows it.")]
Why = Annotated[str, typer.Option("--why", help="Reason, kept with the decision.")]
Days = Annotated[float | None, typer.Option("--days", min=0.5, help="Days to judge on; else model.judged_days.")]
AsOf = Annotated[
    str | None, typer.Option("--as-of", help="As if it were that day; jobs that ended later do not count.")
]


def list_(cluster: Cluster = None, as_json: AsJson = False) -> None:
    """List the models kept for a cluster, newest first: what each learned from, how good it is, which is in charge."""
    url, name = _site(cluster)
    listed, decided = model_registry.list_models(url, name), model_registry.describe_decisions(url, name)
    if as_json:
        show_json(listed)
        return
    show(models_table(listed, decided, drift=model_registry.remembered_drift(url, name), width=width()))


def decisions_(cluster: Cluster = None, as_json: AsJson = False) -> None:
    """List every decision about the model in charge, oldest first, with its reason."""
    url, name = _site(cluster)
    told = model_registry.describe_decisions(url, name)
    if as_json:
        show_json(told)
        return
    lines = [
        f"{row['promoted_at'][:16].replace('T', ' ')}  {row['step']}: {row['model_id'] or SHRINKAGE}, "
        f"by {row['promoted_by']}: {row['why']}"
        for row in told
    ]
    show(*(lines or ["Nothing was ever decided: the newest model is in charge."]))


def promote_(model_id: ModelId, cluster: Cluster = None, why: Why = "by hand", as_json: AsJson = False) -> None:
    """Put a model in charge of its cluster; shrinkage in place of an id: none. The daemon's next cycle uses it."""
    url, name = _site(cluster)
    _tell(
        model_registry.promote(url, name, model_id, by=getpass.getuser(), why=why, now=datetime.now(UTC)),
        as_json=as_json,
    )


def rollback_(cluster: Cluster = None, why: Why = "by hand", as_json: AsJson = False) -> None:
    """Put back in charge the model that was so before, and say which; again: the one before that."""
    url, name = _site(cluster)
    _tell(model_registry.roll_back(url, name, by=getpass.getuser(), why=why, now=datetime.now(UTC)), as_json=as_json)


def compare_(
    first: Annotated[str, typer.Argument(help="A model's id.")],
    second: Annotated[str, typer.Argument(help="Another's.")],
    cluster: Cluster = None,
    as_json: AsJson = False,
) -> None:
    """Judge two models on the same jobs, which neither had learned from, beside the controls.

    Says "no difference" where chance alone explains it: campaigns make a thousand jobs one observation.
    """
    url, name = _site(cluster)
    with progress_bars() as progress:
        history = model_registry.training_history(url, name, progress=progress)
        comparison, notes = model_registry.compare(history, url=url, first=first, second=second, now=datetime.now(UTC))
    if as_json:
        show_json(comparison.to_json() | {"notes": list(notes)})
        return
    show(comparison_table(comparison.to_json(), notes=notes))


def nightly_(
    cluster: Cluster = None,
    days: Days = None,
    as_of: AsOf = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Train and judge, but write nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train anew and promote the model only if it is better; else keep what is in charge, and say why.

    The nightly analysis does the same. Better: on the last days not worse beyond chance than the model in charge and
    than shrinkage, neither in median log error nor in rank correlation.
    """
    url, name = _site(cluster)
    settings = configuration().settings.model
    with progress_bars() as progress:
        history = model_registry.training_history(url, name, progress=progress)
        now = moment(as_of, timezone=history.timezone) or datetime.now(UTC)
        outcome, drift = model_registry.nightly(
            url=url,
            history=model_registry.until(history, now),
            seed=settings.seed,
            days=days or settings.judged_days,
            now=now,
            keep=settings.kept,
            dask=settings.dask,
            dry_run=dry_run,
            progress=progress,
        )
    if as_json:
        show_json(outcome.to_json() | {"drift": drift})
        return
    show(*outcome_text(outcome.to_json()), f"Drift: {drift}.")
    if outcome.comparison:
        show("", comparison_table(outcome.comparison.to_json()))


def drift_(
    cluster: Cluster = None,
    model_id: Annotated[str | None, typer.Option("--model", help="A model's id; else the one in charge.")] = None,
    days: Days = None,
    as_of: AsOf = None,
    as_json: AsJson = False,
) -> None:
    """Show whether jobs still look as in training, and whether errors have grown, week by week beside shrinkage."""
    url, name = _site(cluster)
    with progress_bars() as progress:
        history = model_registry.training_history(url, name, progress=progress)
        now = moment(as_of, timezone=history.timezone) or datetime.now(UTC)
        found = model_registry.drift(
            model_registry.until(history, now),
            url=url,
            model_id=model_id,
            days=days or configuration().settings.model.judged_days,
            now=now,
            progress=progress,
        )
    if as_json:
        show_json(found)
        return
    show(drift_tables(found, width=width()))


def add_to(commands: typer.Typer) -> None:
    """Make these commands of ``commands``."""
    for name, command, example in (
        ("list", list_, "helios model list --cluster venus"),
        ("decisions", decisions_, "helios model decisions --json"),
        ("compare", compare_, "helios model compare venus-20200801-0a1b2c3d venus-20200901-4e5f6a7b"),
        ("promote", promote_, "helios model promote venus-20200901-4e5f6a7b --why 'looked at it'"),
        ("rollback", rollback_, "helios model rollback --why 'waits have grown'"),
        ("nightly", nightly_, "helios model nightly --dry-run"),
        ("drift", drift_, "helios model drift --days 14"),
    ):
        commands.command(name, epilog=f"Example: {example}")(command)


def _site(cluster: str | None) -> tuple[str, str]:
    url = configuration().settings.database.url
    with Warehouse.open(url) as warehouse:
        return url, str(choose_cluster(warehouse, cluster)["name"])


def _tell(outcome: TrainingOutcome, *, as_json: bool) -> None:
    if as_json:
        show_json(outcome.to_json())
        return
    show(*outcome_text(outcome.to_json()))


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
        raise UsageError("--train-until and --test-fraction both say where to split.", hint="Give one of them.")
    if test_fraction is not None and not 0 < test_fraction < 1:
        raise UsageError(f"--test-fraction {test_fraction:g} is not between 0 and 1.", hint="Write 0.3")
    from helios.app.prediction_value import ReplayTarget, value_or_reason  # noqa: PLC0415 - numba and LightGBM; the other commands need none

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
                ReplayTarget(
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
    say_notes([*history.notes, *evaluation.notes, *model_notes(worth)])
    if as_json:
        show_json(evaluation.to_json() | {"value": worth.to_json() if isinstance(worth, OrderValue) else None})
        return
    show(evaluation_table(evaluation.to_json()))
    if isinstance(worth, OrderValue):
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
    from helios.app.explain_prediction import explain, kept_model, model_in_use, queue_at_submission  # noqa: PLC0415 - only this command needs it
    from helios.report.prediction import explanation_screen  # noqa: PLC0415 - as above

    settings = configuration().settings
    with progress_bars() as progress:
        history = history_from(
            trace=trace, cluster=cluster, trace_format=trace_format, timezone=timezone, progress=progress
        )
        if trace is not None and model_id is None:
            choose = model_in_use(history, seed=settings.model.seed, progress=progress)
        else:
            choose = kept_model(history, url=settings.database.url, model_id=model_id)
        look = None if trace is not None else queue_at_submission(settings, history.cluster)
        told = explain(history, job, choose=choose, look=look, restart=restart)
    say_notes(history.notes)
    if as_json:
        show_json(told.to_json())
        return
    show(explanation_screen(told))


add_to(commands)


def _manifest(record: ModelRecord) -> dict[str, Any]:
    return {
        "model_id": record.model_id,
        "cluster": record.cluster,
        "trained_at": record.trained_at.isoformat(),
        "trained_until": record.trained_until.isoformat(),
        "jobs": record.jobs,
        **record.manifest,
    }
