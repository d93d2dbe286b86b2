"""Deliverables of targets, as real small programs make them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import helios_task
import psutil
import pytest

from helios.training.pool import deliverables
from helios.training.pool.coordinator import Coordinator
from helios.training.pool.deliverables import copy_unchanged, find_checkpoint
from helios.training.pool.state import FILE
from tests.disks import small_disk
from tests.unit.training.pool.test_coordinator import Watched, run
from tests.unit.training.pool.test_targets import REPORTS, a_program, a_target_sweep, reached

SAVES = (
    REPORTS
    + """
import pathlib
folder = pathlib.Path(os.environ["HELIOS_CHECKPOINTS"])
def save(name, content):
    (folder / ".partial").write_text(str(content))
    (folder / ".partial").rename(folder / name)
    report(checkpoint=name)
def wait_for(name):
    until = time.monotonic() + 60
    while not pathlib.Path(name).exists() and time.monotonic() < until:
        time.sleep(0.01)
"""
)


def delivered(folder: Path, name: str = "deliverable") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "pool" / name / "target.json").read_text())
    return found


@pytest.fixture
def with_helios_task(tmp_path: Path) -> None:
    """Programs can import the module for programs."""
    (tmp_path / "helios_task.py").write_bytes(Path(helios_task.__file__).read_bytes())


def lines(folder: Path, what: str) -> list[dict[str, Any]]:
    entries = [json.loads(line) for line in (folder / "pool" / FILE).read_text().splitlines()]
    return [entry for entry in entries if entry.get("what") == what]


def test_the_checkpoint_after_the_target_is_delivered_and_stays(tmp_path: Path) -> None:
    program = SAVES + (
        "for step, acc in enumerate([0.5, 0.91, 0.93]):\n"
        "    report(step=step, acc=acc)\n    save('model.pt', acc)\n"
        "    if step == 1: wait_for('pool/deliverable')\n"
    )
    run(a_target_sweep(tmp_path, program, "acc>=0.9"))
    assert (tmp_path / "pool" / "deliverable" / "model.pt").read_text() == "0.91"
    found = delivered(tmp_path)
    assert {key: found[key] for key in ("metric", "value", "goal", "step", "trial", "parameters", "attempt")} == {
        "metric": "acc",
        "value": 0.91,
        "goal": 0.9,
        "step": 1,
        "trial": 0,
        "parameters": {"x": 0},
        "attempt": 1,
    }
    assert (found["checkpoint"], found["confirmed"]) == ("model.pt", True)
    assert (tmp_path / "pool" / "trials" / "00000" / "checkpoints" / "model.pt").read_text() == "0.93"


@pytest.mark.usefixtures("with_helios_task")
def test_a_program_is_asked_for_a_checkpoint_at_its_target(tmp_path: Path) -> None:
    program = (
        "import helios_task, pathlib, time\n"
        "helios_task.report(step=0, acc=0.5)\nhelios_task.report(step=1, acc=0.95)\n"
        "until = time.monotonic() + 60\n"
        "while not pathlib.Path('pool/deliverable').exists() and time.monotonic() < until:\n"
        "    if helios_task.requested() == 'checkpoint':\n"
        "        with helios_task.save_checkpoint('model.pt') as path:\n            path.write_text('good')\n"
        "    time.sleep(0.01)\n"
    )
    run(a_target_sweep(tmp_path, program, "acc>=0.9"))
    assert (tmp_path / "pool" / "deliverable" / "model.pt").read_text() == "good"


def test_a_second_target_has_a_deliverable_of_its_own(tmp_path: Path) -> None:
    program = SAVES + (
        "for step, acc in enumerate([0.5, 0.91, 0.96]):\n"
        "    report(step=step, acc=acc)\n    save('model.pt', acc)\n"
        "    if step: wait_for(['pool/deliverable', 'pool/deliverable-2'][step - 1])\n"
    )
    run(a_target_sweep(tmp_path, program, "acc>=0.9,0.95"))
    texts = [(tmp_path / "pool" / name / "model.pt").read_text() for name in ("deliverable", "deliverable-2")]
    assert texts == ["0.91", "0.96"]
    assert [delivered(tmp_path, name)["tier"] for name in ("deliverable", "deliverable-2")] == [1, 2]


def test_a_program_without_checkpoints_delivers_what_was_reached(tmp_path: Path) -> None:
    end, _ = run(a_target_sweep(tmp_path, a_program(0.5, 0.95), "acc>=0.9"))
    assert [each.name for each in (tmp_path / "pool" / "deliverable").iterdir()] == ["target.json"]
    assert delivered(tmp_path)["checkpoint"] is None
    assert any("with target.json alone, since trial 0 has no checkpoint in its folder" in note for note in end.notes)


def test_a_program_that_never_answers_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliverables, "ANSWER_S", 0.3)
    program = SAVES + "report(step=1, acc=0.95)\nwait_for('pool/deliverable')\n"
    run(a_target_sweep(tmp_path, program, "acc>=0.9"))
    assert delivered(tmp_path)["checkpoint"] is None


def test_a_folder_is_delivered_whole(tmp_path: Path) -> None:
    program = SAVES + (
        "report(step=1, acc=0.95)\n(folder / 'epoch-1' / 'parts').mkdir(parents=True)\n"
        "(folder / 'epoch-1' / 'parts' / 'a').write_text('1')\nreport(checkpoint='epoch-1')\n"
    )
    run(a_target_sweep(tmp_path, program, "acc>=0.9"))
    assert (tmp_path / "pool" / "deliverable" / "epoch-1" / "parts" / "a").read_text() == "1"


def test_a_checkpoint_from_before_the_target_is_said_to_be_so(tmp_path: Path) -> None:
    program = SAVES + "report(step=0, acc=0.5)\nsave('model.pt', 0.5)\nreport(step=1, acc=0.95)\n"
    run(a_target_sweep(tmp_path, program, "acc>=0.9"))
    assert (delivered(tmp_path)["confirmed"], delivered(tmp_path)["checkpoint_step"]) == (False, None)


RESUMED = SAVES + (
    "import signal\n"
    "first = int((folder / 'model.pt').read_text()) + 1 if (folder / 'model.pt').exists() else 0\n"
    "for step in range(first, 8):\n"
    "    report(step=step, acc=step / 10)\n"
    "    if step == 5 and not first: os.kill(os.getpid(), signal.SIGKILL)\n"
    "    if step != 4: save('model.pt', step)\n"
)


def test_a_checkpoint_later_than_the_value_has_its_own_step(tmp_path: Path) -> None:
    program = SAVES + (
        "report(step=4, acc=0.95)\nreport(step=7, acc=0.6)\nsave('model.pt', 0.6)\nwait_for('pool/deliverable')\n"
    )
    run(a_target_sweep(tmp_path, program, "acc>=0.9"))
    found = delivered(tmp_path)
    assert (found["value"], found["step"], found["checkpoint_step"]) == (0.95, 4, 7)


def test_after_a_kill_a_checkpoint_from_before_the_target_is_not_taken(tmp_path: Path) -> None:
    run(a_target_sweep(tmp_path, RESUMED, "acc>=0.5"))  # killed at step 5, goes on at step 4
    assert int((tmp_path / "pool" / "deliverable" / "model.pt").read_text()) >= 5
    assert (delivered(tmp_path)["step"], delivered(tmp_path)["confirmed"]) == (5, True)


def test_a_checkpoint_that_is_a_link_elsewhere_is_none(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    (checkpoints / "model.pt").symlink_to(tmp_path / "secret")
    assert find_checkpoint(checkpoints, "model.pt") is None
    assert find_checkpoint(checkpoints, "../secret") is None


def test_a_file_that_is_written_to_meanwhile_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "model.pt"
    source.write_text("half")
    read = os.read

    def read_and_write(handle: int, count: int) -> bytes:
        source.write_text("whole and longer")
        return read(handle, count)

    monkeypatch.setattr("helios.training.pool.deliverables.os.read", read_and_write)
    with pytest.raises(OSError, match="was changed while it was copied"):
        copy_unchanged(source, tmp_path / "copy", tmp_path)


def test_what_links_of_a_checkpoint_lead_to_is_delivered(tmp_path: Path) -> None:
    source, beside, outside = tmp_path / "root" / "step-9", tmp_path / "root" / "shared", tmp_path / "data"
    for folder in (source, beside, outside):
        folder.mkdir(parents=True)
        (folder / "w").write_text(folder.name)
    (source / "beside").symlink_to("../shared/w")
    (source / "folder").symlink_to(beside)
    (source / "own").symlink_to(source / "w")
    (source / "outside").symlink_to("../../data/w")
    copy_unchanged(source, tmp_path / "far" / "away", tmp_path / "root")
    (beside / "w").write_text("later")
    (source / "w").write_text("later")
    copied = tmp_path / "far" / "away"
    assert [(copied / name).read_text() for name in ("beside", "folder/w", "own")] == ["shared", "shared", "step-9"]
    assert (copied / "outside").readlink() == outside / "w"


def test_a_file_that_a_checkpoint_links_to_must_not_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "step-9").mkdir()
    (tmp_path / "w").write_text("half")
    (tmp_path / "step-9" / "w").symlink_to("../w")
    copy = shutil.copy2
    monkeypatch.setattr(
        "helios.training.pool.deliverables.shutil.copy2",
        lambda source, into: (copy(source, into), (tmp_path / "w").write_text("whole and longer")),
    )
    with pytest.raises(OSError, match="was changed while it was copied"):
        copy_unchanged(tmp_path / "step-9", tmp_path / "copy", tmp_path)


def test_what_cannot_be_copied_is_said_in_words(tmp_path: Path) -> None:
    (tmp_path / "step-9").mkdir()
    os.mkfifo(tmp_path / "step-9" / "pipe")
    with pytest.raises(OSError, match=r"^step-9: .*pipe. is a named pipe$"):
        copy_unchanged(tmp_path / "step-9", tmp_path / "copy", tmp_path)


def test_a_checkpoint_that_leads_out_of_the_folder_is_not_confirmed(tmp_path: Path) -> None:
    program = SAVES + "(folder / 'model').symlink_to('/etc')\nreport(step=1, acc=0.95, checkpoint='model')\n"
    run(a_target_sweep(tmp_path, program, "acc>=0.9"))
    assert (delivered(tmp_path)["checkpoint"], delivered(tmp_path)["confirmed"]) == (None, False)


def test_our_own_file_replaces_no_checkpoint(tmp_path: Path) -> None:
    program = SAVES + "report(step=1, acc=0.95)\nsave('model.pt', 1)\nsave('target.json', 2)\n"
    run(a_target_sweep(tmp_path, program, "acc>=0.9"))
    assert delivered(tmp_path)["checkpoint"] == "model.pt"
    assert (tmp_path / "pool" / "deliverable" / "model.pt").read_text() == "1"


def test_a_command_that_cannot_be_called_is_no_unwritten_folder(tmp_path: Path) -> None:
    (tmp_path / "pool" / "on_target.log").mkdir(parents=True)
    end, _ = run(a_target_sweep(tmp_path, a_program(0.95), "acc>=0.9", on_target=("true",)))
    said = " ".join(end.notes)
    assert "The command on_target was not called for" in said and "is not written yet" not in said


def test_a_folder_that_was_there_is_not_told_as_delivered(tmp_path: Path) -> None:
    (tmp_path / "pool" / "deliverable").mkdir(parents=True)
    end, _ = run(a_target_sweep(tmp_path, a_program(0.95), "acc>=0.9"))
    assert lines(tmp_path, "delivered") == []
    assert any("there is another folder of this name, which must be moved away" in note for note in end.notes)


HOOK = (
    "import json, os, sys\n"
    "given = {name: os.environ[name] for name in os.environ if name.startswith('HELIOS_TARGET_')}\n"
    "print(json.dumps([given, json.load(sys.stdin), sys.argv[1:]]))\n"
)


def called(folder: Path) -> list[Any]:
    return [json.loads(line) for line in (folder / "pool" / "on_target.log").read_text().splitlines()]


def test_the_command_gets_what_was_delivered(tmp_path: Path) -> None:
    (tmp_path / "hook.py").write_text(HOOK)
    command = (sys.executable, "hook.py", "a b; $(c)")
    run(a_target_sweep(tmp_path, a_program(0.5, 0.95), "acc>=0.9", on_target=command))
    [(given, content, words)] = called(tmp_path)
    assert words == ["a b; $(c)"]
    assert content == delivered(tmp_path)
    assert given["HELIOS_TARGET_VALUE"] == "0.95"
    assert given["HELIOS_TARGET_PARAMETERS"] == '{"x": 0}'
    assert Path(given["HELIOS_TARGET_FOLDER"]) == tmp_path / "pool" / "deliverable"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ((sys.executable, "-c", "raise SystemExit(3)"), "ended with status 3"),
        ((sys.executable, "-c", "import time; time.sleep(60)"), "was ended after 1 s"),
        (("no-such-program",), "ended with status 127"),
    ],
)
def test_a_command_that_fails_is_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], said: str
) -> None:
    monkeypatch.setattr(deliverables, "COMMAND_S", 1.0)
    end, _ = run(a_target_sweep(tmp_path, a_program(0.5, 0.95), "acc>=0.9", on_target=command))
    assert any(f"The command on_target {said}" in note for note in end.notes)
    assert end.reason == ""


def test_a_command_that_runs_too_long_ends_with_what_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliverables, "COMMAND_S", 1.0)
    command = ("sh", "-c", "sleep 60 & echo $!; wait")
    run(a_target_sweep(tmp_path, a_program(0.5, 0.95), "acc>=0.9", on_target=command))
    child = int((tmp_path / "pool" / "on_target.log").read_text())
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_what_was_published_before_a_kill_is_not_published_again(tmp_path: Path) -> None:
    (tmp_path / "hook.py").write_text(HOOK)
    sweep = a_target_sweep(tmp_path, a_program(0.5, 0.95), "acc>=0.9", on_target=(sys.executable, "hook.py"))
    run(sweep)
    path = tmp_path / "pool" / FILE
    kept = [line for line in path.read_text().splitlines(keepends=True) if '"delivered"' not in line]
    path.write_text("".join(kept))  # as after a kill between the publication and its record
    before = (tmp_path / "pool" / "deliverable").stat().st_ctime_ns
    run(sweep)
    run(sweep)
    assert (tmp_path / "pool" / "deliverable").stat().st_ctime_ns == before
    assert len(lines(tmp_path, "delivered")) == 1
    assert len(called(tmp_path)) == 2  # at least once


def test_of_two_pools_that_publish_at_once_one_does(tmp_path: Path) -> None:
    place = tmp_path / "deliverable"
    for run_id, value in (("a", 1), ("b", 2)):
        deliverables._publish(place, None, {"value": value}, root=tmp_path, run=run_id)
    assert [each.name for each in tmp_path.iterdir()] == ["deliverable"]
    assert json.loads((place / "target.json").read_text()) == {"value": 1}


def test_half_a_copy_of_a_killed_pool_is_removed(tmp_path: Path) -> None:
    (tmp_path / "pool" / ".deliverable.0123").mkdir(parents=True)
    run(a_target_sweep(tmp_path, a_program(0.5, 0.95), "acc>=0.9"))
    assert [each.name for each in (tmp_path / "pool").glob(".deliverable*")] == []


def test_a_deliverable_that_cannot_be_written_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliverables, "RETRY_S", 0.1)
    fails = [OSError("no room")]

    def copy(source: Path, into: Path, root: Path) -> None:
        if fails:
            raise fails.pop()
        copy_unchanged(source, into, root)

    monkeypatch.setattr(deliverables, "copy_unchanged", copy)
    program = SAVES + "report(step=1, acc=0.95)\nsave('model.pt', 1)\nwait_for('pool/deliverable')\n"
    end, _ = run(a_target_sweep(tmp_path, program, "acc>=0.9"))
    assert (tmp_path / "pool" / "deliverable" / "model.pt").read_text() == "1"
    assert any("is not written yet: no room" in note for note in end.notes)


def test_on_a_full_disk_a_deliverable_waits_and_comes_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliverables, "RETRY_S", 0.2)
    program = SAVES + (
        "report(step=1, acc=0.95)\n(folder / '.partial').write_bytes(bytes(30 << 20))\n"
        "(folder / '.partial').rename(folder / 'model.pt')\n"
        "report(checkpoint='model.pt')\nwait_for('pool/deliverable')\n"
    )
    with small_disk(tmp_path / "disk") as disk:
        (disk / "ballast").write_bytes(bytes(20 << 20))  # it leaves room for one copy of the checkpoint, not for two

        def make_room(pool: Coordinator, event: Mapping[str, Any]) -> None:
            if "is not written yet" in event.get("note", ""):
                assert [*(disk / "pool").glob(".deliverable*")] == []
                (disk / "ballast").unlink()

        end, _ = run(a_target_sweep(disk, program, "acc>=0.9"), watched=Watched(make_room))
        assert any("No space left on device; it is tried again" in note for note in end.notes)
        assert (disk / "pool" / "deliverable" / "model.pt").stat().st_size == 30 << 20
        assert len(lines(disk, "delivered")) == 1


@pytest.mark.usefixtures("with_helios_task")
def test_a_pool_that_is_told_to_end_delivers_what_is_saved(tmp_path: Path) -> None:
    program = (
        "import helios_task, time\nhelios_task.report(step=1, acc=0.95)\n"
        "while helios_task.requested() != 'pause':\n    time.sleep(0.01)\n"
        "with helios_task.save_checkpoint('model.pt') as path:\n    path.write_text('good')\n"
    )

    def act(pool: Coordinator, event: Mapping[str, Any]) -> None:
        if event["event"] == "target":
            pool.interrupt()

    run(a_target_sweep(tmp_path, program, "acc>=0.9"), watched=Watched(act))
    assert (tmp_path / "pool" / "deliverable" / "model.pt").read_text() == "good"
    assert len(reached(tmp_path)) == 1


KILLED = """
command = "{python} program.py {{x}}"
[parameters]
x = [0, 1]
[target]
metric = "acc"
first = 0.5
second = 0.8
"""
SLOW = SAVES + (
    "saved = folder / 'model.pt'\n"
    "first = int(saved.read_text()) + 1 if saved.exists() else 0\n"
    "for step in range(first, 10):\n"
    "    report(step=step, acc=step / 10)\n    time.sleep(0.1)\n    save('model.pt', step)\n"
)


def kill_at_random(folder: Path, *, kills: int, seed: int) -> int:
    """Run a pool that is killed at random moments, and return how often a deliverable changed."""
    random, seen, changes = Random(seed), dict[str, tuple[int, bytes, bytes]](), 0
    (folder / "program.py").write_text(SLOW)
    (folder / "sweep.toml").write_text(KILLED.format(python=sys.executable))
    for kill in range(kills + 1):
        words = [sys.executable, "-m", "helios", "pool", "run", "sweep.toml", "--slots", "1", "--json"]
        pool = subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            pool.wait(None if kill == kills else random.uniform(0.5, 2.5))
        except subprocess.TimeoutExpired:
            pool.send_signal(signal.SIGKILL)
            pool.wait()
        for place in sorted((folder / "sweep.pool").glob("deliverable*")):
            now = (place.stat().st_ctime_ns, (place / "target.json").read_bytes(), (place / "model.pt").read_bytes())
            changes += seen.setdefault(place.name, now) != now
    assert sorted(seen) == ["deliverable", "deliverable-2"]
    assert not [*(folder / "sweep.pool").glob(".deliverable*")]
    entries = [json.loads(line) for line in (folder / "sweep.pool" / FILE).read_text().splitlines()]
    kept = [(entry["what"], entry["tier"]) for entry in entries if entry.get("what") in {"target", "delivered"}]
    assert sorted(kept) == [("delivered", 0), ("delivered", 1), ("target", 0), ("target", 1)]
    for tier, name in enumerate(("deliverable", "deliverable-2")):
        assert int((folder / "sweep.pool" / name / "model.pt").read_text()) >= (5, 8)[tier]
    return changes


def test_killed_at_random_each_deliverable_is_published_once(tmp_path: Path) -> None:
    assert kill_at_random(tmp_path, kills=2, seed=1) == 0


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(10))
def test_killed_at_fifty_moments_each_deliverable_is_published_once(tmp_path: Path, seed: int) -> None:
    assert kill_at_random(tmp_path, kills=5, seed=100 + seed) == 0
