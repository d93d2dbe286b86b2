"""Tables of models, their worth, and the steps of a prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape

from helios.metrics.queue import QueueSummary
from helios.model import SIZE_CLASSES, SIZE_HEADS
from helios.report.tables import WIDE, figure, plain_table
from helios.units import duration, percent

PROMOTED = "*"
NAMES = {"model": "new model", "active": "active model", "user_last": "user's last ended job"}
SHOWN_FEATURES = 10
MOST_DECISIONS = 5
"""Decisions that are shown below the models."""
STEPS = {"promoted": "was promoted", "kept": "was not promoted", "rolled back": "is active again"}

PLAIN, MODEL, ORACLE = "fifo", "model", "oracle"
REPLAY_NAMES = {
    PLAIN: "Plain FIFO",
    MODEL: "QSSF, Helios",
    "shrinkage": "QSSF, shrinkage untrained",
    "user_last": "QSSF, user's last ended job",
    "smallest_first": "Size, no model",
    ORACLE: "QSSF, true run times",
}
LEAST_GAIN_S = 1.0
"""Mean wait that the oracle must save for a share of it to mean anything."""


def models_table(
    models: Sequence[Mapping[str, Any]], decisions: Sequence[Mapping[str, Any]], *, drift: str | None, width: int
) -> RenderableType:
    """List the models of a cluster, newest first.

    With the figures of their backtests, and below them the last decisions.

    Parameters
    ----------
    models, decisions : sequences of mappings
        As :func:`helios.app.model_registry.list_models` and :func:`helios.app.model_registry.describe_decisions` give
        them.
    drift : str, optional
        What the last night measured.
    width : int
        Columns of the terminal; from ``WIDE`` on secondary figures are shown too.
    """
    if not models:
        return "No model yet: helios model train"
    table = plain_table("", "Model", "Jobs", "Rank", "Error", "Shrinkage", "p10-p90", right_from=2)
    wide = width >= WIDE
    for name in ("Learned until", "First job", "Trained at") if wide else ():
        table.add_column(name, justify="right")
    for model in models:
        scores = model["scores"].get("scores", {}) if model["scores"] else {}
        mine, shrinkage = scores.get("model", {}), scores.get("shrinkage", {})
        cells = [
            PROMOTED if model["promoted"] else "",
            model["model_id"],
            f"{model['jobs']:,}",
            figure(mine.get("spearman")),
            figure(mine.get("median_abs_log_error")),
            f"{figure(shrinkage.get('spearman'))} {figure(shrinkage.get('median_abs_log_error'))}"
            if shrinkage
            else "-",
            percent(mine.get("coverage_p10_p90")),
        ]
        first = model["manifest"].get("first_submission")
        times = (_utc_minute(model["trained_until"]), first[:10] if first else "-", _utc_minute(model["trained_at"]))
        table.add_row(*([*cells, *times] if wide else cells), style="bold" if model["promoted"] else None)
    chosen = [model["model_id"] for model in models if model["promoted"]]
    lines = [f"{PROMOTED} active: {chosen[0]}." if chosen else "No model is active: shrinkage predicts."]
    if decisions:
        shown = decisions[-MOST_DECISIONS:]
        lines.append(f"Last {len(shown)} of {len(decisions)} decisions (--json has all), in UTC:")
        lines += [
            f"  {_utc_minute(one['promoted_at'])}  {one['step']}: {one['model_id'] or 'shrinkage'}, "
            f"by {one['promoted_by']}: {one['why']}"
            for one in shown
        ]
    elif chosen:
        lines.append("Nothing was ever decided: the newest is active.")
    lines += [f"It is not to be trusted. {model['problem']}" for model in models if model["problem"]]
    if drift:
        lines.append(f"Drift: {drift}.")
    legend = (
        "[dim]Rank: Spearman's correlation, Error: median log error, of the model's backtest; Shrinkage: both, of the "
        "untrained control on the same jobs; p10-p90: share of jobs inside the interval (80 % is right). "
        "Dash: too short to judge.[/]"
    )
    return Group(table, "", *(escape(line) for line in lines), "", legend)


def comparison_table(comparison: Mapping[str, Any], *, notes: Sequence[str] = ()) -> RenderableType:
    """Compare predictors on the same jobs.

    The challenger's differences from each of the others have an interval of what chance explains.
    """
    table = plain_table("Predictor", "Rank corr.", "Log error", "Bias", "p10-p90")
    challenger = comparison["challenger"]
    for name in (challenger, *comparison["against"]):
        score = comparison["scores"][name]
        cells = (
            f"{score['median_abs_log_error']:.2f}",
            f"{score['bias_log']:+.2f}",
            percent(score["coverage_p10_p90"]),
        )
        style = "bold" if name == challenger else None
        table.add_row(escape(NAMES.get(name, name)), figure(score["spearman"], 3), *cells, style=style)
    heads = ("Rank better by", "Error less by", "Chance")
    beside = plain_table(f"{escape(NAMES.get(challenger, challenger))} against", *heads)
    for name, against in comparison["against"].items():
        beside.add_row(
            escape(NAMES.get(name, name)),
            _with_interval(against["rank"], 1),
            _with_interval(against["error"], -1),
            "yes" if against["is_chance"] else "no",
        )
    groups = comparison["drawn"] if comparison["clusters"] != 1 else comparison["drawn"].removesuffix("s")
    caption = (
        f"On {comparison['jobs']:,} jobs that no model here had learned from, of {comparison['clusters']:,} {groups}."
    )
    legend = (
        "[dim]Log error: median, 0.69 is a factor of 2. Bias above 0: predicted too long. p10-p90: share of jobs "
        "inside the interval (80 % is right). In brackets: what chance allows (90 %, "
        f"whole {comparison['drawn']} resampled).[/]"
    )
    return Group(caption, "", table, "", beside, "", *(escape(note) for note in notes), "", legend)


def outcome_text(outcome: Mapping[str, Any]) -> list[str]:
    """Describe the decision about a model in sentences.

    Whether it was promoted, why, and which model is active.
    """
    step, model_id = outcome["step"], outcome["model_id"]
    if step is None:
        first = f"{model_id} is kept and not used: {outcome['why']}."
    else:
        first = f"{model_id} {STEPS[step]}: {outcome['why']}."
    if outcome["promoted"] == model_id and step is None:
        first = f"{model_id}: {outcome['why']}."
    return [first, *_active_lines(outcome)]


def drift_tables(drift: Mapping[str, Any], *, width: int) -> RenderableType:
    """Show the drift of inputs and the errors of the last weeks.

    Inputs against those of training, errors beside those of shrinkage.
    """
    training = drift["training"]
    shares = [
        f"{what} {percent(drift[key], 1)} (in training {percent(training[key], 1)})"
        for key, what in (("new_users", "jobs of new users"), ("new_names", "jobs of a name never seen"))
        if drift[key] is not None
    ]
    parts: list[RenderableType] = [
        escape(
            f"{drift['model_id']} learned from {training['jobs']:,} jobs; compared are {drift['jobs']:,} of the "
            f"{drift['days']:g} days before {_utc_minute(drift['as_of'])} UTC"
            + (f": {', '.join(shares)}." if shares else ".")
        ),
        "",
        _inputs(drift, width),
        "",
    ]
    if drift["weeks"]:
        parts += [_weeks(drift["weeks"]), ""]
    legend = (
        "[dim]Index: population stability, training against now; below 0.10 steady, to 0.25 moved, above changed. "
        "Usual: at most so large in nine of ten weeks of training. Log error: median; 0.69 is a factor of 2. p10-p90: "
        "share of jobs inside the interval (80 % is right).[/]"
    )
    return Group(*parts, escape(f"In a line: {drift['line']}."), "", legend)


def _active_lines(outcome: Mapping[str, Any]) -> list[str]:
    promoted, model_id, before = outcome["promoted"], outcome["model_id"], outcome["previous"]
    if promoted == model_id:
        return [f"Active: {promoted}" + (f", before it {before}." if before != promoted else ".")]
    if promoted == "shrinkage":
        none = "Active: shrinkage, which needs no training."
        return [none, f"Promote it all the same: helios model promote {model_id}"]
    compare = f"Compare both: helios model evaluate --model {promoted} --model {model_id}"
    return [f"Active: {promoted}.", compare, f"Switch: helios model promote {model_id}"]


def _inputs(drift: Mapping[str, Any], width: int) -> RenderableType:
    if not drift["inputs"]:
        return f"Inputs: {drift['jobs']:,} jobs are too few to compare; chance alone would move them."
    table = plain_table("Feature", "Index", "Usual", "That is")
    shown = drift["inputs"] if width >= WIDE else drift["inputs"][:SHOWN_FEATURES]
    for one in shown:
        word = f"{one['steadiness']}, unusual" if one["unusual"] else one["steadiness"]
        style = "bold" if one["unusual"] else None
        table.add_row(escape(one["feature"]), f"{one['index']:.2f}", figure(one["usual"]), word, style=style)
    left = len(drift["inputs"]) - len(shown)
    return Group(table, f"[dim]and {left} more, none farther (--json)[/]") if left else table


def _weeks(weeks: Sequence[Mapping[str, Any]]) -> RenderableType:
    rows = [
        (
            week["begin"][:10],
            f"{week['jobs']:,}",
            figure(week["model"]["median_abs_log_error"]),
            figure(week["shrinkage"]["median_abs_log_error"]),
            f"{week['model']['bias_log']:+.2f}",
            figure(week["model"]["spearman"]),
            percent(week["model"]["coverage_p10_p90"]),
        )
        for week in weeks
    ]
    return plain_table("Week from", "Jobs", "Log error", "Shrinkage's", "Bias", "Rank corr.", "p10-p90", rows=rows)


def _with_interval(difference: Mapping[str, Any] | None, sign: int) -> str:
    if difference is None:
        return "-"
    low, high = sorted((sign * difference["low"], sign * difference["high"]))
    return f"{sign * difference['value']:+.3f} \\[{low:+.2f}, {high:+.2f}]"  # escaped for rich


def _utc_minute(moment: str | datetime) -> str:
    return str(moment)[:16].replace("T", " ")


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderValue:
    """Effect of predictions on one queue.

    All replays have EASY backfill by time limits, and age as the live order does.

    Attributes
    ----------
    nodes : mapping
        Nodes of each partition that were replayed.
    gpus_per_node : int
    resource : str
        gpus or cpus.
    replays : mapping of QueueSummary
        Summaries by the names of ``REPLAY_NAMES``. Today's and the oracle's are always there.
    notes : tuple of str
        Assumptions, for a person.
    """

    nodes: Mapping[str, int]
    gpus_per_node: int
    resource: str
    replays: Mapping[str, QueueSummary]
    notes: tuple[str, ...] = ()

    def share(self, name: str) -> float | None:
        """Return the share of the oracle's gain that a replay realises.

        The gain is in mean wait against plain FIFO.

        None where there is nothing to gain, because the oracle saves less than ``LEAST_GAIN_S``. Below 0: longer waits
        than plain FIFO. Above 1: shorter ones than the oracle's, whose order is not the best there could be.
        """
        plain_s, oracle_s = self.replays[PLAIN].mean_wait_s, self.replays[ORACLE].mean_wait_s
        if plain_s - oracle_s < LEAST_GAIN_S:
            return None
        return (plain_s - self.replays[name].mean_wait_s) / (plain_s - oracle_s)

    def to_json(self) -> dict[str, Any]:
        """Return the figures as plain values."""
        return {
            "nodes": dict(self.nodes),
            "gpus_per_node": self.gpus_per_node,
            "resource": self.resource,
            "share_of_oracle_gain": self.share(MODEL),
            "replays": {
                name: {"share_of_oracle_gain": self.share(name), **summary.to_json()}
                for name, summary in self.replays.items()
            },
        }


def model_notes(value: OrderValue | str | None) -> tuple[str, ...]:
    """Return the notes on the replays.

    Or why there are no replays; empty where none were asked for.
    """
    if isinstance(value, OrderValue):
        return value.notes
    return () if value is None else (value,)


def value_table(value: OrderValue) -> RenderableType:
    """Compare the replays with the share of the oracle's gain that each realises."""
    heads = ("Mean wait", "of gain", "Median", "p99", "Longest", *SIZE_HEADS.values())
    table = plain_table("Replayed, with EASY by limits", *heads)
    for name, words in REPLAY_NAMES.items():
        if name in value.replays:
            summary, share = value.replays[name], value.share(name)
            by_size = (summary.mean_wait_s_by_size[size] for size in SIZE_CLASSES)
            waits_s = (summary.median_wait_s, summary.p99_wait_s, summary.max_wait_s, *by_size)
            gain = percent(None if name == PLAIN else share)
            cells = (words, duration(summary.mean_wait_s), gain, *map(duration, waits_s))
            table.add_row(*cells, style="bold" if name == MODEL else None)
    return table
