"""What a training pool costs and survives, each beside its control in one run.

python -m benchmarks.pool [--part overhead|warm|containers|state|fused|kills ...] [--trials N] [--kills N] [--seed N]

overhead
    Trials of half a second, two at a time, beside ``xargs -P2`` of the same command: wall time and CPU time of
    everything that is not the trials themselves.
warm
    Trials that import a module and then work for so many seconds, each started alone and forked from a warm process.
containers
    What starting a container costs, and trials of so many seconds: each in a container of its own, beside a pool whose
    containers run several, without and with the imports done once. Needs ``--image``, a root file system with the same
    version of Python as here, whose packages it is given; it is left out where there is none.
state
    A state file of 10,000 trials is written and read back, beside reading the same bytes as JSON lines.
fused
    24 trials of a small convolutional network on scikit-learn's digits (``benchmarks/pool_digits/fused.toml``): fused
    in one process, two processes of one trial each, and one after another, beside a process for each trial as a command
    has it. Whether the best trial is the same, and how far accuracies are apart. Needs PyTorch and scikit-learn.
kills
    The coordinator, a trial, or both are killed with SIGKILL at random moments, and the same command goes on. Each
    trial's result must be there exactly once in the end, and nothing may be left running.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median

import psutil

from helios.training.model import TrialState
from helios.training.pool.containers import find_container
from helios.training.pool.processes import POOL
from helios.training.pool.running import fill_placeholders
from helios.training.pool.state import FILE, StateFile
from helios.training.pool.sweep_file import read_training_sweep

HALF_SECOND = "import time; time.sleep(0.5)"


def sweep_file(folder: Path, program: str, trials: int) -> Path:
    """Write a program and a sweep over so many values."""
    (folder / "program.py").write_text(program)
    path = folder / "sweep.toml"
    path.write_text(
        f'command = "{sys.executable} -S -E program.py {{x}}"\n[parameters]\nx = {json.dumps([*range(trials)])}\n'
    )
    return path


def timed(command: Sequence[str], folder: Path) -> tuple[float, float]:
    """Return the wall time of a command, and the CPU time of it and all that it started, s."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - began, cpu


