"""Pages, figures and files of studies."""

from __future__ import annotations

import csv
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from helios.app.history import LoadedHistory, read_file
from helios.config import Energy
from helios.metrics.history import COLUMNS, StudyHistory, read_history
from helios.study.figures.catalog import ORDER, study_figure, study_figures
from helios.study.figures.source import (
    FEW_PEOPLE,
    NOT_COMPARED,
    FigureData,
    FigureSource,
    compare_clusters,
    published,
)
from helios.study.page import latex
from helios.study.study import NodeRecords, Study, idle_levels, study, unusable_levels, write_study
from tests.traces import TRACES
from tests.unit.study.test_study import DEGENERATE, FIRST, HOUR, at, jobs_frame

VENUS = TRACES / "helios_venus_mar-aug2020.csv.gz"
MONTHS = ("2020-04", "2020-05", "2020-06", "2020-07", "2020-08")


def a_study(*jobs: dict[str, Any], **options: Any) -> Study:
    return study(LoadedHistory(cluster="c", jobs=jobs_frame(*jobs), timezone="UTC"), **options)


def a_busy_history() -> Study:
    """Ten days of two partitions, one of which has a queue."""
    jobs = []
    for k in range(240):
        name = ("short", "long")[k % 2]
        run_time_s = 600.0 * (1 + k % 7) if name == "short" else 9 * 3600.0
        wait_h = 0.0 if name == "short" else 0.5 + k % 3
        states = ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED")
        jobs.append(
            at(
                k,
                partition=name,
                user=f"u{k % 9}",
                account=f"a{k % 3}",
                gpus=1 + k % 4,
                run_time_s=run_time_s,
                state=states[k % 4],
                started_at=FIRST + (k + wait_h) * HOUR,
            )
        )
    given = NodeRecords(given={"short": 4, "long": 2}, units_per_node=4)
    return a_study(*jobs, records=given)


