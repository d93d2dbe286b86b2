"""Busy intervals against a second-by-second count."""

from datetime import UTC, datetime
from itertools import product

import numpy as np
import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from helios.metrics.node_usage import BusyIntervals, busy_intervals, most_at_once
from helios.model import JOBS

SPANS = st.lists(st.tuples(st.integers(0, 3), st.integers(-20, 60), st.integers(1, 30)), max_size=25)


def laid(spans: list[tuple[int, int, int]]) -> BusyIntervals:
    node, start, length = (np.array([span[place] for span in spans], dtype=np.int64) for place in range(3))
    return BusyIntervals(names=("a", "b", "c", "d"), node=node, start_s=start, end_s=start + length)


def busy_seconds(spans: BusyIntervals) -> set[tuple[int, int]]:
    return {
        (int(node), second)
        for node, start, end in zip(spans.node, spans.start_s, spans.end_s, strict=True)
        for second in range(start, end)
    }


@given(SPANS)
def test_merging_keeps_every_busy_second_and_leaves_no_two_that_touch(spans: list[tuple[int, int, int]]) -> None:
    merged = laid(spans).merged()
    assert busy_seconds(merged) == busy_seconds(laid(spans))
    for node in range(4):
        mine = merged.node == node
        assert (merged.start_s[mine][1:] > merged.end_s[mine][:-1]).all()


@given(SPANS)
def test_the_most_at_once_is_what_counting_every_second_finds(spans: list[tuple[int, int, int]]) -> None:
    group = np.array([0, 1, 1, -1])
    most = most_at_once(laid(spans).merged(), group=group, n_groups=2, first_s=0, step_s=7, n_steps=8)
    busy = busy_seconds(laid(spans))
    for number, step in product(range(2), range(8)):
        counts = [
            sum((node, second) in busy for node in np.flatnonzero(group == number))
            for second in range(step * 7, step * 7 + 7)
        ]
        assert most[number, step] == max(counts)


def test_a_job_holds_its_nodes_until_its_end_or_until_now() -> None:
    at = [datetime.fromtimestamp(second, UTC) for second in (100, 200, 150)]
    jobs = JOBS.conform(
        pd.DataFrame(
            {
                "job_id": ["1", "2", "3", "4"],
                "submitted_at": pd.to_datetime([at[0]] * 4),
                "started_at": pd.to_datetime([at[0], at[1], None, at[2]]),
                "ended_at": pd.to_datetime([at[1], None, None, at[2]]),
                "node_list": ["gpu[1-2]", "gpu2", "gpu3", "gpu1"],
            }
        )
    )
    spans = busy_intervals(jobs, until_s=260)
    found = {
        (spans.names[node], int(start), int(end))
        for node, start, end in zip(spans.node, spans.start_s, spans.end_s, strict=True)
    }
    assert found == {("gpu1", 100, 200), ("gpu2", 100, 200), ("gpu2", 200, 260)}
