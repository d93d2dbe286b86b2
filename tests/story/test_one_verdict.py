"""Two commands that are asked about one history give one verdict."""

import pytest

from tests.story.shell import Helios
from tests.traces import TRACES, needs_traces

HISTORIES = {
    "KTH-SP2-1996-2.1-cln.swf.gz": ("--from", "1997-07-01"),
    "sacct_cedar_may-jun2021.txt.gz": (),
    "sacct_raw_phillips_dec2016.txt.gz": (),
}


@needs_traces
@pytest.mark.parametrize(
    "file",
    [file if file.startswith("KTH") else pytest.param(file, marks=pytest.mark.nightly) for file in HISTORIES],
)
def test_whatif_and_evaluate_give_one_verdict(helios: Helios, file: str) -> None:
    history = ("--trace", TRACES / file, *HISTORIES[file], "--draws", "2", "--json")
    what_if = helios("whatif", *history, "--policy", "fifo", "--oversized", "skip").json["verdict"]
    assert helios("model", "evaluate", *history).json["verdict"] == what_if
    assert what_if["draws"] == 2
