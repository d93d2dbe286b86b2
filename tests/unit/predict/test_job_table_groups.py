import numpy as np
import pandas as pd
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.predict.causal_stats import LEVELS
from helios.predict.growing_coding import GrowingCoding
from helios.predict.job_table import LEVEL_COLUMNS, JobTable, job_groups
from tests.examples import examples
from tests.unit.predict.traces_of import a_trace, traces


def groups(coding, jobs):
    return coding.groups(JobTable.from_frame(jobs, coding=coding))


def alike(groups):
    """Which jobs share a group, level by level, whatever its number."""
    return (groups[:, None, :] == groups[None, :, :]) & (groups[:, None, :] >= 0)


@settings(max_examples=examples(37), deadline=None)
@given(traces(), st.integers(0, 24))
def test_jobs_told_in_two_parts_are_alike_as_they_are_in_one(jobs, cut):
    first, second = jobs.iloc[:cut], jobs.iloc[cut:]
    # Each part with categories of its own, as two readings of the accounting have them.
    parts = [part.assign(user=part["user"].astype("str").astype("category")) for part in (first, second)]
    coding = GrowingCoding()
    told = np.concatenate([groups(coding, part) for part in parts])
    np.testing.assert_array_equal(alike(told), alike(job_groups(JobTable.from_frame(jobs))))


@settings(max_examples=examples(15), deadline=None)
@given(traces(), traces())
def test_old_groups_keep_their_numbers(jobs, more):
    coding = GrowingCoding()
    before = groups(coding, jobs)
    groups(coding, more)
    np.testing.assert_array_equal(groups(coding, jobs), before)


@settings(max_examples=examples(15), deadline=None)
@given(traces(), traces())
def test_what_is_asked_aside_is_forgotten(jobs, more):
    coding = GrowingCoding()
    groups(coding, jobs)
    known = coding.n_groups
    aside = groups(coding.overlay(), more)
    assert coding.n_groups == known
    np.testing.assert_array_equal(groups(coding.overlay(), more), aside)


def test_a_new_user_aside_is_one_person_in_all_of_its_jobs():
    coding = GrowingCoding()
    groups(coding, a_trace({"user": "ada"}))
    found = groups(coding.overlay(), a_trace({"user": "new"}, {"user": "new"}, {"user": "newer"}))
    user = LEVELS.index("user")
    assert found[0, user] == found[1, user] != found[2, user]
    assert found[0, user] >= coding.n_groups


def test_groups_of_different_levels_never_share_a_number():
    found = groups(
        GrowingCoding(), a_trace({"user": "ada", "name": "a1", "account": "x"}, {"user": "bob", "name": "b"})
    )
    by_level = [set(found[:, level][found[:, level] >= 0]) for level in range(len(LEVELS))]
    assert sum(map(len, by_level)) == len(set().union(*by_level))


def test_names_that_differ_in_digits_have_one_stem():
    coding = GrowingCoding()
    user = np.zeros(3, dtype=np.int32)
    coding.encode_names(pd.array(["fit1", "cook"], dtype="str"), user[:2])
    codes, stems, families = coding.encode_names(pd.array(["fit2", "cook", None], dtype="str"), user)
    assert (codes.tolist(), stems.tolist(), families.tolist()) == ([2, 1, -1], [0, 1, -1], [0, 1, -1])


def test_every_level_says_what_its_jobs_have_in_common():
    assert set(LEVEL_COLUMNS) == set(LEVELS)
