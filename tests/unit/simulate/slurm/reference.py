"""The same rules in plain Python, slowly: every tick ticks, every pass is made, everything is looked up anew.

Written from Slurm's source as the compiled engine is, but sharing no code, table or shortcut with it.
"""

import math
from itertools import pairwise

NO_START = None


class Reference:
    """Replays a workload on a site; ``started`` maps positions to s."""

    def __init__(self, workload, site, latency):
        self.w, self.site, self.latency = workload, site, latency
        self.nodes = []
        for group in site.nodes:
            for name in group.names:
                self.nodes.append(
                    {
                        "name": name,
                        "weight": group.weight,
                        "cpus": group.cpus,
                        "memory": group.memory_mib,
                        "gpus": dict(group.gpus),
                    }
                )
        self.members = [
            {number for number, node in enumerate(self.nodes) if node["name"] in rules.nodes}
            for rules in site.partitions
        ]
        self.free = self._all_free()
        self.status = ["future"] * len(workload)
        self.started, self.ended, self.held, self.limit, self.priority = {}, {}, {}, {}, {}
        self.by_backfill, self.planned, self.home = set(), {}, {}
        self.usage = {}
        self.factor = {}

    # Jobs.

    def _get(self, name, job):
        return self.w.column(name)[job]

    def homes(self, job):
        names = [rules.name for rules in self.site.partitions]
        return [names.index(self.w.partitions[code]) for code in self.w.choices(job)]

    def minutes(self, job, home, *, starting):
        rules = self.site.partitions[home]
        most = 365 * 24 * 60 if rules.max_time_s is None else rules.max_time_s // 60
        asked = math.ceil(self._get("time_limit_s", job) / 60)
        if asked:
            return asked if starting else min(asked, most)
        usual = most if rules.default_time_s is None else min(rules.default_time_s // 60, most)
        return usual if starting else most

    def ask(self, job):
        """Return the number of equal parts (0: unequal), and CPUs, GPUs and memory of each, or in all."""
        nodes = int(self._get("nodes", job))
        parts = max(nodes, 1)
        return nodes, *(math.ceil(self._get(name, job) / parts) for name in ("cpus", "gpus", "memory_mib"))

    def wanted(self, job):
        nodes, cpus, gpus, _ = self.ask(job)
        return nodes or gpus or cpus

    def kind(self, job):
        code = int(self._get("gpu_type", job))
        return None if code < 0 else self.w.gpu_types[code]

    def whole(self, job, home):
        rules = self.site.partitions[home]
        return bool(self._get("exclusive", job)) or rules.exclusive or self.site.select == "linear"

    def unit_memory(self, job, home):
        """Return memory of a part or unit; None: all of the node's."""
        nodes, cpus, gpus, _ = self.ask(job)
        units = self.wanted(job)
        total = int(self._get("memory_mib", job))
        if total:
            return math.ceil(total / units)
        rules = self.site.partitions[home]
        spread = 1 if nodes else units
        if rules.def_mem_per_gpu_mib and gpus:
            return math.ceil(rules.def_mem_per_gpu_mib * gpus / spread)
        if rules.def_mem_per_cpu_mib:
            return math.ceil(rules.def_mem_per_cpu_mib * cpus / spread)
        if rules.def_mem_per_node_mib:
            return math.ceil(rules.def_mem_per_node_mib / spread)
        return None

    # Nodes.

    def _all_free(self):
        return [
            {"cpus": node["cpus"], "memory": node["memory"], "gpus": dict(node["gpus"]), "jobs": 0}
            for node in self.nodes
        ]

    def units(self, free, job, home, node):
        nodes, cpus, gpus, _ = self.ask(job)
        has = free[node]
        if self.whole(job, home) and has["jobs"]:
            return 0
        kind = self.kind(job)
        there = sum(has["gpus"].values()) if kind is None else has["gpus"].get(kind, 0)
        most = 1 if nodes else (gpus or cpus)
        for units in range(most, 0, -1):
            wants_cpus = cpus if nodes else (math.ceil(units * cpus / gpus) if gpus else units)
            if gpus and not nodes and units > has["cpus"] * gpus // cpus:
                continue
            wants_gpus = gpus if nodes else (units if gpus else 0)
            if wants_cpus > has["cpus"] or wants_gpus > there:
                continue
            if self.site.holds_memory:
                memory = self.unit_memory(job, home)
                if memory is None and has["memory"] < self.nodes[node]["memory"]:
                    continue
                if memory is not None and memory * units > has["memory"]:
                    continue
            return units
        return 0

    def _unbounded_units(self, free, job, home, node):
        """Units without the bound of what the job wants: what tells runs of nodes apart."""
        nodes, cpus, gpus, _ = self.ask(job)
        if nodes:
            return self.units(free, job, home, node)
        has = free[node]
        if self.whole(job, home) and has["jobs"]:
            return 0
        kind = self.kind(job)
        there = sum(has["gpus"].values()) if kind is None else has["gpus"].get(kind, 0)
        units = min(there, has["cpus"] * gpus // cpus) if gpus else has["cpus"]
        if self.site.holds_memory:
            memory = self.unit_memory(job, home)
            if memory is None:
                units = units if has["memory"] == self.nodes[node]["memory"] else 0
            elif memory > 0:
                units = min(units, has["memory"] // memory)
        return units

    def fits(self, free, job, home, among):
        return sum(self._unbounded_units(free, job, home, node) for node in among) >= self.wanted(job)

    def choose(self, free, job, home, among):
        able = {node: self._unbounded_units(free, job, home, node) for node in sorted(among)}
        able = {node: units for node, units in able.items() if units > 0}
        if self.site.least_loaded:
            return self._least_loaded(free, job, able)
        runs = []
        for node in able:
            last = runs[-1][-1] if runs else None
            if last is None or last != node - 1 or self.nodes[last]["weight"] != self.nodes[node]["weight"]:
                runs.append([])
            runs[-1].append(node)
        nodes, cpus, _, _ = self.ask(job)
        left = {"units": self.wanted(job), "nodes": nodes or 1, "cpus": cpus * max(nodes, 1)}
        chosen = []
        while left["units"] > 0:
            best = self._best(runs, free, able, left, cpus)
            runs.remove(best)
            if left["nodes"] <= 1:
                tight = [n for n in best if able[n] >= left["units"] and free[n]["cpus"] >= left["cpus"]]
                if tight:
                    return [*chosen, tight[0]]
            for node in best:
                if left["units"] <= 0:
                    break
                used = min(able[node], left["units"])
                chosen.append(node)
                left["units"] -= used
                left["nodes"] -= 1
                left["cpus"] -= self.cpus_for(job, used)
        return chosen

    def cpus_for(self, job, units):
        nodes, cpus, gpus, _ = self.ask(job)
        return cpus if nodes else (math.ceil(units * cpus / gpus) if gpus else units)

    def _best(self, runs, free, able, left, most):
        best = None
        for run in runs:
            cpus, units = sum(min(free[n]["cpus"], most) for n in run), sum(able[n] for n in run)
            enough = cpus >= left["cpus"] and len(run) >= left["nodes"] and units >= left["units"]
            mine = (self.nodes[run[0]]["weight"], cpus, enough, run)
            if (
                best is None
                or mine[0] < best[0]
                or (mine[0] == best[0] and (cpus > best[1] if not enough else not best[2] or cpus < best[1]))
            ):
                best = mine
        return best[3]

    def _least_loaded(self, free, job, able):
        chosen, left = [], self.wanted(job)
        while left > 0:
            node = min(able, key=lambda n: (self.nodes[n]["weight"], -free[n]["cpus"] / self.nodes[n]["cpus"], n))
            left -= able.pop(node)
            chosen.append(node)
        return chosen

    def take(self, job, home, chosen):
        nodes, _, gpus, _ = self.ask(job)
        left, held = self.wanted(job), []
        for node in chosen:
            has = self.free[node]
            units = min(left, self._unbounded_units(self.free, job, home, node))
            left -= units
            memory = self.unit_memory(job, home)
            amount = has["memory"] if memory is None else memory * (1 if nodes else units)
            part = {"cpus": self.cpus_for(job, units), "memory": amount if self.site.holds_memory else 0, "gpus": {}}
            need = gpus if nodes else (units if gpus else 0)
            for kind in has["gpus"]:
                if self.kind(job) in (None, kind):
                    part["gpus"][kind] = min(need, has["gpus"][kind])
                    need -= part["gpus"][kind]
            if self.whole(job, home):
                memory = has["memory"] if self.site.holds_memory else 0
                part = {"cpus": has["cpus"], "memory": memory, "gpus": dict(has["gpus"])}
            held.append((node, part))
        self._move(self.free, held, -1)
        self.held[job] = held

    @staticmethod
    def _move(free, held, sign):
        for node, part in held:
            free[node]["cpus"] += sign * part["cpus"]
            free[node]["memory"] += sign * part["memory"]
            free[node]["jobs"] -= sign
            for kind, count in part["gpus"].items():
                free[node]["gpus"][kind] += sign * count

    # Order.

    def fixed(self, job, home):
        rules = self.site.priority
        nodes, cpus, _, _ = self.ask(job)
        parts = max(nodes, 1)
        n_nodes, n_cpus = len(self.nodes), sum(node["cpus"] for node in self.nodes)
        cpus *= parts
        if rules.favor_small:
            size = ((n_nodes - parts) / n_nodes + (n_cpus - cpus) / n_cpus) / 2
        else:
            size = (parts / n_nodes + cpus / n_cpus) / 2
        total = rules.job_size * min(max(size, 0.0), 1.0)
        largest = max(part.priority_job_factor for part in self.site.partitions)
        total += rules.partition * (self.site.partitions[home].priority_job_factor / max(largest, 1))
        qos = self.qos(job)
        if qos is not None:
            total += rules.qos * (qos.priority / max(1, *(other.priority for other in self.site.qos)))
        return total

    def qos(self, job):
        code = int(self._get("qos", job))
        named = {rules.name: rules for rules in self.site.qos}
        return None if code < 0 else named.get(self.w.qos_names[code])

    def weigh(self, job):
        """Return the priority of the job in each of its partitions now."""
        rules = self.site.priority
        if not rules.multifactor:
            return [2**32 - 1 - job] * len(self.homes(job))
        age_s = self.now // 1000 - max(round(self._get("eligible_s", job) * 1000), self.submitted(job)) // 1000
        most = math.ceil(rules.max_age_s / 60) * 60
        own = rules.age * (min(age_s / most, 1.0) if age_s > 0 else 0.0)
        return [
            int(min(max(own + self.fixed(job, home) + self.site_factor(job) - self._get("nice", job), 1), 2**32 - 1))
            for home in self.homes(job)
        ]

    def site_factor(self, job):
        return int(self._get("site_factor", job))

    def submitted(self, job):
        return round(self._get("submitted_s", job) * 1000)

    def queue(self):
        """Return (job, home) of all that waits, first first."""
        rows = []
        for job in range(len(self.w)):
            if self.status[job] == "pending":
                for home, priority in zip(self.homes(job), self.priority[job], strict=True):
                    if self.startable(job, home):
                        tier = self.site.partitions[home].priority_tier
                        rows.append((-tier, -priority, self.submitted(job) // 1000, job, home))
        ranked = sorted(rows, key=lambda row: (*row[:4], self.homes(row[3]).index(row[4])))
        return [(row[3], row[4]) for row in ranked]

    def startable(self, job, home):
        rules = self.site.partitions[home]
        if rules.max_time_s is not None and self.minutes(job, home, starting=True) > max(rules.max_time_s // 60, 1):
            return False
        return self.fits(self._all_free(), job, home, self.members[home])

    # Limits.

    def allowed(self, job, home):
        named = {rules.name: rules for rules in self.site.qos}
        own, part = self.qos(job), named.get(self.site.partitions[home].qos)
        nodes, _, gpus, _ = self.ask(job)
        gpus *= max(nodes, 1)
        user = self._get("user", job)
        for limit, mine, everybody in (
            ("max_jobs_per_user", 1, False),
            ("max_gpus_per_user", gpus, False),
            ("max_gpus", gpus, True),
        ):
            ruling = next((q for q in (part, own) if q is not None and getattr(q, limit) is not None), None)
            if ruling is None or mine == 0:
                continue
            held = 0
            for other in self.held:
                charged = (self.qos(other), named.get(self.site.partitions[self.home[other]].qos))
                if ruling in charged and (everybody or self._get("user", other) == user):
                    parts, _, has, _ = self.ask(other)
                    held += 1 if limit == "max_jobs_per_user" else has * max(parts, 1)
            if held + mine > getattr(ruling, limit):
                return False
        return True

    # Passes.

    def start(self, job, home, chosen, limit_min, *, backfill=False):
        self.home[job] = home
        self.take(job, home, chosen)
        self.status[job] = "running"
        self.started[job] = self.now
        run = round(self._get("run_time_s", job) * 1000)
        if limit_min < 365 * 24 * 60:
            run = min(run, limit_min * 60_000)
        self.ended[job] = self.now + run
        self.limit[job] = self.now // 1000 + limit_min * 60
        if backfill:
            self.by_backfill.add(job)
        task = self.next_task(job)
        if task is not None:
            self.status[task] = "pending"
            self.priority[task] = self.priority[job]
        self.change()

    def next_task(self, job):
        array = self._get("array", job)
        for other in range(job + 1, len(self.w)):
            if array >= 0 and self._get("array", other) == array:
                return other
        return None

    def main_pass(self, *, full):
        rules = self.site.scheduling
        open_nodes, failed, tested = set(range(len(self.nodes))), set(), 0
        looked = {}
        left = self.queue()
        while left:
            job, home = left.pop(0)
            if self.status[job] != "pending":
                continue
            if rules.partition_job_depth:
                looked[home] = looked.get(home, 0) + 1
                if looked[home] > rules.partition_job_depth:
                    continue
            if not full and tested > rules.default_queue_depth:
                return
            tested += 1
            if home in failed:
                self.update(self.now)
            if home in failed or not self.allowed(job, home):
                continue
            among = open_nodes & self.members[home]
            enough = len(among) >= max(int(self._get("nodes", job)), 1)
            if not enough:
                self.update(self.now)
            if enough and self.fits(self.free, job, home, among):
                chosen = self.choose(self.free, job, home, among)
                self.start(job, home, chosen, self.minutes(job, home, starting=True))
                task = self.next_task(job)
                if task is not None:
                    left = [(task, home), *((task if one == job else one, two) for one, two in left)]
            else:
                failed.add(home)
                open_nodes -= self.members[home]

    def backfill_pass(self):
        rules = self.site.scheduling
        now = self.now // 1000
        step = rules.bf_resolution_s
        self.slots = [[now // step * step, (now + rules.bf_window_s) // step * step, set(range(len(self.nodes)))]]
        counts, tested, started, cuts = {}, 0, 0, 1
        most_cuts = rules.bf_node_space_size or rules.bf_max_job_test
        left, plans = self.queue(), 0
        while left and tested < rules.bf_max_job_test and cuts < most_cuts + 1:
            job, home = left.pop(0)
            if self.status[job] != "pending" or not self.allowed(job, home):
                plans = 0
                continue
            user = ("user", self._get("user", job))
            if (rules.bf_max_job_part and counts.get(home, 0) >= rules.bf_max_job_part) or (
                rules.bf_max_job_user and counts.get(user, 0) >= rules.bf_max_job_user
            ):
                plans = 0
                continue
            counts[home], counts[user] = counts.get(home, 0) + 1, counts.get(user, 0) + 1
            least = math.ceil(self._get("time_min_s", job) / 60)
            plan_min = self.minutes(job, home, starting=False)
            lasts = (least if 0 < least < plan_min else plan_min) * 60
            begin, chosen, tried = self.plan(job, home, lasts, now)
            tested += tried
            if begin == now:
                limit = self.start_limit(job, home, now, chosen, least)
                self.start(job, home, chosen, limit, backfill=True)
                started += 1
                plans = 0
                if rules.bf_max_job_start and started >= rules.bf_max_job_start:
                    return
                task = self.next_task(job)
                if task is not None:
                    left = [(task, home), *((task if one == job else one, two) for one, two in left)]
                continue
            if begin is not NO_START:
                cuts += self.reserve(begin // step * step, (begin + lasts) // step * step, set(chosen))
                self.planned_idle |= any(self.free[node]["jobs"] == 0 for node in chosen)
                self.planned.setdefault(self.passes, {}).setdefault(job, []).append((begin, lasts, set(chosen)))
                plans += 1
                tasks = 1
                task = self.next_task(job)
                while task is not None and tasks < rules.bf_max_job_array_resv:
                    tasks, task = tasks + 1, self.next_task(task)
                if plans < tasks:
                    left.insert(0, (job, home))
                    continue
            plans = 0

    def start_limit(self, job, home, now, chosen, least):
        limit = self.minutes(job, home, starting=True)
        if least == 0 or least >= limit or self.site.scheduling.time_min_is_soft:
            return limit
        for begin, _, nodes in self.slots:
            if begin != now and begin < now + limit * 60 and not set(chosen) <= nodes:
                limit = min(limit, (begin - now) // 60)
        return max(limit, least)

    def plan(self, job, home, lasts, now):
        """Return the planned start, its nodes, and whether it was tried."""
        later, tried = now, False
        rules = self.site.scheduling
        step = rules.bf_resolution_s
        while True:
            since = later
            among, later = self.unreserved(home, since, max(since, now) + lasts)
            begin, chosen = NO_START, []
            if len(among) >= max(int(self._get("nodes", job)), 1):
                tried = True
                begin, chosen = self.will_run(job, home, among, now)
            if begin is NO_START:
                if later is None:
                    return NO_START, [], tried
                continue
            self.pushed |= begin < since
            begin = max(begin, since)
            if begin <= now:
                return now, chosen, tried
            if later is not None and begin > later:
                continue
            if begin > now + rules.bf_window_s:
                return NO_START, [], tried
            first, last = begin // step * step, (begin + lasts) // step * step
            clash = any(end > first and start < last and not set(chosen) <= nodes for start, end, nodes in self.slots)
            if clash:
                later = begin
                continue
            return begin, chosen, tried

    def unreserved(self, home, since, until):
        """Return the nodes that nobody has reserved in that time, and when to try next."""
        among, later = set(self.members[home]), None
        for place, (begin, end, nodes) in enumerate(self.slots):
            if end <= since:
                continue
            following = self.slots[place + 1] if place + 1 < len(self.slots) else None
            if following and later is None and (self.members[home] & following[2]) - (among & nodes):
                later = end
            if begin > until:
                break
            among &= nodes
        return among, later

    def expected(self, job):
        least = math.ceil(self._get("time_min_s", job) / 60)
        if not self.site.scheduling.time_min_is_soft or least == 0:
            return self.limit[job]
        now, soft = self.now // 1000, self.started[job] // 1000 + least * 60
        if soft < now and soft < self.limit[job]:
            return now + max(self.limit[job] - now, 0) // 2
        return min(soft, self.limit[job])

    def outruns(self, job):
        """Say whether a running job has outlasted its soft limit: its expected end moves with the clock."""
        least = math.ceil(self._get("time_min_s", job) / 60)
        soft = self.started[job] // 1000 + least * 60
        is_soft = self.site.scheduling.time_min_is_soft and least > 0
        return is_soft and soft < self.now // 1000 and soft < self.limit[job]

    def will_run(self, job, home, among, now):
        if self.fits(self.free, job, home, among):
            return now, self.choose(self.free, job, home, among)
        free = [
            {"cpus": n["cpus"], "memory": n["memory"], "gpus": dict(n["gpus"]), "jobs": n["jobs"]} for n in self.free
        ]
        running = sorted(self.held, key=lambda other: (self.expected(other), other))
        window, since, group = 30, None, []
        for place, other in enumerate(running):
            held = [(node, part) for node, part in self.held[other] if node in among]
            if not held:
                continue
            self._move(free, held, 1)
            group.append(other)
            if since is None:
                since = self.expected(other) + 30 - self.expected(other) % 30
            following = running[place + 1] if place + 1 < len(running) else None
            if following is not None and self.expected(following) <= since + window:
                continue
            window *= 2
            while following is not None and self.expected(following) > since + window:
                window *= 2
            if self.fits(free, job, home, among):
                end = self.expected(group[-1])
                begin = end if end > now else max(end + 30, now + 1)
                return begin, self.choose(free, job, home, among)
            group = []
        if group and self.fits(free, job, home, among):
            end = self.expected(group[-1])
            return (end if end > now else max(end + 30, now + 1)), self.choose(free, job, home, among)
        return NO_START, []

    def reserve(self, first, last, chosen):
        """Take nodes out of the slots of a time; return how many slots that made more of."""
        first = max(first, self.slots[0][0])
        last = max(last, first + self.site.scheduling.bf_resolution_s)
        cuts, out, inside = 0, [], False
        for begin, end, nodes in self.slots:
            edges = [begin, *(at for at in (first, last) if begin < at < end), end]
            cuts += len(edges) - 2
            for one, two in pairwise(edges):
                inside = one >= first and two <= last
                out.append([one, two, nodes - chosen if inside else set(nodes)])
        self.slots = out
        before = max([n for n, slot in enumerate(out) if slot[1] <= first], default=0)
        for place in range(before, len(out) - 1):
            if out[place][0] > last:
                break
            if out[place][2] == out[place + 1][2]:
                out[place][1] = out[place + 1][1]
                del out[place + 1]
                break
        return cuts

    # Time.

    def run(self, *, most_s=50_000):
        rules, lat = self.site.scheduling, self.latency
        begin, boot = int(self._get("submitted_s", 0)) * 1000, round(lat.controller_started_s * 1000)
        self.tick, self.release = round(lat.tick_s * 1000), round(lat.release_s * 1000)
        self.last_full = self.last_background = self.next_tick = boot + round(lat.loop_phase_s * 1000)
        self.asked = self.pass_due = self.changed = False
        self.pushed = self.planned_idle = False
        self.updated = self.pass_end = boot
        self.spent_us = 0
        self.wake = boot + rules.bf_interval_s * 1000
        self.calc = math.ceil(self.site.priority.calc_period_s / 60) * 60_000
        self.next_calc = self.last_full + self.calc
        jobs = range(len(self.w))
        self.enters = [max(round(self._get("eligible_s", job) * 1000), self.submitted(job)) for job in jobs]
        self.now, self.passes = boot - 1, 0
        while len(self.started) < len(self.w) or self.held:
            frees = [self.ended[job] + self.release for job in self.held]
            enters = [self.enters[job] for job in jobs if self.status[job] == "future"]
            self.now = min([*frees, *enters, self.next_tick, self.wake, self.next_calc])
            if self.now > begin + most_s * 1000:
                break
            self.let_end()
            self.let_enter()
            if self.now == self.next_calc:
                self.make_priorities()
            if self.now == self.next_tick:
                self.look()
            if self.pass_due and rules.sched_interval_s >= 0:
                self.pass_due = False
                self.main_pass(full=False)
            if self.now == self.wake:
                self.wake_backfill()
        return {job: at / 1000 for job, at in self.started.items()}

    def let_end(self):
        for job in [job for job in self.held if self.ended[job] + self.release <= self.now]:
            self._move(self.free, self.held.pop(job), 1)
            self.status[job] = "ended"
            self.change()
            if self.site.scheduling.epilog and not self.site.scheduling.defer:
                self.pass_due = True
            else:
                self.asked = True

    def let_enter(self):
        for job in range(len(self.w)):
            if self.status[job] != "future" or self.enters[job] > self.now:
                continue
            if self.is_later_task(job):
                self.status[job] = "task"
                continue
            self.status[job] = "pending"
            self.priority[job] = self.weigh(job)
            self.changed = True
            if self._get("eligible_s", job) <= self._get("submitted_s", job):
                self.asked = True
                self.change()

    def make_priorities(self):
        self.next_calc += self.calc
        if not self.site.priority.multifactor:
            return
        before = self.queue()
        for job in range(len(self.w)):
            if self.status[job] == "pending":
                self.priority[job] = self.weigh(job)
                self.update(self.now)
        self.changed |= self.queue() != before

    def change(self):
        self.changed = True
        self.update(self.now)

    def update(self, at):
        self.updated = max(at, self.pass_end)

    def look(self):
        """Do what the background loop does at each of its ticks."""
        rules, now = self.site.scheduling, self.now // 1000
        self.next_tick += self.tick
        full = rules.sched_interval_s > 0 and now - self.last_full // 1000 >= rules.sched_interval_s
        quick = self.asked and now - self.last_background // 1000 >= rules.batch_sched_delay_s
        if rules.sched_interval_s < 0 or not (full or quick):
            return
        self.last_background, self.asked, self.pass_due = self.now, False, False
        if full:
            self.last_full = self.now
        self.main_pass(full=full)

    def wake_backfill(self):
        rules = self.site.scheduling
        if not rules.backfill or rules.bf_interval_s <= 0 or self.updated // 1000 < self.pass_end // 1000:
            self.wake += round(self.latency.poll_s * 1000)
            return
        if self.planned_idle:
            self.update(self.now)
        records, known = len(self.queue()), (self.pushed, self.planned_idle)
        self.pushed = self.planned_idle = False
        if records:
            outrun = any(self.outruns(job) for job in self.held)
            news, self.changed = self.changed or outrun, outrun
            self.passes += 1
            self.backfill_pass()
            if not news:  # by definition it does to jobs and nodes what the one before did
                self.pushed, self.planned_idle = known
        if self.pushed:
            self.update(self.now)
        each_us = round(self.latency.backfill_job_s * 1e6) * min(records, rules.bf_max_job_test)
        self.spent_us += round(self.latency.backfill_s * 1e6) + each_us
        self.pass_end, self.spent_us = self.now + self.spent_us // 1000, self.spent_us % 1000
        if self.planned_idle:
            self.update(self.pass_end)
        self.wake = self.pass_end + rules.bf_interval_s * 1000

    def is_later_task(self, job):
        array = self._get("array", job)
        return array >= 0 and any(self._get("array", other) == array for other in range(job))
