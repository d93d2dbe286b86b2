"""A person with ten minutes: one command, from nothing to a report."""

import re
from pathlib import Path

import pytest

from tests.story.shell import Answer, shell


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("try")


@pytest.fixture(scope="module")
def trial(folder: Path) -> Answer:
    return shell(folder)("try", "--days", 3, "--folder", folder / "out")


def test_the_table_ends_in_the_terminal_with_the_controls_beside_qssf(trial: Answer) -> None:
    for policy in ("FIFO", "QSSF", "SJF", "SRTF"):
        assert policy in trial.out.upper()


def test_the_report_is_named_and_complete_in_itself(trial: Answer, folder: Path) -> None:
    page = (folder / "out" / "report.html").read_text()
    assert str(folder / "out" / "report.html") in trial.err
    assert "<svg" in page
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", page)


def test_it_says_what_to_type_next_with_an_own_sacct_file(trial: Answer) -> None:
    assert "sacct " in trial.err
    assert "helios trace load" in trial.err


def test_the_site_s_own_warehouse_is_not_touched(trial: Answer, folder: Path) -> None:
    assert not (folder / "helios.db").exists()


def test_the_same_seed_gives_the_same_answer(trial: Answer, folder: Path) -> None:
    again = shell(folder, alone=True)("try", "--days", 3, "--folder", folder / "again")
    assert again.out == trial.out
