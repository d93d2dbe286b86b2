"""Sweep files that change while their trials are kept."""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from helios.errors import UsageError
from helios.training.model import TrialState
from helios.training.pool.growth import describe, take_over
from helios.training.pool.search import JOURNAL, open_search
from helios.training.pool.state import StateFile, read_runs
from helios.training.pool.sweep_file import read_training_sweep
from helios.training.report import PoolResult
from helios.training.run import run_pool
from tests.unit.training.pool.test_search import dashboard, studied

PROGRAM = """
import json, os, sys
parameters = json.loads(os.environ["HELIOS_PARAMETERS"])
with open("ran.txt", "a") as file:
    file.write(" ".join(sys.argv[1:]) + "\\n")
with open(os.environ["HELIOS_REPORT"], "a") as file:
    file.write(json.dumps({"step": 1, "loss": parameters["lr"]}) + "\\n")
"""
GRID = """
command = "PYTHON train.py --lr {lr} --width {width}"
[parameters]
lr = [0.1, 0.2]
width = [32, 64]
"""
SEARCH = """
command = "PYTHON train.py --lr {lr} --opt {opt}"
[parameters]
lr = { low = 0.1, high = 0.2 }
opt = ["adam", "sgd"]
[search]
metric = "loss"
direction = "minimize"
trials = 4
seed = 1
"""


