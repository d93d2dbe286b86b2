"""The published loop of SRTF, second by second where something can change and over the rest in one step.

Waiting and running jobs are kept in the order of the published list. All running jobs come nearer to their end alike,
so that a second in which nobody is stopped or started is followed by others just like it until a job arrives, ends, or
a running job overtakes a waiting one that was elected and did not fit. To overtake any other waiting job changes
nothing: that one was not elected, hence took no GPUs away.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from helios.jit import entry_point, kernel
from helios.simulate.artifact.book import NEVER, Book
from helios.simulate.artifact.floor import Floor, clear, place, vacate

# The artifact's cost of a checkpoint, s: of 1 GPU, of up to 8, of more.
ONE_GPU_S, ONE_NODE_S, SEVERAL_S, ONE_NODE_GPUS = 7, 30, 60, 8


@entry_point
def play_preemptive(book: Book, floor: Floor) -> None:
    """Replay the jobs of the partition at hand, from empty to empty."""
    clear(floor)
    arrived, end, n_gpus = floor.hall[0].first, floor.hall[0].end, floor.hall[0].free_gpus
    n_waiting, n_running, now = 0, 0, _arrival(book, arrived, end)
    while now != NEVER:
        n_running = _end_due(book, floor, n_running, now)
        while arrived < end and book.submitted_s[arrived] == now:
            n_waiting = _insert(book.waiting, n_waiting, book.left_s, arrived)
            arrived += 1
        n_elected, n_kept = _elect(book, n_waiting, n_running, n_gpus, now)
        n_stopped = n_running - n_kept
        n_waiting = _stop(book, floor, n_waiting, n_stopped, now)
        n_started, n_refused = 0, 0
        for place_in_line in range(n_elected):
            job = book.elected[place_in_line]
            if _start(book, floor, job, now):
                n_started += 1
                n_kept = _insert(book.running, n_kept, book.last_s, job)
            else:
                book.refused[n_refused] = job
                n_refused += 1
        n_running = n_kept
        if n_started > 0:
            n_waiting = _without_started(book, n_waiting)
        if n_started > 0 or n_stopped > 0:
            now += 1
        else:
            now = min(_arrival(book, arrived, end), _next_change(book, n_running, n_refused, now))


@kernel
def _end_due(book: Book, floor: Floor, n_running: int, now: int) -> int:
    """End the jobs of which nothing was left a second ago; return how many run on."""
    n_ended = 0
    while n_ended < n_running and book.last_s[book.running[n_ended]] < now:
        book.ended_s[book.running[n_ended]] = now
        vacate(floor, book.running[n_ended])
        n_ended += 1
    if n_ended > 0:
        for place_in_line in range(n_ended, n_running):
            book.running[place_in_line - n_ended] = book.running[place_in_line]
    return n_running - n_ended


@kernel
def _elect(book: Book, n_waiting: int, n_running: int, quota: int, now: int) -> tuple[int, int]:
    """Say who may run: put waiting jobs into ``elected``, and running ones that may not into ``refused``.

    Returns how many waiting jobs are elected, and how many running ones, which stay in ``running``.
    """
    waiter, runner, n_elected, n_kept, n_stopped = 0, 0, 0, 0, 0
    while runner < n_running or (waiter < n_waiting and quota > 0):
        if waiter < n_waiting and quota > 0:
            job = book.waiting[waiter]
            if runner == n_running or book.left_s[job] <= book.last_s[book.running[runner]] - now:
                waiter += 1
                if book.gpus[job] <= quota:
                    quota -= book.gpus[job]
                    book.elected[n_elected] = job
                    n_elected += 1
                continue
        job = book.running[runner]
        runner += 1
        if book.gpus[job] <= quota:
            quota -= book.gpus[job]
            book.running[n_kept] = job
            n_kept += 1
        else:
            book.refused[n_stopped] = job
            n_stopped += 1
    return n_elected, n_kept


@kernel
def _stop(book: Book, floor: Floor, n_waiting: int, n_stopped: int, now: int) -> int:
    """Stop the running jobs that are ``refused``; return how many wait then."""
    for place_in_line in range(n_stopped):
        job = book.refused[place_in_line]
        vacate(floor, job)
        cost_s = SEVERAL_S if book.gpus[job] > ONE_NODE_GPUS else ONE_NODE_S if book.gpus[job] > 1 else ONE_GPU_S
        book.left_s[job] = book.last_s[job] - now + cost_s
        book.stopped_s[job] = now
        book.stops[job] += 1
        book.last_s[job] = NEVER
        n_waiting = _insert(book.waiting, n_waiting, book.left_s, job)
    return n_waiting


@kernel
def _start(book: Book, floor: Floor, job: int, now: int) -> bool:
    if not place(floor, job, book.gpus[job]):
        return False
    if book.stops[job] == 0:
        book.started_s[job], book.queued_s[job] = now, now - book.submitted_s[job]
    else:
        book.queued_s[job] += now - book.stopped_s[job]
    book.last_s[job] = now + book.left_s[job]
    return True


@kernel
def _without_started(book: Book, n_waiting: int) -> int:
    """Drop from the waiting those who run now; return how many are left."""
    n_left = 0
    for place_in_line in range(n_waiting):
        job = book.waiting[place_in_line]
        if book.last_s[job] == NEVER:
            book.waiting[n_left] = job
            n_left += 1
    return n_left


@kernel
def _arrival(book: Book, job: int, end: int) -> int:
    """Return when ``job`` arrives, or NEVER where it is nobody."""
    return NEVER if job == end else int(book.submitted_s[job])


@kernel
def _next_change(book: Book, n_running: int, n_refused: int, now: int) -> int:
    """Return the next second that is not like ``now`` though nobody arrives, or NEVER."""
    soonest = NEVER if n_running == 0 else book.last_s[book.running[0]] + 1
    for place_in_line in range(n_refused):
        left_s = book.left_s[book.refused[place_in_line]]
        next_to_overtake = _first_from(book.running, n_running, book.last_s, now + left_s)
        if next_to_overtake < n_running:
            soonest = min(soonest, book.last_s[book.running[next_to_overtake]] - left_s + 1)
    return soonest


@kernel
def _insert(line: NDArray[np.int64], n: int, keys: NDArray[np.int64], job: int) -> int:
    """Put ``job`` into a line of ``n`` jobs in the order of keys, behind its equals; return how many there are then."""
    behind = _first_from(line, n, keys, keys[job] + 1)
    for place_in_line in range(n, behind, -1):
        line[place_in_line] = line[place_in_line - 1]
    line[behind] = job
    return n + 1


@kernel
def _first_from(line: NDArray[np.int64], n: int, keys: NDArray[np.int64], key: int) -> int:
    """Return the first place in a line of ``n`` jobs whose key is ``key`` or more, or ``n``."""
    low, high = 0, n
    while low < high:
        middle = (low + high) // 2
        if keys[line[middle]] < key:
            low = middle + 1
        else:
            high = middle
    return low
