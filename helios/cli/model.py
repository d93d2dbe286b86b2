"""Commands ``helios model``, which train, evaluate and promote run-time models."""

from __future__ import annotations

import getpass
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from typer import Argument, Option

from helios.app import model_drift, model_registry
from helios.app.history import choose_cluster
from helios.app.model_registry import judge, learn
from helios.cli.options import (
    AsJson,
    Cluster,
    Draws,
    HistoryOptions,
    Machine,
    WindowOptions,
    configuration,
    described,
    expand,
    moment,
    select_cluster,
)
from helios.cli.output import print_notes, print_result, progress_bars, width
from helios.errors import UsageError
from helios.predict.duration import SHRINKAGE
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

commands = typer.Typer(no_args_is_help=True, help="Predict run times from history, and evaluate the predictions.")

ModelId = Annotated[str, Argument(help="Id of a model (see helios model list), or shrinkage.")]
Why = Annotated[str, Option("--why", help="Reason, recorded with the decision.")]
Days = Annotated[
    float | None,
    Option("--days", min=0.5, help="Number of last days to evaluate on. Default: setting model.judged_days."),
]
AsOf = Annotated[str | None, Option("--as-of", help="Act as if it were this day, and ignore jobs that ended later.")]


@commands.command("list", epilog="Example: helios model list --cluster venus")
def list_(cluster: Cluster = None, as_json: AsJson = False) -> None:
    """List the models of a cluster, newest first.

    Shows what each was trained on, how good it is, and which one is promoted.
    """
    url, name = _site(cluster)
    listed, decided = model_registry.list_models(url, name), model_registry.describe_decisions(url, name)
    table = models_table(listed, decided, drift=model_drift.remembered_drift(url, name), width=width())
    print_result(listed, table, as_json=as_json)


@commands.command("decisions", epilog="Example: helios model decisions --json")
def decisions_(cluster: Cluster = None, as_json: AsJson = False) -> None:
    """List every decision to promote, keep or roll back a model.

    Oldest first, each with its reason.
    """
    url, name = _site(cluster)
    decisions = model_registry.describe_decisions(url, name)
    lines = [
        f"{row['promoted_at'][:16].replace('T', ' ')}  {row['step']}: {row['model_id'] or SHRINKAGE}, "
        f"by {row['promoted_by']}: {row['why']}"
        for row in decisions
    ]
    print_result(decisions, *(lines or ["Nothing was ever decided: the newest model is active."]), as_json=as_json)


@commands.command("promote", epilog="Example: helios model promote venus-20200901-4e5f6a7b --why 'better last week'")
def promote_(model_id: ModelId, cluster: Cluster = None, why: Why = "by hand", as_json: AsJson = False) -> None:
    """Promote a model, so that predictions come from it.

    The daemon uses it from its next cycle on. With shrinkage in place of an id no model is used, and predictions come
    from averages over similar past jobs.
    """
    url, name = _site(cluster)
    outcome = model_registry.promote(url, name, model_id, by=getpass.getuser(), why=why, now=datetime.now(UTC))
    print_result(outcome.to_json(), *outcome_text(outcome.to_json()), as_json=as_json)


@commands.command("rollback", epilog="Example: helios model rollback --why 'waits have grown'")
def rollback_(cluster: Cluster = None, why: Why = "by hand", as_json: AsJson = False) -> None:
    """Go back to the model that was promoted before.

    Run it again to go back one more step. It says which model is promoted now.
    """
    url, name = _site(cluster)
    outcome = model_registry.roll_back(url, name, by=getpass.getuser(), why=why, now=datetime.now(UTC))
    print_result(outcome.to_json(), *outcome_text(outcome.to_json()), as_json=as_json)


