"""JSON lists of jobs: what must not end the process that reads them."""

import io
import json
import tracemalloc

import ijson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helios.errors import FileUnreadable
from helios.ingest.job_rows import FileReading
from helios.ingest.json_records import DEEPEST_RECORD, LONGEST_NUMBER, _items, read_records
from helios.ingest.parse import TimeParser
from tests.unit.ingest.builders import a_file


def values_of(tmp_path, text):
    seen = []

    def record(job):
        seen.append(job["a"])
        return [{"a": str(job["a"])[:9]}]

    reading = FileReading(path=a_file(tmp_path, text), clock=TimeParser("UTC"), rows_per_batch=10)
    list(read_records(reading, "item", record, ["a"]))
    return seen


@pytest.mark.parametrize("before", [0, 65_530, 2 * 65_536 - 2_000], ids=["at once", "cut at once", "cut in the middle"])
def test_a_number_of_more_digits_than_python_makes_is_refused(tmp_path, before):
    text = b" " * before + b'[{"a": 1}, {"a": ' + b"9" * (LONGEST_NUMBER + 1_000) + b"}]"
    with pytest.raises(FileUnreadable, match="number of 4,000 digits"):
        values_of(tmp_path, text)


@pytest.mark.parametrize("before", [0, 65_530, 2 * 65_536 - 2_000])
def test_numbers_may_be_as_long_as_they_are_anywhere(tmp_path, before):
    longest = b"9" * (LONGEST_NUMBER - 1)
    text = b" " * before + b'[{"a": ' + longest + b'}, {"a": 18446744073709551614}, {"a": ' + longest + b"}]"
    assert values_of(tmp_path, text) == [int(longest), 2**64 - 2, int(longest)]


SMALL = 1 << 20  # a bound that a test reaches soon


@pytest.fixture
def small_records(monkeypatch):
    monkeypatch.setattr("helios.ingest.json_records.LARGEST_RECORD", SMALL)


def rows_of(tmp_path, text):
    reading = FileReading(path=a_file(tmp_path, text), clock=TimeParser("UTC"), rows_per_batch=10)
    return list(read_records(reading, "item", lambda job: [{"a": str(job.get("a"))[:9]}], ["a"]))


@pytest.mark.parametrize("before", [b"", b'{"x": ', b'[{"a": 1}, ', b'[{"a": 1}, {"a": ', b'[{"a": 1}, {"steps": '])
def test_brackets_in_brackets_take_little_memory(tmp_path, before):
    deep = b"[" * 100_000 + b"]" * 100_000
    closing = {b"": b"", b'{"x": ': b"}", b'[{"a": 1}, ': b"]"}.get(before, b"}]")
    tracemalloc.start()
    try:
        rows_of(tmp_path, before + deep + closing)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.usefixtures("small_records")
@pytest.mark.parametrize(
    "bad",
    ["[" * DEEPEST_RECORD + "]" * DEEPEST_RECORD, "[" + "0," * (SMALL // 16) + "0]"],
    ids=["deep", "many"],
)
def test_an_object_beyond_the_bounds_is_refused_with_its_number(tmp_path, bad):
    text = f'[{{"a": 1}}, {{"a": {bad}, "b": 3}}, {{"a": 2}}]'
    (rows,) = rows_of(tmp_path, text)
    assert rows.columns["a"].to_pylist() == ["1", "2"]
    ((line, reason, said),) = rows.refused
    assert (line, reason) == (2, "record is not understood")
    assert said in (b'"more than 64 levels"', b'"longer than 1 MiB"')


@pytest.mark.usefixtures("small_records")
def test_a_string_beyond_the_bounds_is_refused_before_it_is_held(tmp_path):
    with pytest.raises(FileUnreadable, match="behind job 1: a string of more than 1 MiB"):
        rows_of(tmp_path, '[{"a": 1}, {"a": "%s"}]' % ("x" * (SMALL + (1 << 20))))


@pytest.mark.usefixtures("small_records")
def test_steps_are_passed_over_however_many_they_are(tmp_path):
    steps = json.dumps([{"tres": {"x": [1, 2, {}]}}] * 3)[:-1] + ", 0" * (SMALL // 8) + "]"
    (rows,) = rows_of(tmp_path, f'[{{"a": 1, "steps": {steps}, "b": 2}}, {{"a": 2}}]')
    assert rows.columns["a"].to_pylist() == ["1", "2"]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["jobs", "steps", "a"]), inner),
    max_leaves=12,
)


@given(value=VALUES, jobs=st.lists(VALUES, max_size=3), prefix=st.sampled_from(["item", "jobs.item"]))
def test_objects_are_built_as_ijson_builds_them(value, jobs, prefix):
    def without_steps(job):
        if not isinstance(job, dict):
            return job
        return {name: of for name, of in job.items() if name != "steps" or not isinstance(of, (list, dict))}

    for document in (value, jobs, {"meta": value, "jobs": jobs, "errors": value}):
        text = json.dumps(document).encode()
        built = list(_items(ijson.basic_parse(io.BytesIO(text)), prefix))
        assert built == [without_steps(job) for job in ijson.items(io.BytesIO(text), prefix)]
