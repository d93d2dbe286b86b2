"""Orders in a pool's folder, whatever else is there."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from helios.errors import FileUnwritable
from helios.training.pool.orders import FILE, LONGEST_ORDER, RETRY, STOP, give_order
from tests.unit.training.pool.test_coordinator import a_sweep, run

FAILS = "raise SystemExit(3)"
GARBAGE = [
    b"\xff\xfe",
    b"[" * 10_000,
    b'{"order": "erase", "numbers": [], "who": "x"}',
    b'{"order": "retry", "numbers": [true], "who": "x"}',
    b'{"order": "stop", "numbers": [0], "who": "a\\nb"}',
    b'{"order": "retry", "numbers": "0", "who": "x"}',
    b"x" * (3 * LONGEST_ORDER),
]


def test_lines_that_are_no_orders_are_passed_over(tmp_path: Path) -> None:
    sweep = a_sweep(tmp_path, FAILS, attempts=1)
    run(sweep)
    (tmp_path / "pool" / FILE).write_bytes(b"\n".join(GARBAGE) + b"\n")
    give_order(tmp_path / "pool", RETRY, (0,), who="ada")
    end, trials = run(sweep)
    assert trials[0].attempts == 2
    assert any("is no order" in note for note in end.notes)


def test_an_order_half_written_is_not_read(tmp_path: Path) -> None:
    sweep = a_sweep(tmp_path, FAILS, attempts=1)
    run(sweep)
    (tmp_path / "pool" / FILE).write_bytes(b'{"order": "retry", "numbers": [0], "who": "ada"}')
    assert run(sweep)[1][0].attempts == 1
    give_order(tmp_path / "pool", STOP, (), who="ada")
    assert len((tmp_path / "pool" / FILE).read_bytes().splitlines()) == 1


@pytest.mark.parametrize("make", [lambda path, other: path.symlink_to(other), lambda path, _: os.mkfifo(path)])
def test_links_and_pipes_are_no_orders(tmp_path: Path, make: object) -> None:
    assert callable(make)
    sweep = a_sweep(tmp_path, FAILS, attempts=1)
    run(sweep)
    (tmp_path / "other").write_text(json.dumps({"order": "retry", "numbers": [0], "who": "ada"}) + "\n")
    make(tmp_path / "pool" / FILE, tmp_path / "other")
    end, trials = run(sweep)
    assert trials[0].attempts == 1
    assert any("Orders are not read" in note for note in end.notes)
    with pytest.raises(FileUnwritable):
        give_order(tmp_path / "pool", RETRY, (0,), who="ada")


def test_a_diverged_trial_begins_anew(tmp_path: Path) -> None:
    program = (
        "import json, os, pathlib\n"
        "saved = pathlib.Path(os.environ['HELIOS_CHECKPOINTS'], 'saved')\n"
        "value = float('nan') if not pathlib.Path('data').exists() or saved.exists() else 5\n"
        "saved.touch()\n"
        "print(json.dumps({'step': 0, 'score': value}), file=open(os.environ['HELIOS_REPORT'], 'a'))\n"
    )
    sweep = a_sweep(tmp_path, program, objectives={"score": True})
    assert run(sweep)[1][0].state == "diverged"
    (tmp_path / "data").touch()
    give_order(tmp_path / "pool", RETRY, (0,), who="ada")
    record = run(sweep)[1][0]
    assert (record.state, record.value, record.attempts) == ("finished", 5, 2)
    assert (tmp_path / "pool" / "trials" / "00000" / "checkpoints.1" / "saved").exists()
