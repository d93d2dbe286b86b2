"""``helios model``: train a duration predictor, keep it, judge it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from helios.app.expectation import judge, learn
from helios.app.history import choose_cluster
from helios.cli.options import AsJson, Cluster, Format, Timezone, Trace, configuration, history_from, moment
from helios.cli.screen import frame_table, progress_bars, say_notes, show, show_json
from helios.errors import Misuse
from helios.model import ModelRecord
from helios.report.tables import evaluation_table
from helios.warehouse import Warehouse

commands = typer.Typer(no_args_is_help=True, help="Predict run times from history, and judge the prediction.")


@commands.command("train", epilog="Example: helios model train --cluster venus --until 2020-09-01")
def train(
    cluster: Cluster = None,
    until: Annotated[
        str | None, typer.Option("--until", help="Learn only from jobs that had ended before; else from all.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train a duration model on a loaded cluster and keep it in the warehouse."""
    settings = configuration().settings
    with progress_bars() as progress:
        history = history_from(trace=None, cluster=cluster, trace_format=None, timezone=None, progress=progress)
        record = learn(
            history,
            url=settings.database.url,
            until=moment(until, timezone=history.timezone),
            seed=settings.model.seed,
            made_at=datetime.now(UTC),
            progress=progress,
        )
    if as_json:
        show_json(_manifest(record))
        return
    show(
        f"Model {record.model_id} learned from {record.jobs:,} jobs of {record.cluster} "
        f"that had ended by {record.trained_until:%Y-%m-%d %H:%M} UTC.",
        "Judge such a model on held-back jobs: helios model evaluate",
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
    trace: Trace = None,
    trace_format: Format = None,
    timezone: Timezone = None,
    as_json: AsJson = False,
) -> None:
    """Judge predicted run times on later jobs, beside the naive controls.

    The controls: user_last (the user's last ended job), time_limit, size_only (median of that size).
    """
    if train_until is not None and test_fraction is not None:
        raise Misuse("--train-until and --test-fraction both say where to split.", remedy="Give one of them.")
    if test_fraction is not None and not 0 < test_fraction < 1:
        raise Misuse(f"--test-fraction {test_fraction:g} is not between 0 and 1.", remedy="Write 0.3")
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
            seed=settings.model.seed,
            progress=progress,
        )
    say_notes([*history.notes, *evaluation.notes])
    if as_json:
        show_json(evaluation.to_json())
        return
    show(evaluation_table(evaluation.to_json()))


@commands.command("list", epilog="Example: helios model list --cluster venus")
def list_(cluster: Cluster = None, as_json: AsJson = False) -> None:
    """List the models kept for a cluster, newest first."""
    with Warehouse.open(configuration().settings.database.url) as warehouse:
        models = warehouse.models(str(choose_cluster(warehouse, cluster)["name"]))
    if as_json:
        show_json(models.to_dict(orient="records"))
        return
    show(frame_table(models, empty="No model yet: helios model train"))


def _manifest(record: ModelRecord) -> dict[str, Any]:
    return {
        "model_id": record.model_id,
        "cluster": record.cluster,
        "trained_at": record.trained_at.isoformat(),
        "trained_until": record.trained_until.isoformat(),
        "jobs": record.jobs,
        "features": list(record.features),
    }
