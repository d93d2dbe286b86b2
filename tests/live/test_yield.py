"""Jobs with targets on a real Slurm: their order, and running ones that yield."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import helios_task
import pytest

from helios.app.controllers import YIELDS_MEMORY
from helios.app.explain import explain
from helios.app.modes import PAUSE_FILE, RELEASED_FILE, set_mode
from helios.app.operations import Operations
from helios.control import CycleReport
from helios.model import Mode
from helios.model.targets import read_note
from helios.warehouse import Warehouse
from tests.live.rig import Rig, roomy_folder, skip_without_slurm
from tests.live.test_acting import RELEASE, Helios

TARGET = "helios:target=acc>=0.9,0.99;yield=B:USR2"
TRAINING = """#!/bin/bash
# Works in steps, says where it stands, saves a checkpoint when it is asked to, and goes on from it.
file={folder}/$SLURM_JOB_ID; work=$(cat $file 2>/dev/null || echo 0)
tell() {{
    [ $work -ge {first} ] && at=0.95 || at=0.1
    [ $work -ge {first} ] && [ ! -e $file.first ] && date +%s.%N >$file.first
    scontrol update jobid=$SLURM_JOB_ID comment="{comment};at=$at,step=$work$1"
}}
save() {{ echo $work >$file; tell ",checkpoint=$(date +%s)"; }}
trap '{on_signal}' USR2
while [ $work -lt {second} ]; do
    sleep 0.5 & wait $!
    work=$((work + 1)); [ $work -eq {first} ] && tell
done
"""
PROGRAM = """
import json, pathlib, sys, time
import helios_task
helios_task.watch_signals()
helios_task.checkpoint_folder(sys.argv[1])
latest = helios_task.latest_checkpoint()
step, weight = json.loads(latest.read_text()) if latest else (0, 0.0)
print("from", step, flush=True)
for step in range(step + 1, 100_000):
    weight += 0.2 * (1 - weight)
    helios_task.report(step=step, acc=weight)
    time.sleep(0.2)
    request = helios_task.requested()
    if request:
        with helios_task.save_checkpoint("model.json", step=step) as path:
            path.write_text(json.dumps([step, weight]))
    if request in ("pause", "stop"):
        break
"""
REFUSES = """
function slurm_job_submit() return slurm.SUCCESS end
function slurm_job_modify(wanted, job)
  if job.name == "silent" and wanted.comment ~= nil then return slurm.ERROR end
  return slurm.SUCCESS
end
"""
"""A site's rule that a user may not change the comment of a job of this name."""
PARTITIONS = "\n".join(
    f"PartitionName={name} Nodes={node} MaxTime=7-0 DefMemPerCPU=100 PriorityJobFactor=1"
    for name, node in (("gpu", "n1"), ("other", "n2"))
)


