"""Four real trainings whose sizes change, beside the same ones of a fixed size.

python -m benchmarks.elastic_live [--steps 100] [--jobs mlp cnn]

Each has a scripted life: sizes at the steps named in ``LIVES``. The global batch stays, so that the loss of each step
should be that of one worker within rounding: ``differs`` is the largest difference over all steps. ``loss`` is the mean
of the last steps, ``fixed`` that of one worker, and ``noise`` how far that is apart with other seeds.

``pauses`` are how long training stood still at each change. ``lost`` is what the first change and a restart from a
checkpoint cost in all: the time from the request until ``SETTLED`` steps after, without what these steps take by
themselves. Both have the import of PyTorch in it. A restart waits for it; a change goes on training meanwhile, slower
where cores are few, which counts.

At last the CPU time that the statistics of gradients add to a step of one worker, from the medians of steps with norms,
with two passes and with neither, which are mixed in one run. On GPUs a size is at most their number; without any it
runs under gloo on the CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, median
from typing import Any

ROOT = Path(__file__).parents[1]
BATCH, SAMPLES, WRONG = 48, 24_000, 0.2
LAST, SETTLED = 50, 20
"""Steps whose losses are averaged, and those after a change until all is as before."""
SEEDS = (7, 8, 9)
"""Of models and orders: the first is that of all runs, the others are for the noise."""
MEASURED = 4_000
"""Steps of which the statistics of gradients are measured: one in 8 has norms, one in 64 two passes."""
LIVES: dict[str, tuple[int, ...]] = {"mlp": (1, 3, 2), "cnn": (2, 1, 2), "gru": (1, 2, 1), "transformer": (3, 1, 2)}
"""Sizes of each job, one after the other."""
PACE_S = 0.02
"""Pause in each step of those whose size changes, s, so that new workers are ready before the loss is 0."""
WAIT_S = 600.0
"""Longest wait for a program, s: a loaded machine starts one in a minute."""


class Job:
    """A launcher that trains one of the models."""

    def __init__(self, name: str, folder: Path, size: int, *, pace_s: float = 0.0, seed: int = SEEDS[0]) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "requests").unlink(missing_ok=True)
        told = {"devices": devices(size), "batch": [BATCH, BATCH], "local_batch": [1, BATCH], "threads": 1}
        variables = {"HELIOS_REPORT": "report", "HELIOS_REQUESTS": "requests", "HELIOS_CHECKPOINTS": "checkpoints"}
        environment = {name: str(folder / file) for name, file in variables.items()}
        environment |= {"HELIOS_ELASTIC": json.dumps(told), "PYTHONPATH": f"{ROOT}:{ROOT / 'task'}"}
        words = [__file__, "--work", name, "--pace", str(pace_s), "--out", str(folder), "--seed", str(seed)]
        command = [sys.executable, "-m", "helios.training.elastic", *words]
        self.process = subprocess.Popen(command, env={**os.environ, **environment}, cwd=ROOT)

    def steps(self) -> dict[int, tuple[float, float]]:
        """Return when each step was made by all workers, and its loss, where it is whole."""
        seen: dict[int, list[tuple[float, float, float]]] = defaultdict(list)
        for path in self.folder.glob("*.losses"):
            for line in path.read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    step, made_s, samples, loss = map(float, line.split())
                    seen[int(step)].append((made_s, samples, loss))
        whole = {step: parts for step, parts in seen.items() if sum(samples for _, samples, _ in parts) == BATCH}
        return {
            step: (max(made_s for made_s, *_ in parts), sum(loss for *_, loss in parts) / BATCH)
            for step, parts in whole.items()
        }

    def answers(self) -> list[dict[str, Any]]:
        """Return the answers to changes of the size."""
        path = self.folder / "report"
        lines = path.read_text().splitlines() if path.exists() else []
        return [report["elastic"] for report in map(json.loads, lines) if report.get("answer") == "resize"]

    def request(self, **request: Any) -> None:
        """Write a request as a pool does."""
        partial = self.folder / "requests.partial"
        partial.write_text(json.dumps(request))
        partial.replace(self.folder / "requests")

    def train(self, more: int) -> None:
        """Wait until so many further steps are made."""
        goal = max(self.steps(), default=0) + more
        self.wait(lambda: max(self.steps(), default=0) >= goal)

    def end(self, request: str) -> None:
        """Request an end, and wait for it."""
        self.request(request=request)
        self.wait(lambda: False)

    def wait(self, claim: Any) -> None:
        """Wait until something is so, or the job has ended."""
        limit = time.monotonic() + WAIT_S
        while not claim() and self.process.poll() is None:
            if time.monotonic() > limit:
                raise SystemExit(f"{self.folder.name} does not go on")
            time.sleep(0.05)


def devices(size: int) -> list[dict[str, str]]:
    """Return the environments of so many workers, on GPUs where there are any."""
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout if gpus() else ""
    names = [line.split("UUID: ")[1].rstrip(")") for line in listed.splitlines() if "UUID: " in line]
    return [{"CUDA_VISIBLE_DEVICES": names[each % len(names)]} if names else {} for each in range(size)]


def gpus() -> bool:
    """Return whether there may be GPUs."""
    return Path("/dev/nvidiactl").exists()


def make(name: str, seed: int) -> tuple[Any, Any, Any]:
    """Return a model, its optimiser and its data."""
    import torch  # noqa: PLC0415 - only workers need it
    from torch import nn  # noqa: PLC0415
    from torch.utils.data import TensorDataset  # noqa: PLC0415

    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, 16, 16, generator=generator)
    target = (inputs[:, :4].mean((1, 2)) > inputs[:, 4:8].mean((1, 2))).long()
    wrong = torch.rand(SAMPLES, generator=generator) < WRONG
    target = torch.where(wrong, 1 - target, target)
    torch.manual_seed(seed)

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = nn.GRU(16, 32, batch_first=True), nn.Linear(32, 2)

        def forward(self, x: Any) -> Any:
            return self.head(self.cell(x)[0][:, -1])

    layer = nn.TransformerEncoderLayer(16, 4, 64, dropout=0.0, batch_first=True)
    models = {
        "mlp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 2)),
        "cnn": lambda: nn.Sequential(
            nn.Unflatten(1, (1, 16)),
            nn.Conv2d(1, 16, 3),
            nn.GroupNorm(4, 16),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(3136, 2),
        ),
        "gru": Recurrent,
        "transformer": lambda: nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(256, 2)),
    }
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = models[name]().to(device)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3), TensorDataset(inputs, target)


def work(name: str, pace_s: float, out: Path, seed: int) -> None:
    """Train one of the models, as a worker."""
    from torch.nn import functional  # noqa: PLC0415 - only workers need it

    from helios.training import elastic  # noqa: PLC0415

    model, optimizer, data = make(name, seed)
    device = next(model.parameters()).device
    training = elastic.Training(model, optimizer, data, batch=BATCH, epochs=1_000, seed=seed)
    with (out / f"{os.getpid()}.losses").open("a", buffering=1) as log:
        seen = total = 0.0
        for epoch in training:
            for x, y in epoch:
                loss = functional.cross_entropy(model(x.to(device)), y.to(device))
                loss.backward()
                time.sleep(pace_s)
                seen, total = seen + len(x), total + loss.item() * len(x)
                if training.step():
                    log.write(f"{training.updates} {time.time()} {seen} {total}\n")
                    seen = total = 0.0


def measure_statistics(name: str) -> float:
    """Return what the statistics of gradients add to the CPU time of a step, as a share of it."""
    import torch  # noqa: PLC0415 - the launchers have no use for it

    sys.path.append(str(ROOT / "task"))
    from torch.nn import functional  # noqa: PLC0415

    from helios.training.elastic.training import HALVES_EVERY, NOISE_EVERY, Training  # noqa: PLC0415

    torch.set_num_threads(1)
    model, optimizer, data = make(name, SEEDS[0])
    device = next(model.parameters()).device
    training = Training(model, optimizer, data, batch=BATCH, epochs=MEASURED * BATCH // SAMPLES)
    steps_s: dict[str, list[float]] = defaultdict(list)
    began_s = time.process_time()
    for epoch in training:
        for x, y in epoch:
            functional.cross_entropy(model(x.to(device)), y.to(device)).backward()
            if training.step():
                made = training.updates - 1
                kind = "halves" if made % HALVES_EVERY == 0 else "norms" if made % NOISE_EVERY == 0 else "plain"
                steps_s[kind].append(time.process_time() - began_s)
                began_s = time.process_time()
    plain_s, norms_s, halves_s = (median(steps_s[kind]) for kind in ("plain", "norms", "halves"))
    added_s = (norms_s - plain_s) * (1 / NOISE_EVERY - 1 / HALVES_EVERY) + (halves_s - plain_s) / HALVES_EVERY
    return added_s / plain_s


def lost_s(job: Job, requested_s: float) -> float:
    """Return what a change cost that was requested then, s."""
    steps = job.steps()
    last = max(steps)
    before = sum(made_s <= requested_s for made_s, _ in steps.values())
    step_s = median(steps[step][0] - steps[step - 1][0] for step in range(last - SETTLED + 2, last + 1))
    made = sum(made_s <= steps[last][0] for made_s, _ in steps.values()) - before
    return steps[last][0] - requested_s - made * step_s


def live(name: str, folder: Path, steps: int) -> tuple[dict[int, tuple[float, float]], list[float], float]:
    """Run a job whose size changes, and return its losses, its pauses, and what the first change cost."""
    sizes = LIVES[name]
    job, costs_s = Job(name, folder, sizes[0], pace_s=PACE_S), []
    job.train(steps)
    for number, size in enumerate(sizes[1:], start=1):
        requested_s = time.time()
        job.request(request="resize", number=number, devices=devices(size))
        job.wait(lambda number=number: any(answer["number"] == number for answer in job.answers()))
        job.train(SETTLED)
        costs_s.append(lost_s(job, requested_s))
        job.train(steps)
    job.end("stop")
    return job.steps(), [answer["pause_s"] for answer in job.answers()], costs_s[0]


def restart(name: str, folder: Path) -> float:
    """Return what a restart from a checkpoint costs, s."""
    job = Job(name, folder, LIVES[name][0], pace_s=PACE_S)
    job.train(SETTLED)
    requested_s = time.time()
    job.end("pause")
    job = Job(name, folder, LIVES[name][1], pace_s=PACE_S)
    job.train(SETTLED)
    cost_s = lost_s(job, requested_s)
    job.end("stop")
    return cost_s


def fixed(name: str, folder: Path, steps: int, seed: int) -> dict[int, float]:
    """Return the losses of one worker that takes the same steps."""
    job = Job(name, folder, 1, seed=seed)
    job.train(steps)
    job.end("stop")
    return {step: loss for step, (_, loss) in job.steps().items()}


def last_loss(losses: Mapping[int, float], last: int) -> float:
    """Return the mean loss of the steps up to this one."""
    return fmean(losses[step] for step in range(last - LAST + 1, last + 1) if step in losses)


def main() -> None:
    """Print a row for each job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100, help="between two changes")
    parser.add_argument("--jobs", nargs="+", choices=LIVES, default=list(LIVES))
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--pace", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work(given.work, given.pace, given.out, given.seed)
        return
    heads = ("job", "sizes", "steps", "loss", "fixed", "noise", "differs", "pauses s", "lost s", "restart s", "times")
    row = "{:12} {:6} {:>6} {:>7} {:>7} {:>7} {:>8} {:>12} {:>7} {:>10} {:>6}  {}"
    print(row.format(*heads, "load"))
    with tempfile.TemporaryDirectory() as temporary:
        for name in given.jobs:
            folder = Path(temporary) / name
            made, pauses_s, change_s = live(name, folder / "live", given.steps)
            losses, last = {step: loss for step, (_, loss) in made.items()}, max(made)
            restart_s = restart(name, folder / "restart")
            runs = [fixed(name, folder / str(seed), last, seed) for seed in SEEDS]
            ends = [last_loss(run, last) for run in runs]
            differs = max(abs(loss - runs[0][step]) for step, loss in losses.items())
            sizes, pauses = "-".join(map(str, LIVES[name])), " ".join(f"{pause_s:.3f}" for pause_s in pauses_s)
            figures = [f"{value:.3f}" for value in (last_loss(losses, last), ends[0], max(ends) - min(ends))]
            costs = [f"{change_s:.2f}", f"{restart_s:.2f}", f"{restart_s / median(pauses_s):.0f}"]
            load = f"{os.getloadavg()[0]:.1f}"
            print(row.format(name, sizes, last, *figures, f"{differs:.1e}", pauses, *costs, load), flush=True)
    for name in given.jobs:
        print(f"{name:12} statistics of gradients add {measure_statistics(name):.2%} to a step's CPU time", flush=True)


if __name__ == "__main__":
    main()
