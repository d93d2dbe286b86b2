"""A person says a target, and asks how far the pool is from it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from helios.training.pool.state import FILE
from tests.story.shell import Helios

TRAIN = """
import json, os, pathlib, sys
folder = pathlib.Path(os.environ["HELIOS_CHECKPOINTS"])
def report(**values):
    with open(os.environ["HELIOS_REPORT"], "a") as file:
        file.write(json.dumps(values) + "\\n")
for step, acc in enumerate([0.5, 0.7 + float(sys.argv[1]) / 10, 0.9]):
    report(step=step, acc=acc)
    (folder / "model.pt").write_text(str(acc))
    report(checkpoint="model.pt")
"""
SWEEP = 'command = "{python} train.py {{x}}"\n[parameters]\nx = [0, 2]\n'


def test_a_target_of_the_command_line_is_delivered(helios: Helios, sweep: Path) -> None:
    ran = helios("pool", "run", sweep, "--target", "acc>=0.85,0.95", "--slots", 1, "--json").json
    place = sweep.with_suffix(".pool") / "deliverable"
    assert any("Trial 0 reached the first target, 0.85 at step 2: acc 0.9" in note for note in ran["notes"])
    assert (place / "model.pt").exists()
    found = helios("pool", "status", sweep, "--json").json["target"]
    assert (found["best"], found["tiers"][0]["delivered"]["folder"]) == (0.9, str(place))
    assert found["tiers"][1]["reached"] is None


def test_status_best_and_show_say_how_far_the_target_is(helios: Helios, sweep: Path) -> None:
    helios("pool", "run", sweep, "--target", "acc>=0.85,0.95", "--slots", 1)
    place = sweep.with_suffix(".pool") / "deliverable"
    for words in (["status"], ["best"], ["show", 0]):
        lines = helios("pool", *words, sweep).out.splitlines()
        assert "Target acc>=0.85,0.95, best so far 0.9 of trial 0" in lines
        assert any(line.startswith("  0.85 was reached by trial 0 at step 2 after ") for line in lines)
        assert f"    delivered: {place}" in lines
        assert "  0.95 is not reached yet" in lines
        about = lines[lines.index("Target acc>=0.85,0.95, best so far 0.9 of trial 0") :][:4]
        assert [line for line in about if len(line) > 80 and str(sweep.parent) not in line] == []


def test_what_was_reached_is_said_of_the_target_then(helios: Helios, sweep: Path) -> None:
    helios("pool", "run", sweep, "--target", "acc>=0.85", "--slots", 1)
    helios("pool", "run", sweep, "--target", "acc>=0.99", "--slots", 1)
    lines = helios("pool", "status", sweep).out.splitlines()
    assert any(line.startswith("  0.85 was reached by trial 0 at step 2") for line in lines)
    assert "    That was the target then: 0.99 counts as reached, and is not delivered." in lines


def test_the_best_so_far_is_not_the_last_value(helios: Helios, sweep: Path) -> None:
    program = sweep.with_name("train.py")
    program.write_text(TRAIN.replace("0.9])", "0.6])"))
    helios("pool", "run", sweep, "--target", "acc>=0.95", "--slots", 1)
    assert "Target acc>=0.95, best so far 0.9 of trial 1" in helios("pool", "status", sweep).out.splitlines()


def test_a_plan_says_the_target(helios: Helios, sweep: Path) -> None:
    assert "Target: acc>=0.85" in helios("pool", "run", sweep, "--target", "acc>=0.85", "--dry-run").out


def test_a_wrong_target_is_refused_before_anything_starts(helios: Helios, sweep: Path) -> None:
    refused = helios("pool", "run", sweep, "--target", "acc=0.85", code=2)
    assert "write it as val_acc>=0.90,0.95" in refused.err
    assert not sweep.with_suffix(".pool").exists()


def test_the_page_of_a_pool_shows_the_target(helios: Helios, sweep: Path, tmp_path: Path) -> None:
    for target, name in (("acc>=0.85", "with.html"), ("acc>=0.85,0.95", "both.html")):
        helios("pool", "run", sweep, "--target", target, "--report", tmp_path / name)
    lines = [(tmp_path / name).read_text().count("stroke-dasharray") for name in ("with.html", "both.html")]
    assert lines[1] > lines[0] > 0


def test_several_sweeps_have_their_own_deliverables(helios: Helios, sweep: Path) -> None:
    text = sweep.read_text() + '[target]\nmetric = "acc"\nfirst = 0.85\ndirection = "maximize"\n'
    for name in ("a.toml", "b.toml"):
        sweep.with_name(name).write_text(text)
    helios("pool", "run", sweep.with_name("a.toml"), sweep.with_name("b.toml"))
    for name in ("a", "b"):
        content = json.loads((sweep.parent / f"{name}.pool" / "deliverable" / "target.json").read_text())
        assert content["sweep"] == f"{name}.toml"


def test_pools_that_share_a_folder_deliver_once(sweep: Path) -> None:
    sweep.write_text(sweep.read_text().replace("[0, 2]", "[0, 2, 3, 4]"))
    words = [sys.executable, "-m", "helios", "pool", "run", "sweep.toml", "--shared", "--slots", "1"]
    words += ["--target", "acc>=0.85", "--json"]
    pools = [subprocess.Popen(words, cwd=sweep.parent, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [pool.wait(120) for pool in pools] == [0, 0]
    folder = sweep.with_suffix(".pool")
    lines = [json.loads(line) for line in (folder / FILE).read_text().splitlines()]
    assert sorted(line["what"] for line in lines if "tier" in line) == ["delivered", "target"]
    assert [place.name for place in folder.glob("*deliverable*")] == ["deliverable"]


def test_who_asks_how_a_pool_is_needs_no_heavy_library() -> None:
    heavy = "{'pandas', 'torch', 'optuna', 'lightgbm', 'matplotlib', 'scipy'}"
    program = f"import sys, helios.training.status_report\nprint(sorted({heavy} & {{*sys.modules}}))"
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "[]"
