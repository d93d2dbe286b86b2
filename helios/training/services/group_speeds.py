"""Speeds of groups of trials on one device, measured or predicted."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helios.training.model import SharedSpeed

PRIOR_SPEED = 0.6
"""Expected speed of a trial beside another, as a share of its speed alone, before anything was measured."""
KERNEL = {"level": 0.05, "own": 0.08, "other": 0.08, "pair": 0.06, "alike": 0.05, "noise": 0.002}
"""Variances of the log speed beside another, by what it is due to. Chosen on K80 and P100."""
MOST_PAIRS = 320
"""Most measured pairs used for a prediction. More would cost time and improve it little."""
MOST_CLASSES = 40
"""Most classes in the plan. With more families, similar ones share a class."""
Group = tuple[int, ...]
"""Classes of the trials on a device, sorted."""
Traits = tuple[tuple[str, tuple[tuple[str, Any], ...]], ...]
"""Families in their order, each with what its trials' parameters have in common."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _GroupSpeeds:
    """Speeds of groups, measured or predicted.

    Attributes
    ----------
    class_of : dict of str to int
        Class of each family.
    groups : list of Group
        Groups that are allowed. The first are single classes, in order.
    index : dict of Group to int
        Positions in ``groups``.
    rates : float64 array of shape (n_groups, n_classes)
        Seconds of work alone that a group does in a second, of each class. Unmeasured ones are optimistic.
    measured : bool array of shape (n_groups,)
        Whether the rates of a group were measured.
    """

    class_of: dict[str, int]
    groups: list[Group]
    index: dict[Group, int]
    rates: NDArray[np.float64]
    measured: NDArray[np.bool_]

    def extensions(self, group: Group) -> list[tuple[int, int]]:
        """Return the classes that may join a group, with the larger group's index."""
        larger = ((added, self.index.get(tuple(sorted((*group, added))))) for added in range(self.rates.shape[1]))
        return [(added, index) for added, index in larger if index is not None]


@lru_cache(maxsize=8)
def speeds_of_groups(traits: Traits, speeds: tuple[SharedSpeed, ...], together: int, optimism: float) -> _GroupSpeeds:
    """Return the speeds of all groups from the measured ones.

    Results are cached, as the arguments seldom change between two decisions.
    """
    families = [family for family, _ in traits]
    alone = {speed.family: speed.steps_per_s for speed in speeds if not speed.beside and speed.steps_per_s > 0}
    class_of, members = _classes(families, speeds, alone)
    count = len(members)
    measured_rates = _measured_rates(speeds, class_of, alone)
    optimistic = np.ones((count, count))
    all_pairs_measured = sum(len(others) == 1 for _, others in measured_rates) == count**2
    if not all_pairs_measured:
        mean, deviation = _predict_pairs(_similarity(traits, members), measured_rates)
        optimistic = np.minimum(1.0, mean * np.exp(optimism * deviation))
    groups: list[Group] = [()] if together < 1 else [(single,) for single in range(count)]
    rates = [np.eye(count)]
    measured = [np.ones(count, dtype=bool)]
    if together >= 2:
        pairs, pair_rates, pairs_measured = _pairs(measured_rates, optimistic)
        groups += pairs
        rates.append(pair_rates)
        measured.append(pairs_measured)
    if together > 2:
        larger = _larger_groups(measured_rates, count, together)
        groups += [group for group, _ in larger]
        rates.append(np.array([row for _, row in larger]).reshape(len(larger), count))
        measured.append(np.ones(len(larger), dtype=bool))
    return _GroupSpeeds(
        class_of=class_of,
        groups=groups,
        index={group: index for index, group in enumerate(groups)},
        rates=np.concatenate(rates),
        measured=np.concatenate(measured),
    )


