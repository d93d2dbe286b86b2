"""What each feature of a prediction says, in words; features that tell of one thing are told together."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import numpy as np

from helios.report.words import duration, percent, spoken_duration

Features = Mapping[str, float]
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

LAST_OF = {
    "user": "of this user",
    "user_limit": "of this user and limit",
    "user_any_limit": "of this user and size, whatever the limit",
    "user_size": "of this user, size and limit",
    "user_family": "of this user and a kindred name",
    "user_stem": "of this user and name, digits aside",
    "user_name": "of this user, name and size",
    "account": "of this account",
    "request": "of anyone of this size and limit",
    "partition": "of anyone in this partition",
    "global": "of anyone",
}
"""By level: whose last ended jobs are meant."""

_GROUPS = {
    "gpus": "request",
    "log_cpus": "request",
    "log_nodes": "request",
    "log_memory": "request",
    "log_limit": "limit",
    "hour": "time",
    "weekday": "time",
    "anchor": "averages",
    "anchor_sd": "spread",
    "neighbour_mean": "neighbours",
    "neighbour_weight": "neighbours",
    "neighbour_sd": "spread",
    "user_any_limit_sd": "spread",
    "nearest": "neighbours",
    "nearest_distance": "neighbours",
    "user_limit_share": "limit_share",
    "user_last_share": "limit_share",
    "user_failed_share": "failed_share",
    "user_last_failed": "failed_share",
    "user_recent_median": "recent",
    "user_recent_least": "recent",
    "user_recent_most": "recent",
    "user_end_gap": "end_gap",
    "user_any_limit_end_gap": "end_gap",
    "user_submitted": "experience",
    "user_burst": "rhythm",
    "every_job": "every_job",
    "afterwards": "afterwards",
}
_OF_THE_USER = frozenset(
    {"neighbours", "limit_share", "failed_share", "recent", "end_gap", "experience", "unended", "rhythm"}
)
# What a level's name is followed by; levels that are added bring features of these forms.
_FORMS = (
    (re.compile(r"(\w+)_last_\d+"), r"\1_last"),
    (re.compile(r"\w+_mean"), "averages"),
    (re.compile(r"\w+_by_limit"), "limit_share"),
    (re.compile(r"\w+_(unended|unended_age)"), "unended"),
    (re.compile(r"\w+_ended"), "experience"),
    (re.compile(r"\w+_submission_gap"), "rhythm"),
)


def group_of(feature: str) -> str:
    """Return what a feature tells of; a feature that no word was written for stands for itself."""
    if feature in _GROUPS:
        return _GROUPS[feature]
    for form, group in _FORMS:
        if match := form.fullmatch(feature):
            return match.expand(group)
    return feature


def has_words(feature: str) -> bool:
    """Return whether words were written for ``feature``."""
    group = group_of(feature)
    return group in _PHRASES or group.removesuffix("_last") in LAST_OF


def phrase(group: str, features: Features) -> str:
    """Return what is known of a group of features, as a clause; see :func:`group_of`."""
    level = group.removesuffix("_last")
    if (group in _OF_THE_USER or level.startswith("user")) and (stranger := _stranger(group, features)):
        return stranger
    if group != level and level in LAST_OF:
        return _last(level, features)
    if group in _PHRASES:
        return _PHRASES[group](features)
    value = features.get(group, np.nan)
    words = group.replace("_", " ")
    return f"{words}: unknown" if np.isnan(value) else f"{words}: {value:.3g}"


def _stranger(group: str, features: Features) -> str:
    """Return what stands for all that is not known of a user; empty: the user is known, and jobs have ended."""
    ended = _count(features, "user_ended")
    if np.isnan(ended):
        return "its user is unknown"
    return "no job of this user has ended" if ended == 0 and group not in {"unended", "rhythm"} else ""


def _request(features: Features) -> str:
    cpus, nodes = _count(features, "log_cpus"), _count(features, "log_nodes")
    asked = [(features.get("gpus", np.nan), "GPU"), (cpus, "CPU"), (nodes, "node")]
    told = [_counted(number, unit) for number, unit in asked if number > 0]
    return f"it asks for {', '.join(told)}" if told else "what it asks for"


def _time_limit(features: Features) -> str:
    limit_s = np.expm1(features.get("log_limit", np.nan))
    if np.isnan(limit_s):
        return "its time limit, which is unknown"
    return f"its time limit of {spoken_duration(limit_s)}" if np.isfinite(limit_s) else "it has no time limit"


def _time(features: Features) -> str:
    hour, weekday = features.get("hour", np.nan), features.get("weekday", np.nan)
    if np.isnan(hour) or np.isnan(weekday):
        return "when it was submitted"
    return f"submitted on a {WEEKDAYS[int(weekday) % 7]} at {int(hour)} h, the site's time"


def _spread(features: Features) -> str:
    spread = features.get("anchor_sd", np.nan)
    return "how run times vary" if np.isnan(spread) else f"such run times vary by a factor of {np.exp(spread):.1f}"


def _neighbours(features: Features) -> str:
    near = features.get("neighbour_mean", np.nan)
    return "no job of this user has ended" if np.isnan(near) else f"this user's jobs most like it: {_time_of(near)}"


def _limit_share(features: Features) -> str:
    return _share(features, "user_limit_share", "this user's jobs use {share} of their limit", "of their limits")


def _failed_share(features: Features) -> str:
    return _share(features, "user_failed_share", "{share} of this user's jobs fail", "of failures")


def _share(features: Features, name: str, told: str, of_what: str) -> str:
    share = features.get(name, np.nan)
    return f"nothing is known {of_what}" if np.isnan(share) else told.format(share=percent(share))


def _recent(features: Features) -> str:
    least, most = (features.get(f"user_recent_{which}", np.nan) for which in ("least", "most"))
    if np.isnan(least) or np.isnan(most):
        return "how long this user's latest jobs ran"
    return f"this user's latest jobs ran {_time_of(least)} to {_time_of(most)}"


def _end_gap(features: Features) -> str:
    gap = features.get("user_end_gap", np.nan)
    return "when a job of this user last ended" if np.isnan(gap) else f"a job of this user ended {_time_of(gap)} before"


def _experience(features: Features) -> str:
    ended, alike = _count(features, "user_ended"), _count(features, "user_size_ended")
    return f"{_counted(ended, 'job')} of this user ended, {alike:,.0f} of them like it"


def _unended(features: Features) -> str:
    unended = _count(features, "user_unended")
    if unended == 0:
        return "no other job of this user waits or runs"
    age = features.get("user_unended_age", np.nan)
    mean = "" if np.isnan(age) else f", for {_time_of(age)} on average"
    return f"{_counted(unended, 'job')} of this user wait or run{mean}"


def _rhythm(features: Features) -> str:
    gap, burst = features.get("user_submission_gap", np.nan), _count(features, "user_burst")
    if np.isnan(gap):
        return "this is this user's first job"
    of_burst = f", job {burst + 1:.0f} of a burst" if burst >= 1 else ""
    return f"submitted {_time_of(gap)} after this user's last{of_burst}"


def _last(level: str, features: Features) -> str:
    recent = [features.get(f"{level}_last_{age}", np.nan) for age in range(1, 10)]
    times = ", ".join(duration(max(float(np.expm1(value)), 0.0)) for value in recent if not np.isnan(value))
    return f"the last {LAST_OF[level]} ran {times}" if times else f"no job {LAST_OF[level]} has ended"


def _count(features: Features, name: str) -> float:
    return float(np.round(np.expm1(features.get(name, np.nan))))


def _counted(number: float, unit: str) -> str:
    return f"{number:,.0f} {unit}" if number == 1 else f"{number:,.0f} {unit}s"


def _time_of(log_seconds: float) -> str:
    return spoken_duration(max(float(np.expm1(log_seconds)), 0.0))


_PHRASES: dict[str, Callable[[Features], str]] = {
    "request": _request,
    "limit": _time_limit,
    "time": _time,
    "averages": lambda _: "the averages above, weighed anew",
    "spread": _spread,
    "neighbours": _neighbours,
    "limit_share": _limit_share,
    "failed_share": _failed_share,
    "recent": _recent,
    "end_gap": _end_gap,
    "experience": _experience,
    "unended": _unended,
    "rhythm": _rhythm,
    "every_job": lambda _: "what the averages miss for any job here",
    "afterwards": lambda _: "what is done to the answer",
}