@commands.command("nightly", epilog="Example: helios model nightly --dry-run")
def nightly_(
    cluster: Cluster = None,
    days: Days = None,
    as_of: AsOf = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Train and compare, but write nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a new model and promote it only if it is better.

    Otherwise the promoted model stays, and the reason is recorded. The new model is better if, on the last days, it is
    not worse beyond chance than the promoted model and than shrinkage (averages over similar past jobs), neither in
    median log error nor in rank correlation. The nightly analysis (helios nightly) does the same.
    """
    url, name = _site(cluster)
    settings = configuration().settings.model
    with progress_bars() as progress:
        history = model_registry.training_history(url, name, progress=progress)
        now = moment(as_of, timezone=history.timezone) or datetime.now(UTC)
        outcome, drift = model_registry.nightly(
            url=url,
            history=model_registry.history_before(history, now),
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
    print_result(found | {"drift": drift}, *outcome_text(found), f"Drift: {drift}.", *compared, as_json=as_json)


@commands.command("drift", epilog="Example: helios model drift --days 14")
def drift_(
    cluster: Cluster = None,
    model_id: Annotated[str | None, Option("--model", help="Id of a model. Default: the promoted one.")] = None,
    days: Days = None,
    as_of: AsOf = None,
    as_json: AsJson = False,
) -> None:
    """Show whether jobs and errors have changed since training.

    Errors are shown week by week, beside those of shrinkage (averages over similar past jobs).
    """
    url, name = _site(cluster)
    with progress_bars() as progress:
        history = model_registry.training_history(url, name, progress=progress)
        now = moment(as_of, timezone=history.timezone) or datetime.now(UTC)
        found = model_drift.drift(
            model_registry.history_before(history, now),
            url=url,
            model_id=model_id,
            days=days or configuration().settings.model.judged_days,
            now=now,
            progress=progress,
        )
    print_result(found, drift_tables(found, width=width()), as_json=as_json)


def _site(cluster: str | None) -> tuple[str, str]:
    url = configuration().settings.database.url
    with Warehouse.open(url) as warehouse:
        return url, str(choose_cluster(warehouse, select_cluster(cluster))["name"])


@commands.command("train", epilog="Example: helios model train --cluster venus --until 2020-09-01")
def train(
    cluster: Cluster = None,
    until: Annotated[
        str | None, Option(help="Train only on jobs that had ended before this time. Default: on all.")
    ] = None,
    dask: Annotated[
        str | None,
        Option(
            help="Train on the workers of this Dask scheduler, such as tcp://HOST:8786. Default: setting model.dask."
        ),
    ] = None,
    promote: Annotated[
        bool, Option("--promote", help="Promote it, whatever its backtest says and whatever is promoted now.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train a run-time model on a loaded cluster and store it.

    The first model of a cluster is promoted if its backtest is better than the baselines. A later one is only stored.
    See how good it is with helios model evaluate --model, then use helios model promote. Or do all in one step with
    helios model nightly.
    """
    settings = configuration().settings
    with progress_bars() as progress:
        history = model_registry.training_history(settings.database.url, select_cluster(cluster), progress=progress)
        record = learn(
            history,
            url=settings.database.url,
            until=moment(until, timezone=history.timezone),
            seed=settings.model.seed,
            made_at=datetime.now(UTC),
            dask=settings.model.dask if dask is None else dask,
            progress=progress,
        )
    outcome = model_registry.decide_by_hand(
        settings.database.url, record, promote_it=promote, by=getpass.getuser(), now=datetime.now(UTC)
    )
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
    print_result(manifest | {"outcome": found}, learned, *outcome_text(found), as_json=as_json)


@commands.command("evaluate", epilog="Example: helios model evaluate --from 2020-08-01 --json")
@expand
def evaluate(
    *,
    source: HistoryOptions,
    models: Annotated[
        list[str] | None,
        Option("--model", help="Compare this stored model with another one. Give it twice. Nothing is replayed."),
    ] = None,
    since: Annotated[
        str | None, Option("--from", help="Test on jobs submitted since, after training on what had ended by then.")
    ] = None,
    test_fraction: Annotated[
        float | None,
        Option(help="Test on this last part of the submissions, such as 0.3. Default: setting model.test_fraction."),
    ] = None,
    machine: Machine,
    draws: Draws = 5,
    as_json: AsJson = False,
) -> None:
    """Evaluate predicted run times on later jobs, beside simple baselines.

    The baselines are user_last (run time of the user's last ended job), time_limit, size_only (median of jobs of that
    size) and shrinkage (averages over similar past jobs, without training).

    p10 and p90 are as each job would have got them at its submission, calibrated by the jobs that had ended by then.

    First it says, over --draws draws, which order Helios should run live: the verdict of helios whatif, on the same
    window, which is the whole record without --from. Then it replays the tested jobs once with each predictor, plain
    FIFO, and the order by true run times, all with EASY backfill, on the nodes of --nodes, else on those of the record.
    Where these are only what jobs held at once, hardly any job waits.

    With --model twice, two stored models are compared on jobs that neither was trained on.
    """
    if models:
        _compare(models, source, as_json=as_json)
        return
    if since is not None and test_fraction is not None:
        raise UsageError("--from and --test-fraction both say where to split.", hint="Give one of them.")
    if test_fraction is not None and not 0 < test_fraction < 1:
        raise UsageError(f"--test-fraction {test_fraction:g} is not between 0 and 1.", hint="Write 0.3")
    from helios.app.order_check import check_order, refuse_few, value_or_reason  # noqa: PLC0415 - numba and LightGBM
    from helios.app.record import complete_part  # noqa: PLC0415 - as above
    from helios.app.whatif import WhatIfRequest  # noqa: PLC0415 - as above

    if draws:
        refuse_few(draws)
    settings = configuration().settings
    window = WindowOptions(since=since)
    verdict, value = None, None
    with progress_bars() as progress:
        read = source.read(progress)
        history = complete_part(described(read, settings=settings, machine=machine))
        split: dict[str, Any] = {
            "train_until": moment(since, timezone=history.timezone),
            "test_fraction": test_fraction or settings.model.test_fraction,
            "seed": settings.model.seed,
            "progress": progress,
        }
        evaluation = judge(history, **split)
        if draws:
            request = WhatIfRequest(**machine.request_fields(settings, history.capacity))
            value = value_or_reason(history, request, model=evaluation.model, **split)
        if isinstance(value, OrderValue):
            whole = described(read, settings=settings, window=window, machine=machine)
            asked = WhatIfRequest(
                **window.request_fields(whole),
                **machine.request_fields(settings, whole.capacity),
                seed=settings.model.seed,
            )
            verdict = check_order(whole, asked, draws=draws, progress=progress)
    print_notes([*history.notes, *evaluation.notes, *model_notes(value)])
    found, worth = evaluation.to_json(), value if isinstance(value, OrderValue) else None
    tables = [evaluation_table(found)]
    if worth and verdict:
        tables = [*verdict.sentences(), "", *tables, "", value_table(worth)]
    size = None if history.capacity is None else history.capacity.to_json()
    told = {"capacity": size, "verdict": verdict and verdict.to_json(), "value": worth and worth.to_json()}
    print_result(found | told, *tables, as_json=as_json)


def _compare(models: list[str], source: HistoryOptions, *, as_json: bool) -> None:
    """Compare two stored models on jobs that neither was trained on.

    It says "no difference" where chance alone may explain one, since many similar jobs of one user count about as one
    observation.
    """
    if len(models) != 2 or source.trace is not None:
        raise UsageError(
            "--model compares two stored models of a loaded cluster.",
            hint="Write helios model evaluate --model A --model B, with ids of: helios model list",
        )
    url, name = _site(source.cluster)
    with progress_bars() as progress:
        history = model_registry.training_history(url, name, progress=progress)
        comparison, notes = model_registry.compare(
            history, url=url, first=models[0], second=models[1], now=datetime.now(UTC)
        )
    found = comparison.to_json()
    print_result(found | {"notes": list(notes)}, comparison_table(found, notes=notes), as_json=as_json)


@commands.command("explain", epilog="Example: helios model explain 12345")
@expand
def explain_(
    *,
    job: Annotated[str, Argument(help="Job id, such as 123, or 123_7 of an array.")],
    source: HistoryOptions,
    model_id: Annotated[
        str | None, Option("--model", help="Id of a model. Default: the newest trained before the job was submitted.")
    ] = None,
    restart: Annotated[
        int | None, Option(min=0, help="Which run of a requeued job, counted from 0. Default: the last.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Explain a job's predicted run time step by step.

    Shows the past jobs most like it, too. Works for past jobs, from what was known at their submission, and for jobs
    that wait or run now. For a trace file without --model, a model is trained on the jobs that had ended before.
    """
    from helios.app.explain import explain_prediction, newly_trained_model, stored_model  # noqa: PLC0415 - only this command needs it
    from helios.app.operations import live_snapshot_reader  # noqa: PLC0415 - as above
    from helios.report.prediction import explanation_screen  # noqa: PLC0415 - as above

    settings = configuration().settings
    with progress_bars() as progress:
        history = source.read(progress)
        if source.trace is not None and model_id is None:
            choose = newly_trained_model(history, seed=settings.model.seed, progress=progress)
        else:
            choose = stored_model(history, url=settings.database.url, model_id=model_id)
        read_snapshot = None if source.trace is not None else live_snapshot_reader(settings, history.cluster)
        found = explain_prediction(history, job, choose=choose, read_snapshot=read_snapshot, restart=restart)
    print_notes(history.notes)
    print_result(found.to_json(), explanation_screen(found), as_json=as_json)
