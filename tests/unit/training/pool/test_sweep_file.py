"""Sweep files are checked before anything starts."""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.errors import UsageError
from helios.training.pool import sweep_file
from helios.training.pool.growth import describe
from helios.training.pool.search import open_search
from helios.training.pool.sweep_file import line_number, read_training_sweep
from tests.examples import examples
from tests.unit.training.pool.sweeps import COMMAND, CONDITIONAL, GRID, SEARCH, Reader, ask_all

pytestmark = pytest.mark.usefixtures("python_is_found")
SEVERAL = '[search]\nmetric = ["a", "b"]\ndirection = ["maximize", "minimize"]\n'
ROOT = Path(__file__).parents[4]
LISTED = 'command = "python train.py {lr} {name}"\ntrials_file = "FILE"\n'
TOML_VALUES = st.recursive(
    st.integers(-9, 9) | st.booleans() | st.sampled_from(["x", "a = 1", "[b]", "two\nlines", '"""']),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=6,
)


def test_null_in_a_file_of_trials_is_a_parameter_less(sweep: Reader, tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"lr": 0.1, "m": 0.9}\n{"lr": 0.2, "m": null}\n')
    read = sweep('command = "python train.py --lr {lr} --m {m}"\ntrials_file = "t.jsonl"\n')
    assert [read.fill(trial, trial=0, checkpoints=tmp_path)[2:] for trial in read.grid()] == [
        ["--lr", "0.1", "--m", "0.9"],
        ["--lr", "0.2"],
    ]


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


def test_a_sweep_has_a_weight_and_may_change_it(sweep: Reader) -> None:
    assert (sweep(GRID).weight, sweep("weight = 2\n" + GRID).weight) == (1.0, 2.0)
    assert describe(sweep(GRID)) == describe(sweep("weight = 2\n" + GRID))


def test_grid_may_name_its_metric_without_optuna(sweep: Reader) -> None:
    read = sweep(GRID + '[search]\nmetric = "loss"\ndirection = "minimize"\n')
    assert (read.search, read.objectives, read.trials) == (None, {"loss": False}, 6)


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
        ("grace_s = 0\n" + GRID, 1, "grace_s"),
        ("weight = 0\n" + GRID, 1, "weight"),
        ("weight = nan\n" + GRID, 1, "weight"),
        (GRID + '[search]\nmetric = "a"\ntrails = 3\n', 7, "'trials'"),
        (GRID + "[search]\ntrials = 3\n", 5, "'metric' is missing"),
        (GRID + '[search]\nmetric = "a"\ndirection = "up"\n', 7, "maximize or minimize"),
        (GRID + '[search]\nmetric = "a"\ntrials = 0\n', 7, "trials"),
        (GRID + '[search]\nmetric = ["a", "b"]\n', 6, "2 metrics need a direction each"),
        (GRID + '[search]\nmetric = ["a", "b"]\ndirection = "minimize"\n', 7, "2 metrics need a direction each"),
        (GRID + '[search]\nmetric = ["a", "a"]\ndirection = ["minimize", "minimize"]\n', 6, "twice"),
        (GRID + '[search]\nmetric = "step"\n', 6, "'step' is never a metric"),
        (GRID + SEVERAL + 'pruner = "median"\n', 8, "not supported for multi-objective"),
        (GRID + SEVERAL + 'trials = 3\nsampler = "CmaEs"\n', 9, "Optuna refuses the sampler"),
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
        (CONDITIONAL.replace('{ optimizer = "sgd" }', '{ optimiser = "sgd" }'), 4, "Did you mean 'optimizer'?"),
        (CONDITIONAL.replace('{ optimizer = "sgd" }', '{ optimizer = "SGD" }'), 4, "a value that optimizer never has"),
        (CONDITIONAL.replace('{ optimizer = "sgd" }', "{ lr = 0.1 }"), 4, "lr, which is continuous"),
        (CONDITIONAL.replace('["adam", "sgd"]', '{ values = ["adam", "sgd"], when = { momentum = 0.9 } }'), 3, "each"),
        (CONDITIONAL.replace("values = [0.9, 0.99]", "valuse = [0.9]"), 4, "'valuse' is unknown"),
        (CONDITIONAL.replace("--momentum ", ""), 1, "'{momentum}' cannot be left out"),
        (CONDITIONAL.replace("--momentum {momentum}", "--m={momentum}-{lr}"), 1, "cannot be left out"),
        (CONDITIONAL.replace("--momentum {momentum}", "m-{momentum}"), 1, "cannot be left out"),
        (CONDITIONAL.replace("when =", "default = 0.5, when ="), 4, "default of momentum is not among its values"),
        (COMMAND + "[parameters]\ntrial = [1]\n", 3, "every trial has already"),
        ('cwd = "nowhere"\n' + GRID, 1, "does not exist"),
        ('memory = "much"\n' + GRID, 1, "amount of memory"),
        ('events = "runs"\n' + GRID, 1, "event files"),
        ('env = { HELIOS_TRIAL = "1" }\n' + GRID, 1, "cannot be set"),
        (GRID + "[service]\ntogether = 2\n", 5, "the service has no name"),
        (GRID + '[service]\nname = "packin"\n', 6, "Installed are: elastic, packing"),
        (GRID + '[service]\nname = "packing"\ntogethr = 2\n', 7, "Did you mean 'together'?"),
        (GRID + '[service]\nname = "packing"\nworth = 0.1\ntogether = 0\n', 8, "must lie between 1 and 64"),
        (GRID + '[service]\nname = "packing"\nfor = "all"\n', 7, "for = 'all': Input should be 'makespan'"),
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
    (tmp_path / "large.toml").write_bytes(b"#" * (sweep_file.LARGEST_FILE + 1))
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
    assert [sweep(text).trials for text in examples_of_it] == [64, 100, 7, 64]
    table = page[page.index("## Sweep file") : page.index("**Command.**")]
    keys = set(re.findall(r"^\| `\[?(\w+)\]?` \|", table, flags=re.MULTILINE))
    assert keys == {*sweep_file._SweepTable.model_fields}
    for text in re.findall(r"^```python\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE):
        compile(text, "page", "exec")


@pytest.mark.parametrize("name", ["sweep.toml", "search.toml", "conditional.toml", "fused.toml"])
def test_sweep_of_digits_has_24_trials(name: str) -> None:
    assert read_training_sweep(ROOT / "benchmarks" / "pool_digits" / name).trials == 24


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