class Pool:
    """A sweep file and the folder of its pool."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "train.py").write_text(PROGRAM)

    def write(self, text: str) -> Path:
        path = self.folder / "sweep.toml"
        path.write_text(text.replace("PYTHON", sys.executable))
        return path

    def run(self, text: str) -> PoolResult:
        return run_pool(self.write(text), slots=2, kind="cpu")

    def refuse(self, text: str) -> str:
        with pytest.raises(UsageError) as refused:
            self.run(text)
        return refused.value.message

    @property
    def ran(self) -> Counter[str]:
        return Counter((self.folder / "ran.txt").read_text().splitlines())


@pytest.fixture
def pool(tmp_path: Path) -> Pool:
    return Pool(tmp_path)


def test_a_grid_that_grows_runs_new_combinations_only(pool: Pool) -> None:
    before = pool.run(GRID)
    after = pool.run(GRID.replace("[0.1, 0.2]", "[0.05, 0.1, 0.2]").replace("[32, 64]", "[64, 32, 128]"))
    assert list(after.trials[:4]) == list(before.trials)
    assert [trial["number"] for trial in after.trials] == list(range(9))
    assert set(pool.ran.values()) == {1}
    assert len(pool.ran) == 9
    assert after.notes[0] == (
        "The sweep file has changed. lr: 0.05, 0.1, 0.2, was 0.1, 0.2; width: 64, 32, 128, was 32, 64"
    )


def test_a_grid_that_has_grown_goes_on_as_it_is(pool: Pool) -> None:
    pool.run(GRID)
    grown = GRID.replace("[0.1, 0.2]", "[0.1, 0.2, 0.3]")
    after = pool.run(grown)
    again = pool.run(grown)
    assert list(again.trials) == list(after.trials)
    assert again.notes == []
    assert set(pool.ran.values()) == {1}


def test_a_search_may_have_wider_ranges_more_choices_and_more_trials(pool: Pool) -> None:
    before = pool.run(SEARCH)
    grown = SEARCH.replace("high = 0.2", "high = 2.0").replace('["adam", "sgd"]', '["adam", "rms", "sgd"]')
    after = pool.run(grown.replace("trials = 4", 'trials = 24\nsampler = "random"').replace("seed = 1", "seed = 2"))
    assert after.notes[0] == (
        "The sweep file has changed. lr: 0.1 to 2, was 0.1 to 0.2; opt: adam, rms, sgd, was adam, sgd; "
        "trials: 24, was 4; sampler: RandomSampler, was TPESampler; seed: 2, was 1"
    )
    assert list(after.trials[:4]) == list(before.trials)
    assert len(after.trials) == len(pool.ran) == 24
    drawn = [trial["parameters"] for trial in after.trials[4:]]
    assert max(each["lr"] for each in drawn) > 0.5
    assert {each["opt"] for each in drawn} == {"adam", "rms", "sgd"}
    trials = studied(pool.folder / "sweep.pool/search")
    assert [trial.params for trial in trials] == [trial["parameters"] for trial in after.trials]
    assert [trial.value for trial in trials] == [trial["metrics"]["loss"] for trial in after.trials]
    assert [trial.intermediate_values for trial in trials[:4]] == [{1: trial.value} for trial in trials[:4]]
    assert len({repr(sorted(trial.distributions.items())) for trial in trials}) == 1


@pytest.mark.parametrize(
    ("sampler", "package"),
    [('{ name = "TPE", multivariate = true }', "optuna"), ('"CmaEs"', "cmaes"), ('"GP"', "scipy")],
)
def test_samplers_of_all_parameters_learn_across_a_growth(pool: Pool, sampler: str, package: str) -> None:
    pytest.importorskip(package)
    text = SEARCH.replace("seed = 1", f"seed = 1\nsampler = {sampler}").replace("trials = 4", "trials = 12")
    text = text.replace("low = 0.1, high = 0.2", "low = 0.5, high = 1.0")
    text = text.replace('opt = ["adam", "sgd"]\n', "opt = { low = 0.0, high = 1.0 }\n")
    pool.run(text)
    after = pool.run(text.replace("low = 0.5", "low = 0.0").replace("trials = 12", "trials = 40"))
    late = [trial["parameters"]["lr"] for trial in after.trials[25:]]
    assert sorted(late)[len(late) // 2] < 0.3  # chance gives .5


def test_a_search_with_a_pruner_keeps_the_combinations_it_ran(pool: Pool) -> None:
    text = GRID + '[search]\nmetric = "loss"\npruner = "median"\n'
    before = pool.run(text)
    after = pool.run(text.replace("[32, 64]", "[16, 32, 64]"))
    assert list(after.trials[:4]) == list(before.trials)
    assert set(pool.ran.values()) == {1}
    assert len(pool.ran) == 6
    params = [trial.params for trial in studied(pool.folder / "sweep.pool/search")]
    assert params == [trial["parameters"] for trial in after.trials]


def test_a_range_may_become_logarithmic_and_a_list_a_range(pool: Pool) -> None:
    text = SEARCH.replace('opt = ["adam", "sgd"]', "opt = [1, 2]")
    before = pool.run(text)
    text = text.replace("high = 0.2", "high = 0.2, log = true").replace("trials = 4", "trials = 6")
    after = pool.run(text.replace("opt = [1, 2]", "opt = { low = 1, high = 4, int = true }"))
    assert list(after.trials[:4]) == list(before.trials)
    assert "lr: 0.1 to 0.2, log, was 0.1 to 0.2; opt: 1 to 4, whole, was 1, 2; trials: 6, was 4" in after.notes[0]


def test_new_trials_are_appended_to_a_file(pool: Pool) -> None:
    text = 'command = "PYTHON train.py --lr {lr}"\ntrials_file = "t.jsonl"\n'
    trials = pool.folder / "t.jsonl"
    trials.write_text('{"lr": 1}\n{"lr": 1}\n')
    pool.run(text)
    trials.write_text('{"lr": 1}\n{"lr": 1}\n{"lr": 1}\n')
    after = pool.run(text)
    assert pool.ran == {"--lr 1": 3}
    assert re.fullmatch(r"The sweep file .* file of trials: 3 trials, digest \w+, was 2 trials, .*", after.notes[0])
    trials.write_text('{"lr": 2}\n{"lr": 1}\n{"lr": 1}\n')
    assert "file of trials has changed for trials 0; new ones go at its end" in pool.refuse(text)


def test_an_added_parameter_has_its_default_in_earlier_trials(pool: Pool) -> None:
    pool.run(SEARCH)
    grown = SEARCH.replace("--opt {opt}", "--opt {opt} --dropout {dropout}").replace(
        "[search]", 'dropout = { low = 0.0, high = 0.5, default = 0.0, when = { opt = "sgd" } }\n[search]'
    )
    after = pool.run(grown.replace("trials = 4", "trials = 12"))
    assert {trial["parameters"].get("dropout") for trial in after.trials[:4]} <= {0.0, None}
    assert all(("dropout" in trial["parameters"]) == (trial["parameters"]["opt"] == "sgd") for trial in after.trials)
    assert set(pool.ran.values()) == {1}
    runs = {run.number: run.parameters for run in read_runs(pool.folder / "sweep.pool")}
    assert {number: trial["parameters"] for number, trial in enumerate(after.trials)}.keys() == runs.keys()
    trials = studied(pool.folder / "sweep.pool/search")
    assert [trial.params for trial in trials] == [trial["parameters"] for trial in after.trials]


def test_an_argument_may_be_added_after_another(pool: Pool) -> None:
    positional = GRID.replace("--lr {lr} --width {width}", "{lr} {width}")
    assert positional != GRID
    pool.run(positional)
    grown = positional.replace("{width}", "{width} {depth}", 1)
    after = pool.run(grown.replace("[parameters]", "[parameters]\ndepth = { values = [1, 2], default = 1 }"))
    assert after.total == 8


def test_an_unfinished_trial_is_started_with_the_default(pool: Pool) -> None:
    sweep = read_training_sweep(pool.write(GRID))
    with StateFile(pool.folder / "sweep.pool", describe(sweep)) as state:
        search = open_search(sweep, pool.folder / "sweep.pool/search")
        first = search.ask()
        assert first is not None
        state.record_created(0, first.parameters)
        search.close()
    pool.run(GRID.replace("{width}", "{width} --d {d}") + "d = { values = [0, 1], default = 1 }\n")
    assert pool.ran["--lr 0.1 --width 32 --d 1"] == 1
    assert len(pool.ran) == 8


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("--lr {lr}", "--rate {lr}", "command: PYTHON train.py --rate {lr}"),
        ("[0.1, 0.2]", "[0.1]", "lr: 0.1, was 0.1, 0.2, but trials 2, 3 lie outside"),
        ("[0.1, 0.2]", "[0.1, 0.2, 0.3]\ndepth = [1]", "depth: 1, was none, but trials 0, 1, 2 and 1 more lack it"),
        ("width = [32, 64]", "", "width: none, was 32, 64, but trials 0, 1, 2 and 1 more have it"),
        ("width = [32, 64]", "width = { values = [32, 64], when = { lr = 0.2 } }", "when lr is 0.2, was 32, 64, but"),
        ('metric = "loss"', 'metric = "error"', "metric: error, was loss"),
        ('metric = "loss"', 'metric = "loss"\ndirection = "minimize"', "direction: minimize, was maximize"),
        ('metric = "loss"', 'metric = "loss"\ntrials = 4', "who chooses trials: Optuna, was the grid"),
    ],
)
def test_what_may_not_change_is_named(pool: Pool, before: str, after: str, said: str) -> None:
    text = GRID.replace("command =", "reads_parameters = true\ncommand =") + '[search]\nmetric = "loss"\n'
    pool.run(text)
    changed = text.replace(before, after)
    if not after:
        changed = changed.replace(" --width {width}", "")
    assert said.replace("PYTHON", sys.executable) in pool.refuse(changed)
    assert pool.run(text).notes == []


def test_a_range_may_not_leave_trials_outside(pool: Pool) -> None:
    result = pool.run(SEARCH)
    lowest = min(result.trials, key=lambda trial: trial["parameters"]["lr"])
    said = pool.refuse(SEARCH.replace("low = 0.1", "low = 0.199"))
    assert "lr: 0.199 to 0.2, was 0.1 to 0.2, but trials" in said
    assert str(lowest["number"]) in said.rpartition("trials")[2]


def test_pools_that_share_a_folder_do_not_change_its_sweep(pool: Pool) -> None:
    folder = pool.folder / "sweep.pool"
    before, after = (read_training_sweep(pool.write(text)) for text in (GRID, GRID.replace("64]", "64, 128]")))
    with StateFile(folder, describe(before), shared=True):
        with (
            StateFile(folder, describe(after), shared=True) as second,
            pytest.raises(UsageError, match="width: 32, 64, 128"),
        ):
            take_over(after, second)
        with StateFile(folder, describe(before), shared=True) as third:
            assert take_over(before, third) == ""
    with StateFile(folder, describe(after), shared=True) as alone:
        assert "width: 32, 64, 128, was 32, 64" in take_over(after, alone)


def test_a_choice_that_optuna_cannot_add_is_copied_with_states(tmp_path: Path, pool: Pool) -> None:
    sweep = read_training_sweep(pool.write(SEARCH))
    search = open_search(sweep, tmp_path / "search")
    made: list[Any] = []
    for state, value in [(TrialState.FINISHED, 0.1), (TrialState.PRUNED, 0.1), (TrialState.FAILED, None)]:
        trial = search.ask()
        assert trial is not None
        made.append(trial.parameters)
        search.report(trial.number, 1, 0.5)
        search.tell(trial.number, state, value)
    asked = search.ask()
    assert asked is not None
    search.close()
    grown = read_training_sweep(pool.write(SEARCH.replace('"sgd"]', '"sgd", "rms"]')))
    search = open_search(grown, tmp_path / "search", [*made, asked.parameters])
    assert search.ask() == asked
    search.close()
    trials = studied(tmp_path / "search")
    assert [trial.state.name for trial in trials] == ["COMPLETE", "PRUNED", "FAIL", "RUNNING"]
    assert trials[1].intermediate_values == {1: 0.5}


def test_a_trial_that_was_run_again_is_copied_with_its_number(tmp_path: Path, pool: Pool) -> None:
    sweep = read_training_sweep(pool.write(SEARCH))
    search = open_search(sweep, tmp_path / "search")
    made = [trial.parameters for trial in (search.ask(), search.ask()) if trial is not None]
    search.tell(0, TrialState.FAILED, None)
    search.tell(0, TrialState.FINISHED, 0.5, again=1)
    made += [trial.parameters for trial in iter(search.ask, None)]
    search.tell(2, TrialState.FINISHED, 0.75)
    search.close()
    open_search(sweep, tmp_path / "search", made).close()
    before = [(trial.params, trial.state, trial.value) for trial in studied(tmp_path / "search")]
    assert [params for params, _, _ in before] == [made[number] for number in (0, 1, 0, 2, 3)]
    grown = read_training_sweep(pool.write(SEARCH.replace('"sgd"]', '"sgd", "rms"]')))
    search = open_search(grown, tmp_path / "search", made)
    assert [(trial.params, trial.state, trial.value) for trial in studied(tmp_path / "search")] == before
    assert [trial.number for trial in iter(search.ask, None)] == [1, 3]


def test_a_study_that_was_copied_in_part_is_copied_again(tmp_path: Path, pool: Pool) -> None:
    sweep = read_training_sweep(pool.write(SEARCH))
    search = open_search(sweep, tmp_path / "search")
    made = []
    for trial in iter(search.ask, None):
        made.append(trial.parameters)
        search.tell(trial.number, TrialState.FINISHED, 0.1)
    search.close()
    journal = tmp_path / "search" / JOURNAL
    before = journal.read_bytes()
    grown = read_training_sweep(pool.write(SEARCH.replace('"sgd"]', '"sgd", "rms"]')))
    open_search(grown, tmp_path / "search", made).close()
    after = journal.read_bytes()
    for size in range(len(before), len(after), 97):  # as if a kill came then
        journal.write_bytes(after[:size])
        journal.with_name(f"{JOURNAL}.size").write_text(str(len(before)))
        open_search(grown, tmp_path / "search", made).close()
        assert [trial.params for trial in studied(tmp_path / "search")] == made
        assert not journal.with_name(f"{JOURNAL}.size").exists()


def test_the_dashboard_shows_a_search_that_grows_meanwhile(tmp_path: Path, pool: Pool) -> None:
    pytest.importorskip("optuna_dashboard", reason="the dashboard of Optuna is not installed")
    pool.run(SEARCH)
    with dashboard(tmp_path / "sweep.pool/search" / JOURNAL) as ask:
        assert len(ask("/api/studies/0")["trials"]) == 4
        pool.run(SEARCH.replace('"sgd"]', '"sgd", "rms"]').replace("trials = 4", "trials = 6"))
        (study,) = ask("/api/studies")["study_summaries"]
        assert len(ask(f"/api/studies/{study['study_id']}")["trials"]) == 6
