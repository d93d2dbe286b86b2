"""Does the compiled engine do what the rules in plain Python do?"""

import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helios.model.slurm_site import NodeGroup, PartitionRules, PriorityRules, QosRules, SchedulingRules, SlurmSite
from helios.simulate.slurm import SlurmLatency, SlurmWorkload, replay_slurm, startable
from tests.examples import examples
from tests.unit.simulate.slurm.reference import Reference

N_NODES = 4
NAMES = tuple(f"n{number}" for number in range(N_NODES))


@st.composite
def a_case(draw):
    """Draw a site of four nodes and up to two partitions, and up to twelve jobs."""
    typed = draw(st.booleans())
    gpus = {"a": 2, "b": 1} if typed else {"": draw(st.sampled_from([0, 4]))}
    weights = draw(st.lists(st.sampled_from([1, 5]), min_size=N_NODES, max_size=N_NODES))
    nodes = tuple(
        NodeGroup(names=(name,), cpus=4, memory_mib=100, gpus=gpus, weight=weight)
        for name, weight in zip(NAMES, weights, strict=True)
    )
    second = draw(st.sets(st.sampled_from(NAMES), min_size=1))
    partitions = (
        PartitionRules(name="p", nodes=NAMES, def_mem_per_cpu_mib=draw(st.sampled_from([0, 10]))),
        PartitionRules(
            name="q",
            nodes=tuple(sorted(second)),
            priority_tier=draw(st.sampled_from([1, 2])),
            priority_job_factor=draw(st.sampled_from([1, 10])),
            exclusive=draw(st.booleans()),
            max_time_s=draw(st.sampled_from([None, 600])),
            qos=draw(st.sampled_from(["", "limited"])),
        ),
    )
    site = SlurmSite(
        nodes=nodes,
        partitions=partitions,
        qos=(
            QosRules(name="normal", priority=5),
            QosRules(name="limited", priority=1, max_jobs_per_user=2, max_gpus_per_user=3, max_gpus=6),
        ),
        priority=PriorityRules(
            multifactor=draw(st.booleans()),
            age=draw(st.sampled_from([0, 1000])),
            job_size=draw(st.sampled_from([0, 500])),
            partition=draw(st.sampled_from([0, 300])),
            qos=draw(st.sampled_from([0, 200])),
            max_age_s=600,
            calc_period_s=60,
            favor_small=draw(st.booleans()),
        ),
        scheduling=SchedulingRules(
            epilog=draw(st.booleans()),
            defer=draw(st.booleans()),
            backfill=draw(st.booleans()),
            bf_interval_s=draw(st.sampled_from([5, 30])),
            bf_resolution_s=draw(st.sampled_from([1, 60])),
            bf_window_s=draw(st.sampled_from([600, 86_400])),
            bf_max_job_test=draw(st.sampled_from([3, 500])),
            bf_max_job_user=draw(st.sampled_from([0, 2])),
            bf_max_job_start=draw(st.sampled_from([0, 1])),
            default_queue_depth=draw(st.sampled_from([1, 100])),
            partition_job_depth=draw(st.sampled_from([0, 2])),
            time_min_is_soft=draw(st.booleans()),
        ),
        select=draw(st.sampled_from(["cons_tres", "linear"])),
        least_loaded=draw(st.booleans()),
        holds_memory=draw(st.booleans()),
    )
    return _jobs(draw, gpus, typed), site


def _jobs(draw, gpus, typed):
    n_jobs = draw(st.integers(1, 12))
    many = sum(gpus.values())

    def column(values):
        return np.array(draw(st.lists(st.sampled_from(values), min_size=n_jobs, max_size=n_jobs)))

    submitted = np.sort(column([0, 0, 1, 3, 7.5, 40, 41, 130])).astype(float)
    array = column([-1, -1, -1, 0])
    workload = SlurmWorkload(
        job_id=np.array([str(number) for number in range(n_jobs)], dtype=object),
        submitted_s=submitted,
        run_time_s=column([0, 5, 29, 30, 100, 250, 700]),
        eligible_s=np.maximum(submitted, column([0, 0, 0, 60])),
        time_limit_s=column([0, 60, 120, 600, 7200]),
        time_min_s=column([0, 0, 60]),
        partitions=("p", "q"),
        partition=column([0, 0, 1]),
        nodes=column([0, 1, 1, 2]),
        cpus=column([1, 2, 3, 4, 8]),
        gpus=column([0, 0, 1, 2, 4]) if many else np.zeros(n_jobs),
        gpu_types=("a", "b") if typed else (),
        gpu_type=column([-1, 0, 1]) if typed else np.full(n_jobs, -1),
        memory_mib=column([0, 0, 30, 120]),
        exclusive=column([False, False, True]),
        users=("u", "v"),
        user=column([0, 1]),
        qos_names=("normal", "limited"),
        qos=column([-1, 0, 1]),
        nice=column([0, 0, 50]),
        site_factor=column([0, 0, 100, -100]),
    )
    more = {job: (1,) for job in range(n_jobs) if workload.partition[job] == 0 and draw(st.booleans())}
    workload = dataclasses.replace(workload, more_partitions=more)
    return workload, array