class Outline(HTMLParser):
    """Headings, texts, and figures without a text of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.headings: list[str] = []
        self.words: list[str] = []
        self.unnamed, self.hidden = 0, 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if re.fullmatch(r"h\d", tag):
            self.headings.append(tag)
        if tag == "svg" and not dict(attrs).get("aria-label"):
            self.unnamed += 1
        self.hidden += tag in {"style", "svg"}

    def handle_endtag(self, tag: str) -> None:
        self.hidden -= tag in {"style", "svg"}

    def handle_data(self, data: str) -> None:
        if not self.hidden:
            self.words += data.split()


def outline(page: str) -> Outline:
    found = Outline()
    found.feed(page)
    return found


def test_page_can_be_used_by_keyboard() -> None:
    page, _ = write_study(a_busy_history(), audience="admin", report=Path("page.html"), out=None)
    # The first thing that takes the focus leads past the rest, and whatever scrolls takes the focus.
    assert re.search(r'<body>\s*<a class="skip" href="#content">', page)
    assert 'id="content"' in page
    assert ":focus-visible" in page
    scrolling = re.findall(r'<div class="scroll[^>]*>', page)
    assert scrolling
    assert all('tabindex="0"' in one and "aria-label=" in one for one in scrolling)


@pytest.mark.parametrize("audience", ORDER)
def test_page_has_all_that_is_known_and_no_value_that_is_none(audience: str) -> None:
    found = a_busy_history()
    page, _ = write_study(found, audience=audience, report=Path("unused.html"), out=None)
    seen = outline(page)
    assert seen.unnamed == 0
    assert seen.headings[0] == "h1"
    assert set(seen.headings[1:]) == {"h2"}
    assert not {"nan", "None", "inf"} & set(seen.words)
    for statement in found.statements:
        assert statement.title.split()[0] in seen.words
    if audience != "admin":
        assert not {f"u{k}" for k in range(9)} & set(seen.words)


@pytest.mark.parametrize(("name", "audience"), list(zip(DEGENERATE, [*ORDER] * len(DEGENERATE), strict=False)))
def test_page_of_a_poor_history_says_what_it_cannot_say(name: str, audience: str) -> None:
    page, _ = write_study(a_study(*DEGENERATE[name]), audience=audience, report=Path("unused.html"), out=None)
    seen = outline(page)
    assert "cannot" in seen.words
    assert not {"nan", "None", "inf"} & set(seen.words)


def test_files_hold_what_the_figures_show(tmp_path: Path) -> None:
    found = a_busy_history()
    _, files = write_study(found, audience="paper", report=None, out=tmp_path / "out")
    names = {path.name for path in files}
    assert {"statements.csv", "study.tex", "sources.bib", "run_times.csv", "run_times.pdf"} <= names
    assert all(path.read_bytes().startswith(b"%PDF") for path in files if path.suffix == ".pdf")
    with (tmp_path / "out" / "sizes.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["cluster"] == "here"]
    history = found.history
    jobs = {float(row["x"]): float(row["y"]) for row in rows if row["y_unit"].startswith("% of GPU jobs")}
    for size in (1, 2, 4):
        assert jobs[float(size)] == pytest.approx(100 * (history.size[history.sized] <= size).mean())
    with (tmp_path / "out" / "statements.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 23


def test_latex_escapes_what_it_would_read() -> None:
    assert latex("50 % of A_b & {c}~") == r"50 \% of A\_b \& \{c\}\textasciitilde{}"


def test_idle_levels_add_up_to_the_first_statement() -> None:
    found = a_busy_history()
    hours = sum(float(np.sum(one.level * np.diff(one.edges_s))) for one in idle_levels(found)) / 3600
    assert found.statements[0].value == pytest.approx(hours / found.history.weeks)
    assert found.statements[0].value


def figure(history: StudyHistory, key: str, **options: Any) -> FigureData:
    return study_figure(key, FigureSource(history, None, **options))


def test_users_below_five_are_pooled_for_all_but_the_admin() -> None:
    history = a_busy_history().history
    shown = {name for one in figure(history, "holders", audience="manager").series for name in one.x}
    assert not any(str(name).startswith("u") for name in shown)
    # Each account has three users.
    assert not {"a0", "a1", "a2"} & shown
    assert FEW_PEOPLE in shown
    assert any(str(name).startswith("u") for one in figure(history, "holders").series for name in one.x)


def test_figures_and_statements_take_the_same_waits_as_known() -> None:
    ended = FIRST + 3 * HOUR
    jobs = [at(k, run_time_s=600.0) for k in range(3)]
    jobs += [
        at(1, started_at=None, ended_at=ended, run_time_s=math.nan, state=state) for state in ("FAILED", "CANCELLED")
    ]
    history = a_study(*jobs).history
    source = FigureSource(history)
    # Of the failed one it is not known whether it waited or ran.
    assert source.wait_known.sum() == 4
    assert source.waits().n == 4
    assert source.wait_hours.sum() == pytest.approx(1.0, rel=1e-3)


def a_fragmented_history(**options: Any) -> Study:
    """Two nodes of four GPUs for a day, each with two free while a job of four waits."""
    jobs = [
        at(0, gpus=2, run_time_s=24 * 3600.0, node_list="n1", nodes=1.0),
        at(0, gpus=2, run_time_s=24 * 3600.0, node_list="n2", nodes=1.0),
        at(0, gpus=4, run_time_s=3600.0, node_list="n1", nodes=1.0, started_at=FIRST + 24 * HOUR),
        at(47, gpus=4, run_time_s=3600.0, node_list="n2", nodes=1.0),
    ]
    jobs = [{**job, "partition": "p", "gpu_type": None, "cpus": math.nan, "memory_mib": math.nan} for job in jobs]
    return a_study(*jobs, until=FIRST + 48 * HOUR, **options)


def figure_of(found: Study, key: str, **options: Any) -> FigureData:
    source = FigureSource(
        found.history, found.capacity, unusable=unusable_levels(found), findings=found.findings, **options
    )
    return study_figure(key, source)


def test_statements_and_figures_say_one_number_for_one_thing() -> None:
    jobs = [
        at(k, user=f"u{min(k % 7, 5)}", gpus=1 + 3 * (k % 7 > 4), run_time_s=3600.0 * (k % 5),
           started_at=FIRST + (k + k % 7) * HOUR, state="CANCELLED" if k % 5 == 0 else "COMPLETED")
        for k in range(100)
    ]  # fmt: skip
    found = a_study(*jobs, records=NodeRecords(given={"gpu": 8}), since=FIRST + 20 * HOUR, until=FIRST + 99 * HOUR)
    told = {one.number: one for one in found.statements}
    waited = told[11].parts["share_of_waiting_of_top_users"]
    assert f"and {100 * waited:.0f} % of the hours waited" in figure_of(found, "holders").title
    assert f"{100 * (told[12].value or 0):.0f} % of its time waiting" in figure_of(found, "wait_share").title
    repeated = told[14].parts["share_of_jobs"]
    assert figure_of(found, "repetition").title.startswith(f"{100 * repeated:.0f} % of the jobs")


def test_fragmentation_names_its_reason() -> None:
    found = figure_of(a_fragmented_history(), "fragmentation")
    assert found.title.startswith("On average 2.0 GPUs are free while jobs wait, none of which fits")
    assert found.title.endswith("scattered over nodes.")
    (line,) = [one for one in found.series if one.name == "scattered over nodes"]
    assert line.y[0] == pytest.approx(4)


def test_idle_nodes_are_told_with_what_they_draw() -> None:
    # On the second day n1 idles for 23 h after the large job, and n2 for 23 h before the last one.
    found = figure_of(
        a_fragmented_history(), "idle_nodes", energy=Energy(node_idle_w=1015, node_sleep_w=15, cooling_factor=2)
    )
    share, kwh = (one.y for one in found.series)
    assert sum(kwh) == pytest.approx((23 + 23) * 2)
    assert share[1] == pytest.approx(100 * 46 / 48)


def test_energy_is_that_of_nodes_and_of_their_load() -> None:
    model = Energy(node_idle_w=1000, gpu_busy_w=250, cooling_factor=1, price_per_kwh=0.5, co2_g_per_kwh=100)
    records = NodeRecords(given={"p": 2}, units_per_node=4)
    found = figure_of(a_fragmented_history(records=records), "energy", energy=model)
    load, awake = (sum(one.y) for one in found.series)
    assert load == pytest.approx(0.25 * (2 * 2 * 24 + 4 + 4))
    assert awake == pytest.approx(2 * 48)
    at_least = figure_of(a_study(*(at(k) for k in range(5))), "energy", energy=model)
    assert at_least.title.startswith("At least")


def test_partitions_of_few_users_are_pooled_for_all_but_the_admin() -> None:
    jobs = [at(k, partition=("big", "small")[k % 2], user=f"u{k % (12 if k % 2 == 0 else 2)}") for k in range(48)]
    history = a_study(*jobs).history
    names = {who: {name for name, _, _ in FigureSource(history, audience=who).partitions} for who in ORDER}
    assert names["admin"] == {"big", "small"}
    assert names["manager"] == names["paper"] == {"big", FEW_PEOPLE}


def test_run_times_by_hours_are_those_of_the_hours() -> None:
    jobs = [at(k, run_time_s=100.0, time_limit_s=math.inf) for k in range(9)]
    jobs.append(at(0, run_time_s=9000.0, time_limit_s=math.inf, gpus=1))
    history = read_history(
        jobs_frame(*jobs)[list(COLUMNS)], cluster="c", timezone="UTC", until=(FIRST + 24 * HOUR).to_pydatetime()
    )
    by_jobs, by_hours = figure(history, "run_times").series
    assert dict(zip(by_jobs.x, by_jobs.y, strict=True))[128] == pytest.approx(90)
    assert dict(zip(by_hours.x, by_hours.y, strict=True))[128] == pytest.approx(100 * 900 / 9900)


def test_clusters_whose_definition_differs_are_not_drawn() -> None:
    for name, left_out in NOT_COMPARED.items():
        assert not {one.name for one in published(name)} & set(left_out)


def test_compared_clusters_have_the_sites_own_values_first() -> None:
    history = a_busy_history().history
    beside = compare_clusters(FigureSource(history))
    own = dict(beside.values)
    assert own["Jobs with GPUs"] == 240
    ran = history.run_time_s[np.isfinite(history.run_time_s)]
    assert own["Mean run time"] == pytest.approx(float(ran.mean()))
    assert all(len(values) == len(beside.header) for _, values in beside.rows)


def venus() -> StudyHistory:
    loaded = read_file(VENUS, timezone="Asia/Shanghai")
    return read_history(
        loaded.jobs[list(COLUMNS)],
        cluster="venus",
        timezone="Asia/Shanghai",
        since=pd.Timestamp("2020-04-01", tz="Asia/Shanghai").to_pydatetime(),
        until=pd.Timestamp("2020-09-01", tz="Asia/Shanghai").to_pydatetime(),
    )


@pytest.mark.skipif(not VENUS.exists(), reason="the public Venus trace is not here")
def test_venus_reads_as_published() -> None:
    history = venus()
    found = {one.key: one for one in study_figures(FigureSource(history, audience="paper"))}
    ours = {one.name: dict(zip(one.x, one.y, strict=True)) for one in found["months"].series}
    theirs = {
        one.name.split(": ")[-1]: dict(zip(one.x, one.y, strict=True))
        for one in published("months")
        if "Venus" in one.name
    }
    for own, published_name in (("1 GPU", "single-GPU"), ("2 or more GPUs", "multi-GPU")):
        assert [ours[own][month] for month in MONTHS] == [theirs[published_name][month] for month in MONTHS]
    for key, place, name, bound in (
        ("run_times", 0, "gpu_run_time", 1.5),
        ("sizes", 0, "size_jobs", 2.0),
        ("sizes", 1, "size_hours", 2.5),
    ):
        own_curve = dict(zip(found[key].series[place].x, found[key].series[place].y, strict=True))
        (curve,) = [one for one in published(name) if one.name == "Venus"]
        both = [(own_curve[x], y) for x, y in zip(curve.x, curve.y, strict=True) if x in own_curve]
        assert len(both) > 5
        assert max(abs(one - other) for one, other in both) <= bound
