"""A person runs a sweep on one machine: results, Ctrl-C, kills, a terminal, and files that are wrong."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.story.shell import Answer, Helios, shell
from tests.unit.training.pool.test_coordinator import pool_processes
from tests.waiting import until

TRAIN = """
import json, os, pathlib, sys
width, lr = int(sys.argv[1]), float(sys.argv[2])
parameters = json.loads(os.environ["HELIOS_PARAMETERS"])
assert (parameters["width"], parameters["lr"]) == (width, lr)
weight, target = 0.0, 3.0
for step in range(20):
    weight -= lr * (weight - target) * width / 32
    with open(os.environ["HELIOS_REPORT"], "a") as file:
        file.write(json.dumps({"step": step, "loss": abs(weight - target), "progress": step / 20}) + "\\n")
pathlib.Path(f"ran-{width}-{lr}").open("a").write("x")
"""
SWEEP = """
command = "{python} train.py {{width}} {{lr}}"
[parameters]
width = [32, 64]
lr = [0.1, 0.2, 0.5]
[search]
metric = "loss"
direction = "minimize"
"""
SLOW = "\nimport time\nwhile not pathlib.Path('go').exists(): time.sleep(0.02)\n"


def result(answer: Answer) -> Mapping[str, Any]:
    found: Mapping[str, Any] = answer.json
    return found


def test_a_grid_gives_one_object_with_every_trial_and_the_best(helios: Helios, sweep: Path) -> None:
    found = result(helios("pool", "run", sweep, "--slots", 2, "--json", "--report", "page.html"))
    assert [trial["number"] for trial in found["trials"]] == list(range(6))
    assert {trial["state"] for trial in found["trials"]} == {"finished"}
    keys = {"number", "parameters", "state", "metrics", "seconds", "peak_memory_mib", "attempts", "devices"}
    assert all(keys <= set(trial) for trial in found["trials"])
    losses = {trial["number"]: trial["metrics"]["loss"] for trial in found["trials"]}
    assert found["best"]["number"] == min(losses, key=losses.__getitem__)
    assert found["best"]["parameters"]["lr"] == 0.5
    page = sweep.with_name("page.html").read_text()
    assert "Trials of sweep.toml" in page
    assert "<svg" in page


def test_of_several_metrics_the_front_is_named(helios: Helios, sweep: Path) -> None:
    (sweep.parent / "train.py").write_text(TRAIN.replace('"progress"', '"cost": lr, "progress"'))
    text = sweep.read_text().replace('"loss"', '["loss", "cost"]').replace('"minimize"', '["minimize", "minimize"]')
    sweep.write_text(text)
    said = helios("pool", "run", sweep, "--report", "page.html")
    found = result(helios("pool", "run", sweep, "--json"))
    assert found["best"] is None
    assert [found["trials"][number]["parameters"] for number in found["front"]] == [
        {"width": 64, "lr": lr} for lr in (0.5, 0.2, 0.1)
    ]
    assert found["direction"] == ["minimize", "minimize"]
    assert "3 trials that no other trial equals or beats in every metric:" in said.out
    assert "Best loss: 3, cost: 0.5, trial 5" not in said.out
    assert "trial 3 (width=64, lr=0.1)" in said.out
    assert "no other trial equals or beats" in sweep.with_name("page.html").read_text()


def test_a_trial_without_a_parameter_has_neither_its_word_nor_its_value(helios: Helios, sweep: Path) -> None:
    (sweep.parent / "train.py").write_text(
        "import json, os, sys\n"
        "with open(os.environ['HELIOS_REPORT'], 'a') as file:\n"
        "    file.write(json.dumps({'loss': len(sys.argv) + float(sys.argv[-1] == '.8')}) + '\\n')\n"
        "print(sys.argv[1:], os.environ['HELIOS_PARAMETERS'])"
    )
    sweep.write_text(
        f'command = "{sys.executable} train.py --with {{with}} --momentum {{momentum}}"\n[parameters]\n'
        'with = ["adam", "sgd"]\nmomentum = { values = [0.8, 0.9], when = { with = "sgd" } }\n'
        '[search]\nmetric = "loss"\ndirection = "minimize"\n'
    )
    found = result(helios("pool", "run", sweep, "--json", "--report", "page.html"))
    logs = [path.read_text() for path in sorted(sweep.with_suffix(".pool").glob("trials/*/log.txt"))]
    assert logs == [
        "['--with', 'adam'] {\"with\": \"adam\"}\n",
        "['--with', 'sgd', '--momentum', '0.8'] {\"with\": \"sgd\", \"momentum\": 0.8}\n",
        "['--with', 'sgd', '--momentum', '0.9'] {\"with\": \"sgd\", \"momentum\": 0.9}\n",
    ]
    assert found["best"]["parameters"] == {"with": "adam"}
    assert "<svg" in sweep.with_name("page.html").read_text()


PRUNED = """
import json, os, pathlib, sys, time
x = float(sys.argv[1])
def report(**fields):
    with open(os.environ["HELIOS_REPORT"], "a") as file:
        file.write(json.dumps(fields) + "\\n")
