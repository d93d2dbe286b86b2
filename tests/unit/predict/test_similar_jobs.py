import math
import re

import numpy as np
import pytest
from hypothesis import given, settings

from helios.predict.job_table import JobTable
from helios.predict.similar_jobs import similar_jobs
from tests.examples import examples
from tests.unit.predict.traces_of import a_trace, traces


def rows_like_the_last(*rows, **options):
    return [past.row for past in similar_jobs(JobTable.from_frame(a_trace(*rows)), **options)]


def plain_resemblance(jobs, most):
    """Return (own, row, distance) of the nearest jobs, job by job, from the definition in docs/predictions.md."""
    table = JobTable.from_frame(jobs)
    all_jobs = [_asked(row) | {"end": table.ended_s[n], "run": table.run_time_s[n]} for n, row in _rows(jobs)]
    me = all_jobs[-1]
    gone = [n for n, job in enumerate(all_jobs[:-1]) if job["end"] < table.submitted_s[-1] and job["run"] == job["run"]]
    found = []
    for own in (True, False):
        pool = [n for n in gone if (all_jobs[n]["user"] == me["user"] and me["user"] is not None) == own]
        pool = pool if own else [n for n in pool if _kin(all_jobs[n], me)]
        pool.sort(key=lambda n: (-all_jobs[n]["end"], n))
        near = []
        for place, n in enumerate(pool):
            newer = sum(_kind(all_jobs[m], me) == _kind(all_jobs[n], me) for m in pool[:place])
            near.append((_distance(all_jobs[n], me) + 0.1 * math.log1p(newer), place, n))
        found += [(distance, n) for distance, _, n in sorted(near)[: most - len(found)]]
    return found


def _rows(jobs):
    return enumerate(jobs.astype(object).where(jobs.notna(), None).to_dict("records"))


def _asked(row):
    on = "gpu" if row["gpus"] else "cpu"
    number = row["gpus"] or row["cpus"]
    limit = row["time_limit_s"]
    return {
        "size": -1.0 if number is None else math.log1p(number),
        "on": on,
        "limit": -5.0 if limit is None else 20.0 if math.isinf(limit) else math.log1p(limit),
        "stem": None if row["name"] is None else re.sub(r"\d", "", row["name"]),
    } | {key: row[key] for key in ("user", "account", "partition", "name")}


def _kind(job, me):
    return (job["size"], job["limit"], job["partition"], job["stem"] == me["stem"], job["user"])


def _kin(job, me):
    alike = [job[key] == me[key] and me[key] is not None for key in ("account", "stem")]
    return any(alike) or job["size"] == me["size"]


def _distance(job, me):
    far = abs(job["size"] - me["size"]) + (job["on"] != me["on"]) + abs(job["limit"] - me["limit"])
    far += job["partition"] != me["partition"]
    far += 2.0 if job["stem"] != me["stem"] else 0.3 * (job["name"] != me["name"])
    far += 1.5 * (job["user"] != me["user"] and me["user"] is not None)
    return far + (job["account"] != me["account"])


@settings(max_examples=examples(25), deadline=None)
@given(traces())
def test_the_nearest_jobs_are_those_of_a_plain_search(jobs):
    found = similar_jobs(JobTable.from_frame(jobs), most=3)
    expected = plain_resemblance(jobs, 3)
    assert [past.row for past in found] == [row for _, row in expected]
    np.testing.assert_allclose([past.distance for past in found], [distance for distance, _ in expected], atol=1e-9)


def test_a_job_that_has_not_ended_is_no_example():
    assert rows_like_the_last({"run": 100.0}, {"run": 9000.0}, {"submit": 1000}) == [0]


def test_the_users_own_jobs_come_first_however_different_and_others_fill_up():
    mine, theirs = {"gpus": 8, "time_limit_s": 10.0}, {"user": "bob"}
    assert rows_like_the_last(theirs, mine, {"submit": 9000}, most=1) == [1]
    assert rows_like_the_last(theirs, mine, {"submit": 9000}, most=2) == [1, 0]
    assert rows_like_the_last(theirs, theirs, mine, {"submit": 9000}, most=2) == [2, 0]


def test_strangers_with_nothing_in_common_are_left_out():
    assert rows_like_the_last({"user": "bob", "gpus": 8}, {"submit": 9000}) == []


def test_recent_jobs_do_not_crowd_out_an_old_one_alike():
    recent = [{"submit": 100 + n, "time_limit_s": 6500.0} for n in range(50)]
    assert 0 in rows_like_the_last({}, *recent, {"submit": 9000})


def test_many_recent_jobs_of_ever_other_names_are_one_kind_too():
    names = [f"{a}{b}x" for a in "abcdefghij" for b in "abcde"]
    recent = [{"submit": 100 + n, "name": name} for n, name in enumerate(names)]
    assert 0 in rows_like_the_last({"name": "old", "time_limit_s": 6500.0}, *recent, {"submit": 9000, "name": "y"})


def test_of_equal_requests_the_last_to_end_comes_first():
    found = similar_jobs(JobTable.from_frame(a_trace({"run": 50.0}, {"run": 500.0}, {"run": 5.0}, {"submit": 9000})))
    assert [past.row for past in found] == [1, 0, 2]
    assert [past.distance for past in found] == pytest.approx([0.0, 0.0693, 0.1099], abs=1e-4)


def test_where_all_names_differ_the_last_to_end_are_most_alike():
    names = [f"{a}{b}x" for a in "abcdefghij" for b in "abcdefghij"]
    rows = [{"submit": n, "name": name} for n, name in enumerate(names)]
    assert rows_like_the_last(*rows, {"submit": 9000, "name": "y"}) == [99, 98, 97, 96, 95]


@pytest.mark.parametrize(
    ("past", "differs"),
    [
        ({}, ()),
        ({"gpus": 2}, ("size",)),
        ({"gpus": 0, "cpus": 1.0}, ("size",)),
        ({"time_limit_s": 60.0}, ("limit",)),
        ({"time_limit_s": np.inf}, ("limit",)),
        ({"partition": "q"}, ("partition",)),
        ({"name": "fit2"}, ("name",)),
        ({"name": "cook"}, ("name",)),
        ({"account": "biology"}, ("account",)),
        ({"user": "bob", "account": "biology"}, ("user", "account")),
    ],
)
def test_it_is_said_in_what_a_past_job_differs(past, differs):
    usual = {"name": "fit1", "account": "physics"}
    (found,) = similar_jobs(JobTable.from_frame(a_trace(usual | past, usual | {"submit": 9000})))
    assert found.differs == differs
    assert (found.distance > 0) == bool(differs)


def test_a_name_that_differs_only_in_digits_is_nearer():
    rows = [{"name": "cook"}, {"name": "fit2"}, {"name": "fit1", "submit": 9000}]
    assert rows_like_the_last(*rows) == [1, 0]
