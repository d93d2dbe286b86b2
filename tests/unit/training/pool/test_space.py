"""Sweep files are checked before anything starts, and a search goes on after a restart."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import time
import tomllib
import warnings
from collections.abc import Callable
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.errors import FileUnreadable, FileUnwritable, UsageError
from helios.training.model import TrialState
from helios.training.pool import space
from helios.training.pool.space import (
    NextTrial,
    Search,
    TrainingSweep,
    ValueRange,
    format_value,
    line_number,
    open_search,
    read_training_sweep,
)
from tests.examples import examples
from tests.waiting import until

ROOT = Path(__file__).parents[3]

COMMAND = 'command = "python train.py --lr {lr} --width {width}"\n'
GRID = COMMAND + "[parameters]\nlr = [0.1, 0.01]\nwidth = [32, 64, 128]\n"
SEARCH = """\
command = "python train.py --lr {lr} --width {width}"
[parameters]
lr = { low = 1e-4, high = 1e-1, log = true }
width = [32, 64, 128]
[search]
trials = 12
metric = "accuracy"
seed = 1
"""


LONG_SEARCH = SEARCH.replace("trials = 12", "trials = 400")


@pytest.fixture(autouse=True)
def python_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment that runs the tests need not be on the path."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")


@pytest.fixture
def sweep(tmp_path: Path) -> Callable[[str], TrainingSweep]:
    """Read a sweep file from a text, beside a program."""
    for name in ("train.py", "models.py"):
        (tmp_path / name).write_text("")

    def read(text: str) -> TrainingSweep:
        (tmp_path / "sweep.toml").write_text(text)
        return read_training_sweep(tmp_path / "sweep.toml")

    return read


Reader = Callable[[str], TrainingSweep]


def ask_all(search: Search) -> list[NextTrial]:
    return list(iter(search.ask, None))


# What a sweep file says.


def test_grid_is_every_combination_in_order(sweep: Reader, tmp_path: Path) -> None:
    search = open_search(sweep(GRID), tmp_path / "pool")
    asked = ask_all(search)
    assert [trial.number for trial in asked] == list(range(6))
    expected = [{"lr": lr, "width": width} for lr, width in product([0.1, 0.01], [32, 64, 128])]
    assert [trial.parameters for trial in asked] == expected


def test_command_is_filled_word_by_word(sweep: Reader, tmp_path: Path) -> None:
    read = sweep(
        'command = "python train.py --name={name} {{x}} --out runs/{trial} {checkpoints}"\n'
        "[parameters]\nname = [\"a b; rm -rf '$HOME'\"]\n"
    )
    assert read.fill(read.combination(0), trial=3, checkpoints=tmp_path) == [
        "python",
        "train.py",
        "--name=a b; rm -rf '$HOME'",
        "{x}",
        "--out",
        "runs/3",
        str(tmp_path),
    ]


def test_steps_and_whole_ranges_are_a_grid(sweep: Reader) -> None:
    read = sweep(
        'command = "python train.py {a} {b} {c}"\n[parameters]\n'
        "a = { low = 0.1, high = 0.5, step = 0.1 }\nb = { low = 1, high = 3, int = true }\nc = true\n"
    )
    assert read.trials == 15
    assert [read.combination(place)["a"] for place in range(0, 15, 3)] == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert [read.combination(place)["b"] for place in range(3)] == [1, 2, 3]
    assert read.fill(read.combination(0), trial=0, checkpoints=Path())[2:] == ["0.1", "1", "true"]


def test_other_keys_are_read(sweep: Reader, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    read = sweep(
        'command = ["true", "{lr}"]\nattempts = 2\nmemory = "4GiB"\ncwd = "work"\nevents = "runs/{trial}"\n'
        '[env]\nOMP_NUM_THREADS = "1"\n[parameters]\nlr = [0.1]\n'
    )
    assert (read.attempts, read.memory_mib, read.env) == (2, 4_096.0, {"OMP_NUM_THREADS": "1"})
    assert read.cwd == tmp_path / "work"
    assert read.events_folder(trial=7, checkpoints=Path()) == tmp_path / "work" / "runs" / "7"
    assert sweep(GRID).events_folder(trial=7, checkpoints=Path()) is None


def test_grid_may_name_its_metric_without_optuna(sweep: Reader) -> None:
    read = sweep(GRID + '[search]\nmetric = "loss"\ndirection = "minimize"\n')
    assert (read.search, read.metric, read.maximize, read.trials) == (None, "loss", False, 6)


def test_program_may_read_its_parameters_itself(sweep: Reader) -> None:
    read = sweep('command = "python train.py"\nreads_parameters = true\n[parameters]\nlr = [0.1, 0.2]\n')
    assert read.fill(read.combination(1), trial=1, checkpoints=Path()) == ["python", "train.py"]


def test_programs_in_the_folder_and_on_the_path_of_trials_are_found(sweep: Reader, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("run.sh", "bin/mine"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    assert sweep('command = "./run.sh {a}"\n[parameters]\na = [1]\n').trials == 1
    text = f'command = "mine {{a}}"\nenv = {{ PATH = "{tmp_path}/bin" }}\n[parameters]\na = [1]\n'
    assert sweep(text).trials == 1


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("command = [\n", 0, "cannot be read as TOML"),
        ("", 1, "'command' is missing"),
        (GRID + "\n[serach]\n", 6, "'search'"),
        ("atempts = 3\n" + GRID, 1, "'attempts'"),
        ("attempts = 0\n" + GRID, 1, "attempts"),
        ('attempts = "3"\n' + GRID, 1, "attempts"),
        (GRID + '[search]\nmetric = "a"\ntrails = 3\n', 7, "'trials'"),
        (GRID + "[search]\ntrials = 3\n", 5, "'metric' is missing"),
        (GRID + '[search]\nmetric = "a"\ndirection = "up"\n', 7, "maximize or minimize"),
        (GRID + '[search]\nmetric = "a"\ntrials = 0\n', 7, "trials"),
        (GRID + '[search]\nmetric = "a"\ntrials = 7\n', 7, "7 trials of 6 combinations"),
        (GRID + '[search]\nmetric = "a"\ntrials = 3\nsampler = "TPF"\n', 8, "TPESampler"),
        (GRID + '[search]\nmetric = "a"\ntrials = 3\nsampler = "GridSampler"\n', 8, "Leave sampler and trials out"),
        (GRID + '[search]\nmetric = "a"\ntrials = 3\nsampler = { seed = 1 }\n', 8, "has no name"),
        (GRID + '[search]\nmetric = "a"\nsampler = "random"\n', 7, "needs a number of trials"),
        (GRID + '[search]\nmetric = "a"\npruner = { name = "hyperband", x = 1 }\n', 7, "Optuna refuses the pruner"),
        (GRID + '[search]\nmetric = "a"\npruner = { name = "hyperband", min_resource = 0 }\n', 7, "Optuna refuses"),
        ('command = "python train.py"\n', 1, "no trials"),
        ('command = "python train.py"\n[parameters]\n', 2, "no trials"),
        ('command = ""\n[parameters]\n', 1, "command is empty"),
        ('# note\n\ncommand = "python \'train.py"\n', 3, "split into words"),
        ('command = "no-such-program {a}"\n[parameters]\na = [1]\n', 1, "'no-such-program' is not found"),
        ('command = "./train.py {a}"\n[parameters]\na = [1]\n', 1, "'./train.py' is not found"),
        ('command = "python trian.py {a}"\n[parameters]\na = [1]\n', 1, "trian.py is not in"),
        ('command = "{a} train.py"\n[parameters]\na = [1]\n', 1, "program itself"),
        ('command = "cat {a} | wc"\n[parameters]\na = [1]\n', 1, "'|' is of a shell"),
        ('command = ["sh", "-ec", "echo {a}"]\n[parameters]\na = [1]\n', 1, "text of a shell"),
        ('command = "python train.py {a"\n[parameters]\na = [1]\n', 1, "belongs to no placeholder"),
        ('command = "python train.py {lr:.2f}"\n[parameters]\nlr = [1]\n', 1, "belongs to no placeholder"),
        (COMMAND + "[parameters]\nlr = [0.1]\nwidht = [1]\n", 1, "Did you mean {widht}?"),
        (GRID + "depth = [1, 2]\n", 5, "does not use the parameter 'depth'"),
        (COMMAND + "[parameters]\nlr = [\n  0.1,\n  0.1,\n]\nwidth = [1]\n", 3, "value 0.1 twice"),
        (COMMAND + "[parameters]\nwidth = [1]\nlr = []\n", 4, "no values"),
        (COMMAND + "[parameters]\nwidth = [1]\nlr = [nan]\n", 4, "finite"),
        (COMMAND + "[parameters]\nwidth = [1]\nlr = [[1]]\n", 4, "neither text"),
        (COMMAND + "[parameters]\nwidth = [1]\nlr = [2026-01-01]\n", 4, "neither text"),
        (COMMAND + '[parameters]\nwidth = [1]\nlr = ["\\u0000"]\n', 4, "null character"),
        (COMMAND + f"[parameters]\nwidth = [1]\nlr = [{10**30}]\n", 4, "too large"),
        (COMMAND + "[parameters]\nwidth = [1]\n[parameters.lr]\nlow = 0.1\nhgih = 1.0\n", 6, "'high'"),
        (COMMAND + "[parameters]\nwidth = [1]\nlr = { low = 0.1 }\n", 4, "'high' is missing"),
        (COMMAND + "[parameters]\nwidth = [1]\nlr = { low = 0.1, high = 1.0 }\n", 4, "no number of trials"),
        (COMMAND + "[parameters]\nwidth = [1]\nlr = { low = 1, high = 9 }\n", 4, "whole numbers or as any"),
        (COMMAND + "[parameters]\nwidth = [1]\nlr = { low = 9.0, high = 1.0 }\n", 4, "low is above high"),
        (COMMAND + "[parameters]\nwidth = [1]\nlr = { low = 0.0, high = 1.0, log = true }\n", 4, "low above 0"),
        (
            COMMAND + "[parameters]\nwidth = [1]\nlr = { low = 0.0, high = 1.0, step = 2.0 }\n",
            4,
            "step of lr is larger",
        ),
        (COMMAND + "[parameters]\nwidth = [1]\nlr = { low = 0.5, high = 1, int = true }\n", 4, "whole numbers"),
        (COMMAND + "[parameters]\nwidth = [1]\nlr = { low = 0.0, high = inf }\n", 4, "finite"),
        (
            COMMAND + "[parameters]\nwidth = [1]\nlr = { low = -9000000000000000000, high = 1, int = true }\n",
            4,
            "too large",
        ),
        (COMMAND + "[parameters]\nwidth = [1]\nlr = { low = 0.0, high = 1.0, step = 1e-9 }\n", 2, "above the 100,000"),
        (COMMAND + '[parameters]\n"l r" = [1]\n', 3, "no name of a parameter"),
        (COMMAND + "[parameters]\ntrial = [1]\n", 3, "every trial has already"),
        ('cwd = "nowhere"\n' + GRID, 1, "does not exist"),
        ('memory = "much"\n' + GRID, 1, "amount of memory"),
        ('events = "runs"\n' + GRID, 1, "event files"),
        ('env = { HELIOS_TRIAL = "1" }\n' + GRID, 1, "cannot be set"),
        ('trials_file = "t.csv"\n' + GRID, 3, "exclude each other"),
        (COMMAND + 'trials_file = "t.csv"\n', 2, "does not exist"),
        (
            'command = "true"\nreads_parameters = true\n[parameters]\n'
            + "".join(f'a{number} = "{4_000 * "x"}"\n' for number in range(26)),
            3,
            "more than 100,000",
        ),
    ],
)
def test_what_cannot_run_is_refused_with_its_line(sweep: Reader, text: str, line: int, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        sweep(text)
    assert said in str(refused.value)
    if line:
        assert f"sweep.toml, line {line}: " in refused.value.message
    assert refused.value.hint


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "large.toml").write_bytes(b"#" * (space.LARGEST_FILE + 1))
    for name in ("missing.toml", "fifo", "binary.toml", "large.toml", "."):
        with pytest.raises(UsageError):
            read_training_sweep(tmp_path / name)


def test_without_optuna_a_search_says_what_to_install(sweep: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert sweep(GRID).trials == 6
    with pytest.raises(UsageError, match=r"helios-slurm\[search\]"):
        sweep(SEARCH)


def test_examples_of_the_page_are_sweep_files(sweep: Reader) -> None:
    page = (ROOT / "docs" / "sweep-file.md").read_text()
    examples_of_it = re.findall(r"^```toml\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)
    assert [sweep(text).trials for text in examples_of_it] == [64, 100, 64]
    table = page[page.index("## Sweep file") : page.index("**Command.**")]
    keys = set(re.findall(r"^\| `\[?(\w+)\]?` \|", table, flags=re.MULTILINE))
    assert keys == {*space._SweepTable.model_fields}
    for text in re.findall(r"^```python\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE):
        compile(text, "page", "exec")


@pytest.mark.parametrize("name", ["sweep.toml", "search.toml", "fused.toml"])
def test_sweep_of_digits_has_24_trials(name: str) -> None:
    assert read_training_sweep(ROOT / "benchmarks" / "pool_digits" / name).trials == 24


# Lists of trials.

LISTED = 'command = "python train.py {lr} {name}"\ntrials_file = "FILE"\n'


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", 'lr,name\n0.1,"a,b"\n2,true\n007,\n'),
        ("t.jsonl", '{"lr": 0.1, "name": "a,b"}\n\n{"name": true, "lr": 2}\n{"lr": "007", "name": ""}\n'),
    ],
)
def test_trials_are_read_from_a_file(sweep: Reader, tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    read = sweep(LISTED.replace("FILE", name))
    asked = ask_all(open_search(read, tmp_path / "pool"))
    assert [trial.parameters for trial in asked] == [
        {"lr": 0.1, "name": "a,b"},
        {"lr": 2, "name": True},
        {"lr": "007", "name": ""},
    ]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("t.csv", "", "no trials"),
        ("t.csv", "lr,name\n", "no trials"),
        ("t.csv", "lr,lr\n1,2\n", "twice"),
        ("t.csv", "lr,name\n1,a\n2\n", "line 3: 1 values for 2 columns"),
        ("t.csv", 'lr,name\n1,"a\n', "line 2"),
        ("t.csv", "l r,name\n1,a\n", "no name"),
        ("t.csv", "lr\n1\n", "{name}"),
        ("t.csv", "lr,name,more\n1,a,b\n", "'more'"),
        ("t.jsonl", "[1]\n", "line 1: it is no JSON object"),
        ("t.jsonl", '{"lr": 1, "name": 2}\n{"lr": 1}\n', "line 2: 'name' is missing"),
        ("t.jsonl", '{"lr": NaN, "name": 2}\n', "line 1: the value of lr is not a finite"),
        ("t.jsonl", '{"lr": {}, "name": 2}\n', "line 1: the value of lr is neither"),
        ("t.jsonl", "[" * 100_000, "line 1"),
    ],
)
def test_files_of_trials_are_refused_with_the_line(
    sweep: Reader, tmp_path: Path, name: str, content: str, said: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UsageError) as refused:
        sweep(LISTED.replace("FILE", name))
    assert said in str(refused.value)


# Searches.


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
    assert [json.loads(line) for line in lines] == [{"number": 0, "state": "finished", "metric": 0.5}]


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
    journal = optuna.storages.journal.JournalFileBackend(str(folder / space.JOURNAL))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return optuna.load_study(study_name=space.STUDY, storage=optuna.storages.JournalStorage(journal)).trials


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


def test_folder_has_one_process_at_a_time(sweep: Reader, tmp_path: Path) -> None:
    read = sweep(GRID)
    search = open_search(read, tmp_path / "pool")
    with pytest.raises(UsageError, match="Another process"):
        open_search(read, tmp_path / "pool")
    search.close()
    open_search(read, tmp_path / "pool").close()


@pytest.mark.parametrize("changed", [GRID.replace("0.01", "0.02"), GRID.replace("--lr", "--rate")])
def test_folder_of_another_sweep_is_refused(sweep: Reader, tmp_path: Path, changed: str) -> None:
    open_search(sweep(GRID), tmp_path / "pool").close()
    with pytest.raises(UsageError, match="another command"):
        open_search(sweep(changed), tmp_path / "pool")


def test_a_search_can_be_made_longer(sweep: Reader, tmp_path: Path) -> None:
    search = open_search(sweep(SEARCH), tmp_path / "pool")
    for trial in ask_all(search):
        search.tell(trial.number, TrialState.FINISHED, 0.1)
    search.close()
    longer = open_search(sweep(SEARCH.replace("trials = 12", "trials = 14")), tmp_path / "pool")
    assert [trial.number for trial in ask_all(longer)] == [12, 13]


@pytest.mark.parametrize(("text", "name"), [(GRID, "told.jsonl"), (SEARCH, space.JOURNAL)])
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


@pytest.mark.parametrize(("text", "name"), [(GRID, "told.jsonl"), (SEARCH, space.JOURNAL)])
def test_damaged_files_are_refused(sweep: Reader, tmp_path: Path, text: str, name: str) -> None:
    open_search(sweep(text), tmp_path / "pool").close()
    (tmp_path / "pool" / name).write_bytes(b"garbage\nmore\n")
    with pytest.raises(FileUnreadable):
        open_search(sweep(text), tmp_path / "pool")
    with pytest.raises(FileUnreadable):  # and not: another process works there
        open_search(sweep(text), tmp_path / "pool")


FULL_DISK = """
import resource, sys
from pathlib import Path
from helios.errors import FileUnwritable
from helios.training.model import TrialState
from helios.training.pool.space import open_search, read_training_sweep
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


