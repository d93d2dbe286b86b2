"""Each feature again, job by job, from lists of earlier jobs: slow, plain, and sharing no kernel."""

import math
import re

import numpy as np
import pandas as pd

from helios.predict import history as h


def features_of(jobs, number):
    """Return the features of job ``number`` of a trace as a dict."""
    all_jobs = [_plain(row) for row in jobs.to_dict("records")]
    me, earlier = all_jobs[number], all_jobs[:number]
    gone = sorted((job for job in earlier if job["end"] < me["submit"]), key=lambda j: (j["end"], all_jobs.index(j)))
    ended = [job for job in gone if not math.isnan(job["run"])]
    row = dict.fromkeys(h.FEATURES, math.nan) | _request(me) | _means(me, ended) | _last(me, ended)
    return row if me["user"] is None else row | _activity(me, earlier, gone, ended)


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
        "limit": _key(row["time_limit_s"]),
    }


def _key(value):
    return "unknown" if math.isnan(value) else value


def _alike(level, job):
    user = job["user"]
    keys = {
        "global": ("all",),
        "request": (job["size"], job["limit"], job["partition"]),
        "user": (user,),
        "user_limit": (user, job["limit"]),
        "user_size": (user, job["size"], job["limit"]),
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
    column = {
        "global": "global_mean",
        "request": "request_mean",
        "user": "user_mean",
        "user_limit": "user_limit_mean",
        "user_size": "user_size_mean",
        "user_name": "user_name_mean",
    }
    for number, level in enumerate(h.LEVELS[:-1]):
        group = _of(level, me, ended)
        if group is None:
            continue
        own = _decayed(_log_runs(group), h.DECAY[number])
        mean, variance = _mixed(own, pseudo=h.PSEUDO_JOBS[number], prior_mean=mean, prior_variance=variance)
        if level in column:
            row[column[level]] = mean
    if _of("account", me, ended):
        row["account_mean"] = _decayed(_log_runs(_of("account", me, ended)), h.DECAY[-1])[1]
    near = _neighbours(me, _of("user", me, ended))
    if near is not None:
        weight, own, square = near
        row["neighbour_weight"] = weight
        if weight:
            row["neighbour_mean"], row["neighbour_sd"] = own, math.sqrt(max(square - own**2, 0.0))
            mean, variance = _mixed(near, pseudo=1.0, prior_mean=mean, prior_variance=variance)
    return row | {"anchor": mean, "anchor_sd": math.sqrt(variance)}


def _neighbours(me, users_jobs):
    if users_jobs is None:
        return None
    pairs = []
    for age, job in enumerate(reversed(users_jobs[-48:])):
        distance = abs(_log_size(job) - _log_size(me)) + abs(_log_limit(job) - _log_limit(me))
        distance += (job["partition"] != me["partition"]) + 2 * (job["stem"] != me["stem"])
        pairs.append((1 / ((1 + 3 * distance) ** 2 * (1 + 0.15 * age)), math.log1p(job["run"])))
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
    for level, count in (("user", 3), ("user_size", 3), ("user_name", 1), ("request", 2)):
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
