"""How fast the machine of the tests is just now, so that a bound in seconds holds on a slow or loaded one."""

from __future__ import annotations

import time

LOOP_S = 0.014
"""CPU seconds of the loop where the bounds of the tests were chosen, with nothing else running."""


def slowness() -> float:
    """Return how many times as long as there a loop takes here, at least 1.

    Best asked right beside what is measured, so that both meet the same load.
    """
    taken = []
    for _ in range(3):
        began_s = time.process_time()
        counts: dict[int, float] = {}
        for number in range(150_000):
            counts[number % 1_000] = counts.get(number % 997, 0.0) + 1.0
        taken.append(time.process_time() - began_s)
    return max(1.0, min(taken) / LOOP_S)