class Site(Helios):
    """Helios with the service of targets, and jobs that train."""

    def another(self, *, state: str = "state", url: str = "", **control: Any) -> Operations:
        given = {"state_folder": str(self.folder / state), "yield_least_run_s": 1, "yield_most_per_hour": 9} | control
        return super().another(state=state, url=url, services={"targets": {"every_s": 1}}, control=given)

    def set(self, mode: Mode, **scope: Any) -> None:
        now = datetime.now(UTC)
        set_mode(self.url, self.rig.name, "targets", mode, by="root", reason="a test", now=now, **scope)

    def train(
        self,
        *options: str,
        first: int = 1,
        second: int = 1_000,
        comment: str = TARGET,
        on_signal: str = "save",
        partition: str = "gpu",
        user: str = "alice",
    ) -> str:
        """Submit a job of one GPU that reaches its targets after so many half seconds."""
        script = TRAINING.format(
            folder=self.rig.folder / "training", first=first, second=second, comment=comment, on_signal=on_signal
        )
        words = ["--parsable", "--time=60", "--gres=gpu:1", "--mem=50", "--output=/dev/null", "--requeue"]
        words += [f"--partition={partition}", f"--comment={comment}", *options]
        return self.rig.run("sbatch", *words, user=user, given=script).strip()

    def train_with_helios_task(self, *options: str) -> tuple[str, Path]:
        """Submit a job of two GPUs that trains with ``helios_task``, and return it with its log."""
        folder = Path(self.run_as_alice("mktemp", "-d", "-p", str(self.rig.folder / "training")))
        for name, text in (("train.py", PROGRAM), ("helios_task.py", Path(helios_task.__file__).read_text())):
            (folder / name).write_text(text)
        words = ["--parsable", "--time=60", "--gres=gpu:2", "--mem=50", "--requeue", "--partition=gpu"]
        words += [f"--output={folder}/log", "--open-mode=append", "--comment=helios:target=acc>=0.9;yield=USR2"]
        words += [*options, f"--wrap=srun python3 {folder}/train.py {folder}/saved"]
        return self.run_as_alice("sbatch", *words), folder / "log"

    def run_as_alice(self, *words: str) -> str:
        return self.rig.run(*words, user="alice").strip()

    def comment(self, job: str) -> str:
        return self.rig.run("squeue", "-h", "-j", f"{job},{job}", "-o", "%k").strip()

    def tell(self, job: str, comment: str) -> None:
        self.rig.run("scontrol", "update", f"jobid={job}", f"comment={comment}", user="alice")

    def wait_for(self, job: str, *reasons: str) -> None:
        self.rig.until(lambda: self.rig.show_job(job)["Reason"] in reasons)

    def crowd(self, **options: Any) -> tuple[str, str, str]:
        """Have two jobs past their first targets, and one that waits for its GPU."""
        one, other = (self.train(**options) for _ in range(2))
        self.rig.until(lambda: all("at=0.95" in self.comment(job) for job in (one, other)))
        waits = self.train(first=1_000)
        self.wait_for(waits, "Resources", "Priority")
        return one, other, waits

    def restarts(self, *jobs: str) -> list[str]:
        return [self.rig.show_job(job)["Restarts"] for job in jobs]

    def yields(self, report: CycleReport) -> dict[str, str]:
        """Return what became of requests to yield in a cycle, by job."""
        rows = report.decisions
        rows = rows[(rows["action"] == "Yield") & (rows["outcome"] != "meant")]
        return dict(zip(rows["target"], rows["outcome"], strict=True))

    def cycle_that_yields(self, operations: Operations | None = None) -> dict[str, str]:
        """Run cycles until one says something of yielding, and return it.

        Slurm forgets for a moment why a job waits when its priority changes.
        """
        found: list[dict[str, str]] = []

        def cycle() -> bool:
            found.append(self.yields(self.cycle(operations)))
            return any("could not start now" not in outcome for outcome in found[-1].values())

        self.rig.until(cycle)
        return found[-1]

    def ask(self) -> str:
        """Have one job asked, and its checkpoint saved; return it."""
        asked = next(job for job, what in self.cycle_that_yields().items() if what.startswith("done: asked"))
        self.rig.until(lambda: "checkpoint=" in self.comment(asked))
        return asked

    def why(self, job: str) -> str:
        return "\n".join(explain(self.operations.cycles, job).lines())


@pytest.fixture(scope="module")
def rig_of_two() -> Iterator[Rig]:
    skip_without_slurm()
    script = roomy_folder() / "job_submit.lua"
    script.write_text(REFUSES)
    rig = Rig(roomy_folder(), settings={"NODES": "2", "GPUS": "2", "PARTITIONS": PARTITIONS, "LUA": str(script)})
    try:
        rig.control("up")
        folder = rig.folder / "training"
        folder.mkdir()
        folder.chmod(0o777)
        yield rig
    finally:
        rig.control("wipe")


