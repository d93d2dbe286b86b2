"""Sweeps: what a plan crosses, what a file of results remembers, what becomes of cells that fail."""

import json
from collections.abc import Generator, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from helios.app.history import LoadedHistory
from helios.app.scenarios import Policy, RunTimes, Scenario
from helios.app.sweep import (
    Cross,
    FinishedRun,
    SweepCell,
    SweepPlan,
    SweepWorker,
    cross_options,
    fingerprint_history,
    read_results,
    read_sweep_plan,
    repeats,
    run_here,
    sweep,
)
from helios.app.whatif import WhatIfRequest, whatif
from helios.errors import FileUnreadable, UsageError
from helios.report.significance import CRITERIA, ResampledUnit
from helios.report.sweep import Group, Sweep, SweepRow, sweep_csv, sweep_tables
from helios.simulate import Backfill, Placement
from tests.builders import a_job, jobs_frame
from tests.unit.app.test_resampling import START, a_site

NODES = {"gpu": 1}
FIFO = Scenario(policy=Policy.FIFO, backfill=Backfill.NONE)
FEWEST = Scenario(policy=Policy.FEWEST_GPUS, backfill=Backfill.NONE)
TRUE = Scenario(policy=Policy.SJF, backfill=Backfill.NONE, run_times=RunTimes.TRUE)


@pytest.fixture(scope="module")
def history() -> LoadedHistory:
    """A crowded site: jobs of two to fifteen minutes on a node of four GPUs."""
    return a_site(1.0, jobs=400)


def asked(plan: SweepPlan | None = None, **base: Any) -> Cross:
    request = WhatIfRequest(scenarios=(), nodes=NODES, gpus_per_node=4, **base)
    return cross_options(plan or a_plan(), base=request, timezone="UTC")


def a_plan(**keys: Any) -> SweepPlan:
    return SweepPlan.model_validate({"policies": ["fifo", "sjf"], "backfills": ["none"], "run_times": ["true"], **keys})


def swept(history: LoadedHistory, path: Path, plan: SweepPlan | None = None, **options: Any) -> Sweep:
    return sweep(history, asked(plan), out=path / "out.jsonl", **options)


def lines(path: Path) -> list[bytes]:
    return sorted((path / "out.jsonl").read_bytes().splitlines())


def written(path: Path, text: str) -> Path:
    (path / "plan.toml").write_text(text)
    return path / "plan.toml"


def backwards(history: LoadedHistory, cells: Sequence[SweepCell]) -> Generator[FinishedRun, None, None]:
    """An engine that is done with the last cell first."""
    worker = SweepWorker(history)
    for place in reversed(range(len(cells))):
        yield FinishedRun(place, worker.run(cells[place]))


def dying_after(number: int) -> Any:
    """An engine of a process that is killed when so many cells are done."""

    def engine(history: LoadedHistory, cells: Sequence[SweepCell]) -> Generator[FinishedRun, None, None]:
        for done in run_here(history, cells):
            if done.place == number:
                raise KeyboardInterrupt
            yield done

    return engine


def counting(replayed: list[int]) -> Any:
    def engine(history: LoadedHistory, cells: Sequence[SweepCell]) -> Generator[FinishedRun, None, None]:
        replayed.append(len(cells))
        yield from run_here(history, cells)

    return engine


def test_every_list_is_crossed_with_every_other(tmp_path: Path) -> None:
    plan = a_plan(
        windows=[{"from": "2020-03-02", "to": "2020-03-09"}, {"from": date(2020, 3, 9), "warm_up": "7d"}],
        settings={"nodes": ["gpu=1", "gpu=2"], "placement": ["packed", "spread"]},
        seeds=[0, 1, 2],
        repeats=5,
    )
    cells = asked(plan).cells
    controls_and_own = 4
    assert len(cells) == controls_and_own * 2 * 2 * 2 * 3 * 5
    assert len({cell.key("x") for cell in cells}) == len(cells)
    assert {cell.request.placement for cell in cells} == {Placement.PACKED, Placement.SPREAD}
    last = cells[-1].request
    assert (last.since, last.until, last.warm_up) == (datetime(2020, 3, 9, tzinfo=UTC), None, timedelta(days=7))


