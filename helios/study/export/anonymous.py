"""Anonymisation of a history before it leaves a site.

Users become cohorts of several who ask for the same (:mod:`helios.study.export.cohorts`), other names keyed pseudonyms.
Times are rounded and shifted by one number of whole weeks. Rare sizes are raised to the next common one, and limits to
the next that several users share. The remaining risk is measured by :mod:`helios.study.export.reidentification`.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from helios.model.frames import TIME, seconds_of
from helios.model.records import JOBS, split_words
from helios.study.export.cohorts import (
    choose_cohorts,
    jobs_to_leave_out,
    number_rows,
    owners,
    shared_kinds,
)

OTHERS = "others"
"""Name for all users without a cohort, and for QOS and partitions that few users have."""
DROPPED = ("account", "group", "exit_code", "tres_requested", "tres_allocated", "node_list")
"""Left out. Accounts and groups are of few users each, and their use is published."""
LIMITS = ("time_limit_s", "memory_mib")
_SIZES = ("gpus", "cpus", "nodes")
"""Sizes in the order in which rare ones are merged, each among jobs with equal values of those before it."""
KEY_BYTES = 32
MINUTE_S, WEEK_S = 60, 7 * 86_400
FEWEST_WEEKS, MOST_WEEKS = 8, 520
_EARLIEST_S = 365 * 86_400
_LETTERS = 12
"""Length of a pseudonym. With 26**12 of them, a million names collide in one of 10**5 exports."""
_SAME_CLOCK = 0.05
"""Share of days that may have another UTC offset than with the best shift, so that several shifts are possible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coarseness:
    """How coarse an export is.

    Attributes
    ----------
    round_s : int
        Step to which submissions are rounded, s. It divides a week.
    fewest_jobs : int
        Sizes with fewer jobs are merged.
    most_given : float
        Largest share of the jobs in kinds of which one user has more than half; others of them are left out.
    limits_by_kind : bool
        Whether limits are such as several users share who ask for one size in one partition, not only anywhere.
    timezone : str
        Time zone of the cluster, on whose clock times are rounded.
    """

    round_s: int = 86_400
    fewest_jobs: int = 5
    most_given: float = 1.0
    limits_by_kind: bool = True
    timezone: str = "UTC"


@dataclass(frozen=True, slots=True, kw_only=True)
class Anonymised:
    """An anonymous history, and what its owner knows of it.

    Attributes
    ----------
    jobs : DataFrame
        What may leave the site.
    owner : array
        The true user of each job as a number, negative where unknown.
    left_out : int
        Number of jobs that were left out.
    """

    jobs: pd.DataFrame
    owner: NDArray[np.int64]
    left_out: int