def _measured_rates(
    speeds: Iterable[SharedSpeed], class_of: Mapping[str, int], alone: Mapping[str, float]
) -> dict[tuple[int, Group], float]:
    """Return the mean measured speed of each class beside others, as a share."""
    sums: dict[tuple[int, Group], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for speed in speeds:
        is_known = (
            speed.family in alone and speed.family in class_of and all(family in class_of for family in speed.beside)
        )
        if speed.beside and is_known:
            total = sums[class_of[speed.family], tuple(sorted(class_of[family] for family in speed.beside))]
            total[0] += speed.samples * min(1.2, speed.steps_per_s / alone[speed.family])
            total[1] += speed.samples
    return {key: total / samples for key, (total, samples) in sums.items()}


def _pairs(
    measured_rates: Mapping[tuple[int, Group], float], optimistic: NDArray[np.float64]
) -> tuple[list[Group], NDArray[np.float64], NDArray[np.bool_]]:
    """Return the pairs that fit together, their rates, and whether these were measured."""
    count = len(optimistic)
    first, second = np.triu_indices(count)
    speed, exact = optimistic.copy(), np.zeros((count, count), dtype=bool)
    for (own, others), rate in measured_rates.items():
        if len(others) == 1:
            speed[own, others[0]], exact[own, others[0]] = rate, True
    fits = ~(exact & (speed <= 0))
    fitting = fits[first, second] & fits[second, first]
    first, second = first[fitting], second[fitting]
    rates = np.zeros((len(first), count))
    np.add.at(rates, (np.arange(len(first)), first), speed[first, second])
    np.add.at(rates, (np.arange(len(first)), second), speed[second, first])
    pairs: list[Group] = list(zip(first.tolist(), second.tolist(), strict=True))
    return pairs, rates, exact[first, second] & exact[second, first]


def _larger_groups(
    measured_rates: Mapping[tuple[int, Group], float], count: int, together: int
) -> list[tuple[Group, NDArray[np.float64]]]:
    """Return the measured groups of three and more, with their rates."""
    rates: dict[Group, dict[int, float]] = defaultdict(dict)
    for (own, others), rate in measured_rates.items():
        rates[tuple(sorted((own, *others)))][own] = rate
    result = []
    for group, by_class in sorted(rates.items()):
        if 2 < len(group) <= together and set(by_class) == set(group) and min(by_class.values()) > 0:
            row = np.zeros(count)
            for member in group:
                row[member] += by_class[member]
            result.append((group, row))
    return result


def _classes(
    families: Sequence[str], speeds: Iterable[SharedSpeed], alone: Mapping[str, float]
) -> tuple[dict[str, int], list[list[str]]]:
    """Return the class of each family, and the families of each class."""
    if len(families) <= MOST_CLASSES:
        return {family: index for index, family in enumerate(families)}, [[family] for family in families]
    own_shares: dict[str, list[float]] = defaultdict(list)
    other_shares: dict[str, list[float]] = defaultdict(list)
    for speed in speeds:
        if len(speed.beside) == 1 and speed.family in alone:
            own_shares[speed.family].append(speed.steps_per_s / alone[speed.family])
            other_shares[speed.beside[0]].append(speed.steps_per_s / alone[speed.family])
    keys = {
        family: (_fifth(own_shares.get(family)), _fifth(other_shares.get(family))) if family in alone else (-1, -1)
        for family in families
    }
    order = {key: index for index, key in enumerate(sorted(set(keys.values())))}
    members: list[list[str]] = [[] for _ in order]
    for family in families:
        members[order[keys[family]]].append(family)
    return {family: order[key] for family, key in keys.items()}, members


def _fifth(shares: Sequence[float] | None) -> int:
    """Return the fifth in which the mean of some speeds lies.

    It is 0 to 4, or 5 if there are none.
    """
    return 5 if not shares else min(4, int(5 * sum(shares) / len(shares)))


def _similarity(traits: Traits, members: Sequence[Sequence[str]]) -> NDArray[np.float64]:
    """Return the similarity of classes by their parameters, of shape (n, n).

    It is the mean over the parameters that differ: of positive numbers by their ratio, of other values 1 where equal.
    """
    by_family = dict(traits)
    parameters = [dict(by_family[families[0]]) if len(families) == 1 else {} for families in members]
    count, n_parameters = len(parameters), 0
    similarity = np.zeros((count, count))
    for name in sorted({name for row in parameters for name in row}):
        values = [row.get(name) for row in parameters]
        if len(set(map(repr, values))) < 2:
            continue
        n_parameters += 1
        if all(v is None or (isinstance(v, int | float) and not isinstance(v, bool) and v > 0) for v in values):
            logs = np.log2(np.array([np.nan if v is None else v for v in values], dtype=np.float64))
            similarity += np.nan_to_num(np.exp(-np.abs(logs[:, None] - logs[None, :]) / 2))
        else:
            codes = np.unique([repr(v) for v in values], return_inverse=True)[1]
            known = np.array([v is not None for v in values])
            similarity += (codes[:, None] == codes[None, :]) & known[:, None] & known[None, :]
    similarity = similarity / max(1, n_parameters)
    np.fill_diagonal(similarity, 1.0)
    return similarity


def _predict_pairs(
    similarity: NDArray[np.float64], measured_rates: Mapping[tuple[int, Group], float]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Predict the speed of each class beside each other one.

    It is a Gaussian process over the log speed of pairs. Variances by source are in ``KERNEL``.

    Returns
    -------
    mean : float64 array of shape (n, n)
        Speed of the row's class beside the column's, as a share of its speed alone.
    deviation : float64 array of shape (n, n)
        Standard deviation of its logarithm.
    """
    count = len(similarity)
    near = 0.5 * np.eye(count) + 0.5 * similarity
    pairs = [(own, others[0], rate) for (own, others), rate in measured_rates.items() if len(others) == 1 and rate > 0]
    pairs = pairs[:MOST_PAIRS]
    prior = KERNEL["level"] + KERNEL["own"] + KERNEL["other"] + KERNEL["pair"] + KERNEL["alike"] * similarity**2
    if not pairs:
        return np.full((count, count), PRIOR_SPEED), np.sqrt(prior)
    own = np.array([pair[0] for pair in pairs])
    other = np.array([pair[1] for pair in pairs])
    values = np.log(np.clip([pair[2] for pair in pairs], 0.02, 1.2)) - math.log(PRIOR_SPEED)
    alike = similarity[own, other]
    near_own, near_other = near[np.ix_(own, own)], near[np.ix_(other, other)]
    kernel = (
        KERNEL["level"]
        + KERNEL["own"] * near_own
        + KERNEL["other"] * near_other
        + KERNEL["pair"] * near_own * near_other
        + KERNEL["alike"] * np.outer(alike, alike)
        + KERNEL["noise"] * np.eye(len(pairs))
    )
    inverse = np.linalg.inv(kernel)
    weights = inverse @ values
    rows, columns = near[:, None, own], near[None, :, other]
    cross = (  # (n, n, number of pairs)
        KERNEL["level"]
        + KERNEL["own"] * rows
        + KERNEL["other"] * columns
        + KERNEL["pair"] * rows * columns
        + KERNEL["alike"] * similarity[:, :, None] * alike[None, None, :]
    )
    mean = cross @ weights
    explained = np.einsum("ijm,ijm->ij", cross @ inverse, cross)
    scale = max(0.25, min(4.0, (2 + float(values @ weights)) / (2 + len(pairs))))
    deviation = np.sqrt(np.maximum(1e-6, prior - explained) * scale)
    return np.exp(mean) * PRIOR_SPEED, deviation