@pytest.fixture(scope="module")
def module_site(rig_of_two: Rig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", rig_of_two.environment["SLURM_CONF"])
        made = Site(rig_of_two, tmp_path_factory.mktemp("site"))
        made.ran_before()
        made.operations.read()
        yield made
        made.operations.cycles.site.close()


@pytest.fixture
def site(module_site: Site) -> Site:
    """An active service that has asked nobody, and no kill switch."""
    for name in (PAUSE_FILE, RELEASED_FILE):
        (module_site.state / name).unlink(missing_ok=True)
    with Warehouse.open(module_site.url) as warehouse:
        warehouse.remember(module_site.rig.name, YIELDS_MEMORY, "", at=datetime.now(UTC))
    module_site.set(Mode.ACTIVE)
    return module_site


@pytest.fixture
def empty(site: Site) -> Iterator[Site]:
    site.rig.empty()
    yield site
    site.rig.empty()


@pytest.fixture(scope="module")
def the_crowd(module_site: Site) -> tuple[str, str, str]:
    module_site.rig.empty()
    return module_site.crowd()


@pytest.fixture
def crowd(site: Site, the_crowd: tuple[str, str, str]) -> Iterator[tuple[str, str, str]]:
    """Two jobs past their first targets and one that waits, which no test of these may requeue."""
    one, other, waits = the_crowd
    for job in (one, other):
        site.tell(job, f"{TARGET};at=0.95,step=1")
    yield the_crowd
    assert site.restarts(*the_crowd) == ["0", "0", "0"]
    site.rig.run("scontrol", "release", waits)
    site.wait_for(waits, "Resources", "Priority")


# With the same crowd, none of which is requeued.


@pytest.mark.parametrize(
    ("control", "why"),
    [
        ({"yield_least_run_s": 1800}, "it has run less than 30 min"),
        ({"yield_most_per_hour": 0}, "the budget"),
        ({"yield_most_per_job": 0}, "and may 0 times"),
    ],
)
def test_a_bound_refuses_the_request(site: Site, crowd: tuple[str, ...], control: dict[str, Any], why: str) -> None:
    through = site.another(**control)
    found = site.cycle_that_yields(through)
    through.cycles.site.close()
    assert all(what.startswith("refused") and why in what for what in found.values())
    assert "checkpoint=" not in site.comment(crowd[0])


def test_a_shadow_says_whom_it_would_ask(site: Site, crowd: tuple[str, ...]) -> None:
    site.set(Mode.SHADOW)
    found = site.cycle_that_yields()
    assert found[crowd[0]] == "would: ask it for a checkpoint, and requeue it then"


def test_a_canary_asks_no_job_outside_of_it(site: Site, crowd: tuple[str, ...]) -> None:
    site.set(Mode.CANARY, partitions=("other",))
    found = site.cycle_that_yields()
    assert {found[job] for job in crowd[:2]} == {"refused: outside the canary"}


def test_nobody_yields_where_somebody_else_is_next(site: Site, crowd: tuple[str, ...]) -> None:
    job = site.rig.submit(user="bob", partition="gpu")
    site.rig.run("scontrol", "update", f"jobid={job}", "SiteFactor=5000")
    site.wait_for(job, "Resources", "Priority")
    try:
        found = site.cycle_that_yields()
    finally:
        site.rig.run("scancel", job)
    assert "comes before the waiting job" in found[crowd[0]]


def pause(site: Site) -> None:
    (site.state / PAUSE_FILE).write_text("")
    site.cycle()
    (site.state / PAUSE_FILE).unlink()


def switch_off(site: Site) -> None:
    site.set(Mode.OFF)
    site.cycle()
    site.set(Mode.ACTIVE)


def run_the_script(site: Site) -> None:
    script = ["sh", str(RELEASE), "--state", str(site.state)]
    subprocess.run(script, env=site.rig.environment, check=True, capture_output=True)


def take_the_lease(site: Site) -> None:
    other = site.another(state="another")
    with Warehouse.open(site.url) as warehouse:
        warehouse.ledger(site.rig.name).release(holder=site.operations.cycles.holder)
    site.cycle(other)
    with Warehouse.open(site.url) as warehouse:
        warehouse.ledger(site.rig.name).release(holder=other.cycles.holder)
    other.cycles.site.close()


@pytest.mark.parametrize("switch", [pause, switch_off, run_the_script, take_the_lease])
def test_a_kill_switch_between_request_and_requeue_ends_it(
    site: Site, crowd: tuple[str, ...], switch: Callable[[Site], None]
) -> None:
    asked = site.ask()
    switch(site)
    site.cycle()  # it may ask the other job, and not requeue it yet
    assert site.restarts(asked) == ["0"]
    assert "nothing was done" in site.why(asked)


def test_a_forged_value_reaches_no_target(site: Site, crowd: tuple[str, ...]) -> None:
    for job, forged in zip(crowd, ("at=nan,step=1", "at=1e999,step=1e308,checkpoint=99999999999"), strict=False):
        site.tell(job, f"{TARGET};{forged}")
    for _ in range(3):
        assert site.yields(site.cycle()) == {}
    for job in crowd[:2]:
        assert "it has not reached its first target" in site.why(job)


def test_a_checkpoint_of_the_future_confirms_none(site: Site, crowd: tuple[str, ...]) -> None:
    for job in crowd[:2]:
        site.tell(job, f"{TARGET};at=0.95,step=1e308,checkpoint=99999999999")
    through = site.another(yield_checkpoint_s=1)
    asked = next(job for job, what in site.cycle_that_yields(through).items() if what.startswith("done: asked"))
    site.rig.until(lambda: "confirmed no checkpoint" in site.yields(site.cycle(through)).get(asked, ""))
    through.cycles.site.close()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda site, asked, waits: site.tell(asked, "helios:target=acc>=0.9;at=0.95,checkpoint=9999999999"), "opt in"),
        (lambda site, asked, waits: site.rig.run("scontrol", "hold", waits), "does not wait any more"),
        (lambda site, asked, waits: site.tell(waits, "nothing"), "does not wait any more"),
    ],
)
def test_what_changes_after_the_request_ends_it(
    site: Site, crowd: tuple[str, ...], change: Callable[[Site, str, str], None], why: str
) -> None:
    asked = site.ask()
    change(site, asked, crowd[2])
    found = site.cycle_that_yields()
    site.tell(crowd[2], TARGET)
    assert why in found[asked]


