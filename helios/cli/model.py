"""Commands ``helios model``, which train, evaluate and promote run-time models."""

from __future__ import annotations

import getpass
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from typer import Argument, Option

from helios.cli.options import (
    MODEL,
    AsJson,
    Cluster,
    Draws,
    HistoryOptions,
    Machine,
    Model,
    Since,
    Until,
    WindowOptions,
    configuration,
    described,
    expand,
    moment,
    select_cluster,
)
from helios.cli.output import print_notes, print_result, progress_bars, width
from helios.errors import UsageError

commands = typer.Typer(no_args_is_help=True, help="Predict run times from history, and evaluate the predictions.")

Why = Annotated[str, Option("--why", help="Reason, recorded with the decision.")]


@commands.command("list", epilog="Example: helios model list --cluster venus")
def list_(cluster: Cluster = None, as_json: AsJson = False) -> None:
    """List the models of a cluster and every decision about them.

    Models come newest first, with what each was trained on, how good it is, and which one is promoted. Decisions to
    promote, keep or go back come oldest first, each with its reason.
    """
    from helios.app import model_drift, model_registry  # noqa: PLC0415 - pandas and SQLAlchemy; no help needs them
    from helios.report.models import models_table  # noqa: PLC0415 - as above

    url, name = _site(cluster)
    listed, decided = model_registry.list_models(url, name), model_registry.describe_decisions(url, name)
    table = models_table(listed, decided, drift=model_drift.remembered_drift(url, name), width=width())
    print_result({"models": listed, "decisions": decided}, table, as_json=as_json)


@commands.command("promote", epilog="Example: helios model promote venus-20200901-4e5f6a7b --why 'better last week'")
def promote_(
    model_id: Annotated[
        str | None, Argument(metavar="[MODEL]", help="Id of a model (see helios model list), or shrinkage.")
    ] = None,
    previous: Annotated[
        bool, Option("--previous", help="Go back to the model that was promoted before. Again: one more step.")
    ] = False,
    cluster: Cluster = None,
    why: Why = "by hand",
    as_json: AsJson = False,
) -> None:
    """Promote a model, so that predictions come from it.

    The daemon uses it from its next cycle on. With shrinkage in place of an id no model is used, and predictions come
    from averages over similar past jobs.
    """
    from helios.app import model_registry  # noqa: PLC0415 - as above
    from helios.report.models import outcome_text  # noqa: PLC0415 - as above

    if (model_id is None) is not previous:
        raise UsageError("Say which model.", hint="Give its id (helios model list) or --previous, not both.")
    url, name = _site(cluster)
    by, now = getpass.getuser(), datetime.now(UTC)
    if model_id is None:
        outcome = model_registry.roll_back(url, name, by=by, why=why, now=now)
    else:
        outcome = model_registry.promote(url, name, model_id, by=by, why=why, now=now)
    print_result(outcome.to_json(), *outcome_text(outcome.to_json()), as_json=as_json)


@commands.command("drift", epilog="Example: helios model drift --to now-7days")
def drift_(
    cluster: Cluster = None,
    model_id: Model = None,
    until: Until = None,
    as_json: AsJson = False,
) -> None:
    """Show whether jobs and errors have changed since training.

    The last days (setting model.judged_days) are compared with those of the training. Errors are shown week by week,
    beside those of shrinkage (averages over similar past jobs). Without --model it is about the promoted one.
    """
    from helios.app import model_drift, model_registry  # noqa: PLC0415 - as above
    from helios.report.models import drift_tables  # noqa: PLC0415 - as above

    url, name = _site(cluster)
    with progress_bars() as progress:
        history = model_registry.training_history(url, name, progress=progress)
        now = moment(until, timezone=history.timezone, is_end=True) or datetime.now(UTC)
        found = model_drift.drift(
            model_registry.history_before(history, now),
            url=url,
            model_id=model_id,
            days=configuration().settings.model.judged_days,
            now=now,
            progress=progress,
        )
    print_result(found, drift_tables(found, width=width()), as_json=as_json)


def _site(cluster: str | None) -> tuple[str, str]:
    from helios.app.clusters import choose_cluster  # noqa: PLC0415 - as above
    from helios.warehouse import Warehouse  # noqa: PLC0415 - as above

    url = configuration().settings.database.url
    with Warehouse.open(url) as warehouse:
        return url, str(choose_cluster(warehouse, select_cluster(cluster))["name"])


@commands.command("train", epilog="Example: helios model train --cluster venus --to 2020-08")
def train(
    cluster: Cluster = None,
    until: Until = None,
    promote: Annotated[
        bool, Option("--promote", help="Promote it, whatever its backtest says and whatever is promoted now.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train a run-time model on a loaded cluster and store it.

    With --to, it learns only from jobs that had ended by then. The first model of a cluster is promoted if its backtest
    is better than the baselines. A later one is only stored: see how good it is with helios model evaluate --model,
    then use helios model promote. The nightly analysis (helios nightly) does all in one step.
    """
    from helios.app import model_registry  # noqa: PLC0415 - as above
    from helios.report.models import outcome_text  # noqa: PLC0415 - as above

    settings = configuration().settings
    with progress_bars() as progress:
        history = model_registry.training_history(settings.database.url, select_cluster(cluster), progress=progress)
        record = model_registry.learn(
            history,
            url=settings.database.url,
            until=moment(until, timezone=history.timezone, is_end=True),
            seed=settings.model.seed,
            made_at=datetime.now(UTC),
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
        Option("--model", help=MODEL),
    ] = None,
    since: Since = None,
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
    With --from, jobs submitted since are tested, after training on what had ended by then.

    First it says, over --draws draws, which order Helios should run live: the verdict of helios whatif, on the same
    window, which is the whole record without --from. Then it replays the tested jobs once with each predictor, plain
    FIFO, and the order by true run times, all with EASY backfill, on the nodes of --nodes, else on those of the record.
    Where these are only what jobs held at once, hardly any job waits.

    With --model twice, two stored models are compared on jobs that neither was trained on, and nothing is replayed.
    """
    if models:
        _compare(models, source, as_json=as_json)
        return
    if since is not None and test_fraction is not None:
        raise UsageError("--from and --test-fraction both say where to split.", hint="Give one of them.")
    if test_fraction is not None and not 0 < test_fraction < 1:
        raise UsageError(f"--test-fraction {test_fraction:g} is not between 0 and 1.", hint="Write 0.3")
    from helios.app.model_registry import judge  # noqa: PLC0415 - as above
    from helios.app.order_check import check_order, refuse_few, value_or_reason  # noqa: PLC0415 - numba and LightGBM
    from helios.app.record import complete_part  # noqa: PLC0415 - as above
    from helios.app.whatif import WhatIfRequest  # noqa: PLC0415 - as above
    from helios.report.models import OrderValue, model_notes, value_table  # noqa: PLC0415 - as above
    from helios.report.tables import evaluation_table  # noqa: PLC0415 - as above

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
    from helios.app import model_registry  # noqa: PLC0415 - as above
    from helios.report.models import comparison_table  # noqa: PLC0415 - as above

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
