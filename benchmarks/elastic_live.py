"""Four real trainings whose sizes change, beside the same ones of a fixed size.

python -m benchmarks.elastic_live [--steps 100] [--jobs mlp cnn]

Each has a scripted life: sizes at the steps named in ``LIVES``. The global batch stays, so that the loss of each step
should be that of one worker within rounding, which is printed as the largest difference over all steps. Beside it the
time that training stood still at each change, and what a restart from a checkpoint takes: from the request to pause to
the first step after it. On GPUs a size is at most their number; without any it runs under gloo on the CPU.
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
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[1]
BATCH, SAMPLES, WRONG = 48, 24_000, 0.2
"""Samples of a step and in all, and the share of wrong labels, so that the loss stays above 0."""
LIVES: dict[str, tuple[int, ...]] = {"mlp": (1, 3, 2), "cnn": (2, 1, 2), "gru": (1, 2, 1), "transformer": (3, 1, 2)}
"""Sizes of each job, one after the other."""
PACE_S = 0.02
"""Pause in each step of those whose size changes, s, so that new workers are ready before the loss is 0."""
WAIT_S = 600.0
"""Longest wait for a program, s: a loaded machine starts one in a minute."""


class Job:
    """A launcher that trains one of the models."""

    def __init__(self, name: str, folder: Path, size: int, *, pace_s: float = 0.0) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "requests").unlink(missing_ok=True)
        told = {"devices": devices(size), "batch": [BATCH, BATCH], "local_batch": [1, BATCH], "threads": 1}
        variables = {"HELIOS_REPORT": "report", "HELIOS_REQUESTS": "requests", "HELIOS_CHECKPOINTS": "checkpoints"}
        environment = {name: str(folder / file) for name, file in variables.items()}
        environment |= {"HELIOS_ELASTIC": json.dumps(told), "PYTHONPATH": f"{ROOT}:{ROOT / 'task'}"}
        words = [__file__, "--work", name, "--pace", str(pace_s), "--out", str(folder)]
        command = [sys.executable, "-m", "helios.training.elastic", *words]
        self.process = subprocess.Popen(command, env={**os.environ, **environment}, cwd=ROOT)

    def steps(self) -> dict[int, float]:
        """Return the loss of each step over all workers, where it is whole."""
        seen: dict[int, list[tuple[float, float]]] = defaultdict(list)
        for path in self.folder.glob("*.losses"):
            for line in path.read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    step, samples, loss = map(float, line.split())
                    seen[int(step)].append((samples, loss))
        whole = {step: parts for step, parts in seen.items() if sum(samples for samples, _ in parts) == BATCH}
        return {step: sum(loss for _, loss in parts) / BATCH for step, parts in whole.items()}

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


def work(name: str, pace_s: float, out: Path) -> None:
    """Train one of the models, as a worker."""
    import torch  # noqa: PLC0415 - only workers need it
    from torch import nn  # noqa: PLC0415
    from torch.nn import functional  # noqa: PLC0415
    from torch.utils.data import TensorDataset  # noqa: PLC0415

    from helios.training import elastic  # noqa: PLC0415

    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, 16, 16, generator=generator)
    target = (inputs[:, :4].mean((1, 2)) > inputs[:, 4:8].mean((1, 2))).long()
    wrong = torch.rand(SAMPLES, generator=generator) < WRONG
    target = torch.where(wrong, 1 - target, target)
    torch.manual_seed(7)

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
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = TensorDataset(inputs, target)
    training = elastic.Training(model, optimizer, data, batch=BATCH, epochs=1_000)
    with (out / f"{os.getpid()}.losses").open("a", buffering=1) as log:
        seen = total = 0.0
        for epoch in training:
            for x, y in epoch:
                loss = functional.cross_entropy(model(x.to(device)), y.to(device))
                loss.backward()
                time.sleep(pace_s)
                seen, total = seen + len(x), total + loss.item() * len(x)
                if training.step():
                    log.write(f"{training.updates} {seen} {total}\n")
                    seen = total = 0.0


def live(name: str, folder: Path, steps: int) -> tuple[dict[int, float], list[float]]:
    """Run a job whose size changes, and return its losses and its pauses."""
    sizes = LIVES[name]
    job = Job(name, folder, sizes[0], pace_s=PACE_S)
    job.train(steps)
    for number, size in enumerate(sizes[1:], start=1):
        job.request(request="resize", number=number, devices=devices(size))
        job.wait(lambda number=number: any(answer["number"] == number for answer in job.answers()))
        job.train(steps)
    job.end("stop")
    return job.steps(), [answer["pause_s"] for answer in job.answers()]


def restart(name: str, folder: Path) -> float:
    """Return what a restart from a checkpoint takes, s."""
    job = Job(name, folder, LIVES[name][0], pace_s=PACE_S)
    job.train(10)
    began_s = time.monotonic()
    job.end("pause")
    job = Job(name, folder, LIVES[name][1], pace_s=PACE_S)
    job.train(1)
    took_s = time.monotonic() - began_s
    job.end("stop")
    return took_s


def fixed(name: str, folder: Path, steps: int) -> dict[int, float]:
    """Return the losses of one worker that takes the same steps."""
    job = Job(name, folder, 1)
    job.train(steps)
    job.end("stop")
    return job.steps()


def main() -> None:
    """Print a row for each job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100, help="between two changes")
    parser.add_argument("--jobs", nargs="+", choices=LIVES, default=list(LIVES))
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--pace", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work(given.work, given.pace, given.out)
        return
    heads = ("steps", "last loss", "differs", "pauses s", "restart s", "times")
    print(
        f"{'job':12} {'sizes':8} {heads[0]:>6} {heads[1]:>10} {heads[2]:>9} {heads[3]:>16} {heads[4]:>10} {heads[5]:>6}"
    )
    with tempfile.TemporaryDirectory() as folder:
        for name in given.jobs:
            sizes = LIVES[name]
            losses, pauses_s = live(name, Path(folder) / name, given.steps)
            restart_s = restart(name, Path(folder) / f"{name}-restart")
            expected = fixed(name, Path(folder) / f"{name}-fixed", max(losses))
            differs = max(abs(loss - expected[step]) for step, loss in losses.items())
            pauses = " ".join(f"{pause_s:.3f}" for pause_s in pauses_s)
            times = restart_s / median(pauses_s)
            print(
                f"{name:12} {'-'.join(map(str, sizes)):8} {len(losses):6} {losses[max(losses)]:10.4f} {differs:9.1e} "
                f"{pauses:>16} {restart_s:10.2f} {times:6.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