# With jobs of their own.


def test_a_job_yields_once_its_checkpoint_is_confirmed(empty: Site) -> None:
    one, other, waits = empty.crowd()
    asked = empty.ask()
    empty.rig.until(lambda: "requeued, and read back" in empty.yields(empty.cycle()).get(asked, ""))
    empty.rig.until(lambda: empty.rig.job_state(waits) == "RUNNING")
    assert (asked, empty.restarts(one, other)) == (one, ["1", "0"])
    assert empty.rig.show_job(one)["JobState"] == "PENDING"
    assert f"job {one} yielded to it" in empty.why(waits)
    assert f"asked to yield to job {waits}: requeued at" in empty.why(one)


def test_a_program_with_helios_task_yields_and_goes_on(empty: Site) -> None:
    job, log = empty.train_with_helios_task()
    empty.rig.until(lambda: reached(empty.comment(job)))
    waits = empty.train(first=1_000)
    empty.wait_for(waits, "Resources", "Priority")
    assert empty.ask() == job
    saved = read_note(empty.comment(job))
    empty.rig.until(lambda: "requeued, and read back" in empty.yields(empty.cycle()).get(job, ""))
    empty.rig.until(lambda: empty.rig.job_state(waits) == "RUNNING")
    empty.rig.run("scancel", waits)
    # Slurm lets it wait two minutes, and kills one that it starts in the second of its requeue.
    empty.rig.run("scontrol", "update", f"jobid={job}", "StartTime=now+5", check=False)
    empty.rig.until(lambda: log.read_text().count("from ") == 2)
    first, again = re.findall(r"from (\d+)", log.read_text())
    assert saved is not None and saved.step is not None
    assert (int(first), int(again) >= saved.step > 0) == (0, True)


