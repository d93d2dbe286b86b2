"""The simulator once more, written to be read: lists, sorting, no regard for speed, no code shared with it.

What it computes is described in ``helios.simulate``. Every scheduling pass goes through the pending jobs one by one.
"""

import math
from collections import defaultdict
from dataclasses import dataclass, field


@dataclass
class Job:
    position: int
    submitted: int
    run_time: int
    gpus: int
    partition: int
    key: float = 0.0
    estimate: int = 0
    remaining: int = 0
    first_start: int | None = None
    start: int | None = None
    end: int | None = None
    planned_end: int = 0
    holds: dict[int, int] = field(default_factory=dict)


class Partition:
    def __init__(self, nodes, gpus_per_node):
        self.full = gpus_per_node
        self.free = [gpus_per_node] * nodes
        self.pending = []
        self.running = []

    def placement(self, gpus, without=()):
        """Return {node: gpus} or None; none of the nodes ``without``."""
        empty = [node for node, free in enumerate(self.free) if free == self.full and node not in without]
        whole, rest = divmod(gpus, self.full)
        if whole > len(empty):
            return None
        chosen = dict.fromkeys(empty[:whole], self.full)
        if rest:
            barred = {*chosen, *without}
            fitting = [(free, node) for node, free in enumerate(self.free) if free >= rest and node not in barred]
            if not fitting:
                return None
            chosen[min(fitting)[1]] = rest
        return chosen

    def occupy(self, holds):
        for node, gpus in holds.items():
            self.free[node] -= gpus
            assert self.free[node] >= 0, "a node has more jobs than GPUs"

    def vacate(self, holds):
        for node, gpus in holds.items():
            self.free[node] += gpus

    def in_order(self):
        return sorted(self.pending, key=lambda job: (job.key, job.submitted, job.position))


