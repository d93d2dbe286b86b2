"""A search goes on after a restart."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from helios.errors import FileUnreadable, FileUnwritable, UsageError
from helios.training.model import TrialState
from helios.training.pool.search import JOURNAL, LOCKED, STUDY, OptunaSearch, open_search
from helios.training.pool.sweep_file import read_training_sweep
from tests.unit.training.pool.sweeps import CONDITIONAL, GRID, SEARCH, Reader, ask_all
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("python_is_found")
LONG_SEARCH = SEARCH.replace("trials = 12", "trials = 400")
FULL_DISK = """
import resource, sys
from pathlib import Path
from helios.errors import FileUnwritable
from helios.training.model import TrialState
from helios.training.pool.search import open_search
from helios.training.pool.sweep_file import read_training_sweep
search = open_search(read_training_sweep(Path(sys.argv[1])), Path(sys.argv[2]))
for number in range(4):
    search.ask()
file = Path(sys.argv[2]) / sys.argv[3]
size = file.stat().st_size
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
for room in range(0, 200, 7):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + room, resource.RLIM_INFINITY))
    try:
        search.tell(2, TrialState.FINISHED, 0.25)
        break
    except FileUnwritable:
        assert file.stat().st_size == size, "half written"
        print("full")
search.close()
"""


def test_processes_that_share_a_grid_keep_what_each_was_told(sweep: Reader, tmp_path: Path) -> None:
    searches = [open_search(sweep(GRID), tmp_path / "search", others=others) for others in range(2)]
    searches[0].tell(0, TrialState.FAILED)
    searches[1].tell(1, TrialState.FINISHED, 0.5)
    searches[0].tell(2, TrialState.DIVERGED)
    searches[1].tell(3, TrialState.FINISHED, 0.5)
    for search in searches:
        search.close()
    again = open_search(sweep(GRID), tmp_path / "search")
    assert min(trial.number for trial in ask_all(again)) == 4
    again.close()


@pytest.mark.parametrize("text", [GRID, SEARCH, GRID + '[search]\nmetric = "a"\npruner = "median"\n'])
def test_search_goes_on_after_a_restart(sweep: Reader, tmp_path: Path, text: str) -> None:
    read = sweep(text)
    first = open_search(read, tmp_path / "pool")
    asked = [first.ask() for _ in range(4)]
    assert all(asked)
    first.tell(1, TrialState.FINISHED, 0.5)
    first.tell(3, TrialState.FAILED, None)
    first.close()
    second = open_search(read, tmp_path / "pool")
    again = ask_all(second)
    second.tell(1, TrialState.FAILED, None)  # changes nothing
    second.close()
    assert again[:2] == [asked[0], asked[2]]
    assert [trial.number for trial in again] == [0, 2, *range(4, read.trials)]
    third = open_search(read, tmp_path / "pool")
    assert {trial.number for trial in ask_all(third)} == set(range(read.trials)) - {1, 3}
    third.close()


def test_what_is_told_twice_is_recorded_once(sweep: Reader, tmp_path: Path) -> None:
    search = open_search(sweep(GRID), tmp_path / "pool")
    search.tell(0, TrialState.FINISHED, 0.5)
    search.tell(0, TrialState.FAILED, None)
    lines = (tmp_path / "pool" / "told.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"number": 0, "state": "finished"}]


def test_search_draws_within_the_space_and_no_trial_twice(sweep: Reader, tmp_path: Path) -> None:
    read = sweep(SEARCH + 'sampler = "random"\n')
    drawn = []
    for _ in range(3):  # a seed alone would draw the same four each time
        search = open_search(read, tmp_path / "pool")
        for trial in [search.ask() for _ in range(4)]:
            assert trial is not None
            drawn.append(trial.parameters)
            search.tell(trial.number, TrialState.FINISHED, 0.5)
        assert len(drawn) < 12 or search.ask() is None
        search.close()
    assert all(1e-4 <= parameters["lr"] <= 1e-1 for parameters in drawn)  # type: ignore[operator]  # a number
    assert {parameters["width"] for parameters in drawn} <= {32, 64, 128}
    assert len({parameters["lr"] for parameters in drawn}) == 12


@pytest.mark.parametrize("sampler", ["TPE", '{ name = "TPE", multivariate = true, group = true }', "random", "QMC"])
def test_a_search_draws_a_parameter_only_where_its_condition_holds(sweep: Reader, tmp_path: Path, sampler: str) -> None:
    sampler = sampler if sampler.startswith("{") else f'"{sampler}"'
    search = open_search(sweep(CONDITIONAL + f"sampler = {sampler}\n"), tmp_path / "pool")
    asked = []
    for trial in iter(search.ask, None):
        asked.append(trial.parameters)
        search.tell(trial.number, TrialState.FINISHED, 0.5)
    assert {each["optimizer"] for each in asked} == {"adam", "sgd"}
    assert all(("momentum" in each) == (each["optimizer"] == "sgd") for each in asked)
    assert [trial.params for trial in studied(tmp_path / "pool")] == asked


def test_same_seed_draws_the_same(sweep: Reader, tmp_path: Path) -> None:
    read = sweep(SEARCH)
    both = [ask_all(open_search(read, tmp_path / name)) for name in ("one", "two")]
    assert both[0] == both[1]


def test_sampler_learns_what_is_told(sweep: Reader, tmp_path: Path) -> None:
    read = sweep(
        'command = "python train.py {x}"\n[parameters]\nx = { low = 0.0, high = 1.0 }\n'
        '[search]\ntrials = 60\nmetric = "a"\ndirection = "minimize"\nseed = 1\n'
    )
    search = open_search(read, tmp_path / "pool")
    drawn: list[float] = []
    for trial in iter(search.ask, None):
        drawn.append(float(trial.parameters["x"]))
        search.tell(trial.number, TrialState.FINISHED, (drawn[-1] - 0.2) ** 2)
    late = sum(abs(x - 0.2) < 0.1 for x in drawn[30:])
    assert late > 15  # of 30; chance alone gives 6


@pytest.mark.parametrize("pruner", ['"SuccessiveHalving"', '{ name = "hyperband", max_resource = 9 }', '"median"'])
@pytest.mark.parametrize("text", [GRID + '[search]\nmetric = "a"\n', SEARCH])
def test_bad_trials_are_pruned_and_good_ones_are_not(sweep: Reader, tmp_path: Path, text: str, pruner: str) -> None:
    search = open_search(sweep(f"{text}pruner = {pruner}\n"), tmp_path / "pool")
    pruned = {}
    for trial in iter(search.ask, None):
        value = 0.9 - trial.number / 100
        for step in range(9):
            if search.report(trial.number, step, value):
                pruned[trial.number] = step
                search.tell(trial.number, TrialState.PRUNED, value)
                break
        else:
            search.tell(trial.number, TrialState.FINISHED, value)
    assert pruned
    assert 0 not in pruned


def test_a_loss_that_is_no_number_is_pruned(sweep: Reader, tmp_path: Path) -> None:
    search = open_search(sweep(SEARCH + 'pruner = "SuccessiveHalving"\n'), tmp_path / "pool")
    for number in range(4):
        search.ask()
        for step in range(9):
            search.report(number, step, 0.5)
        search.tell(number, TrialState.FINISHED, 0.5)
    search.ask()
    assert any(search.report(4, step, float("nan")) for step in range(9))


def test_reports_out_of_order_and_after_the_end_change_nothing(sweep: Reader, tmp_path: Path) -> None:
    search = open_search(sweep(SEARCH + 'pruner = "median"\n'), tmp_path / "pool")
    search.ask()
    for step in (5, 4, 5, -1):
        assert not search.report(0, step, 0.1)
    search.tell(0, TrialState.FINISHED, 0.1)
    assert not search.report(0, 9, 0.1)
    search.tell(0, TrialState.FINISHED, float("nan"))
    assert studied(tmp_path / "pool")[0].intermediate_values == {5: 0.1}


def test_many_reports_are_thinned(sweep: Reader, tmp_path: Path) -> None:
    search = open_search(sweep(SEARCH), tmp_path / "pool")
    search.ask()
    for step in range(2_000):
        search.report(0, step, 0.1)
    kept = sorted(studied(tmp_path / "pool")[0].intermediate_values)
    assert kept[:100] == list(range(100))
    assert len(kept) < 420
    assert max(late / early for early, late in pairwise(kept[100:])) < 1.03


def studied(folder: Path) -> Any:
    """Read the trials as Optuna's dashboard does."""
    optuna = pytest.importorskip("optuna")
    journal = optuna.storages.journal.JournalFileBackend(str(folder / JOURNAL))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return optuna.load_study(study_name=STUDY, storage=optuna.storages.JournalStorage(journal)).trials


