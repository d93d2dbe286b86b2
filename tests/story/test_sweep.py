"""Sweeps on real Dask workers: processes of this machine, a scheduler elsewhere, and what becomes of losing one."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from helios.app.history import LoadedHistory
from helios.app.scenarios import OPTIONS
from helios.app.sweep import (
    Cross,
    FinishedRun,
    SweepCell,
    SweepPlan,
    SweepSettings,
    cross_options,
    expected_s,
    read_sweep_plan,
    run_here,
    run_in_processes,
    run_on_dask,
    run_on_slurm,
    run_on_this_machine,
    sweep,
)
from helios.app.whatif import WhatIfRequest
from helios.cli.whatif import commands
from helios.errors import DaskUnavailable, UsageError
from helios.ingest import write_helios_csv
from tests.story.shell import Helios, shell
from tests.unit.app.test_resampling import a_site
from tests.waiting import TEST_TIMEOUT_S

distributed = pytest.importorskip("distributed", reason="the extra [dask] is not installed")
DOCUMENT = Path(__file__).parents[2] / "docs" / "whatif.md"
PLAN = """
policies = ["fifo", "sjf", "qssf"]
backfills = ["none"]
run_times = ["predicted"]
over = "seeds"
repeats = 5
[settings]
nodes = ["gpu=1", "nowhere=1,gpu2=1"]
"""


def a_cluster(workers: int) -> Any:
    return distributed.LocalCluster(
        n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=":0", memory_limit=0
    )


@pytest.fixture(scope="module")
def doomed() -> Iterator[Any]:
    """A scheduler with two workers, of which tests may kill some: their nannies start others."""
    with a_cluster(2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def history() -> LoadedHistory:
    return a_site(1.0, jobs=300)


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Cross:
    path = tmp_path_factory.mktemp("plan") / "plan.toml"
    path.write_text(PLAN)
    return cross_options(read_sweep_plan(path), base=WhatIfRequest(scenarios=(), gpus_per_node=4), timezone="UTC")


@pytest.fixture(scope="module")
def truth(history: LoadedHistory, asked: Cross, tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """The lines that one process writes."""
    folder = tmp_path_factory.mktemp("here")
    sweep(history, asked, out=folder / "out.jsonl", engine=run_here)
    return lines(folder)


def lines(folder: Path) -> list[bytes]:
    return sorted((folder / "out.jsonl").read_bytes().splitlines())


def test_processes_write_the_same_lines_as_one(
    history: LoadedHistory, asked: Cross, truth: list[bytes], tmp_path: Path
) -> None:
    sweep(history, asked, out=tmp_path / "out.jsonl", engine=partial(run_in_processes, workers=2))
    assert lines(tmp_path) == truth
    assert len(truth) == len(asked.cells) == 50
    assert sum(b'"failed"' in line for line in truth) == 25


def test_a_worker_killed_amid_the_sweep_costs_no_line(
    doomed: Any, history: LoadedHistory, asked: Cross, truth: list[bytes], tmp_path: Path
) -> None:
    killed: list[int] = []

    def engine(history: LoadedHistory, cells: Sequence[SweepCell]) -> Generator[FinishedRun, None, None]:
        with closing(run_on_dask(history, cells, address=doomed.scheduler_address)) as replays:
            for number, done in enumerate(replays):
                if number == 5:
                    killed.append(kill_a_busy_worker(doomed))
                yield done

    sweep(history, asked, out=tmp_path / "out.jsonl", engine=engine)
    assert len(killed) == 1
    assert lines(tmp_path) == truth


def kill_a_busy_worker(cluster: Any) -> int:
    """Kill the process of a worker that has cells to replay, and return its id."""
    with distributed.Client(cluster.scheduler_address, set_as_default=False) as client:
        busy = next(worker for worker, keys in client.processing().items() if keys)
        (process,) = client.run(os.getpid, workers=[busy]).values()
        os.kill(process, signal.SIGKILL)
        return int(process)


def test_a_sweep_that_was_killed_goes_on_elsewhere(
    doomed: Any, history: LoadedHistory, asked: Cross, truth: list[bytes], tmp_path: Path
) -> None:
    def dying(history: LoadedHistory, cells: Sequence[SweepCell]) -> Generator[FinishedRun, None, None]:
        with closing(run_on_dask(history, cells, address=doomed.scheduler_address)) as replays:
            for number, done in enumerate(replays):
                if number == 30:
                    raise KeyboardInterrupt
                yield done

    with pytest.raises(KeyboardInterrupt):
        sweep(history, asked, out=tmp_path / "out.jsonl", engine=dying)
    assert len(lines(tmp_path)) == 30
    again = sweep(history, asked, out=tmp_path / "out.jsonl", engine=run_here)
    assert 0 < again.known_before <= 30
    assert sorted({*lines(tmp_path)}) == truth, "but for failures, which were tried twice"


def test_the_history_reaches_a_worker_once_and_one_that_joins_late_too(doomed: Any, history: LoadedHistory) -> None:
    """What is sent with a cell is small, whatever the history: it is the question, not the jobs."""
    pickle = pytest.importorskip("cloudpickle")
    cell = SweepCell(request=WhatIfRequest(scenarios=(), nodes={"gpu": 1}))
    assert len(pickle.dumps(cell)) < 3_000 < len(pickle.dumps(history))
    with distributed.Client(doomed.scheduler_address, set_as_default=False) as client:
        doomed.scale(3)
        client.wait_for_workers(3)
        named = client.run(lambda dask_worker: [name for name in dask_worker.plugins if "helios-history" in name])
        assert len(named) == 3
        assert all(len(names) >= 1 for names in named.values())
        doomed.scale(2)


def test_an_address_where_nobody_answers_is_named(history: LoadedHistory, asked: Cross, tmp_path: Path) -> None:
    with pytest.raises(DaskUnavailable, match=r"No Dask scheduler answers at nowhere.*(?s:.)*tcp://HOST:8786"):
        sweep(history, asked, out=tmp_path / "out.jsonl", engine=partial(run_on_dask, address="nowhere"))


def test_without_dask_the_extra_to_install_is_named(
    history: LoadedHistory, asked: Cross, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, engine, extra in (
        ("distributed", partial(run_in_processes, workers=2), "dask"),
        ("dask_jobqueue", run_on_slurm, "jobqueue"),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(DaskUnavailable, match=rf"pip install 'helios-slurm\[{extra}\]'"):
            next(iter(engine(history, asked.cells)))


def test_short_replays_need_no_other_processes(
    history: LoadedHistory, asked: Cross, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)  # so that processes would be refused
    first = asked.cells[:1]
    assert expected_s(history, first) == pytest.approx(len(history.jobs) * 2e-6)
    assert [done.place for done in run_on_this_machine(history, first, workers=2)] == [0]
    many = list(first) * int(21 / expected_s(history, first))
    with pytest.raises(DaskUnavailable):
        next(run_on_this_machine(history, many, workers=2))


def test_slurm_s_table_is_refused_where_dask_jobqueue_does_not_understand_it(
    history: LoadedHistory, asked: Cross
) -> None:
    pytest.importorskip("dask_jobqueue", reason="the extra [jobqueue] is not installed")
    with pytest.raises(DaskUnavailable, match=r"refuses the table \[slurm\]"):
        next(run_on_slurm(history, asked.cells, options={"cores": 1, "memory": "1GB", "quue": "gpu"}))


@pytest.fixture
def site(tmp_path: Path, history: LoadedHistory) -> Helios:
    write_helios_csv(history.jobs, tmp_path / "lab.csv")
    (tmp_path / "plan.toml").write_text(PLAN.replace("repeats = 5", "repeats = 0"))
    return shell(tmp_path)


def options(*more: object) -> tuple[object, ...]:
    return ("whatif", "--trace", "lab.csv", "--gpus-per-node", 4, *more)


def test_the_command_sweeps_says_what_failed_and_goes_on(site: Helios, tmp_path: Path) -> None:
    first = site(*options("--sweep", "plan.toml", "--workers", 1, "--csv", "cells.csv", "--json"), code=1).json
    assert (first["cells"], first["known_before"], first["failed"]) == (10, 0, 5)
    assert len((tmp_path / "cells.csv").read_text().splitlines()) == 11
    assert len((tmp_path / "plan.results.jsonl").read_text().splitlines()) == 10
    again = site(*options("--sweep", "plan.toml", "--workers", 1), code=1)
    assert "10 replays, 5 of them known before" in again.out
    assert "5 replays failed" in again.out
    assert "QSSF predicted" in again.out


def test_a_sweep_that_is_interrupted_says_how_to_go_on(tmp_path: Path, history: LoadedHistory) -> None:
    write_helios_csv(history.jobs, tmp_path / "lab.csv")
    (tmp_path / "plan.toml").write_text(PLAN.replace("repeats = 5", "repeats = 400"))
    asked = map(str, options("--sweep", "plan.toml", "--workers", 1))
    # The default signals, because what runs in the background of a shell ignores Ctrl-C.
    command = ["env", "--default-signal", sys.executable, "-m", "helios", *asked]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as run:
        results = tmp_path / "plan.results.jsonl"
        while run.poll() is None and not (results.exists() and results.read_bytes().count(b"\n") > 2):
            with suppress(subprocess.TimeoutExpired):
                run.wait(timeout=0.1)
        run.send_signal(signal.SIGINT)
        said = run.communicate(timeout=TEST_TIMEOUT_S)[1]
    assert run.returncode == 130
    assert "the same command goes on from there" in said
    for line in results.read_text().splitlines():
        assert {"key", "cell"} < set(json.loads(line))


def test_repeats_say_how_sure_the_differences_are(site: Helios) -> None:
    asked = options("--nodes", "gpu=1", "--policy", "fifo,sjf", "--backfill", "none", "--estimates", "true")
    found = site(*asked, "--repeat", 5, "--json").json["differences"]
    assert (found["repeats"], found["over"]) == (5, "seeds")
    sure = found["others"][0]["differences"]["mean_wait_s"]
    assert sure["low"] < sure["value"] < sure["high"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--sweep", "plan.toml", "--policy", "fifo"), "--policy cannot be used with --sweep"),
        (("--out", "x"), "--out is for sweeps only"),
        (("--repeat", "2"), "2 repeats are too few"),
        (("--sweep", "plan.toml", "--dask", "slurm"), "needs a plan with a table [slurm]"),
        (("--sweep", "nowhere.toml"), "nowhere.toml: No such file or directory"),
    ],
)
def test_options_that_would_be_ignored_are_refused(
    site: Helios, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = CliRunner().invoke(commands, ["--trace", "lab.csv", *words])
    assert isinstance(refused.exception, UsageError)
    assert said in refused.exception.message


def test_the_plans_in_the_documentation_are_some(tmp_path: Path) -> None:
    text = DOCUMENT.read_text()
    plans = []
    for block in [part.split("```")[0] for part in text.split("```toml\n")[1:]]:
        (tmp_path / "plan.toml").write_text(block)
        plans.append(read_sweep_plan(tmp_path / "plan.toml"))
    whole, of_options = (cross_options(plan, base=WhatIfRequest(scenarios=()), timezone="UTC").cells for plan in plans)
    assert plans[0].slurm["jobs"] >= 1
    assert f"{len(whole):,} replays" in text
    assert replace(whole[0].request, scenarios=()) != replace(whole[-1].request, scenarios=())
    assert {name for cell in of_options for name, _ in cell.scenario.options} == {
        *("wait_share", "bound_share", "large_divisor", "patience_s"),
    }


def test_every_key_of_a_plan_is_in_the_documentation() -> None:
    text = DOCUMENT.read_text()
    names = (*SweepPlan.model_fields, *SweepSettings.model_fields, *OPTIONS)
    missing = [name for name in names if f"`{name}`" not in text]
    assert not missing