def overhead(trials: int) -> None:
    """Compare a pool with ``xargs -P2``."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = sweep_file(folder, HALF_SECOND, trials)
        numbers = folder / "numbers"
        numbers.write_text("\n".join(map(str, range(trials))))
        xargs = ["xargs", "-a", str(numbers), "-P2", "-n1", sys.executable, "-S", "-E", "program.py"]
        pool = [sys.executable, "-m", "helios", "pool", "run", str(path), "--slots", "2", "--json"]
        control_s, control_cpu_s = timed(xargs, folder)
        pool_s, pool_cpu_s = timed(pool, folder)
        again_s, _ = timed(pool, folder)
    print(f"{trials} trials of 0.5 s, two at a time ({os.cpu_count()} cores, load {os.getloadavg()[0]:.1f})")
    print(f"  xargs -P2         {control_s:7.1f} s   CPU {control_cpu_s:6.1f} s")
    print(f"  helios pool run   {pool_s:7.1f} s   CPU {pool_cpu_s:6.1f} s   {pool_s / control_s:.3f} x")
    print(f"  of which its own start and end, with nothing to run: {again_s:.1f} s")
    extra_ms = 1000 * (pool_cpu_s - control_cpu_s) / trials
    print(f"  CPU time above the control: {extra_ms:.1f} ms a trial")


def containers(image: str, module: str, work_s: float, trials: int) -> None:
    """Compare a container for each trial with containers that run several."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "program.py").write_text(WORKS.format(module=module, work_s=work_s))
        path = folder / "sweep.toml"
        packages = Path(psutil.__file__).parents[1]  # for the same version of Python
        path.write_text(
            f'command = "python3 program.py {{x}}"\ncontainer = {{ image = "{image}", binds = ["{packages}"] }}\n'
            f'[parameters]\nx = {[*range(trials)]}\n[env]\nPYTHONPATH = "{packages}"\n'
        )
        found = find_container(read_training_sweep(path), folder / "pool", gpus=False)
        assert found is not None
        words = found.segment(folder / "pool", read_training_sweep(path), (), pool="benchmark", environment={})[
            "command"
        ]
        words = [fill_placeholders(word, segment=f"benchmark-{os.getpid()}", limit_mib=None) for word in words]
        starts = [timed([*words, "true"], folder)[0] for _ in range(10)]
        pythons = [timed([*words, "python3", "-c", f"import {module}"], folder)[0] for _ in range(5)]
        numbers = folder / "numbers"
        numbers.write_text("\n".join(map(str, range(trials))))
        each = ["xargs", "-a", str(numbers), "-P2", "-n1", *words, "python3", "program.py"]
        pool = [sys.executable, "-m", "helios", "pool", "run", str(path), "--slots", "2", "--json"]
        each_s, each_cpu_s = timed(each, folder)
        segments_s, segments_cpu_s = timed([*pool, "--folder", "segments"], folder)
        warm_s, warm_cpu_s = timed([*pool, "--folder", "warm", "--warm", module], folder)
    print(f"{trials} trials of {work_s:g} s in {found.runtime}, two at a time (load {os.getloadavg()[0]:.1f})")
    print(
        f"  a start: {1000 * median(starts):.0f} ms; with Python and import {module}: {1000 * median(pythons):.0f} ms"
    )
    print(f"  a container for each      {each_s:7.1f} s   CPU {each_cpu_s:7.1f} s")
    print(f"  a pool, two containers    {segments_s:7.1f} s   CPU {segments_cpu_s:7.1f} s")
    print(f"  the same, imports once    {warm_s:7.1f} s   CPU {warm_cpu_s:7.1f} s")


WORKS = """
import sys, time
import {module}
until = time.process_time() + float({work_s})
while time.process_time() < until:
    pass
"""


def warm(module: str, work_s: float, trials: int) -> None:
    """Compare trials that import a module each with forks of a process that has imported it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "program.py").write_text(WORKS.format(module=module, work_s=work_s))
        path = folder / "sweep.toml"
        path.write_text(f'command = "{sys.executable} program.py {{x}}"\n[parameters]\nx = {[*range(trials)]}\n')
        pool = [sys.executable, "-m", "helios", "pool", "run", str(path), "--slots", "2", "--json"]
        cold_s, cold_cpu_s = timed([*pool, "--folder", "cold"], folder)
        warm_s, warm_cpu_s = timed([*pool, "--folder", "warm", "--warm", module], folder)
    print(f"{trials} trials of {work_s:g} s that import {module}, two at a time (load {os.getloadavg()[0]:.1f})")
    print(f"  each imports it       {cold_s:7.1f} s   CPU {cold_cpu_s:7.1f} s")
    print(f"  from a warm process   {warm_s:7.1f} s   CPU {warm_cpu_s:7.1f} s")
    saved_s = (cold_cpu_s - warm_cpu_s) / trials
    print(f"  CPU time saved: {saved_s:.2f} s a trial, {saved_s / (work_s + saved_s):.0%} of one that imports")


def state(trials: int) -> None:
    """Write the state of many trials and read it back."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        began = time.perf_counter()
        with StateFile(folder, {"benchmark": "state"}) as file:
            for number in range(trials):
                file.record_created(number, {"lr": 0.001 * number, "width": 64, "optimizer": "adam"})
                file.record_started(number, devices=["cpu:0"], memory_limit_mib=1024.0)
                file.record_ended(
                    number,
                    what="finished",
                    state=TrialState.FINISHED,
                    seconds=0.5,
                    peak_memory_mib=123.4,
                    metrics={"accuracy": 0.9, "loss": 0.1, "val_loss": 0.2},
                    value=0.9,
                )
        written_s = time.perf_counter() - began
        began = time.perf_counter()
        with StateFile(folder, {"benchmark": "state"}) as file:
            count = sum(trial.ended for trial in file.trials.values())
        read_s = time.perf_counter() - began
        began = time.perf_counter()
        lines = [json.loads(line) for line in (folder / FILE).read_bytes().splitlines()]
        control_s = time.perf_counter() - began
        size_mib = (folder / FILE).stat().st_size / 2**20
    print(f"state of {count:,} trials, {len(lines):,} lines, {size_mib:.1f} MiB")
    print(
        f"  written and synced at the end             {written_s:6.2f} s ({1000 * written_s / trials:.2f} ms a trial)"
    )
    print(f"  read back                                {read_s:6.2f} s")
    print(f"  the same lines parsed as JSON            {control_s:6.2f} s")


