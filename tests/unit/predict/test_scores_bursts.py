from math import ceil, sqrt

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from helios.predict.job_table import JobTable, job_groups
from helios.predict.scores import BURST_GAP_S, KEPT, without_repeats
from tests.unit.predict.traces_of import a_trace

HOUR = 3600


def kept(*rows):
    table = JobTable.from_frame(a_trace(*rows))
    return without_repeats(np.arange(table.n), groups=job_groups(table), submitted_s=table.submitted_s)


def test_of_a_burst_of_a_hundred_twenty_jobs_are_kept():
    chosen = kept(*({"submit": 60 * n} for n in range(100)))
    assert list(chosen) == list(range(4, 100, 5))


def test_jobs_further_apart_than_a_burst_are_all_kept():
    assert len(kept(*({"submit": 7 * HOUR * n} for n in range(30)))) == 30


def test_another_size_is_another_burst():
    alike = kept(*({"submit": n} for n in range(64)))
    two_sizes = kept(*({"submit": n, "gpus": 1 + n % 2} for n in range(64)))
    assert (len(alike), len(two_sizes)) == (16, 24)


def test_of_strangers_only_what_comes_at_once_is_a_burst():
    assert len(kept(*({"submit": 600 * n, "user": None} for n in range(100)))) == 20
    assert len(kept(*({"submit": 601 * n, "user": None} for n in range(100)))) == 100


def test_nothing_to_learn_from_stays_nothing():
    table = JobTable.from_frame(a_trace({}))
    rows = np.array([], dtype=np.int64)
    assert len(without_repeats(rows, groups=job_groups(table), submitted_s=table.submitted_s)) == 0


def counted_one_by_one(rows, table):
    """How many jobs of each burst there are, by walking through them."""
    size_of, last, number = {}, {}, {}
    for row in sorted(rows, key=lambda row: table.submitted_s[row]):
        key = (table.user[row], table.gpus[row])
        if key not in last or table.submitted_s[row] - last[key] > BURST_GAP_S:
            number[key] = number.get(key, 0) + 1
        last[key] = table.submitted_s[row]
        size_of.setdefault((*key, number[key]), []).append(row)
    return size_of


@given(
    st.lists(
        st.tuples(st.sampled_from([0, 60, 5 * HOUR, 7 * HOUR]), st.sampled_from("ab"), st.sampled_from([1, 8])),
        min_size=1,
        max_size=40,
    ),
    st.randoms(use_true_random=False),
)
def test_jobs_kept_of_bursts_are_those_of_a_plain_count(jobs, shuffled):
    moments = np.cumsum([gap for gap, _, _ in jobs])
    table = JobTable.from_frame(
        a_trace(*({"submit": int(s), "user": u, "gpus": g} for s, (_, u, g) in zip(moments, jobs, strict=True)))
    )
    rows = list(range(table.n))
    shuffled.shuffle(rows)
    chosen = without_repeats(np.array(rows), groups=job_groups(table), submitted_s=table.submitted_s)
    for members in counted_one_by_one(rows, table).values():
        assert len(set(chosen) & set(members)) == min(ceil(KEPT * sqrt(len(members))), len(members))
    assert [row for row in rows if row in set(chosen)] == list(chosen)
