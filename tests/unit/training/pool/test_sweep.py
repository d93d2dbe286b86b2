"""Sweeps: their combinations, draws and commands."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import islice, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.training.pool.search import open_search
from helios.training.pool.sweep import SearchMethod, TrainingSweep, ValueRange, family, format_value, program
from tests.examples import examples
from tests.unit.training.pool.sweeps import CONDITIONAL, GRID, Reader, ask_all

pytestmark = pytest.mark.usefixtures("python_is_found")
SEEDS = "seed = [1, 2, 3]\ndata_seed = [1, 2]\nwidth = [32, 64]\n"
VALUES = st.one_of(
    st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=20),
    st.integers(-(2**62), 2**62),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
)


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
    assert read.fill(next(read.grid()), trial=3, checkpoints=tmp_path) == [
        "python",
        "train.py",
        "--name=a b; rm -rf '$HOME'",
        "{x}",
        "--out",
        "runs/3",
        str(tmp_path),
    ]


def test_seeds_make_no_families(sweep: Reader) -> None:
    read = sweep('command = "python train.py {seed} {data_seed} {width}"\n[parameters]\n' + SEEDS)
    assert {family(read, each) for each in read.grid()} == {
        "train.py width=32",
        "train.py width=64",
    }


def test_steps_and_whole_ranges_are_a_grid(sweep: Reader) -> None:
    read = sweep(
        'command = "python train.py {a} {b} {c}"\n[parameters]\n'
        "a = { low = 0.1, high = 0.5, step = 0.1 }\nb = { low = 1, high = 3, int = true }\nc = true\n"
    )
    assert read.trials == 15
    assert [each["a"] for each in islice(read.grid(), 0, 15, 3)] == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert [each["b"] for each in islice(read.grid(), 3)] == [1, 2, 3]
    assert read.fill(next(read.grid()), trial=0, checkpoints=Path())[2:] == ["0.1", "1", "true"]


def test_program_may_read_its_parameters_itself(sweep: Reader) -> None:
    read = sweep('command = "python train.py"\nreads_parameters = true\n[parameters]\nlr = [0.1, 0.2]\n')
    assert read.fill([*read.grid()][1], trial=1, checkpoints=Path()) == ["python", "train.py"]


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
    made = list(sweep.grid())
    assert made == [dict(zip(spaces, each, strict=True)) for each in product(*spaces.values())]


def test_a_grid_has_a_parameter_only_where_its_condition_holds(sweep: Reader) -> None:
    read = sweep(
        'command = "python train.py"\nreads_parameters = true\n[parameters]\n'
        "nesterov = { values = [true, false], when = { momentum = [0.8, 0.9] } }\n"
        'momentum = { values = [0.0, 0.8, 0.9], when = { optimizer = "sgd" } }\n'
        'optimizer = ["adam", "sgd"]\nlayers = { low = 1, high = 2, int = true }\n'
    )
    made = list(read.grid())
    assert read.trials == len(made) == len({repr(each) for each in made}) == 2 * (1 + 1 + 2 * 2)
    assert made[0] == {"optimizer": "adam", "layers": 1}
    assert {"nesterov" in each for each in made if each.get("momentum") == 0.0} == {False}
    assert {"nesterov" in each for each in made if each.get("momentum") == 0.9} == {True}


@settings(max_examples=examples(50), deadline=None)
@given(st.data())
def test_conditional_combinations_are_counted_as_they_are_made(data: st.DataObject) -> None:
    names = "abcd"[: data.draw(st.integers(1, 4))]
    spaces: dict[str, Any] = {name: tuple(range(data.draw(st.integers(1, 3)))) for name in names}
    conditions = {
        name: {names[data.draw(st.integers(0, place - 1))]: (data.draw(st.integers(0, 2)),)}
        for place, name in enumerate(names)
        if place and data.draw(st.booleans())
    }
    sweep = TrainingSweep(path=Path(), command=("true",), parameters=spaces, conditions=conditions, cwd=Path())
    made = list(sweep.grid())
    assert sweep.trials == len(made) == len({repr(each) for each in made})
    for each in product(*spaces.values()):
        kept: dict[str, Any] = {}
        for name, value in zip(spaces, each, strict=True):
            if all(kept.get(other) in wanted for other, wanted in conditions.get(name, {}).items()):
                kept[name] = value
        assert kept in made


def test_a_command_leaves_out_what_a_trial_has_not(sweep: Reader) -> None:
    read = sweep(CONDITIONAL.replace("--lr {lr}", "lr={lr}"))
    assert read.fill({"optimizer": "sgd", "momentum": 0.9, "lr": 0.5}, trial=0, checkpoints=Path())[2:] == [
        *("--optimizer", "sgd", "--momentum", "0.9", "lr=0.5"),
    ]
    assert read.fill({"optimizer": "adam", "lr": 0.5}, trial=0, checkpoints=Path())[2:] == [
        *("--optimizer", "adam", "lr=0.5"),
    ]


def test_draws_lack_what_their_condition_forbids(sweep: Reader) -> None:
    drawn = sweep(CONDITIONAL).draws(12, seed=1)
    assert {each["optimizer"] for each in drawn} == {"adam", "sgd"}
    assert all(("momentum" in each) == (each["optimizer"] == "sgd") for each in drawn)


def test_range_ends_are_values() -> None:
    assert ValueRange(low=0.1, high=0.3, step=0.1).values() == (0.1, 0.2, 0.3)
    assert ValueRange(low=0.8, high=0.9, step=0.1).values() == (0.8, 0.9)
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
    method = SearchMethod(trials=10)
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
    assert read.draws(4, seed=0) == list(islice(read.grid(), 4))


@pytest.mark.parametrize(
    ("command", "known_as"),
    [
        (("python", "train.py", "{x}"), "CWD/train.py"),
        (("torchrun", "../src/train.py"), "CWD/../src/train.py"),
        (("python3.12", "-m", "models.train"), "CWD/models.train"),
        (("./train", "{x}"), "CWD/train"),
        (("sh", "-c", "python train.py $1"), "CWD/sh"),
        (("/opt/train", "{x}"), "/opt/train"),
        (("lammps", "{x}"), "lammps"),
    ],
)
def test_history_knows_a_program_by_its_path(tmp_path: Path, command: tuple[str, ...], known_as: str) -> None:
    a_sweep = TrainingSweep(path=tmp_path / "sweep.toml", command=command, parameters={"x": (1,)}, cwd=tmp_path)
    assert program(a_sweep) == os.path.normpath(known_as.replace("CWD", str(tmp_path)))
