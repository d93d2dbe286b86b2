"""Each feature again, job by job, from lists of earlier jobs: slow, plain, and sharing no kernel."""

import math
import re

import numpy as np
import pandas as pd

from helios.predict import causal_stats as h


def features_of(jobs, number):
    """Return the features of job ``number`` of a trace as a dict."""
    all_jobs = [_plain(row) for row in jobs.to_dict("records")]
    me, earlier = all_jobs[number], all_jobs[:number]
    gone = sorted((job for job in earlier if job["end"] < me["submit"]), key=lambda j: (j["end"], all_jobs.index(j)))
    ended = [job for job in gone if not math.isnan(job["run"])]
    row = dict.fromkeys(h.FEATURES, math.nan) | _request(me) | _means(me, ended) | _last(me, ended)
    return row if me["user"] is None else row | _activity(me, earlier, gone, ended)


_OF_THE_SUBMISSION = ("submitted", "unended", "unended_age", "submission_gap", "burst")


def features_again(jobs, number):
    """Return what is known of job ``number`` at its start: of ends by then, all; of submissions, as at its own."""
    all_jobs = [_plain(row) for row in jobs.to_dict("records")]
    me, start = all_jobs[number], int(jobs["started_at"][number].timestamp())
    order = {id(job): place for place, job in enumerate(all_jobs)}
    gone = sorted((job for job in all_jobs if job["end"] < start), key=lambda j: (j["end"], order[id(j)]))
    ended = [job for job in gone if not math.isnan(job["run"])]
    row = features_of(jobs, number)
    taught = dict.fromkeys(h.FEATURES, math.nan) | _request(me) | _means(me, ended) | _last(me, ended)
    if me["user"] is not None:
        taught |= _activity(me | {"submit": start}, all_jobs[:number], gone, ended)
    short = {name: name.removeprefix("user_").removeprefix("size_") for name in h.HISTORY_FEATURES}
    stays = (name for name in short if short[name] in _OF_THE_SUBMISSION)
    return taught | {name: row[name] for name in stays}


def _plain(row):
    missing = {key: None for key, value in row.items() if pd.isna(value)}
    row = row | {key: None for key in missing if key in {"user", "account", "partition", "name", "state"}}
    submit = int(row["submitted_at"].timestamp())
    run = row["run_time_s"]
    end = math.inf
    if "ended_at" not in missing:
        end = int(row["ended_at"].timestamp())
    elif not math.isnan(run):
        start = submit if "started_at" in missing else int(row["started_at"].timestamp())
        end = start + math.ceil(run)
    size = row["gpus"] if row["gpus"] > 0 else ("cpus", _key(row["cpus"]))
    stem = None if row["name"] is None else re.sub(r"[0-9]", "", row["name"])
    return row | {
        "submit": submit,
        "end": end,
        "run": run,
        "size": size,
        "stem": stem,
        # The names of these traces have one word each, all of them unlike.
        "family": stem or None,
        "limit": _key(row["time_limit_s"]),
    }


def _key(value):
    return "unknown" if math.isnan(value) else value


def _alike(level, job):
    user = job["user"]
    keys = {
        "global": ("all",),
        "partition": (job["partition"],),
        "request": (job["size"], job["limit"], job["partition"]),
        "user": (user,),
        "user_limit": (user, job["limit"]),
        "user_any_limit": (user, job["size"]),
        "user_size": (user, job["size"], job["limit"]),
        "user_family": (user, job["family"]) if job["family"] is not None else None,
        "user_stem": (user, job["stem"]) if job["stem"] is not None else None,
        "user_name": (user, job["name"], job["size"]) if job["name"] is not None else None,
        "account": (job["account"],) if job["account"] is not None else None,
    }
    return None if level.startswith("user") and user is None else keys[level]


def _of(level, me, jobs):
    mine = _alike(level, me)
    return None if mine is None else [job for job in jobs if _alike(level, job) == mine]


def _log_runs(jobs):
    return [math.log1p(job["run"]) for job in jobs]


def _request(me):
    at = me["submitted_at"]
    return {
        "gpus": me["gpus"],
        "log_cpus": np.log1p(me["cpus"]),
        "log_nodes": np.log1p(me["nodes"]),
        "log_limit": np.log1p(me["time_limit_s"]),
        "log_memory": np.log1p(me["memory_mib"]),
        "hour": at.hour,
        "weekday": at.weekday(),
    }


def _decayed(values, decay):
    """Return weight, mean and mean square, the newest value last and weighing 1."""
    weights = [decay ** (len(values) - 1 - i) for i in range(len(values))]
    total = sum(weights)
    if not values:
        return 0.0, 0.0, 0.0
    mean = sum(w * v for w, v in zip(weights, values, strict=True)) / total
    return total, mean, sum(w * v * v for w, v in zip(weights, values, strict=True)) / total


def _mixed(observed, *, pseudo, prior_mean, prior_variance):
    """Mean and variance of what was observed together with ``pseudo`` of the prior distribution."""
    weight, mean, square = observed
    part = weight / (weight + pseudo)
    first = part * mean + (1 - part) * prior_mean
    second = part * square + (1 - part) * (prior_variance + prior_mean**2)
    return first, max(second - first**2, 0.0)