def _with_array(workload, array):
    """Make one array of the marked jobs: all ask for what the first does, and come with it, one after the other."""
    tasks = np.flatnonzero(array >= 0)
    if len(tasks) < 2:
        return workload
    columns = {}
    for name in (
        *("submitted_s", "eligible_s", "time_limit_s", "time_min_s", "partition", "nodes", "cpus", "gpus", "gpu_type"),
        *("memory_mib", "exclusive", "user", "qos", "nice", "site_factor"),
    ):
        values = workload.column(name).copy()
        values[tasks] = values[tasks[0]]
        columns[name] = values
    place = np.arange(len(workload))
    place[tasks] = tasks[0]
    order = np.lexsort((place, columns["submitted_s"]))
    more = {job: parts for job, parts in workload.more_partitions.items() if array[job] < 0}
    place = {int(job): new for new, job in enumerate(order)}
    moved = {name: values[order] for name, values in columns.items()}
    return dataclasses.replace(
        workload,
        run_time_s=workload.run_time_s[order],
        array=array[order],
        more_partitions={place[job]: parts for job, parts in more.items()},
        **moved,
    )


@settings(max_examples=examples(25), deadline=None, suppress_health_check=list(HealthCheck))
@given(case=a_case())
def test_the_engine_starts_every_job_when_the_reference_does(case):
    (workload, array), site = case
    workload = _with_array(workload, array)
    workload = workload.kept(startable(workload, site))
    if len(workload) > 0:
        _agree(workload, site)


def _agree(workload, site):
    latency = SlurmLatency(controller_started_s=-7.3)
    # Jobs that no pass may start, as a limit of a QOS below what they ask for says, wait for ever.
    until_s = 20_000.0
    expected = Reference(workload, site, latency)
    expected.run(most_s=until_s)
    replay = replay_slurm(workload, site, latency=latency, until_s=until_s)
    started = [expected.started[job] / 1000 if job in expected.started else np.nan for job in range(len(workload))]
    assert replay.started_s.tolist() == pytest.approx(started, nan_ok=True)
    assert set(np.flatnonzero(replay.backfilled)) == expected.by_backfill


def test_backfill_hears_of_a_job_that_outruns_its_soft_limit():
    n_jobs = 9
    zeros, minus = np.zeros(n_jobs, dtype=np.int64), np.full(n_jobs, -1)
    workload = SlurmWorkload(
        job_id=np.array([str(number) for number in range(n_jobs)], dtype=object),
        submitted_s=np.zeros(n_jobs),
        run_time_s=np.array([0.0, 100.0, *[0.0] * 7]),
        eligible_s=np.zeros(n_jobs),
        time_limit_s=np.zeros(n_jobs),
        time_min_s=np.array([0.0, 60.0, *[0.0] * 7]),
        partitions=("p", "q"),
        partition=np.array([0] * 7 + [1] * 2),
        nodes=zeros,
        cpus=zeros + 1,
        gpus=np.array([0, 0, 0, 4, 0, 0, 0, 0, 0]),
        gpu_types=("a", "b"),
        gpu_type=np.array([-1, -1, -1, 1, -1, -1, -1, -1, -1]),
        memory_mib=zeros,
        exclusive=zeros.astype(bool),
        users=("u", "v"),
        user=zeros,
        qos_names=("normal", "limited"),
        qos=minus,
        nice=zeros,
        site_factor=zeros,
    )
    site = SlurmSite(
        nodes=tuple(NodeGroup(names=(name,), cpus=4, memory_mib=100, gpus={"a": 2, "b": 1}) for name in NAMES),
        partitions=(PartitionRules(name="p", nodes=NAMES), PartitionRules(name="q", nodes=NAMES[:1])),
        priority=PriorityRules(multifactor=False, max_age_s=600, calc_period_s=60),
        scheduling=SchedulingRules(
            epilog=False,
            bf_interval_s=5,
            bf_resolution_s=1,
            bf_window_s=600,
            bf_max_job_test=3,
            default_queue_depth=1,
            time_min_is_soft=True,
        ),
        holds_memory=True,
    )
    _agree(workload, site)