report(step=0, accuracy=x / 2)
report(step=1, accuracy=x)
while x > 0.85 and not pathlib.Path(os.environ["HELIOS_REQUESTS"]).exists():
    time.sleep(0.02)
if x > 0.85:
    report(answer="stop")
"""


def test_a_pruned_trial_is_shown_with_its_value_but_not_as_best(helios: Helios, sweep: Path) -> None:
    (sweep.parent / "train.py").write_text(PRUNED)
    sweep.write_text(
        f'command = "{sys.executable} train.py {{x}}"\n[parameters]\nx = [0.9, 0.8, 0.7]\n'
        '[search]\nmetric = "accuracy"\npruner = { name = "Threshold", upper = 0.85 }\n'
    )
    said = helios("pool", "run", sweep, "--report", "page.html")
    found = result(helios("pool", "run", sweep, "--json"))
    assert [(trial["state"], trial["value"]) for trial in found["trials"]] == [
        ("pruned", 0.9),
        ("finished", 0.8),
        ("finished", 0.7),
    ]
    assert (found["best"]["number"], found["best"]["value"]) == (1, 0.8)
    assert re.search(r"pruned +0\.9 ", said.out)
    page = sweep.with_name("page.html").read_text()
    assert "2 finished, 1 pruned; the best is trial 1 with 0.8" in page
    assert re.search(r"<td[^>]*>pruned</td><td>0\.9</td>", page)


def test_the_same_command_runs_no_trial_twice(helios: Helios, sweep: Path) -> None:
    first = result(helios("pool", "run", sweep, "--json"))
    again = result(helios("pool", "run", sweep, "--json"))
    assert again["trials"] == first["trials"]
    assert {path.read_text() for path in sweep.parent.glob("ran-*")} == {"x"}


def test_events_are_lines_and_the_last_is_the_result(helios: Helios, sweep: Path) -> None:
    lines = [json.loads(line) for line in helios("pool", "run", sweep, "--events").out.splitlines()]
    assert [line["event"] for line in lines].count("started") == 6
    assert [line["event"] for line in lines].count("finished") == 6
    assert lines[-1]["event"] == "result"
    assert len(lines[-1]["trials"]) == 6


def test_a_table_for_a_person_names_the_best_and_what_failed(helios: Helios, sweep: Path) -> None:
    (sweep.parent / "train.py").write_text(TRAIN + "\nif lr == 0.1: raise SystemExit(7)\n")
    said = helios("pool", "run", sweep, code=1)
    assert "Best loss" in said.out
    assert "exit status 7" in said.out
    assert "4 finished" in said.out
    assert "2 failed" in said.out


def start(sweep: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "helios", "pool", "run", str(sweep), "--slots", "2", "--json", *words]
    return subprocess.Popen(  # a shell's background commands ignore Ctrl-C, and so would their children
        ["env", "--default-signal=INT", *command],
        cwd=sweep.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def programs(folder: Path) -> list[psutil.Process]:
    """The programs of trials that run, without what they have started."""
    found = []
    for process in pool_processes(folder):
        with suppress(psutil.Error):  # it has ended meanwhile
            if "train.py" in process.cmdline():
                found.append(process)
    return found


def logs(sweep: Path) -> list[Path]:
    return [path for path in sweep.with_suffix(".pool").glob("trials/*/report.jsonl") if path.stat().st_size]


def test_ctrl_c_ends_the_trials_and_the_same_command_goes_on(helios: Helios, sweep: Path) -> None:
    (sweep.parent / "train.py").write_text(TRAIN + SLOW)
    process = start(sweep)
    until(lambda: len(logs(sweep)) == 2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 130
    assert f"helios pool run {sweep}" in err
    assert {trial["state"] for trial in json.loads(out)["trials"]} == {"waiting"}
    assert pool_processes(sweep.with_suffix(".pool")) == []
    (sweep.parent / "go").touch()
    assert {trial["state"] for trial in result(helios("pool", "run", sweep, "--json"))["trials"]} == {"finished"}


def test_a_killed_coordinator_leaves_nothing_running_and_is_gone_on_with(helios: Helios, sweep: Path) -> None:
    (sweep.parent / "train.py").write_text(TRAIN + SLOW)
    process = start(sweep)
    until(lambda: len(logs(sweep)) == 2)
    process.kill()
    process.communicate()
    until(lambda: not pool_processes(sweep.with_suffix(".pool")))
    (sweep.parent / "go").touch()
    found = result(helios("pool", "run", sweep, "--json"))
    assert {trial["state"] for trial in found["trials"]} == {"finished"}
    assert sorted(trial["attempts"] for trial in found["trials"]) == [1, 1, 1, 1, 2, 2]


def test_the_next_start_clears_away_what_was_killed_at_once(helios: Helios, sweep: Path) -> None:
    leaves = "import subprocess\nsubprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
    (sweep.parent / "train.py").write_text(leaves + TRAIN + SLOW)
    process = start(sweep)
    until(lambda: len(logs(sweep)) == 2)
    folder = sweep.with_suffix(".pool")
    agent = programs(folder)[0].parent()
    assert agent is not None
    agent.suspend()  # so that it cannot clear away what the coordinator leaves
    process.kill()
    process.wait()
    agent.kill()
    until(lambda: not programs(folder))
    assert len(pool_processes(folder)) >= 1
    (sweep.parent / "go").touch()
    found = result(helios("pool", "run", sweep, "--json"))
    assert {trial["state"] for trial in found["trials"]} == {"finished"}
    assert any("were ended" in note for note in found["notes"])
    assert pool_processes(folder) == []


def test_a_second_pool_in_the_folder_is_refused(helios: Helios, sweep: Path) -> None:
    (sweep.parent / "train.py").write_text(TRAIN + SLOW)
    process = start(sweep)
    try:
        until(lambda: len(logs(sweep)) == 2)
        assert "Another pool is running" in helios("pool", "run", sweep, code=2).err
    finally:
        (sweep.parent / "go").touch()
        process.communicate()
    assert process.returncode == 0


def test_a_terminal_shows_the_pool_while_it_runs(sweep: Path) -> None:
    (sweep.parent / "train.py").write_text(TRAIN + SLOW)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "helios", "pool", "run", str(sweep), "--slots", "2"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    process = subprocess.Popen(command, cwd=sweep.parent, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    seen = b""

    def shown(text: bytes) -> bool:
        nonlocal seen
        seen += os.read(ours, 65_536)
        return text in seen

    until(lambda: shown(b"2 of 2"))
    (sweep.parent / "go").touch()
    with suppress(OSError):  # the end of a terminal
        while not shown(b"nothing like this"):
            pass
    os.close(ours)
    assert process.wait() == 0
    assert b"6 finished" in seen
    assert b"of 6 trials" in seen


def test_a_time_limit_ends_the_pool_and_says_what_is_left(helios: Helios, sweep: Path) -> None:
    (sweep.parent / "train.py").write_text(TRAIN + SLOW)
    said = helios("pool", "run", sweep, "--json", "--time-limit", "0.05min", code=1)
    assert "time of the allocation is up" in said.err
    assert said.json["left"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--slots", "0"), "0 slots run nothing"),
        (("--memory", "much"), "is not an amount of memory"),
        (("--time-limit", "soon"), "is not a length of time"),
        (("--device", "gpu"), "No NVIDIA GPU"),
        (("--events", "--json"), "exclude each other"),
        (("--service", "nobody"), "nobody"),
    ],
)
def test_options_that_make_no_sense_are_refused_before_anything_starts(
    helios: Helios, sweep: Path, words: tuple[str, ...], told: str
) -> None:
    assert told in helios("pool", "run", sweep, *words, code=2).err
    assert not list(sweep.parent.glob("ran-*"))


def test_a_trial_may_run_helios_itself(helios: Helios, tmp_path: Path) -> None:
    (tmp_path / "sweep.toml").write_text(
        f'reads_parameters = true\ncommand = "{sys.executable} -m helios config"\n[parameters]\nx = [1]\n'
    )
    found = result(helios("pool", "run", "sweep.toml", "--json"))
    assert found["trials"][0]["state"] == "finished", (tmp_path / "sweep.pool/trials/00000/log.txt").read_text()


def test_the_batch_script_of_a_sweep_runs_it(helios: Helios, sweep: Path) -> None:
    words = ("--partition", "gpu", "--gpus", 4, "--time", "8:00:00", "--slots", 2, "--sbatch=--qos=long")
    script = helios("pool", "submit", sweep, *words, "--dry-run").out
    for option in ("--partition=gpu", "--gpus-per-node=4", "--time=8:00:00", "--signal=B:USR1@120", "--qos=long"):
        assert f"#SBATCH {option}\n" in script
    assert not sweep.with_suffix(".pool").exists()
    done = subprocess.run(["bash"], input=script, cwd=sweep.parent, capture_output=True, text=True, check=True)
    assert {trial["state"] for trial in json.loads(done.stdout)["trials"]} == {"finished"}


def test_shards_nodes_and_pools_are_asked_of_slurm(helios: Helios, sweep: Path) -> None:
    answer = helios("pool", "submit", sweep, "--shards", 4, "--nodes", 2, "--pools", 3, "--chain", 2, "--dry-run")
    scripts = answer.out.split("#!/bin/bash\n")[1:]
    assert "3 scripts, each submitted 2 times" in answer.err
    assert len({re.search("--job-name=(.*)", script)[1] for script in scripts}) == 3
    for script in scripts:
        for option in ("--gres=shard:4", "--nodes=2", "--ntasks-per-node=1"):
            assert f"#SBATCH {option}\n" in script
        assert script.rstrip().endswith("--shared")
    assert "exclude" in helios("pool", "submit", sweep, "--shards", 4, "--gpus", 1, "--dry-run", code=2).err


def test_the_signal_before_the_end_of_an_allocation_ends_the_pool(helios: Helios, sweep: Path) -> None:
    (sweep.parent / "train.py").write_text(TRAIN + SLOW)
    script = helios("pool", "submit", sweep, "--slots", 2, "--dry-run").out
    command = ["env", "--default-signal=USR1", "bash", "-c", script]
    process = subprocess.Popen(command, cwd=sweep.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until(lambda: len(logs(sweep)) == 2)
    process.send_signal(signal.SIGUSR1)
    (sweep.parent / "go").touch()  # the trials that run have time to end; no other is started
    out, err = process.communicate()
    assert process.returncode == 1
    assert "time of the allocation is up" in err
    assert sorted(trial["state"] for trial in json.loads(out)["trials"]) == ["finished"] * 2 + ["waiting"] * 4


SBATCH = """#!/bin/bash
cat > submitted-$(ls submitted-* 2>/dev/null | wc -l)
echo "$((100 + $(ls submitted-* | wc -l)));cluster"
"""


def test_a_chain_submits_the_same_script_so_many_times(sweep: Path) -> None:
    (sweep.parent / "sbatch").write_text(SBATCH)
    (sweep.parent / "sbatch").chmod(0o755)
    helios = shell(sweep.parent, PATH=f"{sweep.parent}:{os.environ['PATH']}")
    assert helios("pool", "submit", sweep, "--chain", 3, "--json").json["jobs"] == ["101", "102", "103"]
    scripts = {path.read_text() for path in sweep.parent.glob("submitted-*")}
    assert len(scripts) == 1
    assert "#SBATCH --dependency=singleton" in scripts.pop()


def test_what_slurm_refuses_is_said(sweep: Path) -> None:
    (sweep.parent / "sbatch").write_text("#!/bin/bash\necho 'sbatch: error: invalid partition' >&2\nexit 1\n")
    (sweep.parent / "sbatch").chmod(0o755)
    helios = shell(sweep.parent, PATH=f"{sweep.parent}:{os.environ['PATH']}")
    assert "invalid partition" in helios("pool", "submit", sweep, code=1).err


def test_a_wrong_sweep_is_refused_before_anything_is_submitted(helios: Helios, sweep: Path) -> None:
    sweep.write_text(sweep.read_text().replace("{lr}", "{rate}"))
    assert "line" in helios("pool", "submit", sweep, "--dry-run", code=2).err


def test_a_sweep_that_ran_is_simulated_from_what_it_needed(helios: Helios, sweep: Path) -> None:
    assert "--run-time" in helios("pool", "whatif", sweep, "--gpus", 2, "--memory", "8G", code=2).err
    helios("pool", "run", sweep, "--slots", 2, "--json")
    said = helios("pool", "whatif", sweep, "--gpus", 2, "--memory", "8G", "--watts", "60,300", "--json")
    low, high = said.json["comparisons"]
    for rules in (low["rules"], high["rules"]):
        assert {"exclusive", "fixed 2", "fixed 4", "fixed 8", "packing", "oracle"} == set(rules)
        assert rules["oracle"]["makespan_s"] <= rules["exclusive"]["makespan_s"]
        assert all(rule["energy_kwh"] > 0 for rule in rules.values())
    assert "not on GPUs" in said.err
    assert "Makespan" in helios("pool", "whatif", sweep, "--gpus", 1, "--memory", "8G").out


def test_trials_that_were_kept_tell_what_another_sweep_will_need(helios: Helios, sweep: Path) -> None:
    helios("pool", "run", sweep, "--json")
    kept = helios("pool", "load", "sweep.pool", "--json").json
    assert kept["pools"] == [{"folder": "sweep.pool", "new_runs": 6}]
    assert helios("pool", "load", "sweep.pool", "--json").json["pools"][0]["new_runs"] == 0
    other = sweep.with_name("other.toml")
    other.write_text(sweep.read_text().replace("0.1, 0.2, 0.5", "0.3, 0.4"))
    said = helios("pool", "whatif", other, "--gpus", 1, "--memory", "8G", "--json")
    assert "from 6 runs" in said.err
    helios("pool", "run", other, "--json")  # there is a warehouse now
    assert helios("pool", "load", "other.pool", "--json").json["pools"][0]["new_runs"] == 0


def test_a_wrong_configuration_stops_no_pool(helios: Helios, sweep: Path) -> None:
    sweep.with_name("helios.toml").write_text("nonsense = 1\n")
    said = helios("pool", "run", sweep, "--json")
    assert "Earlier trials are not known" in said.err
    assert len(result(said)["trials"]) == 6


@pytest.mark.nightly
def test_a_search_of_a_real_model_is_killed_goes_on_and_grows(helios: Helios, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the extra [fused] is not installed")
    pytest.importorskip("sklearn")
    root = Path(__file__).parents[2]
    shutil.copytree(root / "benchmarks" / "pool_digits", tmp_path / "a" / "b")
    shutil.copytree(root / "task", tmp_path / "task")
    sweep = tmp_path / "a" / "b" / "conditional.toml"
    grown = sweep.read_text().replace('"python ', f'"{sys.executable} ').replace("--epochs 20", "--epochs 4")
    text = grown.replace("trials = 24", "trials = 12").replace("width = [32, 64]", "width = [32]")
    sweep.write_text(text.replace("high = 1e-2", "high = 1e-3"))
    warm = [word for module in ("torch", "sklearn.datasets", "sklearn.model_selection") for word in ("--warm", module)]
    process = start(sweep, *warm)
    state = sweep.with_suffix(".pool") / "state.jsonl"
    until(lambda: state.exists() and state.read_text().count('"what": "finished"') >= 5)
    process.kill()
    process.communicate()
    first = result(helios("pool", "run", sweep, "--slots", 2, "--json", *warm))
    sweep.write_text(grown)
    found = result(helios("pool", "run", sweep, "--slots", 2, "--json", *warm))
    assert any(note.startswith("The sweep file has changed. lr: 0.0001 to 0.01, log, was") for note in found["notes"])
    assert found["trials"][:12] == first["trials"]
    assert len(found["trials"]) == 24
    assert {trial["state"] for trial in found["trials"]} <= {"finished", "pruned"}
    parameters = [trial["parameters"] for trial in found["trials"]]
    assert {("momentum" in each) == (each["optimizer"] == "sgd") for each in parameters} == {True}
    assert max(each["lr"] for each in parameters) > 1e-3
    assert {each["width"] for each in parameters} == {32, 64}
    assert found["best"]["value"] > 0.8