@pytest.mark.parametrize(("text", "name"), [(GRID, "told.jsonl"), (SEARCH, space.JOURNAL)])
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
def test_a_search_that_is_killed_again_and_again_asks_what_was_not_told(
    sweep: Reader, tmp_path: Path, text: str
) -> None:
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
    lock = tmp_path / "pool" / f"{space.JOURNAL}.lock"
    lock.write_text(space.LOCKED)
    search = open_search(sweep(SEARCH), tmp_path / "pool")
    assert not lock.exists()
    assert search.ask() is not None


def test_a_lock_that_was_broken_meanwhile_is_no_error(sweep: Reader, tmp_path: Path) -> None:
    search = open_search(sweep(SEARCH), tmp_path / "pool")
    assert isinstance(search, space.OptunaSearch)
    search._journal.acquire()
    (tmp_path / "pool" / f"{space.JOURNAL}.lock").unlink()
    search._journal.release()
    assert search.ask() is not None


def test_a_folder_that_cannot_be_made_is_an_error(sweep: Reader, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileUnwritable):
        open_search(sweep(GRID), tmp_path / "file" / "pool")


# Properties.

VALUES = st.one_of(
    st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=20),
    st.integers(-(2**62), 2**62),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
)


@settings(max_examples=examples(50))
@given(
    st.lists(
        st.tuples(
            st.text(st.characters(min_codepoint=32, exclude_characters='{}"\\'), max_size=5),
            st.none() | st.sampled_from("ab"),
        )
    ),
    VALUES,
    VALUES,
)
def test_filling_replaces_placeholders_and_nothing_else(parts: list[tuple[str, str | None]], a: Any, b: Any) -> None:
    words = ("true", *(text.replace("{", "{{") + (f"{{{name}}}" if name else "{{}}") for text, name in parts))
    values = {"a": a, "b": b}
    sweep = TrainingSweep(path=Path(), command=words, parameters={}, cwd=Path())
    expected = [text + (format_value(values[name]) if name else "{}") for text, name in parts]
    assert sweep.fill(values, trial=0, checkpoints=Path()) == ["true", *expected]