def test_a_sweep_always_has_the_order_of_today_and_a_plain_rule() -> None:
    labels = [(cell.scenario.policy, cell.scenario.backfill) for cell in asked().cells]
    assert labels[:2] == [(Policy.FIFO, Backfill.EASY), (Policy.FEWEST_GPUS, Backfill.EASY)]
    without = asked(a_plan(controls=False)).cells
    assert [cell.scenario for cell in without] == [FIFO, TRUE]


def test_what_makes_no_sense_is_left_out_and_said() -> None:
    found = asked(a_plan(policies=["fifo", "srtf"], backfills=["none", "easy"]))
    assert Policy.SRTF in {cell.scenario.policy for cell in found.cells}
    assert any(note.startswith("Left out: srtf, easy") for note in found.notes)
    with pytest.raises(UsageError, match="No combination in the plan can be replayed"):
        asked(a_plan(policies=["srtf"], backfills=["easy"]))


def test_options_of_a_policy_are_crossed_and_are_other_cells() -> None:
    told = [{"wait_share": [0.5, 1], "bound_share": [1, "never"]}, {"patience": ["12h", "never"]}]
    plan = a_plan(policies=["fifo", "qssf"], controls=False, options={"qssf": told})
    cells = asked(plan).cells
    assert [dict(cell.scenario.options) for cell in cells] == [
        {},
        {"wait_share": 0.5, "bound_share": 1.0},
        {"wait_share": 0.5, "bound_share": None},
        {"wait_share": 1.0, "bound_share": 1.0},
        {"wait_share": 1.0, "bound_share": None},
        {"patience_s": 43_200},
        {"patience_s": None},
    ]
    assert len({cell.key("x") for cell in cells}) == 7
    assert cells[1].to_json()["options"] == {"wait_share": 0.5, "bound_share": 1.0}


def test_a_table_of_options_is_as_good_as_a_list_of_one() -> None:
    of_one, of_several = (
        asked(a_plan(policies=["fifo"], options={"fifo": told}))
        for told in ({"patience": ["1h"]}, [{"patience": ["1h"]}])
    )
    assert of_one == of_several
    assert dict(of_one.cells[-1].scenario.options) == {"patience_s": 3_600}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"qssf": {"wait_share": [0.9]}}, "has options for qssf, but does not replay"),
        ({"fifo": {"share": [0.9]}}, "fifo has no option share"),
    ],
)
def test_options_that_would_be_passed_over_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        asked(a_plan(options=options))


def test_options_change_the_replay_and_are_told_in_its_name(history: LoadedHistory, tmp_path: Path) -> None:
    options = {"fewest_gpus": {"patience": ["1h", "never"], "large_divisor": [1.0]}}
    found = swept(history, tmp_path, a_plan(policies=["fewest_gpus"], controls=False, options=options))
    bounded, free = found.groups[0].rows
    assert (bounded.label, free.label) == (
        "Fewest GPUs, large_divisor 1, patience 1 h, wait_share 0.5",
        "Fewest GPUs, large_divisor 1, patience never, wait_share 0.5",
    )
    assert bounded.figures["max_wait_s"] < free.figures["max_wait_s"]
    assert "patience_s=3600" in sweep_csv(found)


