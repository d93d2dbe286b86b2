"""Choice of nodes as in Slurm's select plugins.

After ``_eval_nodes_consec`` and ``_eval_nodes_lln`` of Slurm's ``eval_nodes.c`` (22.05 to 23.02). What a job can use of
a node is counted in units: nodes for a job of equal parts, which uses a node or does not, else GPUs, or CPUs where it
asks for no GPU. A job fits where there are enough units, so a test of that need not choose nodes.
"""

from __future__ import annotations

from helios.jit import kernel, plain
from helios.simulate.slurm.workload import NOBODY, NOW, PLAN, WORD, SlurmState


@kernel
def units_on(state: SlurmState, whose: int, choice: int, node: int) -> int:
    """Return how many units of a job fit on a node."""
    asked = state.choices[choice]
    record, free, types = state.jobs[asked.job], state.free[whose, node], state.clock[0].types
    if free.jobs < 0:
        return 0
    whole = record.exclusive or state.partitions[asked.partition].exclusive
    if whole and free.jobs > 0:
        return 0
    gpus = 0
    if record.gpus > 0:
        if record.gpu_type >= 0:
            gpus = state.free_gpus[whose, node * types + record.gpu_type]
        else:
            for kind in range(types):
                gpus += state.free_gpus[whose, node * types + kind]
    if record.nodes > 0:
        fits = free.cpus >= record.cpus and gpus >= record.gpus and _has_memory(state, whose, choice, node, plain(1))
        return 1 if fits else 0
    units = min(gpus, free.cpus * record.gpus // record.cpus) if record.gpus > 0 else free.cpus
    while units > 0 and not _has_memory(state, whose, choice, node, units):
        units = min(units - 1, free.memory // max(asked.memory, 1))
    return int(max(units, 0))


@kernel
def _has_memory(state: SlurmState, whose: int, choice: int, node: int, units: int) -> bool:
    if state.clock[0].holds_memory == 0:
        return True
    wanted = state.choices[choice].memory
    if wanted < 0:
        return bool(state.free[whose, node].memory == state.nodes[node].memory)
    return bool(state.free[whose, node].memory >= wanted * units)


@kernel
def units_wanted(state: SlurmState, job: int) -> int:
    """Return how many units ``job`` needs."""
    record = state.jobs[job]
    if record.nodes > 0:
        return int(record.nodes)
    return int(record.gpus) if record.gpus > 0 else int(record.cpus)


@kernel
def count_units(state: SlurmState, whose: int, choice: int, base: int) -> int:
    """Count the units of ``choice`` on the nodes of a set.

    The set is at ``state.words[base:]``. The units of each node are noted with it.
    """
    total = 0
    for word in range(state.clock[0].words):
        bits, node = state.words[base + word], word * WORD
        while bits != 0:
            if bits & 1:
                units = units_on(state, whose, choice, node)
                state.free[whose, node].units = units
                total += units
            bits >>= 1
            node += 1
    return total


@kernel
def pick(state: SlurmState, whose: int, choice: int, base: int) -> None:
    """Choose the nodes of the set at ``base`` that ``choice`` gets.

    It must fit there. The nodes are put into ``state.picked``.
    """
    state.clock[0].picked = 0
    if state.clock[0].least_loaded:
        _pick_least_loaded(state, whose, choice, base)
    else:
        _pick_runs(state, whose, choice, base)


@kernel
def _pick_runs(state: SlurmState, whose: int, choice: int, base: int) -> None:
    clock, record = state.clock[0], state.jobs[state.choices[choice].job]
    units = units_wanted(state, state.choices[choice].job)
    nodes = record.nodes if record.nodes > 0 else 1
    cpus = record.cpus * max(record.nodes, 1)
    n_runs = _find_runs(state, whose, base, record.cpus)
    while units > 0:
        best = _best_run(state, n_runs, cpus, nodes, units)
        run = state.runs[best]
        single = _single_node(state, whose, base, best, cpus, units) if nodes <= 1 else NOBODY
        if single != NOBODY:
            state.picked[clock.picked] = single
            clock.picked += 1
            return
        node = run.first
        while node <= run.last and units > 0:
            here = state.free[whose, node].units if _is_in(state, base, node) else 0
            if here > 0:
                used = min(here, units)
                state.picked[clock.picked] = node
                clock.picked += 1
                units -= used
                nodes -= 1
                cpus -= cpus_for(state, state.choices[choice].job, used)
            node += 1
        run.nodes = 0


@kernel
def cpus_for(state: SlurmState, job: int, units: int) -> int:
    """Return the CPUs that ``job`` takes for ``units`` units on one node."""
    record = state.jobs[job]
    if record.nodes > 0:
        return int(record.cpus)
    if record.gpus > 0:
        return int((units * record.cpus + record.gpus - 1) // record.gpus)
    return units


@kernel
def _is_in(state: SlurmState, base: int, node: int) -> bool:
    return bool((state.words[base + node // WORD] >> (node % WORD)) & 1)


@kernel
def _find_runs(state: SlurmState, whose: int, base: int, cpus: int) -> int:
    """Find the runs of neighbouring usable nodes of equal weight.

    Of each node no more than ``cpus`` CPUs count, all that the job could use there. Returns the number of runs.
    """
    n_runs, opened = 0, False
    for node in range(len(state.nodes)):
        useful = _is_in(state, base, node) and state.free[whose, node].units > 0
        if opened and (not useful or state.runs[n_runs - 1].weight != state.nodes[node].weight):
            opened = False
        if useful:
            if not opened:
                run = state.runs[n_runs]
                run.first, run.cpus, run.units, run.nodes = node, 0, 0, 0
                run.weight = state.nodes[node].weight
                n_runs += 1
                opened = True
            run = state.runs[n_runs - 1]
            run.last = node
            run.cpus += min(state.free[whose, node].cpus, cpus)
            run.units += state.free[whose, node].units
            run.nodes += 1
    return n_runs


@kernel
def _best_run(state: SlurmState, n_runs: int, cpus: int, nodes: int, units: int) -> int:
    best, best_enough = NOBODY, False
    for number in range(n_runs):
        run = state.runs[number]
        if run.nodes == 0:
            continue
        enough = run.cpus >= cpus and run.nodes >= nodes and run.units >= units
        better = best == NOBODY or run.weight < state.runs[best].weight
        if not better and run.weight == state.runs[best].weight:
            # As it is in Slurm: a larger run that is too small takes the place of one that is enough.
            larger = run.cpus > state.runs[best].cpus
            better = (not best_enough or run.cpus < state.runs[best].cpus) if enough else larger
        if better:
            best, best_enough = number, enough
    return best


@kernel
def _single_node(  # noqa: PLR0917 - numba kernels are called by position
    state: SlurmState, whose: int, base: int, number: int, cpus: int, units: int
) -> int:
    """Return the first node of a sufficient run, or NOBODY.

    Slurm searches for the node with the fewest CPUs for the job, but no node has more than the job asks for (observed
    on 22.05).
    """
    for node in range(state.runs[number].first, state.runs[number].last + 1):
        free = state.free[whose, node]
        if _is_in(state, base, node) and free.units >= units and free.cpus >= cpus:
            return node
    return NOBODY


@kernel
def _pick_least_loaded(state: SlurmState, whose: int, choice: int, base: int) -> None:
    clock, units = state.clock[0], units_wanted(state, state.choices[choice].job)
    while units > 0:
        best = NOBODY
        for node in range(len(state.nodes)):
            if not _is_in(state, base, node) or state.free[whose, node].units == 0:
                continue
            if best == NOBODY or state.nodes[node].weight < state.nodes[best].weight:
                best = node
            elif state.nodes[node].weight == state.nodes[best].weight:
                mine = state.free[whose, node].cpus * state.nodes[best].cpus
                if mine > state.free[whose, best].cpus * state.nodes[node].cpus:
                    best = node
        units -= state.free[whose, best].units
        state.free[whose, best].units = 0
        state.picked[clock.picked] = best
        clock.picked += 1


@kernel
def hold(state: SlurmState, choice: int) -> None:
    """Allocate the picked nodes to the job in ``choice``.

    Where a node has less, as with real running jobs that share what it has, it gives what it has.
    """
    job = state.choices[choice].job
    record, left = state.jobs[job], units_wanted(state, job)
    whole = record.exclusive or state.partitions[state.choices[choice].partition].exclusive
    record.first_share = NOBODY
    for place in range(state.clock[0].picked):
        node = state.picked[place]
        units = min(left, units_on(state, plain(NOW), choice, node))
        left -= units
        free = state.free[NOW, node]
        cpus = free.cpus if whole else min(cpus_for(state, job, units), free.cpus)
        memory = state.choices[choice].memory
        if memory < 0 or whole:
            memory = free.memory
        elif record.nodes == 0:
            memory *= units
        memory = min(memory, free.memory)
        if state.clock[0].holds_memory == 0:
            memory = 0
        gpus = record.gpus if record.nodes > 0 else (units if record.gpus > 0 else 0)
        _hold_on_node(state, job, node, cpus, memory)
        _hold_gpus(state, job, node, gpus, whole)


@kernel
def _hold_on_node(state: SlurmState, job: int, node: int, cpus: int, memory: int) -> None:
    free = state.free[NOW, node]
    free.cpus -= cpus
    free.memory -= memory
    free.jobs += 1
    share = _new_holding(state, job, node)
    state.holdings[share].cpus, state.holdings[share].memory = cpus, memory
    state.holdings[share].whole, state.holdings[share].gpus = 1, 0


@kernel
def _hold_gpus(state: SlurmState, job: int, node: int, gpus: int, whole: bool) -> None:
    types, wanted = state.clock[0].types, state.jobs[job].gpu_type
    for kind in range(types):
        place = node * types + kind
        if whole:
            taken = state.free_gpus[NOW, place]
        elif wanted >= 0 and kind != wanted:
            taken = 0
        else:
            taken = min(gpus, state.free_gpus[NOW, place])
        if taken > 0:
            state.free_gpus[NOW, place] -= taken
            gpus -= taken
            share = _new_holding(state, job, node)
            state.holdings[share].gpus, state.holdings[share].gpu_type = taken, kind
            state.holdings[share].cpus, state.holdings[share].memory, state.holdings[share].whole = 0, 0, 0


@kernel
def _new_holding(state: SlurmState, job: int, node: int) -> int:
    share: int = state.clock[0].free_holding
    state.clock[0].free_holding = state.holdings[share].next
    state.holdings[share].node, state.holdings[share].next = node, state.jobs[job].first_share
    state.jobs[job].first_share = share
    return share


@kernel
def free_job(state: SlurmState, job: int, whose: int) -> None:
    """Free what ``job`` holds.

    In a plan its list of holdings is kept.
    """
    share, types = state.jobs[job].first_share, state.clock[0].types
    while share != NOBODY:
        held = state.holdings[share]
        free = state.free[whose, held.node]
        free.cpus += held.cpus
        free.memory += held.memory
        free.jobs -= held.whole
        if held.gpus > 0:
            state.free_gpus[whose, held.node * types + held.gpu_type] += held.gpus
        following = held.next
        if whose == NOW:
            held.next = state.clock[0].free_holding
            state.clock[0].free_holding = share
        share = following


@kernel
def begin_plan(state: SlurmState, base: int) -> None:
    """Begin a plan with what is free now.

    Only the nodes of the set at ``base`` are copied.
    """
    types = state.clock[0].types
    for word in range(state.clock[0].words):
        bits, node = state.words[base + word], word * WORD
        while bits != 0:
            if bits & 1:
                now, plan = state.free[NOW, node], state.free[PLAN, node]
                plan.cpus, plan.memory, plan.jobs, plan.units = now.cpus, now.memory, now.jobs, now.units
                for kind in range(types):
                    state.free_gpus[PLAN, node * types + kind] = state.free_gpus[NOW, node * types + kind]
            bits >>= 1
            node += 1


@kernel
def free_job_in_plan(state: SlurmState, job: int, choice: int, base: int) -> int:
    """Free in the plan what ``job`` holds.

    Returns how many more units ``choice`` has there. -1: the job holds nothing there.
    """
    share, types, gained, touched = state.jobs[job].first_share, state.clock[0].types, 0, False
    while share != NOBODY:
        held = state.holdings[share]
        if _is_in(state, base, held.node):
            free = state.free[PLAN, held.node]
            free.cpus += held.cpus
            free.memory += held.memory
            free.jobs -= held.whole
            if held.gpus > 0:
                state.free_gpus[PLAN, held.node * types + held.gpu_type] += held.gpus
            touched = True
        share = held.next
    if not touched:
        return -1
    share = state.jobs[job].first_share
    while share != NOBODY:
        held = state.holdings[share]
        if _is_in(state, base, held.node):
            units = units_on(state, plain(PLAN), choice, held.node)
            gained += units - state.free[PLAN, held.node].units
            state.free[PLAN, held.node].units = units
        share = held.next
    return gained


@kernel
def keep_fitting_choices(state: SlurmState) -> None:
    """Drop choices that never fit.

    The others are moved to the front of the job's own choices.
    """
    clock = state.clock[0]
    for job in range(len(state.jobs)):
        record, kept = state.jobs[job], 0
        for choice in range(record.first_choice, record.first_choice + record.choices):
            asked = state.choices[choice]
            for word in range(clock.words):
                state.words[word] = state.part_nodes[asked.partition, word]
            in_time = asked.limit_min <= asked.longest_min
            if in_time and count_units(state, plain(NOW), choice, plain(0)) >= units_wanted(state, job):
                state.choices[record.first_choice + kept] = state.choices[choice]
                kept += 1
        record.choices = kept
