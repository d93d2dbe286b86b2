"""The published loops of FIFO, SJF and QSSF, from event to event.

Between events nothing starts: the head of the queue stays blocked while nobody ends. Under QSSF the order may change
a second after new jobs went by their GPUs, but then the fewest GPUs did not fit, and more GPUs do not fit either.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from helios.jit import entry_point, kernel
from helios.simulate.artifact.book import NEVER, Book
from helios.simulate.artifact.floor import Floor, clear, place, vacate


@entry_point
def play_strict(book: Book, floor: Floor, newcomers_by_size: bool) -> None:
    """Replay the jobs of the partition at hand, from empty to empty."""
    clear(floor)
    end = floor.hall[0].end
    arrived, n_waiting, n_running = floor.hall[0].first, 0, 0
    while arrived < end or n_running > 0:
        now = NEVER if arrived == end else book.submitted_s[arrived]
        if n_running > 0:
            now = min(now, book.ended_s[book.running[0]])
        while n_running > 0 and book.ended_s[book.running[0]] == now:
            vacate(floor, book.running[0])
            n_running = _pull(book.running, n_running, book.ended_s)
        newcomer, nobody_waited = arrived, n_waiting == 0
        while arrived < end and book.submitted_s[arrived] == now:
            arrived += 1
        if newcomers_by_size and nobody_waited:
            while newcomer < arrived and _start(book, floor, book.by_size[newcomer], now):
                n_running = _put(book.running, n_running, book.ended_s, book.by_size[newcomer])
                newcomer += 1
            for late in range(newcomer, arrived):
                n_waiting = _put(book.waiting, n_waiting, book.rank, book.by_size[late])
            continue
        for late in range(newcomer, arrived):
            n_waiting = _put(book.waiting, n_waiting, book.rank, late)
        while n_waiting > 0 and _start(book, floor, book.waiting[0], now):
            n_running = _put(book.running, n_running, book.ended_s, book.waiting[0])
            n_waiting = _pull(book.waiting, n_waiting, book.rank)


@kernel
def _start(book: Book, floor: Floor, job: int, now: int) -> bool:
    if not place(floor, job, book.gpus[job]):
        return False
    book.started_s[job], book.ended_s[job] = now, now + book.run_time_s[job]
    book.queued_s[job] = now - book.submitted_s[job]
    return True


@kernel
def _put(heap: NDArray[np.int64], size: int, keys: NDArray[np.int64], job: int) -> int:
    """Add ``job`` to a heap of ``size`` jobs, the smallest key on top; return its new size."""
    hole = size
    while hole > 0 and keys[heap[(hole - 1) // 2]] > keys[job]:
        heap[hole] = heap[(hole - 1) // 2]
        hole = (hole - 1) // 2
    heap[hole] = job
    return size + 1


@kernel
def _pull(heap: NDArray[np.int64], size: int, keys: NDArray[np.int64]) -> int:
    """Drop the top of a heap of ``size`` jobs; return its new size."""
    size -= 1
    job, hole, child = heap[size], 0, 1
    while child < size:
        if child + 1 < size and keys[heap[child + 1]] < keys[heap[child]]:
            child += 1
        if keys[heap[child]] >= keys[job]:
            break
        heap[hole] = heap[child]
        hole, child = child, 2 * child + 1
    heap[hole] = job
    return size