ALONE = """
import json, os, sys
import torch
sys.path.insert(0, "{folder}")
from models import build, data, loss, metrics
lr, momentum, seed = float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
(inputs, target), (test_inputs, test_target) = data()
torch.manual_seed(seed)
model = build({{"model": {{}}}})
optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
for epoch in range({epochs}):
    model.train()
    for batch in torch.randperm(len(inputs)).split(32)[: len(inputs) // 32]:
        optimizer.zero_grad()
        loss(model(inputs[batch]), target[batch]).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        accuracy = metrics(model(test_inputs), test_target)["accuracy"].item()
    with open(os.environ["HELIOS_REPORT"], "a") as file:
        file.write(json.dumps({{"step": epoch, "accuracy": accuracy}}) + "\\n")
"""


def fused(epochs: int) -> None:
    """Run one sweep fused, two trials at a time, one after another, and as a command."""
    digits = Path(__file__).parent / "pool_digits"
    ways = {
        "fused, one process": (64, 1),
        "fused, two processes": (64, 2),
        "one trial each, two processes": (1, 2),
        "one after another": (1, 1),
    }
    found: dict[str, list[float]] = {}
    print(f"24 trials of a CNN on digits, {epochs} epochs, one thread each (load {os.getloadavg()[0]:.1f})")
    with tempfile.TemporaryDirectory() as root:
        text = (digits / "fused.toml").read_text().replace("epochs = 20", f"epochs = {epochs}")
        for place, (way, (together, slots)) in enumerate([*ways.items(), ("a process for each trial", (0, 2))]):
            folder = Path(root) / str(place)
            folder.mkdir()
            path = folder / "sweep.toml"
            if together:
                (folder / "models.py").write_text((digits / "models.py").read_text())
                path.write_text(text.replace("[fused]", f"[fused]\ntogether = {together}"))
            else:
                (folder / "program.py").write_text(ALONE.format(folder=digits, epochs=epochs))
                command = f"{sys.executable} program.py {{lr}} {{momentum}} {{seed}}"
                path.write_text(f"command = {json.dumps(command)}\n{text[text.index('[parameters]') :]}")
            pool = [sys.executable, "-m", "helios", "pool", "run", str(path), "--slots", str(slots), "--json"]
            wall_s, cpu_s = timed(pool, folder)
            lines = [json.loads(line) for line in (folder / "sweep.pool" / FILE).read_text().splitlines()[1:]]
            values = {line["trial"]: line["value"] for line in lines if line["what"] == "finished"}
            found[str(place)] = [values[number] for number in range(24)]
            best = max(values, key=lambda number: values[number])
            told = [
                json.loads(line)["fused"]["way"]
                for report in sorted((folder / "sweep.pool/trials").glob("*/report.jsonl"))
                for line in report.read_text().splitlines()
                if '"way"' in line
            ]
            name = ", ".join([way, *dict.fromkeys(told)])
            print(f"  {name:38}{wall_s:7.1f} s   CPU {cpu_s:7.1f} s   best: trial {best}, {values[best]:.4f}")
    first, *_, last, _ = found.values()
    apart = sorted(abs(one - other) for one, other in zip(first, last, strict=True))
    print(f"  accuracies fused and one after another: median {median(apart):.4f} apart, at most {apart[-1]:.4f}")