def test_the_order_of_today_is_no_bounded_first_come_first_served(history: LoadedHistory, tmp_path: Path) -> None:
    plan = a_plan(policies=["fifo"], backfills=["easy"], estimates=["limit"], options={"fifo": {"patience": ["1h"]}})
    rows = swept(history, tmp_path, plan).groups[0].rows
    assert [row.label for row in rows if row.is_plain] == ["FIFO + EASY (limit)"]
    assert "FIFO + EASY (limit), patience 1 h" in [row.label for row in rows]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("policies = []", r'write policies = \["fifo", "qssf"\], or leave it out'),
        ("seeds = []", "an empty list replays nothing; leave it out"),
        ("settings = {nodes = []}", "settings.nodes: .* an empty list"),
        ("options = {qssf = []}", r"write qssf = \{wait_share = "),
        ("options = {qssf = {wait_share = []}}", r"write qssf = \{wait_share = "),
        ("options = {lifo = {share = [1]}}", "options.lifo"),
        ('polices = ["fifo"]', "polices: Extra inputs"),
        ('policies = ["lifo"]', "policies.0"),
        ("repeats = 3", "3 repeats are too few"),
        ("settings = 3", "settings"),
        ("policies = [", "cannot be read as TOML"),
    ],
)
def test_a_plan_that_is_not_understood_is_refused_with_the_known_keys(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_sweep_plan(written(tmp_path, text))


def test_a_plan_that_is_not_there_is_said_not_to_be(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nope.toml: No such file"):
        read_sweep_plan(tmp_path / "nope.toml")


@pytest.mark.parametrize(
    "keys",
    [
        {"windows": [{"from": "soon"}]},
        {"windows": [{"from": "2020-05-02", "to": "2020-05-01"}]},
        {"windows": [{"warm_up": "-1d"}]},
        {"windows": [{"warm_up": "7"}]},
        {"settings": {"nodes": ["gpu="]}},
        {"settings": {"predict_again": ["often"]}},
        {"estimates": [0]},
    ],
)
def test_a_value_that_is_not_understood_is_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        asked(a_plan(**keys))


def test_a_cell_has_the_figures_of_the_what_if(history: LoadedHistory) -> None:
    request = WhatIfRequest(scenarios=(FIFO, TRUE), nodes=NODES, gpus_per_node=4)
    for run, cell in zip(whatif(history, request).runs, [FIFO, TRUE], strict=True):
        told = SweepWorker(history).figures(SweepCell(request=replace(request, scenarios=(cell,))))
        assert {name: told[name] for name in run.summary.to_json()} == run.summary.to_json()
        assert run.summary.mean_wait_s > 60


def test_the_same_lines_come_of_every_order_of_work(history: LoadedHistory, tmp_path: Path) -> None:
    plan = a_plan(policies=["fifo", "qssf"], run_times=["predicted"], repeats=5, over="seeds")
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    swept(history, tmp_path / "one", plan)
    swept(history, tmp_path / "other", plan, engine=backwards)
    assert lines(tmp_path / "one") == lines(tmp_path / "other")
    assert len(lines(tmp_path / "one")) == 4 * 5


def test_a_run_that_was_killed_goes_on_where_it_was(history: LoadedHistory, tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    whole = swept(history, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        swept(history, tmp_path, engine=dying_after(2))
    assert len(lines(tmp_path)) == 2
    with (tmp_path / "out.jsonl").open("ab") as torn:
        torn.write(b'{"cell": {"backf')
    replayed: list[int] = []
    again = swept(history, tmp_path, engine=counting(replayed))
    assert (replayed, again.known_before) == ([2], 2)
    assert lines(tmp_path) == lines(tmp_path / "whole")
    assert again.groups == whole.groups
    assert swept(history, tmp_path, engine=counting(replayed)).known_before == 4
    assert replayed == [2], "nothing was left to replay"


def test_an_engine_is_let_go_of_when_it_is_interrupted(history: LoadedHistory, tmp_path: Path) -> None:
    let_go: list[bool] = []
    kept = []

    def engine(history: LoadedHistory, cells: Sequence[SweepCell]) -> Generator[FinishedRun, None, None]:
        try:
            yield from run_here(history, cells)
        finally:
            let_go.append(True)

    def asked_for(*given: Any) -> Generator[FinishedRun, None, None]:
        kept.append(engine(*given))  # so that it is not let go of for being garbage
        return kept[-1]

    def interrupted(step: str, done: float) -> None:
        if done > 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(history, asked(), out=tmp_path / "out.jsonl", engine=asked_for, progress=interrupted)
    assert let_go == [True]


def test_another_history_another_plan_and_another_helios_are_other_cells(
    history: LoadedHistory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept(history, tmp_path)
    jobs = history.jobs.copy()
    jobs.loc[7, "run_time_s"] += 1
    assert swept(replace(history, jobs=jobs), tmp_path).known_before == 0
    assert swept(history, tmp_path).known_before == 4
    monkeypatch.setattr("helios.app.sweep.__version__", "99")
    assert swept(history, tmp_path).known_before == 0
    monkeypatch.setattr("helios.app.sweep.code_fingerprint", lambda: "other code")
    assert swept(history, tmp_path).known_before == 0
    assert len(lines(tmp_path)) == 16


def test_the_fingerprint_of_a_history_is_that_of_its_jobs(history: LoadedHistory) -> None:
    assert fingerprint_history(history) == fingerprint_history(
        replace(history, jobs=history.jobs.copy(), notes=("read twice",))
    )
    for column, value in (("user", "user0"), ("run_time_s", 1.0), ("time_limit_s", 1.0), ("gpus", 4)):
        jobs = history.jobs.copy()
        jobs.loc[5:9, column] = value
        assert fingerprint_history(replace(history, jobs=jobs)) != fingerprint_history(history), column


def test_a_cell_that_fails_is_written_down_and_tried_again(
    history: LoadedHistory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = a_plan(settings={"nodes": ["gpu=1", "nowhere=1,gpu2=1"]})
    found = swept(history, tmp_path, plan)
    assert (found.cells, found.failed) == (8, 4)
    (reason,) = {reason for row in found.groups[1].rows for reason in row.failed}
    assert "No job belongs to partition gpu2" in reason
    assert found.groups[0].baseline is not None and found.groups[1].baseline is None
    replayed: list[int] = []
    assert swept(history, tmp_path, plan, engine=counting(replayed)).known_before == 4
    assert replayed == [4]


def test_whatever_breaks_in_a_cell_stops_no_other(history: LoadedHistory, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("of all things")

    worker = SweepWorker(history)
    request = WhatIfRequest(scenarios=(FIFO,), nodes=NODES, gpus_per_node=4)
    monkeypatch.setattr("helios.app.sweep.to_run", broken)
    assert worker.run(SweepCell(request=request)) == {"failed": "ZeroDivisionError: of all things"}


def test_two_sweeps_do_not_write_into_one_file(history: LoadedHistory, tmp_path: Path) -> None:
    with read_results(tmp_path / "out.jsonl"), pytest.raises(UsageError, match="Another sweep is writing"):
        swept(history, tmp_path)
    swept(history, tmp_path)


def test_a_file_of_something_else_is_left_alone(history: LoadedHistory, tmp_path: Path) -> None:
    (tmp_path / "out.jsonl").write_text("job,user\n1,alice\n")
    with pytest.raises(FileUnreadable, match="line 1"):
        swept(history, tmp_path)
    assert (tmp_path / "out.jsonl").read_text() == "job,user\n1,alice\n"


def test_the_best_are_told_beside_the_controls(history: LoadedHistory, tmp_path: Path) -> None:
    found = swept(history, tmp_path, a_plan(policies=["fifo", "fewest_gpus", "srtf"]))
    (group,) = found.groups
    assert group.baseline is not None and group.baseline.label == "FIFO + EASY (limit)"
    aged = "bound_share 0.9, large_divisor 4, wait_share 0.5"
    assert {row.label for row in group.best("mean_wait_s")} == {f"Fewest GPUs + EASY (limit), {aged}"}
    text = table_of(found)
    assert "FIFO + EASY (limit) (plain)" in text
    assert max(map(len, text.splitlines())) <= 100


def test_settings_that_differ_are_told_in_words(history: LoadedHistory, tmp_path: Path) -> None:
    settings = {"predict_again": ["never", "1h"]}
    text = table_of(swept(history, tmp_path, a_plan(policies=["fifo"], controls=False, settings=settings)))
    assert "predict again never" in text
    assert "predict again 1h00m" in text


def test_an_oracle_is_never_the_best() -> None:
    def a_row(label: str, wait_s: float, *, oracle: bool = False) -> SweepRow:
        figures = dict.fromkeys(CRITERIA, wait_s)
        return SweepRow(label=label, figures=figures, is_plain=False, is_oracle=oracle, failed=())

    rows = (a_row("FIFO", 20.0), a_row("SJF true", 5.0, oracle=True), a_row("QSSF predicted", 10.0))
    group = Group(about={}, rows=rows, differences=None)
    assert [row.label for row in group.best("mean_wait_s")] == ["QSSF predicted"]


def table_of(found: Sweep) -> str:
    console = Console(width=100)
    with console.capture() as said:
        console.print(sweep_tables(found))
    return said.get()


def test_the_csv_has_a_line_for_each_cell(history: LoadedHistory, tmp_path: Path) -> None:
    found = swept(history, tmp_path, a_plan(settings={"nodes": ["gpu=1", "nowhere=1,gpu2=1"]}))
    header, *rows = [line.split(",") for line in sweep_csv(found).splitlines()]
    assert len(rows) == 8
    assert {"key", "policy", "mean_wait_s", "mean_wait_s_one_node", "failed"} <= set(header)


def test_plain_values_are_plain(history: LoadedHistory, tmp_path: Path) -> None:
    told = json.loads(json.dumps(swept(history, tmp_path).to_json(), allow_nan=False))
    assert told["cells"] == 4
    assert told["groups"][0]["best"]["mean_wait_s"]


def four_weeks_of_mornings(*, short_s: float) -> LoadedHistory:
    """Every morning two long jobs of a whole node, of about two hours, and behind them five of ``short_s``."""
    rng = np.random.default_rng(0)
    rows = []
    for day in range(28):
        for number, run_s in enumerate([7_200.0, 7_200.0, *[short_s] * 5]):
            rows.append(
                a_job(
                    job_id=str(1_000 + 10 * day + number),
                    gpus=4,
                    submitted_at=START + timedelta(days=day, hours=9, seconds=number),
                    started_at=None,
                    ended_at=None,
                    run_time_s=float(round(run_s * rng.uniform(0.8, 1.2))),
                )
            )
    return LoadedHistory(cluster="lab", jobs=jobs_frame(*rows), timezone="Asia/Shanghai")


def test_repeats_find_a_planted_difference() -> None:
    request = WhatIfRequest(scenarios=(FIFO, TRUE), nodes=NODES, gpus_per_node=4)
    found = repeats(four_weeks_of_mornings(short_s=60), request, times=8)
    assert (found.over, found.blocks, found.repeats) == (ResampledUnit.USERS, 0, 8)
    difference = found.others[0].differences["mean_wait_s"]
    assert difference is not None and not difference.is_none
    # Five of seven jobs need not wait for the second long one, which waits for their five minutes.
    assert difference.value == pytest.approx((5 * -7_200 + 5 * 60) / 7, rel=0.1)


def test_repeats_find_no_difference_where_there_is_none() -> None:
    request = WhatIfRequest(scenarios=(FIFO, FEWEST), nodes=NODES, gpus_per_node=4)
    found = repeats(four_weeks_of_mornings(short_s=60), request, times=5)
    assert all(of is None or of.is_none for of in found.others[0].differences.values())


def test_repeats_are_the_same_wherever_they_are_made(history: LoadedHistory) -> None:
    request = WhatIfRequest(scenarios=(FIFO, FEWEST), nodes=NODES, gpus_per_node=4)
    told = [repeats(history, request, times=5, engine=engine).to_json() for engine in (run_here, backwards)]
    assert told[0] == told[1]


def test_the_history_before_a_window_teaches_every_draw_alike(history: LoadedHistory, tmp_path: Path) -> None:
    """What was taught must not hang on which draw a process happened to replay first."""
    site = a_site(12, jobs=900)
    plan = Scenario(policy=Policy.QSSF, backfill=Backfill.NONE, run_times=RunTimes.PREDICTED)
    request = WhatIfRequest(scenarios=(plan,), nodes=NODES, gpus_per_node=4, since=START + timedelta(days=8))
    cells = [SweepCell(request=request, repeat=repeat) for repeat in (1, 2, 3)]
    forth = {done.place: done.result for done in run_here(site, cells)}
    back = {done.place: done.result for done in backwards(site, cells)}
    assert forth == back
    assert all("figures" in told for told in forth.values())
