"""Choice of nodes as in Slurm's select plugins.

After ``_eval_nodes_consec`` and ``_eval_nodes_lln`` of Slurm's ``eval_nodes.c`` (22.05 to 23.02).

What a job can use of a node is counted in units. For a job of equal parts a unit is a node. For any other job it is a
GPU, or a CPU where the job asks for no GPU. A job fits where there are enough units, so that a test need not choose
nodes.
"""

from __future__ import annotations

from helios.jit import entry_point, kernel, plain
from helios.simulate.slurm.workload import NOBODY, NOW, PLAN, WORD, SlurmState


@kernel
def units_on(state: SlurmState, free_row: int, choice: int, node: int) -> int:
    """Return how many units of a job fit on a node."""
    row = state.choices[choice]
    record, free, types = state.jobs[row.job], state.free[free_row, node], state.clock[0].types
    if free.jobs < 0:
        return 0
    whole = record.exclusive or state.partitions[row.partition].exclusive
    if whole and free.jobs > 0:
        return 0
    gpus = 0
    if record.gpus > 0:
        if record.gpu_type >= 0:
            gpus = state.free_gpus[free_row, node * types + record.gpu_type]
        else:
            for kind in range(types):
                gpus += state.free_gpus[free_row, node * types + kind]
    if record.nodes > 0:
        fits = free.cpus >= record.cpus and gpus >= record.gpus and _has_memory(state, free_row, choice, node, plain(1))
        return 1 if fits else 0
    units = min(gpus, free.cpus * record.gpus // record.cpus) if record.gpus > 0 else free.cpus
    while units > 0 and not _has_memory(state, free_row, choice, node, units):
        units = min(units - 1, free.memory // max(row.memory, 1))
    return int(max(units, 0))


@kernel
def _has_memory(state: SlurmState, free_row: int, choice: int, node: int, units: int) -> bool:
    if state.clock[0].holds_memory == 0:
        return True
    wanted = state.choices[choice].memory
    if wanted < 0:
        return bool(state.free[free_row, node].memory == state.nodes[node].memory)
    return bool(state.free[free_row, node].memory >= wanted * units)


@kernel
def units_wanted(state: SlurmState, job: int) -> int:
    """Return how many units ``job`` needs."""
    record = state.jobs[job]
    if record.nodes > 0:
        return int(record.nodes)
    return int(record.gpus) if record.gpus > 0 else int(record.cpus)


@kernel
def count_units(state: SlurmState, free_row: int, choice: int, first_word: int) -> int:
    """Count the units of ``choice`` on the nodes of a set.

    The set is at ``state.words[first_word:]``. The units of each node are written to ``state.free``.
    """
    total = 0
    for word in range(state.clock[0].words):
        bits, node = state.words[first_word + word], word * WORD
        while bits != 0:
            if bits & 1:
                units = units_on(state, free_row, choice, node)
                state.free[free_row, node].units = units
                total += units
            bits >>= 1
            node += 1
    return total


@kernel
def pick(state: SlurmState, free_row: int, choice: int, first_word: int) -> None:
    """Pick the nodes of a set that ``choice`` gets, which must fit.

    They are written to ``state.picked``.
    """
    state.clock[0].picked = 0
    if state.clock[0].least_loaded:
        _pick_least_loaded(state, free_row, choice, first_word)
    else:
        _pick_runs(state, free_row, choice, first_word)


@kernel
def _pick_runs(state: SlurmState, free_row: int, choice: int, first_word: int) -> None:
    clock, record = state.clock[0], state.jobs[state.choices[choice].job]
    units = units_wanted(state, state.choices[choice].job)
    nodes = record.nodes if record.nodes > 0 else 1
    cpus = record.cpus * max(record.nodes, 1)
    n_runs = _find_runs(state, free_row, first_word, record.cpus)
    while units > 0:
        best = _best_run(state, n_runs, cpus, nodes, units)
        run = state.runs[best]
        single = _single_node(state, free_row, first_word, best, cpus, units) if nodes <= 1 else NOBODY
        if single != NOBODY:
            state.picked[clock.picked] = single
            clock.picked += 1
            return
        node = run.first
        while node <= run.last and units > 0:
            units_here = state.free[free_row, node].units if _contains(state, first_word, node) else 0
            if units_here > 0:
                units_used = min(units_here, units)
                state.picked[clock.picked] = node
                clock.picked += 1
                units -= units_used
                nodes -= 1
                cpus -= cpus_for(state, state.choices[choice].job, units_used)
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
def _contains(state: SlurmState, first_word: int, node: int) -> bool:
    return bool((state.words[first_word + node // WORD] >> (node % WORD)) & 1)


@kernel
def _find_runs(state: SlurmState, free_row: int, first_word: int, cpus: int) -> int:
    """Find runs of neighbouring nodes of equal weight, and their number.

    At most ``cpus`` CPUs of each node count, as the job cannot use more.
    """
    n_runs, opened = 0, False
    for node in range(len(state.nodes)):
        useful = _contains(state, first_word, node) and state.free[free_row, node].units > 0
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
            run.cpus += min(state.free[free_row, node].cpus, cpus)
            run.units += state.free[free_row, node].units
            run.nodes += 1
    return n_runs


@kernel
def _best_run(state: SlurmState, n_runs: int, cpus: int, nodes: int, units: int) -> int:
    """Return the run of the lowest weight, then the smallest that suffices."""
    best, best_enough = NOBODY, False
    for number in range(n_runs):
        run = state.runs[number]
        if run.nodes == 0:
            continue
        enough = run.cpus >= cpus and run.nodes >= nodes and run.units >= units
        better = best == NOBODY or run.weight < state.runs[best].weight
        if not better and run.weight == state.runs[best].weight:
            # As in Slurm, a larger run that does not suffice replaces one that does.
            larger = run.cpus > state.runs[best].cpus
            better = (not best_enough or run.cpus < state.runs[best].cpus) if enough else larger
        if better:
            best, best_enough = number, enough
    return best


@kernel
def _single_node(  # noqa: PLR0917 - numba kernels are called by position
    state: SlurmState, free_row: int, first_word: int, number: int, cpus: int, units: int
) -> int:
    """Return the first node of a sufficient run, or NOBODY.

    Slurm searches for the node with the fewest CPUs for the job, but no node has more than the job asks for (observed
    on 22.05).
    """
    for node in range(state.runs[number].first, state.runs[number].last + 1):
        free = state.free[free_row, node]
        if _contains(state, first_word, node) and free.units >= units and free.cpus >= cpus:
            return node
    return NOBODY


@kernel
def _pick_least_loaded(state: SlurmState, free_row: int, choice: int, first_word: int) -> None:
    clock, units = state.clock[0], units_wanted(state, state.choices[choice].job)
    while units > 0:
        best = NOBODY
        for node in range(len(state.nodes)):
            if not _contains(state, first_word, node) or state.free[free_row, node].units == 0:
                continue
            if best == NOBODY or state.nodes[node].weight < state.nodes[best].weight:
                best = node
            elif state.nodes[node].weight == state.nodes[best].weight:
                free_share = state.free[free_row, node].cpus * state.nodes[best].cpus
                if free_share > state.free[free_row, best].cpus * state.nodes[node].cpus:
                    best = node
        units -= state.free[free_row, best].units
        state.free[free_row, best].units = 0
        state.picked[clock.picked] = best
        clock.picked += 1


@kernel
def allocate(state: SlurmState, choice: int) -> None:
    """Allocate the picked nodes to the job of ``choice``.

    A node that has too little, as with real running jobs that share its resources, gives what it has.
    """
    job = state.choices[choice].job
    record, left = state.jobs[job], units_wanted(state, job)
    whole = record.exclusive or state.partitions[state.choices[choice].partition].exclusive
    record.first_share = NOBODY
    for i in range(state.clock[0].picked):
        node = state.picked[i]
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
        _allocate_node(state, job, node, cpus, memory)
        _allocate_gpus(state, job, node, gpus, whole)


@kernel
def _allocate_node(state: SlurmState, job: int, node: int, cpus: int, memory: int) -> None:
    free = state.free[NOW, node]
    free.cpus -= cpus
    free.memory -= memory
    free.jobs += 1
    holding = _new_holding(state, job, node)
    state.holdings[holding].cpus, state.holdings[holding].memory = cpus, memory
    state.holdings[holding].whole, state.holdings[holding].gpus = 1, 0


@kernel
def _allocate_gpus(state: SlurmState, job: int, node: int, gpus: int, whole: bool) -> None:
    types, wanted = state.clock[0].types, state.jobs[job].gpu_type
    for kind in range(types):
        index = node * types + kind
        if whole:
            taken = state.free_gpus[NOW, index]
        elif wanted >= 0 and kind != wanted:
            taken = 0
        else:
            taken = min(gpus, state.free_gpus[NOW, index])
        if taken > 0:
            state.free_gpus[NOW, index] -= taken
            gpus -= taken
            holding = _new_holding(state, job, node)
            state.holdings[holding].gpus, state.holdings[holding].gpu_type = taken, kind
            state.holdings[holding].cpus, state.holdings[holding].memory, state.holdings[holding].whole = 0, 0, 0


@kernel
def _new_holding(state: SlurmState, job: int, node: int) -> int:
    holding: int = state.clock[0].free_holding
    state.clock[0].free_holding = state.holdings[holding].next
    state.holdings[holding].node, state.holdings[holding].next = node, state.jobs[job].first_share
    state.jobs[job].first_share = holding
    return holding


@kernel
def release_job(state: SlurmState, job: int) -> None:
    """Free the resources that ``job`` holds."""
    holding, types = state.jobs[job].first_share, state.clock[0].types
    while holding != NOBODY:
        held = state.holdings[holding]
        free = state.free[NOW, held.node]
        free.cpus += held.cpus
        free.memory += held.memory
        free.jobs -= held.whole
        if held.gpus > 0:
            state.free_gpus[NOW, held.node * types + held.gpu_type] += held.gpus
        following = held.next
        held.next = state.clock[0].free_holding
        state.clock[0].free_holding = holding
        holding = following


@kernel
def begin_plan(state: SlurmState, first_word: int) -> None:
    """Begin a plan with the resources free now.

    Only the nodes of the set at ``first_word`` are copied.
    """
    types = state.clock[0].types
    for word in range(state.clock[0].words):
        bits, node = state.words[first_word + word], word * WORD
        while bits != 0:
            if bits & 1:
                now, plan = state.free[NOW, node], state.free[PLAN, node]
                plan.cpus, plan.memory, plan.jobs, plan.units = now.cpus, now.memory, now.jobs, now.units
                for kind in range(types):
                    state.free_gpus[PLAN, node * types + kind] = state.free_gpus[NOW, node * types + kind]
            bits >>= 1
            node += 1


@kernel
def release_in_plan(state: SlurmState, job: int, choice: int, first_word: int) -> int:
    """Free in the plan what ``job`` holds on a set's nodes.

    Returns how many more units ``choice`` then has there. -1: the job holds nothing there.
    """
    holding, types, gained, touched = state.jobs[job].first_share, state.clock[0].types, 0, False
    while holding != NOBODY:
        held = state.holdings[holding]
        if _contains(state, first_word, held.node):
            free = state.free[PLAN, held.node]
            free.cpus += held.cpus
            free.memory += held.memory
            free.jobs -= held.whole
            if held.gpus > 0:
                state.free_gpus[PLAN, held.node * types + held.gpu_type] += held.gpus
            touched = True
        holding = held.next
    if not touched:
        return -1
    holding = state.jobs[job].first_share
    while holding != NOBODY:
        held = state.holdings[holding]
        if _contains(state, first_word, held.node):
            units = units_on(state, plain(PLAN), choice, held.node)
            gained += units - state.free[PLAN, held.node].units
            state.free[PLAN, held.node].units = units
        holding = held.next
    return gained


@entry_point
def drop_unfit_choices(state: SlurmState) -> None:
    """Drop partitions where a job cannot start on an empty cluster."""
    clock = state.clock[0]
    for job in range(len(state.jobs)):
        record, n_kept = state.jobs[job], 0
        for choice in range(record.first_choice, record.first_choice + record.choices):
            row = state.choices[choice]
            for word in range(clock.words):
                state.words[word] = state.part_nodes[row.partition, word]
            in_time = row.limit_min <= row.longest_min
            if in_time and count_units(state, plain(NOW), choice, plain(0)) >= units_wanted(state, job):
                state.choices[record.first_choice + n_kept] = state.choices[choice]
                n_kept += 1
        record.choices = n_kept
