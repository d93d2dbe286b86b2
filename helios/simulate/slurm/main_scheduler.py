"""Main scheduler, which goes down the queue in order.

It follows ``_schedule`` of Slurm's ``job_scheduler.c`` (22.05). A job that finds its nodes busy closes its partition,
and the nodes of it, to all that come after it in this pass, also to jobs of other partitions that share nodes. A job
that a limit keeps from running closes nothing. The depth counts every record that is reached, closed partition or not.
"""

from __future__ import annotations

from helios.jit import kernel, plain
from helios.simulate.slurm.placement import count_units, pick, units_wanted
from helios.simulate.slurm.priority import update
from helios.simulate.slurm.running import allowed, start
from helios.simulate.slurm.state import ALL, BY_MAIN, NOW, SlurmState

FITS, BUSY, TOO_FEW, HELD = 1, 0, -1, -2
"""Whether a job can start in this pass."""


@kernel
def main_pass(state: SlurmState, full: bool) -> None:
    """Make a pass over the queue.

    A full one goes through all of it, a quick one to ``default_queue_depth``.
    """
    clock = state.clock[0]
    clock.main_passes += 1
    clock.last_pass_ms = clock.now_ms
    _open_all(state)
    closed = _go_down(state, full)
    if full:
        clock.closed = closed
    if closed:
        update(state, clock.now_ms)


@kernel
def _go_down(state: SlurmState, full: bool) -> int:
    """Start the jobs that can start, in the order of the queue.

    Returns 1 if a job met a closed partition or too few open nodes, else 0.
    """
    clock, position, tested, started = state.clock[0], plain(0), 0, 0
    closed = 0
    n_open = len(state.partitions)
    # With a depth for each partition those that come after count too.
    while position < clock.queued and (n_open > 0 or clock.partition_depth > 0):
        choice = state.queue[position]
        home = state.partitions[state.choices[choice].partition]
        if state.jobs[state.choices[choice].job].is_held:
            position += 1
            continue
        if clock.partition_depth > 0:
            home.tested += 1
            if home.tested > clock.partition_depth:
                position += 1
                continue
        if not full and tested > clock.quick_depth:
            return closed
        tested += 1
        if home.failed:
            closed = 1
            position += 1
            continue
        fits = _fits_open(state, choice)
        if fits == FITS:
            pick(state, plain(NOW), choice, clock.words)
            position -= start(state, choice, position, state.choices[choice].limit_min, plain(BY_MAIN))
            started += 1
            if 0 < clock.most_starts <= started:
                return closed
            continue
        if fits != HELD:
            closed = 1 if fits == TOO_FEW else closed
            home.failed = 1
            n_open -= 1
            _close(state, state.choices[choice].partition)
        position += 1
    if position < clock.queued and (full or tested <= clock.quick_depth):
        return 1
    return closed


@kernel
def _open_all(state: SlurmState) -> None:
    words = state.clock[0].words
    for word in range(words):
        state.words[word] = ALL
    for partition in range(len(state.partitions)):
        state.partitions[partition].failed, state.partitions[partition].tested = 0, 0


@kernel
def _close(state: SlurmState, partition: int) -> None:
    words = state.clock[0].words
    for word in range(words):
        state.words[word] &= ~state.part_nodes[partition, word]


@kernel
def _fits_open(state: SlurmState, choice: int) -> int:
    """Return whether a job fits on the open nodes of its partition.

    If not, the value says why. The open nodes are put into the second set of ``state.words``. ``TOO_FEW``: other nodes
    are kept for a job of another partition; that closes the job's own one, as busy nodes do (22.05).
    """
    clock, asked = state.clock[0], state.choices[choice]
    record = state.jobs[asked.job]
    record.held_by_limit = 0 if allowed(state, choice) else 1
    if record.held_by_limit:
        return HELD
    n_open = 0
    for word in range(clock.words):
        bits = state.words[word] & state.part_nodes[asked.partition, word]
        state.words[clock.words + word] = bits
        while bits != 0:
            bits &= bits - 1
            n_open += 1
    if n_open < max(record.nodes, 1):
        return TOO_FEW
    return FITS if count_units(state, plain(NOW), choice, clock.words) >= units_wanted(state, asked.job) else BUSY