def coarsen(jobs: pd.DataFrame, coarseness: Coarseness, *, like: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return jobs with rounded times and common sizes.

    Submissions are rounded down to a step. Lengths (until eligible, until the start, of the run) are rounded to two
    digits or to the step, whichever is finer, so that short runs stay short. No wait or run time is negative.

    Parameters
    ----------
    like : DataFrame, optional
        The part of ``jobs`` that decides which sizes are common. All jobs by default.
    """
    like = jobs if like is None else like
    few = coarseness.fewest_jobs
    coarse = jobs.assign(**_common_sizes(jobs, like, few))
    return _with_rounded_times(coarse, coarseness, offset_s=clock_offset_s(like, coarseness.timezone))


def anonymise(jobs: pd.DataFrame, key: bytes, coarseness: Coarseness) -> Anonymised:
    """Return coarsened jobs without any names.

    They are in submission order. With a step longer than a minute, the minutes of its submissions are permuted among
    its bursts (jobs of one size that one user submitted in one minute), those of each size among themselves. So no
    submission is known more precisely than the step, unless size and step give the job already, and the load is at all
    times as it was. With all jobs at the start of their step there would be other queues.

    Parameters
    ----------
    jobs : DataFrame
        Columns of ``JOBS``, in submission order.
    key : bytes
        The same key gives the same export.
    """
    weeks, owner = shift_weeks(jobs, key, coarseness.timezone), owners(jobs)
    coarse = coarsen(jobs, coarseness)
    later = _spread_within_step_s(jobs, number_rows(coarse[list(_SIZES)]), key, coarseness) + weeks * WEEK_S
    moved = pd.Series(pd.to_timedelta(later, unit="s"), index=jobs.index).astype("timedelta64[us]")
    times = {name: coarse[name] + moved for name in JOBS.names if JOBS.by_name[name].dtype == TIME}
    coarse = coarse.assign(**times, **{name: _pseudonyms(coarse[name], owner, key) for name in ("qos", "partition")})
    # Jobs of one kind have one size and one partition.
    kinds = number_rows(coarse[[*_SIZES, "partition"]])
    hours = (coarse["gpus" if (coarse["gpus"] > 0).any() else "cpus"] * coarse["run_time_s"]).fillna(0.0).to_numpy()
    random = np.random.default_rng(int.from_bytes(_digest(key, "leave out", b"")))
    left_out = jobs_to_leave_out(kinds, owner, hours, most=coarseness.most_given, random=random)
    coarse, kinds, owner = coarse[~left_out], kinds[~left_out], owner[~left_out]
    cohorts = choose_cohorts(kinds, owner)
    sharing = kinds if coarseness.limits_by_kind else np.zeros_like(kinds)
    words = {cohort: _pseudonym(key, "user", str(cohort)) for cohort in np.unique(cohorts)} | {-1: OTHERS}
    users = pd.Series(cohorts, index=coarse.index).map(words).where(owner >= 0)
    types, stems = coarse["gpu_type"], _name_words(coarse["name"], key)
    columns = {
        "user": users.astype("str").astype("category"),
        "name": stems.where(_is_shared(stems, owner)),
        "gpu_type": types.where(_is_shared(types, owner)).cat.remove_unused_categories(),
        **{name: _shared_limits(coarse[name], sharing, owner) for name in LIMITS},
        **{name: pd.Series(pd.NA, index=coarse.index, dtype="category") for name in DROPPED},
    }
    coarse = coarse.assign(**columns)
    order = np.argsort(seconds_of(coarse["submitted_at"]), kind="stable")
    coarse = coarse.iloc[order].reset_index(drop=True)
    made = JOBS.conform(coarse.assign(**_new_ids(coarse)))
    return Anonymised(jobs=made, owner=owner[order], left_out=int(left_out.sum()))


def floor_s(seconds: NDArray[np.float64], step_s: int, offset_s: int) -> NDArray[np.float64]:
    """Return times rounded down to steps, s since the epoch.

    The steps are those of a clock ``offset_s`` ahead of UTC.
    """
    floored: NDArray[np.float64] = np.floor((seconds + offset_s) / step_s) * step_s - offset_s
    return floored


def clock_offset_s(jobs: pd.DataFrame, timezone: str) -> int:
    """Return the UTC offset at the first submission, s.

    All jobs have this one offset, so that daylight saving cannot change their order.
    """
    return int(_offsets_s(pd.DatetimeIndex([jobs["submitted_at"].min()]), timezone)[0])


def shift_weeks(jobs: pd.DataFrame, key: bytes, timezone: str) -> int:
    """Return by how many weeks the times of an export are shifted.

    The key chooses among 8 to 520 weeks. Only shifts that keep the UTC offset of the cluster on most days are possible.
    So hours of the day stay across daylight saving, and lengths of time are exact.
    """
    days = pd.DatetimeIndex(jobs["submitted_at"].dt.floor("D").unique())
    days = days[:: -(-len(days) // 1_000)]
    sign = 1 if jobs["submitted_at"].min().timestamp() < _EARLIEST_S + (MOST_WEEKS + 1) * WEEK_S else -1
    weeks = sign * np.arange(FEWEST_WEEKS, MOST_WEEKS + 1)
    moved = days.to_numpy("datetime64[s]") + weeks[:, None] * np.timedelta64(WEEK_S, "s")
    offsets = _offsets_s(pd.DatetimeIndex(moved.ravel(), tz="UTC"), timezone).reshape(moved.shape)
    equal_share = (offsets == _offsets_s(days, timezone)).mean(axis=1)
    possible = weeks[equal_share >= equal_share.max() - _SAME_CLOCK]
    return int(possible[int.from_bytes(_digest(key, "shift", b"")) % len(possible)])


def two_digits(lengths: NDArray[np.float64], step_s: float = np.inf) -> NDArray[np.float64]:
    """Return lengths rounded to two digits or to a step, whichever is finer.

    The results are whole numbers. NaN and infinity stay.
    """
    finite = np.where(np.isfinite(lengths) & (lengths >= 100), lengths, 10.0)
    unit = np.minimum(10 ** (np.floor(np.log10(finite)) - 1), step_s)
    rounded: NDArray[np.float64] = np.round(lengths / unit) * unit
    return rounded


def _spread_within_step_s(
    jobs: pd.DataFrame, sizes: NDArray[np.int64], key: bytes, coarseness: Coarseness
) -> NDArray[np.float64]:
    """Return the offset of each submission in its step, s."""
    offset_s = clock_offset_s(jobs, coarseness.timezone)
    submitted = seconds_of(jobs["submitted_at"])
    step = floor_s(submitted, coarseness.round_s, offset_s)
    within_step = np.maximum(floor_s(submitted, MINUTE_S, offset_s) - step, 0.0)
    bursts = pd.DataFrame(
        {"step": step, "size": sizes, "minute": within_step, "user": jobs["user"].cat.codes.to_numpy()}
    )
    burst = bursts.groupby(list(bursts), sort=True).ngroup().to_numpy()
    first_jobs = bursts.iloc[np.unique(burst, return_index=True)[1]]
    random = np.random.default_rng(int.from_bytes(_digest(key, "deal", b""))).random(len(first_jobs))
    permuted = np.empty(len(first_jobs))
    # Bursts are in the order of their minutes. Within each step and size they get the minutes in a random order.
    permuted[np.lexsort((random, first_jobs["size"], first_jobs["step"]))] = first_jobs["minute"]
    return permuted[burst]


def _offsets_s(times: pd.DatetimeIndex, timezone: str) -> NDArray[np.int64]:
    utc, local = times.tz_convert("UTC").tz_localize(None), times.tz_convert(timezone).tz_localize(None)
    offsets_s: NDArray[np.int64] = (local.to_numpy("datetime64[s]") - utc.to_numpy("datetime64[s]")).astype(np.int64)
    return offsets_s


def _digest(key: bytes, kind: str, text: bytes) -> bytes:
    return blake2b(text, key=key, person=kind.encode(), digest_size=8).digest()


def _pseudonym(key: bytes, kind: str, text: str) -> str:
    """Return a word of letters for a text.

    It has no digits, because they are removed from job names in other places.
    """
    number, letters = int.from_bytes(_digest(key, kind, text.encode("utf-8", "surrogatepass"))), []
    for _ in range(_LETTERS):
        number, letter = divmod(number, 26)
        letters.append(chr(ord("a") + letter))
    return "".join(letters)


def _is_shared(names: pd.Series[Any], owner: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return for each job whether enough users have its name."""
    kinds = pd.factorize(names)[0]
    return np.isin(kinds, shared_kinds(kinds, owner, most_of_one=1.0))


def _pseudonyms(names: pd.Series[Any], owner: NDArray[np.int64], key: bytes) -> pd.Series[Any]:
    is_shared = pd.Series(_is_shared(names, owner), index=names.index)
    words = {name: _pseudonym(key, str(names.name), str(name)) for name in names.unique() if pd.notna(name)}
    # By way of a plain text column, because several names may become one category.
    found = names.astype("object").map(words).where(is_shared | names.isna(), OTHERS)
    return found.astype("str").astype("category")


def _name_words(names: pd.Series[Any], key: bytes) -> pd.Series[Any]:
    """Return a word for each name's stem, missing where it has none."""
    codes, distinct = pd.factorize(names)
    stems = [split_words(str(name)) for name in distinct]
    words = np.array([*(_pseudonym(key, "name", stem) if stem else None for stem in stems), None], dtype=object)
    return pd.Series(words[codes], index=names.index, dtype="str")


def _new_ids(jobs: pd.DataFrame) -> dict[str, pd.Series[Any]]:
    """Return ids that count up in submission order.

    Runs of one job have one id, and tasks of one array have one array id.
    """
    number = jobs.groupby(["job_id", "submitted_at"], sort=False).ngroup() + 1
    ids = {"job_id": number.astype("str")}
    for name in ("array_job_id", "het_job_id"):
        is_member = jobs[name].notna()
        first = number.groupby(jobs[name]).transform("min")
        ids[name] = first.where(is_member).astype("Int64").astype("str").where(is_member)
    tasks = pd.DataFrame({"array": ids["array_job_id"], "job": number})[jobs["array_job_id"].notna()]
    task_number = tasks.groupby("array")["job"].rank(method="dense").astype("int64") - 1
    ids["array_task_id"] = task_number.astype("str").reindex(jobs.index)
    return ids


def _with_rounded_times(jobs: pd.DataFrame, coarseness: Coarseness, *, offset_s: int) -> pd.DataFrame:
    def rounded(lengths: NDArray[np.float64]) -> NDArray[np.float64]:
        return two_digits(np.maximum(lengths, 0.0), coarseness.round_s)

    events = ("submitted_at", "eligible_at", "started_at", "ended_at")
    submitted, eligible, started, ended = (seconds_of(jobs[name]) for name in events)
    new_submitted = floor_s(submitted, coarseness.round_s, offset_s)
    new_eligible = new_submitted + rounded(eligible - submitted)
    # Waits are counted from when the job was eligible, or from its submission where that is unknown.
    is_known = ~np.isnan(new_eligible)
    wait_from = np.where(is_known, np.fmax(eligible, submitted), submitted)
    new_wait_from = np.where(is_known, new_eligible, new_submitted)
    new_started = new_wait_from + rounded(started - wait_from)
    run_s = rounded(np.where(np.isnan(jobs["run_time_s"]), ended - started, jobs["run_time_s"]))
    new_ended = np.where(np.isnan(started), new_wait_from + rounded(ended - wait_from), new_started + run_s)
    new_ended = np.where(np.isnan(ended), np.nan, new_ended)
    new_times = dict(zip(events, (new_submitted, new_eligible, new_started, new_ended), strict=True))
    times = {name: _as_times(seconds, jobs.index) for name, seconds in new_times.items()}
    return jobs.assign(**times, run_time_s=np.where(np.isnan(jobs["run_time_s"]), np.nan, run_s))


def _as_times(seconds: NDArray[np.float64], index: pd.Index[Any]) -> pd.Series[Any]:
    is_known = ~np.isnan(seconds)
    times = np.where(is_known, seconds, 0.0).astype("datetime64[s]").astype("datetime64[us]")
    return pd.Series(pd.DatetimeIndex(np.where(is_known, times, np.datetime64("NaT", "us")), tz="UTC"), index=index)


def _common_sizes(jobs: pd.DataFrame, like: pd.DataFrame, fewest_jobs: int) -> dict[str, Any]:
    """Return sizes whose combinations have enough jobs each.

    GPUs are merged first, then CPUs among jobs with as many GPUs, then nodes. CPU jobs never get a GPU, and unknown
    GPUs stay unknown.
    """
    names = list(_SIZES)
    table = like.groupby(names, dropna=False, sort=False).size().rename("jobs").reset_index()
    merged = table.copy()
    kind = np.sign(table["gpus"].fillna(-1.0))
    for i, name in enumerate(names):
        keys = [kind, *(merged[earlier] for earlier in names[:i])]
        for _, rows in merged.groupby(keys, dropna=False):
            common = _common(rows[name], rows["jobs"], fewest_jobs)
            merged.loc[rows.index, name] = _round_up(rows[name], common)
    merged = jobs[names].merge(
        pd.concat([table[names], merged[names].add_suffix("_merged")], axis=1), on=names, how="left"
    )
    columns = {}
    for name in names:
        merged_size, size = merged[f"{name}_merged"].to_numpy(dtype=np.float64), jobs[name].to_numpy(dtype=np.float64)
        new_size = np.where(np.isnan(merged_size), size, merged_size)
        requested = jobs[f"{name}_requested"].to_numpy(dtype=np.float64)
        common = _common(like[f"{name}_requested"], pd.Series(1, index=like.index), fewest_jobs)
        columns[name] = new_size
        columns[f"{name}_requested"] = np.where(requested == size, new_size, _round_up(requested, common))
    return columns


def _shared_limits(limits: pd.Series[Any], kinds: NDArray[np.int64], owner: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return two-digit limits, raised to the next that users share."""
    rounded = two_digits(limits.to_numpy(dtype=np.float64))
    known = pd.DataFrame({"kind": kinds, "limit": rounded})
    pairs = number_rows(known)
    known["is_shared"] = np.isin(pairs, shared_kinds(pairs, owner))
    raised = rounded.copy()
    for rows in known.groupby("kind").indices.values():
        of_kind = rounded[rows]
        shared = np.unique(of_kind[known["is_shared"].to_numpy()[rows] & ~np.isnan(of_kind)])
        raised[rows] = _round_up(of_kind, shared if len(shared) else np.unique(of_kind[~np.isnan(of_kind)])[-1:])
    return raised


def _common(values: ArrayLike, jobs: ArrayLike, fewest_jobs: int) -> NDArray[np.float64]:
    """Return the values with enough jobs, ascending, or the largest value alone."""
    counts = pd.Series(np.asarray(jobs), dtype=np.float64).groupby(np.asarray(values, dtype=np.float64)).sum()
    distinct = counts.index.to_numpy(dtype=np.float64)
    common: NDArray[np.float64] = distinct[counts.to_numpy() >= fewest_jobs]
    return common if len(common) else distinct[-1:]


def _round_up(values: ArrayLike, common: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return each value raised to the next common one.

    Values above the largest common one are lowered to it. NaN stays.
    """
    numbers = np.asarray(values, dtype=np.float64)
    if not len(common):
        return numbers
    position = np.minimum(np.searchsorted(common, numbers), len(common) - 1)
    return np.where(np.isnan(numbers), np.nan, common[position])