@settings(max_examples=examples(50))
@given(st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(1, 4)), unique_by=lambda each: each[0]))
def test_combinations_are_all_there_once(sizes: list[tuple[str, int]]) -> None:
    spaces: dict[str, Any] = {name: tuple(range(size)) for name, size in sizes}
    sweep = TrainingSweep(path=Path(), command=("true",), parameters=spaces, cwd=Path())
    made = [sweep.combination(number) for number in range(sweep.trials)]
    assert made == [dict(zip(spaces, each, strict=True)) for each in product(*spaces.values())]


TOML_VALUES = st.recursive(
    st.integers(-9, 9) | st.booleans() | st.sampled_from(["x", "a = 1", "[b]", "two\nlines", '"""']),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=6,
)


def as_toml(value: Any, spread: bool) -> str:
    if isinstance(value, list):
        gap = "\n  " if spread else " "
        return "[" + ",".join(gap + as_toml(each, spread) for each in value) + ("\n]" if spread else "]")
    if isinstance(value, str) and spread and '"""' not in value:
        return f'"""\n{value}"""'
    return json.dumps(value)


@settings(max_examples=examples(50))
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["", "t", "t.u"]), st.sampled_from("abcd"), TOML_VALUES, st.booleans(), st.integers(0, 2)
        ),
        unique_by=lambda each: each[:2],
        max_size=8,
    )
)
def test_lines_of_keys_are_found(entries: list[tuple[str, str, Any, bool, int]]) -> None:
    text, expected, table = "", {}, ""
    for header, key, value, spread, blank in sorted(entries, key=lambda each: each[0]):
        if header != table:
            text, table = text + f"[{header}] # a table\n", header
        text += "# a = 1\n" * blank
        expected[(*filter(None, header.split(".")), key)] = text.count("\n") + 1
        text += f"{key} = {as_toml(value, spread)}\n"
    tomllib.loads(text)
    assert {keys: line_number(text, keys) for keys in expected} == expected


