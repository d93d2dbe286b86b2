"""JSON lists of jobs: what must not end the process that reads them."""

import pytest

from helios.errors import FileUnreadable
from helios.ingest.clock import Clock
from helios.ingest.draft import Reading
from helios.ingest.records import LONGEST_NUMBER, read_records
from tests.unit.ingest.builders import a_file


def values_of(tmp_path, text):
    seen = []

    def record(job):
        seen.append(job["a"])
        return [{"a": str(job["a"])[:9]}]

    reading = Reading(path=a_file(tmp_path, text), clock=Clock("UTC"), rows_per_batch=10)
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