def _means(me, ended):
    mean, variance, row = math.log1p(1800), 4.0, {}
    for number, level in enumerate(h.LEVELS):
        group = _of(level, me, ended)
        if group is None:
            continue
        own = _decayed(_log_runs(group), h.DECAY[number])
        drawn, spread = _mixed(own, pseudo=h.PSEUDO_JOBS[number], prior_mean=mean, prior_variance=variance)
        if level == "account":
            row["account_mean"] = own[1] if group else math.nan
        elif level != "user_stem":
            row[f"{level}_mean"] = drawn
        if level == "user_any_limit":
            row["user_any_limit_sd"] = math.sqrt(spread)
        if level not in {"partition", "user_any_limit"}:
            mean, variance = drawn, spread
    near = _neighbours(me, _of("user", me, ended))
    if near is not None:
        weight, own, square = near
        row["neighbour_weight"] = weight
        if weight:
            row["neighbour_mean"], row["neighbour_sd"] = own, math.sqrt(max(square - own**2, 0.0))
            mean, variance = _mixed(near, pseudo=1.0, prior_mean=mean, prior_variance=variance)
    return row | _recent(me, _of("user", me, ended)) | {"anchor": mean, "anchor_sd": math.sqrt(variance)}


def _recent(me, users_jobs):
    if not users_jobs:
        return {}
    distances = [_distance(me, job) for job in reversed(users_jobs[-48:])]
    nearest = distances.index(min(distances))
    runs = sorted(_log_runs(users_jobs[-10:]))
    return {
        "user_recent_least": runs[0],
        "user_recent_most": runs[-1],
        "user_recent_median": float(np.median(runs)),
        "nearest": _log_runs(users_jobs)[-1 - nearest],
        "nearest_distance": distances[nearest],
    }


def _distance(me, job):
    distance = abs(_log_size(job) - _log_size(me)) + abs(_log_limit(job) - _log_limit(me))
    return distance + (job["partition"] != me["partition"]) + 2 * (job["stem"] != me["stem"])


def _neighbours(me, users_jobs):
    if users_jobs is None:
        return None
    pairs = []
    for age, job in enumerate(reversed(users_jobs[-48:])):
        pairs.append((1 / ((1 + 3 * _distance(me, job)) ** 2 * (1 + 0.15 * age)), math.log1p(job["run"])))
    total = sum(w for w, _ in pairs)
    if not pairs:
        return 0.0, 0.0, 0.0
    return total, sum(w * v for w, v in pairs) / total, sum(w * v * v for w, v in pairs) / total


def _log_size(job):
    size = job["gpus"] if job["gpus"] > 0 else job["cpus"]
    return -1.0 if math.isnan(size) else math.log1p(size)


def _log_limit(job):
    limit = job["time_limit_s"]
    return -5.0 if math.isnan(limit) else min(math.log1p(limit), 20.0)


def _last(me, ended):
    row = {}
    counts = {"partition": 1, "request": 2, "user": 3, "user_any_limit": 2, "user_size": 3, "user_name": 1}
    for level, count in counts.items():
        runs = _log_runs(_of(level, me, ended) or [])
        for back in range(1, min(count, len(runs)) + 1):
            row[f"{level}_last_{back}"] = runs[-back]
    return row


def _activity(me, earlier, gone, ended):
    now, row = me["submit"], {}
    mine = _of("user", me, ended)
    shares = [j["run"] / j["time_limit_s"] for j in mine if not math.isnan(j["time_limit_s"])]
    failed = [float(j["state"] == "FAILED") for j in mine if j["state"] is not None]
    if shares:
        row["user_limit_share"] = _decayed(shares, h.DECAY[h.USER])[1]
    if failed:
        row["user_failed_share"] = _decayed(failed, h.DECAY[h.USER])[1]
    row |= _by_limit(me, ended)
    if mine:
        last = mine[-1]
        row["user_last_failed"] = math.nan if last["state"] is None else float(last["state"] == "FAILED")
        row["user_last_share"] = _log_share(last)
    for level in ("user", "user_any_limit"):
        if alike := _of(level, me, ended):
            row[f"{level}_end_gap"] = math.log1p(now - alike[-1]["end"])
    submitted = _of("user", me, earlier)
    row["user_submitted"] = math.log1p(len(submitted))
    for level in ("user", "user_size"):
        row[f"{level}_ended"] = math.log1p(len(_of(level, me, ended)))
        left = [job for job in _of(level, me, earlier) if job not in gone]
        row[f"{level}_unended"] = math.log1p(len(left))
        if left:
            row[f"{level}_unended_age"] = math.log1p(now - sum(job["submit"] for job in left) / len(left))
        if _of(level, me, earlier):
            row[f"{level}_submission_gap"] = math.log1p(now - _of(level, me, earlier)[-1]["submit"])
    burst, until = 0, now
    for job in reversed(submitted):
        if until - job["submit"] > 600:
            break
        burst, until = burst + 1, job["submit"]
    return row | {"user_burst": math.log1p(burst)}


def _by_limit(me, ended):
    row, limit = {}, me["time_limit_s"]
    for number, level in enumerate(h.LEVELS):
        shares = [_log_share(job) for job in _of(level, me, ended) or []]
        shares = [share for share in shares if not math.isnan(share)]
        if level in {"user", "user_limit", "user_any_limit"} and shares:
            row[f"{level}_by_limit"] = math.log1p(limit) + _decayed(shares, h.DECAY[number])[1]
    return row


def _log_share(job):
    """Logarithm of the share of its limit that a job ran; the limit as a feature is, in single precision."""
    limit = job["time_limit_s"]
    if math.isnan(limit) or math.isinf(limit):
        return math.nan
    return math.log1p(job["run"]) - float(np.float32(math.log1p(limit)))
