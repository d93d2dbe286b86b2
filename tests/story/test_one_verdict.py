"""Two commands that are asked about one history give one verdict."""

import gzip
from pathlib import Path

import pytest

from tests.story.shell import Helios
from tests.traces import TRACES, needs_traces

HISTORIES = {
    "KTH-SP2-1996-2.1-cln.swf.gz": ("--from", "1997-07-01"),
    "sacct_cedar_may-jun2021.txt.gz": (),
    "sacct_raw_phillips_dec2016.txt.gz": (),
}
LINES = 6_000
"""Of the log of KTH: ten weeks, on which both commands take a fifth of the time that the whole log takes."""


@pytest.fixture
def ten_weeks(tmp_path: Path) -> Path:
    """The beginning of the log of KTH."""
    beginning = tmp_path / "kth.swf"
    with gzip.open(TRACES / "KTH-SP2-1996-2.1-cln.swf.gz", "rt") as log, beginning.open("w") as file:
        file.writelines(line for line, _ in zip(log, range(LINES), strict=False))
    return beginning


def check_one_verdict(helios: Helios, history: Path, *window: str) -> None:
    asked = ("--trace", history, *window, "--draws", "2", "--json")
    what_if = helios("whatif", *asked, "--policy", "fifo", "--oversized", "skip").json["verdict"]
    assert helios("model", "evaluate", *asked).json["verdict"] == what_if
    assert what_if["draws"] == 2


@needs_traces
def test_whatif_and_evaluate_give_one_verdict(helios: Helios, ten_weeks: Path) -> None:
    check_one_verdict(helios, ten_weeks, "--from", "1996-11-15")


@needs_traces
@pytest.mark.nightly
@pytest.mark.parametrize("file", HISTORIES)
def test_whatif_and_evaluate_give_one_verdict_of_whole_logs(helios: Helios, file: str) -> None:
    check_one_verdict(helios, TRACES / file, *HISTORIES[file])