def test_optuna_reads_what_happened(sweep: Reader, tmp_path: Path) -> None:
    search = open_search(sweep(SEARCH), tmp_path / "pool")
    for number, (state, metric) in enumerate(
        [(TrialState.FINISHED, 0.5), (TrialState.FINISHED, None), (TrialState.FAILED, None), (TrialState.PRUNED, 0.1)]
    ):
        search.ask()
        search.report(number, 0, 0.25)
        search.tell(number, state, metric)
    search.ask()
    trials = studied(tmp_path / "pool")
    assert [trial.state.name for trial in trials] == ["COMPLETE", "FAIL", "FAIL", "PRUNED", "RUNNING"]
    assert [trial.value for trial in trials] == [0.5, None, None, 0.25, None]
    assert [trial.user_attrs.get("ended as") for trial in trials] == [None, "finished", "failed", None, None]
    assert trials[3].user_attrs["folder"] == str(tmp_path / "trials" / "00003")


def test_the_dashboard_shows_the_study_of_a_pool(sweep: Reader, tmp_path: Path) -> None:
    pytest.importorskip("optuna_dashboard", reason="the dashboard of Optuna is not installed")
    search = open_search(sweep(CONDITIONAL), tmp_path / "search")
    ended = [TrialState.FINISHED, TrialState.PRUNED, TrialState.DIVERGED, TrialState.FAILED]
    for number, state in enumerate(ended):
        search.ask()
        search.report(number, 1, 0.25)
        search.tell(number, state, 0.5 if state is TrialState.FINISHED else None)
    search.ask()
    with dashboard(tmp_path / "search" / JOURNAL) as ask:
        (study,) = ask("/api/studies")["study_summaries"]
        assert (study["study_name"], study["directions"]) == (STUDY, ["maximize"])
        trials = ask(f"/api/studies/{study['study_id']}")["trials"]
        assert [trial["state"] for trial in trials] == ["Complete", "Pruned", "Fail", "Fail", "Running"]
        assert trials[0]["values"] == [0.5]
        assert trials[1]["intermediate_values"] == [{"step": 1, "value": 0.25}]
        shown = [{each["key"]: each["value"] for each in trial["user_attrs"]} for trial in trials]
        assert [each.get("ended as") for each in shown] == [None, None, "diverged", "failed", None]
        assert shown[4]["folder"].strip('"').endswith("trials/00004")
        search.tell(4, TrialState.FINISHED, 0.75)
        until(lambda: ask("/api/studies/0")["trials"][4]["state"] == "Complete")
    search.close()


