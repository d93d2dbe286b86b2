"""Prediction errors, compared with a rule without a model.

The rule predicts the run time of the user's last job that had ended before the submission.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from helios.errors import UsageError
from helios.metrics.occupancy import Floats
from helios.model import SIZE_RANGES, size_range
from helios.report.admin.sacct_format import FieldKind, ReportTable, declare_fields
from helios.report.admin.usage import JOB_KEY, with_first_prediction
from helios.warehouse.use import UNNAMED

OF_JOBS = ("job_id", "restart", "user", "partition", "submitted_at", "run_time_s", "gpus")
"""Columns of ``JOBS`` that are looked at."""
BY = ("all", "source", "size", "day", "partition", "user")
SHOWN_BY = ("all", "source", "size", "day")
_LAST_RUN = "OffBy of a rule without a model: the run time of the user's last ended job"
FIELDS = declare_fields(
    ("By", "by", FieldKind.TEXT, 9, "What the line groups by: all, source, size, day, ..."),
    ("Group", "group", FieldKind.TEXT, 24, "Which of them; sizes are GPUs, 0 a CPU job"),
    ("Jobs", "jobs", FieldKind.COUNT, 8, "Jobs that were predicted and have ended"),
    ("OffBy", "off_by", FieldKind.FACTOR, 7, "Factor between predicted and true run time, median; 1.0x: exact"),
    ("Bias", "bias", FieldKind.FACTOR, 6, "Predicted over true run time, median; above 1.0x: predicted too long"),
    ("Inside", "inside", FieldKind.SHARE, 7, "Share inside the predicted p10 to p90; 80% is right"),
    ("Above", "above", FieldKind.SHARE, 6, "Share that ran longer than their p90; 10% is right"),
    ("LastRun", "naive_off_by", FieldKind.FACTOR, 7, _LAST_RUN),
    ("Same", "same_off_by", FieldKind.FACTOR, 7, "OffBy of the prediction over these same jobs"),
    ("Better", "better", FieldKind.SHARE, 7, "Share of these jobs where the prediction was nearer; a draw counts half"),
    ("Predicted", "p50_s", FieldKind.LENGTH, 11, "Median of the predicted run times"),
    ("Ran", "run_time_s", FieldKind.LENGTH, 11, "Median of the true run times"),
    ("LogError", "median_abs_log_error", FieldKind.FACTOR, 8, "Median abs(log1p(predicted) - log1p(true))"),
)


def prediction_accuracy(
    jobs: pd.DataFrame,
    *,
    predictions: pd.DataFrame,
    past: pd.DataFrame,
    submitted: int | None = None,
    title: str,
    by: str | None = None,
    timezone: str = "UTC",
) -> ReportTable:
    """Report the error of each ended job's first prediction.

    Over all jobs, and by source, size and day.

    Parameters
    ----------
    jobs : DataFrame
        ``OF_JOBS`` of those submitted in the window. None are needed where nothing was predicted.
    predictions : DataFrame
        As the warehouse gives them.
    past : DataFrame
        ``user``, ``ended_at`` and ``run_time_s`` of all jobs known, for the naive rule.
    submitted : int, optional
        Number of jobs submitted in the window, by default that of ``jobs``.
    by : str, optional
        One of ``BY``. None for those of ``SHOWN_BY``.

    Raises
    ------
    UsageError
        ``by`` is none of them.
    """
    if by is not None and by not in BY:
        raise UsageError(f"--by {by!r} is not understood.", hint=f"Choose from: {', '.join(BY)}")
    table = _with_errors(jobs, predictions, past)
    groupings = _groupings(table, SHOWN_BY if by is None else (by,), timezone)
    parts = [_figures(table, name, groups) for name, groups in groupings]
    rows = pd.concat(parts, ignore_index=True)
    lacking = int(table["naive"].isna().sum())
    note = (
        f"{lacking:,} of {len(table):,} jobs have no ended job of the same user before them: LastRun leaves them out."
    )
    return ReportTable(
        title=title,
        fields=FIELDS,
        shown=("By", "Group", "Jobs", "OffBy", "Bias", "Inside", "Above", "LastRun", "Same", "Better"),
        rows=rows,
        empty=_empty_text(len(jobs) if submitted is None else submitted, predictions),
        notes=(note,) if lacking else (),
        timezone=timezone,
    )


def last_ended_run_s(jobs: pd.DataFrame, past: pd.DataFrame) -> Floats:
    """Return the run time of the user's last ended job.

    In s. NaN where there is none. A job that ends at the very moment of a submission does not count: the tasks of an
    array run alike, and the first has not ended when the last is submitted.
    """
    known = past[past["ended_at"].notna() & past["run_time_s"].notna() & past["user"].notna()]
    ended = pd.DataFrame(
        {"at": known["ended_at"].array, "user": known["user"].astype("str").array, "s": known["run_time_s"].array}
    ).sort_values("at", kind="stable")
    asked = pd.DataFrame({"at": jobs["submitted_at"].array, "user": jobs["user"].astype("str").array})
    asked["place"] = np.arange(len(jobs))
    met = pd.merge_asof(
        asked[asked["user"].notna()].sort_values("at", kind="stable"),
        ended,
        on="at",
        by="user",
        allow_exact_matches=False,
    )
    last = np.full(len(jobs), np.nan)
    last[met["place"].to_numpy()] = met["s"].to_numpy(dtype=np.float64)
    return last


def worst_predictions(jobs: pd.DataFrame, predictions: pd.DataFrame, *, most: int) -> pd.DataFrame:
    """Return the ended jobs with the most wrongly predicted hours.

    GPU hours; of jobs without GPUs, hours of run time.

    Returns
    -------
    DataFrame
        ``job_id``, ``user``, ``gpus``, ``p50_s``, ``run_time_s``, ``off_by`` and ``missed_hours``, the worst first.
    """
    table = _ended_and_predicted(jobs, predictions)
    run_s, p50_s = table["run_time_s"].to_numpy(), table["p50_s"].to_numpy()
    size, off_by = np.where(table["gpus"] > 0, table["gpus"], 1), np.exp(np.abs(np.log1p(p50_s) - np.log1p(run_s)))
    return (
        table[["job_id", "user", "gpus", "p50_s", "run_time_s"]]
        .assign(off_by=off_by, missed_hours=size * np.abs(run_s - p50_s) / 3600)
        .sort_values("missed_hours", ascending=False, kind="stable", ignore_index=True)
        .head(most)
    )


def _with_errors(jobs: pd.DataFrame, predictions: pd.DataFrame, past: pd.DataFrame) -> pd.DataFrame:
    table = _ended_and_predicted(jobs, predictions)
    columns = ("run_time_s", "p10_s", "p50_s", "p90_s")
    run_s, p10_s, p50_s, p90_s = (table[name].to_numpy(dtype=np.float64) for name in columns)
    log_error = np.log1p(p50_s) - np.log1p(run_s)
    naive = np.abs(np.log1p(last_ended_run_s(table, past)) - np.log1p(run_s))
    mine = np.abs(log_error)
    return table.assign(
        log_error=log_error,
        off=mine,
        inside=((p10_s <= run_s) & (run_s <= p90_s)).astype(np.float64),
        above=(run_s > p90_s).astype(np.float64),
        naive=naive,
        same=np.where(np.isnan(naive), np.nan, mine),
        # A tie, as of two exact predictions, counts half for each.
        better=np.where(np.isnan(naive), np.nan, (mine < naive) + 0.5 * (mine == naive)),
    )


def _ended_and_predicted(jobs: pd.DataFrame, predictions: pd.DataFrame) -> pd.DataFrame:
    keys = pd.MultiIndex.from_frame(predictions[JOB_KEY[:2]].drop_duplicates())
    asked = jobs[pd.MultiIndex.from_frame(jobs[JOB_KEY[:2]]).isin(keys)] if len(jobs) > len(keys) else jobs
    table = with_first_prediction(asked, predictions)
    return table[(table["p50_s"].notna() & table["run_time_s"].notna()).to_numpy()]


def _groupings(table: pd.DataFrame, names: tuple[str, ...], timezone: str) -> Iterator[tuple[str, pd.Series]]:
    for name in names:
        if name == "all":
            yield name, pd.Series("", index=table.index, dtype="object")
        elif name == "size":
            place = size_range(table["gpus"].to_numpy())
            yield (
                name,
                pd.Series(pd.Categorical.from_codes(place, pd.Index(SIZE_RANGES), ordered=True), index=table.index),
            )
        elif name == "day":
            yield name, table["submitted_at"].dt.tz_convert(timezone).dt.strftime("%Y-%m-%d")
        else:
            yield name, table[name].astype("object").fillna(UNNAMED)


def _figures(table: pd.DataFrame, by: str, of: pd.Series) -> pd.DataFrame:
    groups = table.assign(of=of).groupby("of", observed=True, sort=True)
    rows = groups.agg(
        jobs=("off", "size"),
        off=("off", "median"),
        log_error=("log_error", "median"),
        inside=("inside", "mean"),
        above=("above", "mean"),
        naive=("naive", "median"),
        same=("same", "median"),
        better=("better", "mean"),
        p50_s=("p50_s", "median"),
        run_time_s=("run_time_s", "median"),
    ).reset_index(names="group")
    for name, column in (("off_by", "off"), ("bias", "log_error"), ("naive_off_by", "naive"), ("same_off_by", "same")):
        rows[name] = np.exp(rows[column])
    rows = rows.assign(by=by, median_abs_log_error=rows["off"], group=rows["group"].astype("object"))
    if by in {"source", "partition", "user"}:
        rows = rows.sort_values(["jobs", "group"], ascending=[False, True])
    return rows[[field.column for field in FIELDS]]


def _empty_text(submitted: int, predictions: pd.DataFrame) -> str:
    if not submitted:
        return "No job was submitted in this window."
    if predictions.empty:
        return f"Jobs submitted in this window: {submitted:,}; none was predicted."
    return f"Jobs submitted in this window: {submitted:,}; none has been predicted and has ended."