class ReferenceSimulator:
    def __init__(self, workload, shape, *, backfill, preemptive, patience=None, closed=False, idle_gpus=None):
        self.closed, self.idle_gpus = closed, idle_gpus
        self.backfill = backfill
        self.patience = patience
        self.preemptive = preemptive
        self.partitions = [Partition(int(n), int(g)) for n, g in zip(shape.nodes, shape.gpus_per_node, strict=True)]
        columns = (workload.submitted_s, workload.run_time_s, workload.gpus, workload.partition)
        self.jobs = [Job(i, *map(int, row)) for i, row in enumerate(zip(*columns, strict=True))]
        for job in self.jobs:
            job.remaining = job.run_time
        self.n_backfilled = 0
        self.ended = []

    def play(self, score=None, again=None, again_s=None):
        """Run to the end; ``score(jobs, now, ended)`` is called before each moment of submission.

        ``again(jobs, now, ended, starts)`` is called of all that waits, with the starts of what runs, before the first
        moment that is ``again_s`` after the last time or the first submission.
        """
        asks_at = None
        arrivals = defaultdict(list)
        for job in self.jobs:
            arrivals[job.submitted].append(job)
        while arrivals or any(p.running for p in self.partitions):
            now = min([*arrivals, *(job.end for p in self.partitions for job in p.running)])
            new = arrivals.pop(now, [])
            touched = set()
            if again and asks_at is not None and now >= asks_at:
                waiting = [job for p in self.partitions for job in p.pending]
                if waiting:
                    starts = [job.start for p in self.partitions for job in p.running]
                    again(sorted(waiting, key=lambda job: job.position), now, list(self.ended), starts)
                touched |= {job.partition for job in waiting}
            if again and (asks_at is None or now >= asks_at):
                asks_at = now + again_s
            if new and score:
                score(new, now, list(self.ended))
            due = [job for p in self.partitions for job in p.running if job.end == now]
            for job in sorted(due, key=lambda job: job.position):
                partition = self.partitions[job.partition]
                partition.running.remove(job)
                partition.vacate(job.holds)
                self.ended.append(job)
                touched.add(job.partition)
            for job in new:
                self.partitions[job.partition].pending.append(job)
                touched.add(job.partition)
            for index in touched:
                self.schedule(self.partitions[index], now)

    def schedule(self, partition, now):
        for job in partition.pending:
            if self.patience and now - job.submitted > self.patience(now):
                job.key = -math.inf
        if self.preemptive:
            self.shortest_remaining(partition, now)
        elif self.backfill == "easy":
            self.easy(partition, now)
        elif self.backfill == "nodes":
            self.by_nodes(partition, now)
        else:
            self.greedy(partition, now)

    def try_start(self, partition, job, now, without=()):
        holds = partition.placement(job.gpus, without)
        if holds is None:
            return False
        partition.occupy(holds)
        partition.pending.remove(job)
        partition.running.append(job)
        job.holds, job.start, job.end = holds, now, now + job.remaining
        if job.first_start is None:
            job.first_start = now
        job.planned_end = now + job.estimate
        return True

    def greedy(self, partition, now):
        blocked = False
        for job in partition.in_order():
            if self.try_start(partition, job, now):
                self.n_backfilled += blocked
            elif self.backfill == "none":
                return
            else:
                blocked = True

    def easy(self, partition, now):
        queue = partition.in_order()
        while queue and self.try_start(partition, queue[0], now):
            queue.pop(0)
        if not queue:
            return
        head, *others = queue
        for job in partition.running:
            estimate = job.planned_end - job.start
            while job.start + estimate <= now:
                estimate += max(1, (3 * estimate) // 10)
            job.planned_end = job.start + estimate
        for shadow in sorted({job.planned_end for job in partition.running}):
            free = sum(partition.free) + sum(j.gpus for j in partition.running if j.planned_end <= shadow)
            if free >= head.gpus:
                break
        extra = free - head.gpus
        for job in others:
            harmless = now + job.estimate <= shadow
            if (harmless or job.gpus <= extra) and self.try_start(partition, job, now):
                self.n_backfilled += 1
                extra -= 0 if harmless else job.gpus

    def by_nodes(self, partition, now):
        queue = partition.in_order()
        while queue and self.try_start(partition, queue[0], now):
            queue.pop(0)
        if not queue:
            return
        head, *others = queue
        promoted = head.key == -math.inf
        shadow, kept = self.reservation(partition, head, now)
        if self.idle_gpus is not None and not promoted:
            while sum(partition.free[node] for node in kept) > self.idle_gpus:
                kept.pop()
        for job in others:
            in_time = now + job.estimate <= shadow and not (promoted and self.closed)
            self.n_backfilled += self.try_start(partition, job, now, without=() if in_time else kept)

    def reservation(self, partition, head, now):
        """Return when the head is expected to be placed, and its nodes in the order in which it takes them."""
        ends = {}
        for job in partition.running:
            end = job.start + job.estimate
            ends.setdefault(end if end > now else now + max(1, (now - job.start) * 3 // 10), []).append(job)
        free_now = list(partition.free)
        for shadow in sorted(ends):
            for job in ends[shadow]:
                partition.vacate(job.holds)
            holds = partition.placement(head.gpus)
            if holds is not None:
                break
        partition.free = free_now
        return shadow, list(holds)

    def shortest_remaining(self, partition, now):
        reached, blocked = (-math.inf, 0), False
        while True:
            ahead = sorted((job.remaining, job.position) for job in partition.pending)
            ahead = [place for place in ahead if place > reached]
            if not ahead:
                return
            reached = ahead[0]
            job = self.jobs[reached[1]]
            if self.try_start(partition, job, now) or self.preempt_for(partition, job, now):
                self.n_backfilled += blocked
            elif self.backfill == "none":
                return
            else:
                blocked = True

    def preempt_for(self, partition, job, now):
        longer = [other for other in partition.running if other.end - now > job.remaining]
        longer.sort(key=lambda other: (other.end, other.position), reverse=True)
        for count, victim in enumerate(longer, 1):
            partition.vacate(victim.holds)
            if partition.placement(job.gpus) is not None:
                for stopped in longer[:count]:
                    stopped.remaining = stopped.end - now
                    partition.running.remove(stopped)
                    partition.pending.append(stopped)
                return self.try_start(partition, job, now)
        for victim in longer:
            partition.occupy(victim.holds)
        return False


def reference_replay(
    workload,
    shape,
    *,
    backfill,
    keys=None,
    estimates=None,
    preemptive=False,
    patience=None,
    closed=False,
    idle_gpus=None,
    score=None,
    again=None,
    again_s=None,
):
    """Return the simulator after it has played.

    ``score`` and ``again`` set ``key`` and ``estimate`` in the timeline; ``patience(now)`` is how long a job may wait.
    """
    simulator = ReferenceSimulator(
        workload,
        shape,
        backfill=str(backfill),
        preemptive=preemptive,
        patience=patience,
        closed=closed,
        idle_gpus=idle_gpus,
    )
    for job in simulator.jobs:
        job.key = float(keys[job.position]) if keys is not None else 0.0
        job.estimate = int(estimates[job.position]) if estimates is not None else 0
    simulator.play(score, again, again_s)
    return simulator