@contextmanager
def dashboard(journal: Path) -> Iterator[Callable[[str], Any]]:
    """Run Optuna's dashboard on a journal, and give what asks it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-c", "from optuna_dashboard._cli import main; main()"]
    with subprocess.Popen([*command, str(journal), "--port", str(port)], stdout=subprocess.DEVNULL) as server:

        def ask(path: str) -> Any:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
                return json.load(answer)

        def answers() -> bool:
            with suppress(OSError):
                return bool(ask("/api/studies"))
            assert server.poll() is None, "the dashboard has ended"
            return False

        try:
            until(answers)
            yield ask
        finally:
            server.kill()


def test_a_study_of_several_metrics_has_all_values(sweep: Reader, tmp_path: Path) -> None:
    several = SEARCH.replace('"accuracy"', '["accuracy", "ms"]\ndirection = ["maximize", "minimize"]')
    search = open_search(sweep(several), tmp_path / "pool")
    for number, values in enumerate([(0.9, 20.0), (0.8, 10.0), (0.7, 30.0), (0.9, None)]):
        search.ask()
        assert not search.report(number, 0, 0.5)
        search.tell(number, TrialState.FINISHED, *values)
    trials = studied(tmp_path / "pool")
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 3 + ["FAIL"]
    assert [trial.values for trial in trials] == [[0.9, 20.0], [0.8, 10.0], [0.7, 30.0], None]


def test_folder_has_one_process_at_a_time(sweep: Reader, tmp_path: Path) -> None:
    read = sweep(GRID)
    search = open_search(read, tmp_path / "pool")
    with pytest.raises(UsageError, match="Another process"):
        open_search(read, tmp_path / "pool")
    search.close()
    open_search(read, tmp_path / "pool").close()


def test_a_search_can_be_made_longer(sweep: Reader, tmp_path: Path) -> None:
    search = open_search(sweep(SEARCH), tmp_path / "pool")
    for trial in ask_all(search):
        search.tell(trial.number, TrialState.FINISHED, 0.1)
    search.close()
    longer = open_search(sweep(SEARCH.replace("trials = 12", "trials = 14")), tmp_path / "pool")
    assert [trial.number for trial in ask_all(longer)] == [12, 13]


@pytest.mark.parametrize(("text", "name"), [(GRID, "told.jsonl"), (SEARCH, JOURNAL)])
def test_a_line_that_was_half_written_is_cut_off(sweep: Reader, tmp_path: Path, text: str, name: str) -> None:
    search = open_search(sweep(text), tmp_path / "pool")
    search.ask()
    search.tell(0, TrialState.FINISHED, 0.5)
    search.close()
    with (tmp_path / "pool" / name).open("ab") as file:
        file.write(b'{"op_code": 4, "number"')
    search = open_search(sweep(text), tmp_path / "pool")
    trial = search.ask()
    assert trial is not None
    assert trial.number == 1
    search.tell(1, TrialState.FINISHED, 0.5)
    search.close()
    last = open_search(sweep(text), tmp_path / "pool").ask()
    assert last is not None
    assert last.number == 2


@pytest.mark.parametrize(("text", "name"), [(GRID, "told.jsonl"), (SEARCH, JOURNAL)])
def test_damaged_files_are_refused(sweep: Reader, tmp_path: Path, text: str, name: str) -> None:
    open_search(sweep(text), tmp_path / "pool").close()
    (tmp_path / "pool" / name).write_bytes(b"garbage\nmore\n")
    with pytest.raises(FileUnreadable):
        open_search(sweep(text), tmp_path / "pool")
    with pytest.raises(FileUnreadable):  # and not: another process works there
        open_search(sweep(text), tmp_path / "pool")


@pytest.mark.parametrize(("text", "name"), [(GRID, "told.jsonl"), (SEARCH, JOURNAL)])
def test_on_a_full_disk_nothing_is_half_written(sweep: Reader, tmp_path: Path, text: str, name: str) -> None:
    read = sweep(text)
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(read.path), str(tmp_path / "pool"), name],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "full" in done.stdout
    search = open_search(read, tmp_path / "pool")
    assert [trial.number for trial in ask_all(search)][:4] == [0, 1, 3, 4]


def ask_and_tell(file: Path, folder: Path, log: Path) -> None:
    """Run a search one trial at a time, and write a line before and after each."""
    search = open_search(read_training_sweep(file), folder)
    handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, b"open 0\n")
    for trial in iter(search.ask, None):
        os.write(handle, f"{trial.number} {trial.parameters['lr']}\n".encode())
        search.report(trial.number, 0, 0.5)
        search.tell(trial.number, TrialState.FINISHED, 0.5)
        os.write(handle, f"told {trial.number}\n".encode())


@pytest.mark.parametrize("text", [GRID.replace("[32, 64, 128]", "{ low = 1, high = 50000, int = true }"), LONG_SEARCH])
def test_a_search_often_killed_asks_what_was_not_told(sweep: Reader, tmp_path: Path, text: str) -> None:
    read, chance = sweep(text), random.Random(1)
    processes = multiprocessing.get_context("forkserver")  # which imports once
    processes.set_forkserver_preload([__name__, "optuna", "optuna.samplers", "optuna.storages.journal"])
    kills = 12
    for number in range(kills):
        log = tmp_path / f"{number}.log"
        started = processes.Process(target=ask_and_tell, args=(read.path, tmp_path / "pool", log))
        started.start()
        lines = chance.randrange(1, 9)
        until(lambda log=log, lines=lines: log.exists() and log.read_bytes().count(b"\n") >= lines)  # type: ignore[misc]
        time.sleep(chance.random() / 200)  # somewhere within the next writes
        started.kill()
        started.join()
        assert started.exitcode == -signal.SIGKILL
    logged = [line.split() for number in range(kills) for line in (tmp_path / f"{number}.log").read_text().splitlines()]
    told = [int(rest) for word, rest in logged if word == "told"]
    asked = {(word, rest) for word, rest in logged if word not in ("told", "open")}
    assert len(told) == len(set(told)) > 10
    assert len(asked) == len({word for word, _ in asked})  # the same parameters each time
    again = {trial.number for trial in ask_all(open_search(read, tmp_path / "pool"))}
    assert not again & set(told)
    assert len(again | set(told)) >= read.trials - kills  # what was told just before a kill was not logged


def test_the_lock_of_a_pool_that_was_killed_is_gone_at_once(sweep: Reader, tmp_path: Path) -> None:
    open_search(sweep(SEARCH), tmp_path / "pool").close()
    lock = tmp_path / "pool" / f"{JOURNAL}.lock"
    lock.write_text(LOCKED)
    search = open_search(sweep(SEARCH), tmp_path / "pool")
    assert not lock.exists()
    assert search.ask() is not None


def test_a_lock_that_was_broken_meanwhile_is_no_error(sweep: Reader, tmp_path: Path) -> None:
    search = open_search(sweep(SEARCH), tmp_path / "pool")
    assert isinstance(search, OptunaSearch)
    search._journal.acquire()
    (tmp_path / "pool" / f"{JOURNAL}.lock").unlink()
    search._journal.release()
    assert search.ask() is not None


def test_a_folder_that_cannot_be_made_is_an_error(sweep: Reader, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileUnwritable):
        open_search(sweep(GRID), tmp_path / "file" / "pool")


def test_a_trial_run_again_counts_with_its_new_value(sweep: Reader, tmp_path: Path) -> None:
    search = open_search(sweep(SEARCH.replace("trials = 12", "trials = 3")), tmp_path / "pool")
    first, second = search.ask(), search.ask()
    assert first is not None and second is not None
    search.tell(0, TrialState.FAILED, None)
    search.tell(0, TrialState.FINISHED, 0.9, again=1)
    third = search.ask()
    assert third is not None and (third.number, search.ask()) == (2, None)
    search.close()
    failed, *_, copy = sorted(studied(tmp_path / "pool"), key=lambda trial: trial.values or [])
    assert (failed.state.name, copy.state.name, copy.value) == ("FAIL", "COMPLETE", 0.9)
    assert copy.params == first.parameters


def test_a_trial_run_again_is_told_once_and_asked_for_never(sweep: Reader, tmp_path: Path) -> None:
    read = sweep(SEARCH.replace("trials = 12", "trials = 2"))
    search = open_search(read, tmp_path / "pool")
    ask_all(search)
    search.tell(0, TrialState.FAILED, None)
    search.report(0, 0, 0.5, again=1)
    search.close()  # as a kill, with the copy under way
    search = open_search(read, tmp_path / "pool")
    assert [trial.number for trial in ask_all(search)] == [1]
    for _ in range(2):
        search.tell(0, TrialState.FINISHED, 0.9, again=1)
    search.tell(1, TrialState.FINISHED, 0.8)
    search.close()
    found = studied(tmp_path / "pool")
    assert [trial.state.name for trial in found] == ["FAIL", "COMPLETE", "COMPLETE"]
    assert found[2].intermediate_values == {0: 0.5}


def test_a_grid_goes_on_in_order_behind_a_trial_run_again(sweep: Reader, tmp_path: Path) -> None:
    text = GRID + '[search]\nmetric = "accuracy"\npruner = "median"\n'
    search = open_search(sweep(text), tmp_path / "pool")
    first = search.ask()
    assert first is not None
    search.tell(0, TrialState.FAILED, None)
    search.tell(0, TrialState.FINISHED, 0.9, again=1)
    left = ask_all(search)
    assert [trial.number for trial in left] == [1, 2, 3, 4, 5]
    assert left[0].parameters == {"lr": 0.1, "width": 64}