def test_who_may_not_change_the_comment_is_told_and_not_asked(empty: Site) -> None:
    job, log = empty.train_with_helios_task("--job-name=silent")
    empty.rig.until(lambda: log.exists() and "Slurm could not be told" in log.read_text())
    waits = empty.train(first=1_000)
    empty.wait_for(waits, "Resources", "Priority")
    assert empty.yields(empty.cycle()) == {}
    assert "it has not reached its first target" in empty.why(job)
    assert "nothing reported yet" in empty.why(job)


def test_jobs_in_a_reservation_are_left(empty: Site) -> None:
    words = ("reservationname=theirs", "users=alice", "nodes=n1", "starttime=now", "duration=60")
    empty.rig.run("scontrol", "create", "reservation", *words)
    try:
        for _ in range(2):
            empty.train(comment="", partition="other")
        reserved = [empty.train("--reservation=theirs") for _ in range(2)]
        empty.rig.until(lambda: all("at=0.95" in empty.comment(job) for job in reserved))
        assert_left(empty, reserved[0], "it is of reservation theirs")
    finally:
        empty.rig.empty()
        empty.rig.run("scontrol", "delete", "reservation=theirs")


def test_heterogeneous_jobs_are_left(empty: Site) -> None:
    job = empty.train("--gres=gpu:2", ":", "--gres=gpu:2", "--mem=50", "--partition=gpu", partition="other")
    empty.rig.until(lambda: "at=0.95" in empty.comment(job))
    assert_left(empty, job, "heterogeneous")


def assert_left(site: Site, job: str, why: str) -> None:
    """Check that a job is not asked while another one waits that could have its GPUs."""
    site.wait_for(site.train(first=1_000, partition="gpu,other"), "Resources", "Priority")
    for _ in range(3):
        assert site.yields(site.cycle()) == {}
    assert why in site.why(job)


