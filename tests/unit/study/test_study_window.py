"""A study of a part of a log, cut as sacct would print it, beside one of that time in the whole log."""

from __future__ import annotations

from dataclasses import replace

import pytest

from helios.app.history import LoadedHistory, read_file
from helios.app.record import describe_record
from helios.study.study import NodeRecords, study
from tests.traces import TRACES, needs_traces

PARTS = {"second half": (0.5, 1.0), "second third": (1 / 3, 2 / 3), "last days": (0.95, 1.0)}
"""Parts of a log, as shares of its span."""
NODES = NodeRecords(given={"all": 50}, units_per_node=2)
"""The nodes of the log in pairs, since idle nodes of one CPU are not told."""
LEVELS = (4, 5, 12)
"""Statements on idle nodes, use and waits."""


@pytest.fixture(scope="module")
def whole() -> LoadedHistory:
    """A public log of a year."""
    return read_file(TRACES / "KTH-SP2-1996-2.1-cln.swf.gz")


@needs_traces
@pytest.mark.parametrize("part", PARTS)
def test_levels_of_an_export_lie_within_the_intervals_of_the_log(part: str, whole: LoadedHistory) -> None:
    submitted = whole.jobs["submitted_at"]
    begin, end = (submitted.min() + (submitted.max() - submitted.min()) * share for share in PARTS[part])
    alive = whole.jobs[(submitted < end) & (whole.jobs["ended_at"] >= begin)].reset_index(drop=True)
    export = describe_record(replace(whole, jobs=alive))
    since, until = export.window
    found = study(export, since=since, until=until, records=NODES).statements
    known = study(whole, since=begin, until=end, records=NODES).statements
    outside = [
        (one.name, one.value, other.low, other.high)
        for one, other in zip(found, known, strict=True)
        if one.number in LEVELS
        and not (one.value is not None and other.low is not None and other.low <= one.value <= (other.high or 0.0))
    ]
    assert outside == []
