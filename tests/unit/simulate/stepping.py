"""The published simulator's way of simulating: every second of every partition, jobs as dicts, lists sorted anew.

Written from a description of what the artifact of the SC'21 paper does (see ``benchmarks.published.simulator``),
without regard for speed: it is what the compiled loops are tested against, and their peer in ``benchmarks/peers.py``.
"""

import math

CHECKPOINT_S = {"one GPU": 7, "one node": 30, "several nodes": 60}


class SteppedPartition:
    def __init__(self, n_nodes, gpus_per_node):
        self.full = gpus_per_node
        self.free = [gpus_per_node] * n_nodes
        self.queue = []
        self.running = []

    def place(self, job):
        """Take GPUs and say True, or say False; sorting is stable, so that the lowest node wins ties."""
        if sum(self.free) < job["gpus"]:
            return False
        chosen = self.one_node(job["gpus"]) if job["gpus"] <= self.full else self.several_nodes(job["gpus"])
        if chosen is None:
            return False
        for node, gpus in chosen:
            self.free[node] -= gpus
        job["nodes"] = chosen
        return True

    def one_node(self, gpus):
        fullest_first = sorted(range(len(self.free)), key=lambda node: self.free[node])
        return next(([(node, gpus)] for node in fullest_first if self.free[node] >= gpus), None)

    def several_nodes(self, gpus):
        emptiest_first = sorted(range(len(self.free)), key=lambda node: -self.free[node])
        whole, rest = divmod(gpus, self.full)
        if any(self.free[node] < self.full for node in emptiest_first[:whole]):
            return None
        chosen = [(node, self.full) for node in emptiest_first[:whole]]
        if rest:
            if len(emptiest_first) == whole or self.free[emptiest_first[whole]] < rest:
                return None
            chosen.append((emptiest_first[whole], rest))
        return chosen

    def release(self, job):
        for node, gpus in job["nodes"]:
            self.free[node] += gpus
        job["nodes"] = []


def step_strictly(partition, jobs, now, order, newcomers_by_size):
    """Do what happens in one second of FIFO, SJF or QSSF; ``jobs`` are those still to be submitted."""
    for job in partition.running.copy():
        if job["ended"] == now:
            partition.release(job)
            partition.running.remove(job)
    n_new = arrive(partition, jobs, now)
    partition.queue.sort(key=lambda job: job["gpus"] if newcomers_by_size else 0)
    if not newcomers_by_size or len(partition.queue) > n_new:
        partition.queue.sort(key=order)
    for job in partition.queue.copy():
        if not partition.place(job):
            break
        job["started"], job["queue"], job["ended"] = now, now - job["submitted"], now + job["run_time"]
        partition.queue.remove(job)
        partition.running.append(job)


def step_by_remaining(partition, jobs, now):
    """Do what happens in one second of SRTF."""
    for job in partition.running.copy():
        if job["left"] == 0:
            job["ended"] = now
            partition.release(job)
            partition.running.remove(job)
        else:
            job["left"] -= 1
    arrive(partition, jobs, now)
    quota, to_run, to_stop = len(partition.free) * partition.full, [], []
    waiting = [id(job) for job in partition.queue]
    for job in sorted(partition.queue + partition.running, key=lambda job: job["left"]):
        if job["gpus"] <= quota:
            quota -= job["gpus"]
            if id(job) in waiting:
                to_run.append(job)
        elif id(job) not in waiting:
            to_stop.append(job)
    for job in to_stop:
        size = "one GPU" if job["gpus"] == 1 else "one node" if job["gpus"] <= 8 else "several nodes"
        job["left"] += CHECKPOINT_S[size]
        job["stopped"], job["stops"] = now, job["stops"] + 1
        partition.release(job)
        partition.running.remove(job)
        partition.queue.append(job)
    for job in to_run:
        if partition.place(job):
            job["queue"] += now - (job["stopped"] if job["stops"] else job["submitted"])
            job["started"] = now if job["started"] is None else job["started"]
            partition.queue.remove(job)
            partition.running.append(job)


def arrive(partition, jobs, now):
    n_new = 0
    while jobs and jobs[0]["submitted"] == now:
        partition.queue.append(jobs.pop(0))
        n_new += 1
    return n_new


def stepping_replay(workload, shape, *, policy, priority=None, tie_rank=None):
    """Return a dict for each job, in the order of the workload: submitted, started, ended, queue, stops, ..."""
    columns = (workload.submitted_s, workload.run_time_s, workload.gpus, workload.partition)
    everyone = []
    for i, row in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        submitted, run_time, gpus, partition = row
        job = {"id": i, "submitted": submitted, "run_time": run_time, "gpus": gpus, "partition": partition}
        job |= {"left": run_time, "started": None, "ended": math.inf, "queue": 0, "stops": 0, "stopped": None}
        job |= {"priority": None if priority is None else priority[i], "tie": i if tie_rank is None else tie_rank[i]}
        everyone.append(job)
    for index in range(len(shape.partitions)):
        mine = [job for job in everyone if job["partition"] == index]
        mine.sort(key=lambda job: (job["submitted"], job["tie"]))
        partition = SteppedPartition(int(shape.nodes[index]), int(shape.gpus_per_node[index]))
        step_through(partition, mine, policy)
    return everyone


def step_through(partition, jobs, policy):
    order = {"fifo": lambda job: job["submitted"], "sjf": lambda job: job["run_time"]}.get(
        policy, lambda job: job["priority"]
    )
    now = jobs[0]["submitted"] if jobs else 0
    while jobs or partition.queue or partition.running:
        if policy == "srtf":
            step_by_remaining(partition, jobs, now)
        else:
            step_strictly(partition, jobs, now, order, newcomers_by_size=policy == "qssf")
        now += 1
