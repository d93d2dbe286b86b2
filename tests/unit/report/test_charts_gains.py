import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

from helios.report import charts
from helios.report.gains import by_user
from helios.report.whatif import JobNames, WhatIf
from tests.unit.report.replays import a_run, a_what_if, qssf

N = 60
GPUS = [1, 4, 16] * 20


def a_result(*, partitions: int = 2, every_s: int = 3_600) -> WhatIf:
    """Jobs of five users in several partitions, waiting half as long under QSSF, one user's longer."""
    users = np.arange(N) % 5
    before, after = list(range(0, 100 * N, 100)), [50 * n * (6 if n % 5 == 0 else 1) for n in range(N)]
    runs = (a_run(before, gpus=GPUS, every_s=every_s), qssf(after, gpus=GPUS, every_s=every_s))
    return a_what_if(
        *(replace(run, users=users) for run in runs),
        partitions={f"part{place}": 8 for place in range(partitions)},
        named=JobNames(
            job_ids=np.arange(N).astype(str).astype(object),
            partition=(np.arange(N) % partitions).astype(np.int32),
            users=("ann", "bob", "cy", "<dee>", "$e$"),
        ),
    )


def words(svg: str | None) -> str:
    assert svg is not None
    ElementTree.fromstring(svg.replace("xlink:", ""))
    return " ".join(re.findall(r"<text[^>]*>([^<]*)</text>", svg))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("every_s", [0, 60, 86_400])
def test_the_waiting_saved_can_be_drawn_for_a_window_of_any_length(narrow: bool, every_s: int) -> None:
    assert "CPU" not in words(charts.cumulative_gain(a_result(every_s=every_s), narrow=narrow))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("narrow", [False, True])
def test_each_partition_has_a_panel_up_to_the_busiest_six(narrow: bool) -> None:
    shown = words(charts.by_partition(a_result(partitions=9), narrow=narrow))
    assert len(re.findall(r"part\d, 64 GPUs: jobs waiting", shown)) == 6


def test_one_partition_alone_is_drawn_with_the_cluster() -> None:
    assert charts.by_partition(a_result(partitions=1)) is None


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("narrow", [False, True])
def test_users_are_counted_by_what_they_gain(narrow: bool) -> None:
    result = a_result()
    shown = words(charts.users(by_user(result.runs[1], result), reference="today", narrow=narrow))
    assert "waits longer (1)" in shown
    assert "waits shorter (4)" in shown


def test_one_user_is_not_drawn() -> None:
    result = a_result()
    assert charts.users(by_user(result.runs[1], result)[:1], reference="today") is None


def test_where_nothing_is_compared_nothing_is_saved() -> None:
    assert charts.cumulative_gain(a_what_if(a_run([1, 2]))) is None
    assert charts.cumulative_gain(a_what_if(a_run([1, 2]), qssf([1, 2]))) is None