def test_a_requeue_that_does_not_happen_is_noticed(
    empty: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm says that it did it, and did not."""
    program = tmp_path / "scontrol"
    program.write_text(f'#!/bin/sh\n[ "$1" = requeue ] || exec {shutil.which("scontrol")} "$@"\n')
    program.chmod(0o755)
    one, other, _ = empty.crowd()
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("helios.control.yields.CONFIRM_S", 1)
    through = empty.another()  # which finds the commands anew
    reports: list[CycleReport] = []

    def is_noticed() -> bool:
        reports.append(empty.cycle(through))
        return any("none was seen" in outcome for outcome in empty.yields(reports[-1]).values())

    empty.rig.until(is_noticed)
    through.cycles.site.close()
    assert reports[-1].memory.breaker.bad_in_row == 1
    assert empty.restarts(one, other) == ["0", "0"]
    assert "a requeue was meant, and none was seen" in empty.why(one)


def test_without_a_checkpoint_nothing_is_done(empty: Site) -> None:
    one, other, _ = empty.crowd(on_signal=":")
    through = empty.another(yield_checkpoint_s=1, yield_most_per_hour=1)
    found = empty.cycle_that_yields(through)
    assert found[one].startswith("done: asked")
    empty.rig.until(lambda: "confirmed no checkpoint" in empty.yields(empty.cycle(through)).get(one, ""))
    again = empty.cycle_that_yields(through)
    through.cycles.site.close()
    assert "asked less than an hour ago" in again[one]
    assert empty.restarts(one, other) == ["0", "0"]


def test_a_job_that_its_owner_requeued_meanwhile_is_left(empty: Site) -> None:
    one, _, _ = empty.crowd()
    asked = empty.ask()
    empty.rig.run("scontrol", "requeue", asked, user="alice")
    empty.rig.until(lambda: empty.rig.job_state(asked) == "PENDING")
    found = empty.cycle_that_yields()
    assert "requeued or started again" in found[asked] or "it is pending" in found[asked]
    assert empty.restarts(one) == ["1"]


def test_an_operator_may_ask_and_requeue_and_other_users_may_not(empty: Site) -> None:
    job = empty.train()
    empty.rig.until(lambda: "at=0.95" in empty.comment(job))
    empty.rig.run("sacctmgr", "-i", "modify", "user", "carol", "set", "adminlevel=operator")
    signal, requeue = ("scancel", "--signal=USR2", "--batch", job), ("scontrol", "requeue", "Incomplete", job)
    comment = ("scontrol", "update", f"jobid={job}", f"comment={TARGET};at=0.99")
    for words in (signal, requeue, comment):
        answer = empty.rig.run(*words, user="bob", check=False).lower()
        assert "denied" in answer or "invalid user" in answer
    assert empty.restarts(job) == ["0"]
    empty.rig.until(lambda: not empty.rig.run(*signal, user="carol", check=False))
    empty.rig.until(lambda: "checkpoint=" in empty.comment(job))
    assert not empty.rig.run(*requeue, user="carol", check=False)
    assert empty.restarts(job) == ["1"]


def test_a_job_that_has_ended_is_not_run_again(empty: Site) -> None:
    job = empty.rig.submit(seconds=0, gpus=0)
    empty.rig.until(lambda: empty.rig.job_state(job) == "COMPLETED")
    answer = empty.rig.run("scontrol", "requeue", "Incomplete", job, check=False)
    assert (answer, empty.rig.job_state(job), empty.restarts(job)) == ("", "COMPLETED", ["0"])


def test_jobs_that_did_not_opt_in_are_left(empty: Site) -> None:
    jobs = {
        empty.train(comment="helios:target=acc>=0.9,0.99"): "did not opt in",
        empty.train("--no-requeue"): "sbatch --requeue",
        empty.train("--array=0-0", partition="other"): "part of an array",
        empty.train(comment="helios:target=acc>=0.9;yield=KILL", partition="other"): "names no signal",
    }
    empty.rig.until(lambda: all("at=0.95" in empty.comment(job) for job in jobs))
    for partition in ("gpu", "other"):
        empty.wait_for(empty.train(first=1_000, partition=partition), "Resources", "Priority")
    for _ in range(3):
        assert empty.yields(empty.cycle()) == {}
    for job, why in jobs.items():
        assert why in empty.why(job)


def test_first_targets_come_earlier_and_others_are_untouched(empty: Site) -> None:
    """The partition outside of the canary has the same jobs at the same time."""
    empty.set(Mode.CANARY, partitions=("gpu",))
    for _ in range(2):
        empty.cycle()  # the first ones of a process are slow, and ask nobody
    bystander = empty.rig.submit(user="bob", gpus=0, partition="gpu", seconds=600)
    empty.rig.until(lambda: empty.rig.job_state(bystander) == "RUNNING")
    before, began = fields(empty, bystander), time.time()
    jobs = {name: [empty.train(first=4, second=40, partition=name) for _ in range(4)] for name in ("other", "gpu")}
    files = {name: [empty.rig.folder / "training" / f"{job}.first" for job in of] for name, of in jobs.items()}

    def all_delivered() -> bool:
        empty.cycle()
        return all(file.exists() for of in files.values() for file in of)

    empty.rig.until(all_delivered)
    mean = {name: sum(float(file.read_text()) - began for file in of) / 4 for name, of in files.items()}
    print({name: round(value, 1) for name, value in mean.items()}, "s to a first target, on average")  # noqa: T201 - for who measures
    assert mean["gpu"] < mean["other"]  # what a loaded machine makes of it is no claim
    assert empty.restarts(*jobs["gpu"]) != ["0"] * 4
    assert empty.restarts(*jobs["other"]) == ["0"] * 4
    assert fields(empty, bystander) == before


def reached(comment: str) -> bool:
    return (note := read_note(comment)) is not None and bool(note.reached)


def fields(site: Site, job: str) -> dict[str, str]:
    """Return all of a job's fields but those that time changes."""
    return {name: value for name, value in site.rig.show_job(job).items() if name not in {"RunTime", "LastSchedEval"}}
