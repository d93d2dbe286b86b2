"""Limits that a QOS sets to what runs at once: the job's own, and that of its partition, which goes first."""

from __future__ import annotations

from helios.simulate.kernel import kernel
from helios.simulate.slurmlike.state import NOBODY, SlurmState


@kernel
def allowed(state: SlurmState, choice: int) -> bool:
    """Say whether no limit keeps the job in ``choice`` from running now (``acct_policy.c``)."""
    asked = state.choices[choice]
    its = state.jobs[asked.job]
    first, second = state.partitions[asked.partition].qos, its.qos
    if second == first:
        second = NOBODY
    gpus = its.gpus * max(its.nodes, 1)
    return (
        _jobs_left(state, its.user, first, second)
        and _user_gpus_left(state, its.user, gpus, first, second)
        and _gpus_left(state, gpus, first, second)
    )


@kernel
def _jobs_left(state: SlurmState, user: int, first: int, second: int) -> bool:
    for qos in (first, second):
        if qos >= 0 and state.qos[qos].user_jobs >= 0:
            return bool(state.user_jobs[user * len(state.qos) + qos] < state.qos[qos].user_jobs)
    return True


@kernel
def _user_gpus_left(state: SlurmState, user: int, gpus: int, first: int, second: int) -> bool:
    for qos in (first, second):
        if qos >= 0 and state.qos[qos].user_gpus >= 0:
            held = state.user_gpus[user * len(state.qos) + qos]
            return bool(gpus == 0 or held + gpus <= state.qos[qos].user_gpus)
    return True


@kernel
def _gpus_left(state: SlurmState, gpus: int, first: int, second: int) -> bool:
    for qos in (first, second):
        if qos >= 0 and state.qos[qos].gpus >= 0:
            return bool(gpus == 0 or state.qos[qos].held_gpus + gpus <= state.qos[qos].gpus)
    return True


@kernel
def charge(state: SlurmState, job: int, partition: int, sign: int) -> None:
    """Count ``job`` as running, or no longer (``sign`` 1, -1), in its QOS and its partition's."""
    its, first = state.jobs[job], state.partitions[partition].qos
    gpus = sign * its.gpus * max(its.nodes, 1)
    for number in range(2):
        qos = first if number == 0 else its.qos
        if qos >= 0 and (number == 0 or qos != first):
            state.user_jobs[its.user * len(state.qos) + qos] += sign
            state.user_gpus[its.user * len(state.qos) + qos] += gpus
            state.qos[qos].held_gpus += gpus
