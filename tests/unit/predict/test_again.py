import numpy as np
import pandas as pd
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.predict.causal_stats import FEATURES
from helios.predict.job_table import WAITED_S, JobTable, features_at_start
from tests.unit.predict.oracle import features_again
from tests.unit.predict.traces_of import EPOCH, a_trace, traces


def known(jobs):
    return features_at_start(JobTable.from_frame(jobs))


def at_start(jobs, number):
    found = known(jobs)
    return dict(zip(FEATURES, found.at_start[found.waited.tolist().index(number)], strict=True))


@settings(max_examples=100, deadline=None)
@given(traces())
def test_what_is_known_at_the_start_equals_its_plain_recomputation(jobs):
    found = known(jobs)
    plain = pd.DataFrame([features_again(jobs, number) for number in found.waited], columns=list(FEATURES))
    computed = pd.DataFrame(found.at_start, columns=list(FEATURES))
    pd.testing.assert_frame_equal(computed, plain, check_dtype=False, rtol=1e-4, atol=2e-4)


@settings(max_examples=100, deadline=None)
@given(traces(), st.data())
def test_what_had_not_ended_before_a_start_changes_nothing_known_at_it(jobs, data):
    found = known(jobs)
    if not len(found.waited):
        return
    number = data.draw(st.sampled_from(found.waited.tolist()))
    moment = jobs["started_at"][number]
    table = JobTable.from_frame(jobs)
    open_suspended = ~(table.ended_s < moment.timestamp())
    other = jobs.copy()
    late = EPOCH + pd.Timedelta(days=30)
    other.loc[open_suspended, "ended_at"] = late
    other.loc[open_suspended, "run_time_s"] = 12345.0
    other["state"] = other["state"].astype(object).where(~open_suspended, "NODE_FAIL").astype("category")
    assert at_start(jobs, number) == approximately(at_start(other, number))


def approximately(row):
    return {name: _Same(value) for name, value in row.items()}


class _Same:
    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return bool(other == self.value or (np.isnan(other) and np.isnan(self.value)))

    def __hash__(self):
        return hash(float(self.value))


def test_asking_again_does_not_change_what_later_jobs_are_told():
    jobs = a_trace({"wait": 5000}, {"submit": 10}, {"submit": 9000})
    without = a_trace({"wait": 0, "run": 5060.0}, {"submit": 10}, {"submit": 9000})
    with_wait, same_end = known(jobs).at_submission, known(without).at_submission
    # The first job ends at the same moment in both; only its run time differs, and that is in the last row alone.
    np.testing.assert_array_equal(with_wait[1], same_end[1])
    assert not np.array_equal(with_wait[2], same_end[2])


def test_a_job_that_hardly_waited_is_not_asked_about_again():
    found = known(a_trace({"wait": WAITED_S - 1}, {"submit": 1, "wait": WAITED_S}))
    assert found.waited.tolist() == [1]


def test_an_end_while_the_job_waited_is_known_at_its_start():
    jobs = a_trace({"run": 100.0}, {"submit": 10, "wait": 1000})
    last = FEATURES.index("user_last_1")
    found = known(jobs)
    assert np.isnan(found.at_submission[1, last])
    assert found.at_start[0, last] == np.float32(np.log1p(100.0))
    assert found.latest()[1, last] == np.float32(np.log1p(100.0))
    assert np.isnan(found.latest()[0, last])


def test_a_row_that_ended_before_it_started_does_not_teach_itself():
    jobs = a_trace({"wait": 1000})
    jobs["ended_at"] = jobs["submitted_at"] + pd.Timedelta(seconds=10)
    assert len(known(jobs).waited) == 0
