"""``helios model list | compare | promote | rollback | nightly | drift``: which model is in charge, and why."""

from __future__ import annotations

import getpass
from datetime import UTC, datetime
from typing import Annotated

import typer

from helios.app import models
from helios.app.history import choose_cluster
from helios.app.outcome import SHRINKAGE, Outcome
from helios.cli.options import AsJson, Cluster, configuration, moment
from helios.cli.screen import progress_bars, show, show_json, width
from helios.report.models import contest_table, drift_tables, models_table, outcome_text
from helios.warehouse import Warehouse

ModelId = Annotated[str, typer.Argument(help="A model's id, as helios model list shows it.")]
Why = Annotated[str, typer.Option("--why", help="Reason, kept with the decision.")]
Days = Annotated[float | None, typer.Option("--days", min=0.5, help="Days to judge on; else model.judged_days.")]
AsOf = Annotated[
    str | None, typer.Option("--as-of", help="As if it were that day; jobs that ended later do not count.")
]


def list_(cluster: Cluster = None, as_json: AsJson = False) -> None:
    """List the models kept for a cluster, newest first: what each learned from, how good it is, which is in charge."""
    url, name = _site(cluster)
    listed, decided = models.listing(url, name), models.told_decisions(url, name)
    if as_json:
        show_json(listed)
        return
    show(models_table(listed, decided, drift=models.remembered_drift(url, name), width=width()))


def decisions_(cluster: Cluster = None, as_json: AsJson = False) -> None:
    """List every decision about the model in charge, oldest first, with its reason."""
    url, name = _site(cluster)
    told = models.told_decisions(url, name)
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
    """Put a model in charge of its cluster; shrinkage in place of an id: none. The daemon's next turn uses it."""
    url, name = _site(cluster)
    _tell(models.promote(url, name, model_id, by=getpass.getuser(), why=why, now=datetime.now(UTC)), as_json=as_json)


def rollback_(cluster: Cluster = None, why: Why = "by hand", as_json: AsJson = False) -> None:
    """Put back in charge the model that was so before, and say which; again: the one before that."""
    url, name = _site(cluster)
    _tell(models.roll_back(url, name, by=getpass.getuser(), why=why, now=datetime.now(UTC)), as_json=as_json)


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
        history = models.training_history(url, name, progress=progress)
        contest, notes = models.compare(history, url=url, first=first, second=second, now=datetime.now(UTC))
    if as_json:
        show_json(contest.to_json() | {"notes": list(notes)})
        return
    show(contest_table(contest.to_json(), notes=notes))


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
        history = models.training_history(url, name, progress=progress)
        now = moment(as_of, timezone=history.timezone) or datetime.now(UTC)
        outcome, drift = models.nightly(
            url=url,
            history=models.until(history, now),
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
    if outcome.contest:
        show("", contest_table(outcome.contest.to_json()))


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
        history = models.training_history(url, name, progress=progress)
        now = moment(as_of, timezone=history.timezone) or datetime.now(UTC)
        found = models.drift(
            models.until(history, now),
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


def _tell(outcome: Outcome, *, as_json: bool) -> None:
    if as_json:
        show_json(outcome.to_json())
        return
    show(*outcome_text(outcome.to_json()))
