"""Nodes that sleep, once more, written to be read: second by second, lists and sorting, no code shared with the core.

Only first in, first out; what is computed is described in ``helios.simulate``.
"""

from collections import Counter
from dataclasses import dataclass, field

ORDER = {"awake": 0, "waking": 1, "asleep": 2}
MASK = 2**64 - 1


@dataclass
class Node:
    number: int
    size: int
    power: str = "awake"
    free: int = 0
    weight: int = 1
    until: int | None = None
    idle_since: int = 0
    kept: bool = False


@dataclass
class Job:
    position: int
    submitted: int
    run_time: int
    gpus: int
    partition: int
    estimate: int
    given: int | None = None
    start: int | None = None
    end: int | None = None
    planned_end: int = 0
    holds: dict = field(default_factory=dict)


def drawn(seed, job, number):
    mixed = seed * 0x9E3779B97F4A7C15 & MASK
    for part in (job, number):
        mixed = mixed + part + 0x9E3779B97F4A7C15 & MASK
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & MASK
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & MASK
        mixed ^= mixed >> 31
    return mixed >> 1


class Sleepers:
    """One cluster; ``seconds`` counts node seconds by state, ``holding`` the nodes with a job, a list by seconds."""

    def __init__(self, workload, shape, estimates, *, backfill, placement, seed, boot, shutdown, timer, rules=()):
        self.backfill, self.placement, self.seed = backfill, placement, seed
        self.boot, self.shutdown, self.timer = boot, shutdown, timer
        self.nodes, self.pending, self.running = [], [], []
        for n, gpus in zip(shape.nodes.tolist(), shape.gpus_per_node.tolist(), strict=True):
            self.nodes.append([Node(number, gpus, free=gpus, idle_since=-1) for number in range(n)])
            self.pending.append([])
            self.running.append([])
        columns = (workload.submitted_s, workload.run_time_s, workload.gpus, workload.partition, estimates)
        self.jobs = [Job(i, *map(int, row)) for i, row in enumerate(zip(*columns, strict=True))]
        self.seconds = [Counter() for _ in self.nodes]
        self.holding = [[] for _ in self.nodes]
        self.touched = set()
        self.sleeps = self.wakes = 0
        self.rules, self.check_due = rules, False
        self.woke_for_job = [False for _ in self.nodes]
        self.most = [[] for _ in self.nodes]  # the most nodes with a job at once between two checks
        self.most_now = [0 for _ in self.nodes]  # since the last check

    def play(self, commands, until):
        """Run for the seconds 0 to ``until``; ``commands`` are (second, callable(self, now))."""
        for now in range(until):
            self.check_due = bool(self.rules) and self.is_check(now)
            arrivals = [job for job in self.jobs if job.submitted == now]
            asked = [command for second, command in commands if second == now]
            while self.change(now) | self.arrive(arrivals) | bool(asked):
                for command in asked:
                    command(self, now)
                arrivals, asked = [], []
                self.passes(now)
            self.passes(now)
            for partition, nodes in enumerate(self.nodes):
                for node in nodes:
                    held = node.size - node.free
                    self.seconds[partition]["busy" if node.power == "awake" and held else node.power] += 1
                    self.seconds[partition]["gpus"] += held if node.power == "awake" else 0
                    assert held == 0 or node.power in ("awake", "waking"), "a job holds a node that sleeps"
                self.holding[partition].append(sum(node.free < node.size for node in nodes))

    def change(self, now):
        changed = False
        for partition, nodes in enumerate(self.nodes):
            for node in nodes:
                if node.power == "waking" and node.until == now:
                    node.power, node.idle_since, changed = "awake", now, True
                if node.power == "falling" and node.until == now:
                    node.power, changed = "asleep", True
                    self.touched.add(partition)
            for job in [job for job in self.running[partition] if job.end == now]:
                self.running[partition].remove(job)
                for node, gpus in job.holds.items():
                    nodes[node].free += gpus
                    nodes[node].idle_since = now
                self.touched.add(partition)
                changed = True
        return changed

    def arrive(self, jobs):
        for job in jobs:
            self.pending[job.partition].append(job)
            self.touched.add(job.partition)
        return bool(jobs)

    def passes(self, now):
        for partition in self.touched:
            self.schedule(partition, now)
        self.touched = set()
        for nodes in self.nodes:
            for node in nodes:
                idle = node.power == "awake" and node.free == node.size and not node.kept
                if idle and self.timer is not None and now - node.idle_since >= self.timer:
                    self.fall(node, now)
        if self.check_due:
            self.check_due = False
            for partition, rule in enumerate(self.rules):
                self.check(partition, rule, now)

    def is_check(self, now):
        """Return whether the rules are checked, which they are while anything else may happen."""
        if now % self.rules[0].every_s or now < self.jobs[0].submitted:
            return False
        nodes = [node for nodes in self.nodes for node in nodes]
        idle = any(node.power == "awake" and node.free == node.size and not node.kept for node in nodes)
        moves = any(node.power in ("waking", "falling") for node in nodes)
        arrives = any(job.submitted >= now for job in self.jobs)
        return arrives or any(self.running) or moves or (idle and self.timer is not None)

    def in_use(self, partition):
        return sum(node.free < node.size for node in self.nodes[partition])

    def check(self, partition, rule, now):
        nodes, busy = self.nodes[partition], self.in_use(partition)
        self.most[partition].append(self.most_now[partition])
        memory = rule.memory_s // rule.every_s
        peak = max([busy, *(self.most[partition][-memory:] if memory else [])])
        powered = sum(node.power in ("awake", "waking") for node in nodes)
        least, most = (min(len(nodes), used + rule.spare) for used in (busy, peak))
        if not rule.counts_use:
            least, most = 0, max(busy, rule.spare)
        if rule.wakes == "never" or (rule.wakes == "short" and not self.woke_for_job[partition]):
            least = 0
        self.woke_for_job[partition] = False
        self.most_now[partition] = busy
        asleep = sorted((node for node in nodes if node.power == "asleep"), key=lambda node: (node.weight, node.number))
        for node in asleep[: max(least - powered, 0)]:
            self.wake(node, now)
        idle = [node for node in nodes if node.power == "awake" and node.free == node.size and not node.kept]
        idle = [node for node in idle if now - node.idle_since >= rule.least_idle_s]
        for node in sorted(idle, key=lambda node: (node.idle_since, -node.number))[: max(powered - most, 0)]:
            self.fall(node, now)

    def fall(self, node, now):
        assert node.power == "awake" and node.free == node.size
        node.power, node.until = "falling", now + self.shutdown
        self.sleeps += 1

    def wake(self, node, now):
        assert node.power == "asleep"
        node.power, node.until = "waking", now + self.boot
        self.wakes += 1

    def choice(self, partition, job, number, *, least, taken, powers, without=()):
        fits = [
            node
            for node in self.nodes[partition]
            if node.power in powers and node.free >= least and node.number not in (*taken, *without)
        ]
        if not fits:
            return None
        first = min((ORDER[node.power], node.weight) for node in fits)
        alike = [node for node in fits if (ORDER[node.power], node.weight) == first]
        if self.placement == "random":
            alike.sort(key=lambda node: (node.free, node.number))
            return alike[drawn(self.seed, job.position, number) % len(alike)]
        sign = {"packed": 1, "spread": -1, "weighted": 0}[self.placement]
        return min(alike, key=lambda node: (sign * node.free, node.number))

    def room_for(self, partition, job, powers=tuple(ORDER), without=()):
        """Return {node: gpus} or None."""
        full, holds = self.nodes[partition][0].size, {}
        whole, rest = divmod(job.gpus, full)
        for number, least in [*((cycle, full) for cycle in range(whole)), *([(full, rest)] if rest else [])]:
            node = self.choice(partition, job, number, least=least, taken=holds, powers=powers, without=without)
            if node is None:
                return None
            holds[node.number] = least
        return holds

    def try_start(self, partition, job, now, without=()):
        holds = self.room_for(partition, job, without=without)
        if holds is None:
            return False
        job.holds, job.given, job.start = holds, now, now
        for number, gpus in holds.items():
            node = self.nodes[partition][number]
            node.free -= gpus
            self.most_now[partition] = max(self.most_now[partition], self.in_use(partition))
            if node.power == "asleep":
                self.wake(node, now)
                self.woke_for_job[partition] = True
            if node.power == "waking":
                job.start = max(job.start, node.until)
        job.end, job.planned_end = job.start + job.run_time, job.start + job.estimate
        self.pending[partition].remove(job)
        self.running[partition].append(job)
        return True

    def schedule(self, partition, now):
        queue = list(self.pending[partition])
        while queue and self.try_start(partition, queue[0], now):
            queue.pop(0)
        if not queue or self.backfill == "none":
            return
        if self.backfill == "skip":
            for job in queue[1:]:
                self.try_start(partition, job, now)
        elif self.backfill == "nodes":
            self.by_nodes(partition, queue, now)
        else:
            self.easy(partition, queue, now)

    def by_nodes(self, partition, queue, now):
        head, *others = queue
        shadow, kept = self.reservation(partition, head, now)
        for job in others:
            delay = 0 if self.room_for(partition, job, ("awake",)) else self.boot
            in_time = now + delay + job.estimate <= shadow
            self.try_start(partition, job, now, without=() if in_time else kept)

    def reservation(self, partition, head, now):
        nodes, releases = self.nodes[partition], {}
        for job in self.running[partition]:
            end = job.start + job.estimate
            releases.setdefault(end if end > now else now + max(1, (now - job.start) * 3 // 10), []).append(job)
        for node in nodes:
            if node.power == "falling":
                releases.setdefault(node.until, []).append(node)
        as_it_is = [(node.free, node.power) for node in nodes]
        for shadow in sorted(releases):
            for released in releases[shadow]:
                if isinstance(released, Node):
                    released.power = "asleep"
                else:
                    for number, gpus in released.holds.items():
                        nodes[number].free += gpus
            holds = self.room_for(partition, head)
            if holds is not None:
                break
        for node, (free, power) in zip(nodes, as_it_is, strict=True):
            node.free, node.power = free, power
        return shadow, list(holds)

    def easy(self, partition, queue, now):
        head, *others = queue
        for job in self.running[partition]:
            estimate = job.planned_end - job.start
            while job.start + estimate <= now:
                estimate += max(1, (3 * estimate) // 10)
            job.planned_end = job.start + estimate
        nodes = self.nodes[partition]
        gains = [(job.planned_end, job.gpus) for job in self.running[partition]]
        gains += [(node.until, node.size) for node in nodes if node.power == "falling"]
        for shadow in sorted({when for when, _ in gains}):
            free = sum(node.free for node in nodes if node.power != "falling")
            free += sum(gpus for when, gpus in gains if when <= shadow)
            if free >= head.gpus:
                break
        extra = free - head.gpus
        for job in others:
            delay = 0 if self.room_for(partition, job, ("awake",)) else self.boot
            harmless = now + delay + job.estimate <= shadow
            if harmless or job.gpus <= extra:
                started = self.try_start(partition, job, now)
                extra -= job.gpus if started and not harmless else 0
