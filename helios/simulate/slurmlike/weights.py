"""What does not change of a job's priority: size, partition, QOS and TRES; and what its CPUs and GPUs are billed as.

After ``set_priority_factors`` of Slurm's ``priority_multifactor.c``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from helios.model.site import SlurmSite
from helios.simulate.slurmlike.state import WORD

Floats = NDArray[np.float64]


def fixed_priority(
    choices: NDArray[np.void],
    jobs: NDArray[np.void],
    site: SlurmSite,
    *,
    nodes: NDArray[np.void],
    gpus: NDArray[np.int64],
    types: tuple[str, ...],
    part_nodes: NDArray[np.int64],
) -> tuple[Floats, Floats]:
    """Return the weighted sum of all factors but age and fair share, and the billed TRES, of each choice."""
    its, partition = jobs[choices["job"]], choices["partition"]
    parts = np.maximum(its["nodes"], 1).astype(np.float64)
    cpus = its["cpus"] * parts
    member = _members(part_nodes, len(nodes))
    held = {"cpu": cpus, "node": parts, "mem": its["memory"].astype(np.float64), "gres/gpu": its["gpus"] * parts}
    for place, kind in enumerate(types):
        held[f"gres/gpu:{kind}"] = np.where(its["gpu_type"] == place, its["gpus"] * parts, 0.0)
    own = _job_size(cpus, parts, choices["plan_min"], site, nodes) + _partition(site)[partition]
    own += np.append(_qos(site), 0.0)[its["qos"]]
    counts = _partition_tres(member, nodes, gpus, types)
    by_count = "NO_NORMAL_TRES" in site.priority.flags
    for name, weight in site.priority.tres.items():
        tres = name.lower()
        if tres in held:
            has = counts[tres][partition]
            own += weight * (held[tres] if by_count else np.divide(held[tres], has, where=has > 0, out=0.0 * has))
    # All CPUs of whole nodes are billed, as far as is known which nodes those will be.
    linear = site.select == "linear"
    whole = (its["exclusive"] > 0) | np.array([rules.exclusive or linear for rules in site.partitions])[partition]
    first_node = np.array([int(np.argmax(row)) for row in member])
    held["cpu"] = np.where(whole & (its["nodes"] > 0), parts * nodes["cpus"][first_node][partition], cpus)
    return own, _billing(held, partition, site)


def _members(part_nodes: NDArray[np.int64], n_nodes: int) -> NDArray[np.bool_]:
    node = np.arange(n_nodes)
    member: NDArray[np.bool_] = (part_nodes[:, node // WORD] >> (node % WORD)) & 1 == 1
    return member


def _job_size(
    cpus: Floats, parts: Floats, limit_min: NDArray[np.int64], site: SlurmSite, nodes: NDArray[np.void]
) -> Floats:
    rules, n_nodes, n_cpus = site.priority, float(len(nodes)), float(nodes["cpus"].sum())
    if "SMALL_RELATIVE_TO_TIME" in rules.flags:
        factor = np.maximum(parts * n_cpus / n_nodes, cpus) / limit_min / n_cpus
        factor = 1.0 - factor if rules.favor_small else factor
    elif rules.favor_small:
        factor = ((n_nodes - parts) / n_nodes + (n_cpus - cpus) / n_cpus) / 2
    else:
        factor = (parts / n_nodes + cpus / n_cpus) / 2
    return rules.job_size * factor.clip(0.0, 1.0)


def _partition(site: SlurmSite) -> Floats:
    factor = np.array([float(rules.priority_job_factor) for rules in site.partitions])
    if "NO_NORMAL_PART" not in site.priority.flags:
        factor = factor / max(factor.max(initial=1.0), 1.0)
    return site.priority.partition * factor


def _qos(site: SlurmSite) -> Floats:
    factor = np.array([float(rules.priority) for rules in site.qos])
    if "NO_NORMAL_QOS" not in site.priority.flags:
        factor = factor / max(factor.max(initial=1.0), 1.0)
    return site.priority.qos * factor


def _partition_tres(
    member: NDArray[np.bool_], nodes: NDArray[np.void], gpus: NDArray[np.int64], types: tuple[str, ...]
) -> dict[str, Floats]:
    """Return how much of each TRES every partition has."""
    by_type = gpus.reshape(len(nodes), len(types)).astype(np.float64)
    counts = {"cpu": nodes["cpus"], "mem": nodes["memory"], "node": np.ones(len(nodes)), "gres/gpu": by_type.sum(1)}
    counts |= {f"gres/gpu:{kind}": by_type[:, place] for place, kind in enumerate(types)}
    return {name: member @ count.astype(np.float64) for name, count in counts.items()}


def _billing(held: dict[str, Floats], partition: NDArray[np.int64], site: SlurmSite) -> Floats:
    billed = held["cpu"].copy()
    for code, rules in enumerate(site.partitions):
        if not rules.tres_billing:
            continue
        here = partition == code
        parts = [weight * held[name.lower()][here] for name, weight in rules.tres_billing.items() if name in held]
        if parts:
            billed[here] = np.max(parts, axis=0) if "MAX_TRES" in site.priority.flags else np.sum(parts, axis=0)
    return billed