COUNTED = """
import json, os, pathlib, sys, time
folder = pathlib.Path(os.environ["HELIOS_CHECKPOINTS"])
last = folder / "step"
first = int(last.read_text()) if last.exists() else 0
for step in range(first, 10):
    time.sleep(0.05)
    partial = folder / "partial"
    partial.write_text(str(step + 1))
    partial.rename(last)
with open(os.environ["HELIOS_REPORT"], "a") as file:
    file.write(json.dumps({"step": 10, "square": int(sys.argv[1]) ** 2}) + "\\n")
"""


def processes_of(folder: Path) -> list[psutil.Process]:
    """Return what runs of the pool in a folder."""
    try:
        pool = json.loads((folder / FILE).read_text().splitlines()[0])["pool"]
    except (OSError, IndexError):
        return []
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(POOL) == pool and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def runs_program(process: psutil.Process) -> bool:
    """Return whether a process is a trial's program."""
    try:
        return "program.py" in process.cmdline()
    except psutil.Error:  # it has ended
        return False


def kills(trials: int, count: int, seed: int) -> None:
    """Kill at random moments until so many kills were done, then let the pool end."""
    chance = random.Random(seed)
    done: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = sweep_file(folder, COUNTED, trials)
        pool = path.with_suffix(".pool")
        command = [sys.executable, "-m", "helios", "pool", "run", str(path), "--slots", "2", "--json"]
        while True:
            process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
            while sum(done.values()) < count and process.poll() is None:
                time.sleep(chance.uniform(0.05, 3.0))
                what = chance.choice(("coordinator", "trial", "both"))
                if what != "coordinator":
                    victims = [found for found in processes_of(pool) if runs_program(found)]
                    if not victims:
                        continue
                    with suppress(ProcessLookupError):
                        os.kill(chance.choice(victims).pid, signal.SIGKILL)
                if what != "trial":
                    process.kill()
                    process.wait()
                done[what] += 1
            out, _ = process.communicate()
            if process.returncode == 0:
                break
        found = json.loads(out)["trials"]
        entries = [json.loads(line) for line in (pool / FILE).read_text().splitlines()[1:]]
        results = Counter(entry["trial"] for entry in entries if entry["what"] == "finished")
        left = processes_of(pool)
    right = [trial for trial in found if trial["metrics"].get("square") == trial["parameters"]["x"] ** 2]
    print(
        f"{trials} trials, {sum(done.values())} kills ({', '.join(f'{n} {what}' for what, n in sorted(done.items()))})"
    )
    print(f"  with the right result               {len(right)} of {trials}")
    print(f"  with exactly one result in the file {sum(n == 1 for n in results.values())} of {trials}")
    print(f"  starts                              {sum(trial['attempts'] for trial in found)}")
    print(f"  left running                        {len(left)}")
    if len(right) != trials or set(results.values()) != {1} or len(results) != trials or left:
        sys.exit("a result is missing or there twice, or something runs on")


def main() -> None:
    """Run the parts that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", nargs="+", default=["overhead", "warm", "containers", "state", "fused", "kills"])
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=20, help="of each trial of the part fused")
    parser.add_argument("--module", default="torch")
    parser.add_argument("--image", default="", help="of the part containers: a root file system or an archive of one")
    parser.add_argument("--work", type=float, default=10.0, help="s of each trial of the parts warm and containers")
    asked = parser.parse_args()
    if "overhead" in asked.part:
        overhead(asked.trials)
    if "warm" in asked.part:
        warm(asked.module, asked.work, 12)
    if "containers" in asked.part and asked.image:
        containers(asked.image, asked.module, asked.work, 4)
    if "state" in asked.part:
        state(10_000)
    if "fused" in asked.part:
        fused(asked.epochs)
    if "kills" in asked.part:
        kills(asked.trials, asked.kills, asked.seed)


if __name__ == "__main__":
    main()