def test_range_ends_are_values() -> None:
    assert ValueRange(low=0.1, high=0.3, step=0.1).values() == (0.1, 0.2, 0.3)
    assert ValueRange(low=2.0, high=2.0).values() == (2.0,)
    assert ValueRange(low=0.0, high=1.0).values() is None


@given(seed=st.integers(0, 1_000), count=st.integers(1, 20))
@settings(max_examples=examples(20), deadline=None)
def test_what_a_search_may_choose_is_drawn_from_its_space(seed: int, count: int) -> None:
    parameters = {
        "lr": ValueRange(low=1e-4, high=1e-1, log=True),
        "layers": ValueRange(low=2, high=8, whole=True, log=True),
        "dropout": ValueRange(low=0.0, high=0.5, step=0.1),
        "width": (32, 64),
    }
    method = space.SearchMethod(trials=10)
    drawn = TrainingSweep(
        path=Path("sweep.toml"), command=("true",), parameters=parameters, search=method, cwd=Path()
    ).draws(count, seed=seed)
    assert len(drawn) == min(10, count)
    for trial in drawn:
        assert 1e-4 <= trial["lr"] <= 1e-1
        assert trial["layers"] in range(2, 9)
        assert trial["dropout"] in {0.0, 0.1, 0.2, 0.3, 0.4, 0.5}
        assert trial["width"] in {32, 64}


def test_the_grid_is_drawn_in_order(sweep: Callable[[str], TrainingSweep]) -> None:
    read = sweep(GRID)
    assert read.draws(4, seed=0) == [read.combination(number) for number in range(4)]
