"""``helios model``: train a duration predictor, keep it, judge it."""

from __future__ import annotations

import getpass
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from helios.app import model_registry
from helios.app.history import choose_cluster
from helios.app.model_registry import SHRINKAGE, settle, training_history
from helios.app.training import judge, learn
from helios.cli.options import AsJson, Cluster, Machine, Source, configuration, duration, expand, moment
from helios.cli.output import answer, progress_bars, say_notes, width
from helios.errors import UsageError
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

commands = typer.Typer(no_args_is_help=True, help="Predict run times from history, and judge the prediction.")

ModelId = Annotated[str, typer.Argument(help="A model's id, as helios model list shows it.")]
Why = Annotated[str, typer.Option("--why", help="Reason, kept with the decision.")]
Days = Annotated[float | None, typer.Option("--days", min=0.5, help="Days to judge on; else model.judged_days.")]
AsOf = Annotated[
    str | None, typer.Option("--as-of", help="As if it were that day; jobs that ended later do not count.")
]


@commands.command("list", epilog="Example: helios model list --cluster venus")
def list_(cluster: Cluster = None, as_json: AsJson = False) -> None:
    """List the models kept for a cluster, newest first: what each learned from, how good it is, which is in charge."""
    url, name = _site(cluster)
    listed, decided = model_registry.list_models(url, name), model_registry.describe_decisions(url, name)
    table = models_table(listed, decided, drift=model_registry.remembered_drift(url, name), width=width())
    answer(listed, table, as_json=as_json)


@commands.command("decisions", epilog="Example: helios model decisions --json")
def decisions_(cluster: Cluster = None, as_json: AsJson = False) -> None:
    """List every decision about the model in charge, oldest first, with its reason."""
    url, name = _site(cluster)
    told = model_registry.describe_decisions(url, name)
    lines = [
        f"{row['promoted_at'][:16].replace('T', ' ')}  {row['step']}: {row['model_id'] or SHRINKAGE}, "
        f"by {row['promoted_by']}: {row['why']}"
        for row in told
    ]
    answer(told, *(lines or ["Nothing was ever decided: the newest model is in charge."]), as_json=as_json)


@commands.command("promote", epilog="Example: helios model promote venus-20200901-4e5f6a7b --why 'looked at it'")
def promote_(model_id: ModelId, cluster: Cluster = None, why: Why = "by hand", as_json: AsJson = False) -> None:
    """Put a model in charge of its cluster; shrinkage in place of an id: none. The daemon's next cycle uses it."""
    url, name = _site(cluster)
    outcome = model_registry.promote(url, name, model_id, by=getpass.getuser(), why=why, now=datetime.now(UTC))
    answer(outcome.to_json(), *outcome_text(outcome.to_json()), as_json=as_json)


@commands.command("rollback", epilog="Example: helios model rollback --why 'waits have grown'")
def rollback_(cluster: Cluster = None, why: Why = "by hand", as_json: AsJson = False) -> None:
    """Put back in charge the model that was so before, and say which; again: the one before that."""
    url, name = _site(cluster)
    outcome = model_registry.roll_back(url, name, by=getpass.getuser(), why=why, now=datetime.now(UTC))
    answer(outcome.to_json(), *outcome_text(outcome.to_json()), as_json=as_json)


@commands.command("compare", epilog="Example: helios model compare venus-20200801-0a1b2c3d venus-20200901-4e5f6a7b")
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
    found = comparison.to_json()
    answer(found | {"notes": list(notes)}, comparison_table(found, notes=notes), as_json=as_json)


@commands.command("nightly", epilog="Example: helios model nightly --dry-run")
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
    compared = ["", comparison_table(outcome.comparison.to_json())] if outcome.comparison else []
    found = outcome.to_json()
    answer(found | {"drift": drift}, *outcome_text(found), f"Drift: {drift}.", *compared, as_json=as_json)


@commands.command("drift", epilog="Example: helios model drift --days 14")
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
    answer(found, drift_tables(found, width=width()), as_json=as_json)


def _site(cluster: str | None) -> tuple[str, str]:
    url = configuration().settings.database.url
    with Warehouse.open(url) as warehouse:
        return url, str(choose_cluster(warehouse, cluster)["name"])


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
    manifest = {
        "model_id": record.model_id,
        "cluster": record.cluster,
        "trained_at": record.trained_at.isoformat(),
        "trained_until": record.trained_until.isoformat(),
        "jobs": record.jobs,
        **record.manifest,
    }
    learned = (
        f"Model {record.model_id} learned from {record.jobs:,} jobs of {record.cluster} "
        f"that had ended by {record.trained_until:%Y-%m-%d %H:%M} UTC."
    )
    found = outcome.to_json()
    answer(manifest | {"outcome": found}, learned, *outcome_text(found), as_json=as_json)


@commands.command("evaluate", epilog="Example: helios model evaluate --train-until 2020-08-01 --json")
@expand
def evaluate(
    *,
    source: Source,
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
    machine: Machine,
    promote_after: Annotated[
        str | None,
        typer.Option("--promote-after", help="In the replay: bound on waiting (12h); else by the waits under FIFO."),
    ] = None,
    refit_every: Annotated[
        str | None,
        typer.Option("--refit-every", help="Grow the trees anew so often during the test, as the night does (7d)."),
    ] = None,
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
        history = source.read(progress)
        judged: dict[str, Any] = {
            "train_until": moment(train_until, timezone=history.timezone),
            "test_fraction": test_fraction or settings.model.test_fraction,
            "gpu_only": gpu_only,
            "seed": settings.model.seed,
            "progress": progress,
        }
        evaluation = judge(history, refit_every=duration(refit_every) if refit_every else None, **judged)
        worth = None
        if value:
            bound = duration(promote_after) if promote_after else None
            worth = value_or_reason(history, ReplayTarget(**machine.of(settings), promote_after=bound), **judged)
    say_notes([*history.notes, *evaluation.notes, *model_notes(worth)])
    found, worth = evaluation.to_json(), worth if isinstance(worth, OrderValue) else None
    tables = [evaluation_table(found), *(["", value_table(worth)] if worth else [])]
    answer(found | {"value": worth.to_json() if worth else None}, *tables, as_json=as_json)


@commands.command("explain", epilog="Example: helios model explain 12345")
@expand
def explain_(
    *,
    job: Annotated[str, typer.Argument(help="Job id, of an array 123 or 123_7.")],
    source: Source,
    model_id: Annotated[
        str | None, typer.Option("--model", help="Explain by this model; else by the one of the job's day.")
    ] = None,
    restart: Annotated[
        int | None, typer.Option("--restart", min=0, help="Which run of a requeued job, from 0; else the last.")
    ] = None,
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
        history = source.read(progress)
        if source.trace is not None and model_id is None:
            choose = model_in_use(history, seed=settings.model.seed, progress=progress)
        else:
            choose = kept_model(history, url=settings.database.url, model_id=model_id)
        look = None if source.trace is not None else queue_at_submission(settings, history.cluster)
        told = explain(history, job, choose=choose, look=look, restart=restart)
    say_notes(history.notes)
    answer(told.to_json(), explanation_screen(told), as_json=as_json)
