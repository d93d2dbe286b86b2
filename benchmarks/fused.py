"""Many models in one program, beside PyTorch training them one after another and in a process each.

    python -m benchmarks.fused [speed] [memory] [sweep] [--picture FILE.svg]

On the CPU with one thread, in float32. Times are processor times, so that other load stretches them less; the best of
several rounds in turn. Every training fetches its own shuffled batches and sums its loss. For GPUs see
benchmarks/fused_gpu.py.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from sklearn.datasets import load_digits  # type: ignore[import-untyped]  # because scikit-learn ships no types
from torch import nn
from torch.nn import functional

from helios.report.charts import canvas
from helios.training.fused import FusedTrainer, epoch_order, peak_bytes
from helios.training.fused.memory import MemoryCount

K = 8
ROUNDS = 5


class Transformer(nn.Module):
    """A small transformer that reads a digit row by row."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Linear(8, width)
        self.place = nn.Parameter(torch.zeros(8, width))
        self.layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.out = nn.Linear(width, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the scores of the ten digits."""
        return self.out(self.layer(self.embed(images.squeeze(1)) + self.place).mean(1))


def mlp(_: Mapping[str, Any]) -> nn.Module:
    """Return the small MLP whose steps are mostly overhead."""
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


def wide_mlp(_: Mapping[str, Any]) -> nn.Module:
    """Return an MLP whose steps are mostly arithmetic."""
    return nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


def cnn(_: Mapping[str, Any]) -> nn.Module:
    """Return a small CNN for images of 8 x 8."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, 10),
    )


def transformer(_: Mapping[str, Any]) -> nn.Module:
    """Return the small transformer."""
    return Transformer()


def made_up(shape: tuple[int, ...], classes: int, samples: int = 2_048) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random samples: for speed their values do not matter."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(samples, *shape, generator=generator), torch.randint(classes, (samples,), generator=generator)


IMAGE = (1, 8, 8)
CASES: dict[str, tuple[Callable[[Mapping[str, Any]], nn.Module], tuple[int, ...], int, int, int]] = {
    "MLP 16-32-4, batch 32": (mlp, (16,), 4, 32, 400),
    "MLP 64-512-512-10, batch 128": (wide_mlp, (64,), 10, 128, 20),
    "CNN, batch 16": (cnn, IMAGE, 10, 16, 60),
    "CNN, batch 128": (cnn, IMAGE, 10, 128, 15),
    "transformer, batch 16": (transformer, IMAGE, 10, 16, 60),
    "transformer, batch 128": (transformer, IMAGE, 10, 128, 10),
}


def sweep_of(count: int) -> list[dict[str, Any]]:
    """Return configurations that differ in learning rate, momentum and seed."""
    return [{"lr": 0.01 * (1 + k), "momentum": 0.9, "seed": k} for k in range(count)]


class Alone:
    """One model in an ordinary PyTorch loop."""

    def __init__(
        self, build: Any, data: Any, configuration: Mapping[str, Any], batch_size: int, precision: str | None = None
    ) -> None:
        torch.manual_seed(configuration["seed"])
        self.model = build(configuration)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), lr=configuration["lr"], momentum=configuration["momentum"]
        )
        self.data, self.batch_size, self.seed = data, batch_size, configuration["seed"]
        self.mixed = torch.autocast("cuda", getattr(torch, precision)) if precision else nullcontext()
        self.scaler = torch.amp.GradScaler("cuda", enabled=precision == "float16")
        self.steps, self.total = 0, torch.zeros((), device=data[1].device)

    def train(self, steps: int) -> None:
        """Take so many steps more."""
        inputs, target = self.data
        for _ in range(steps):
            epoch, at = divmod(self.steps, len(target) // self.batch_size)
            if at == 0:
                self.order = epoch_order(len(target), self.seed, epoch).to(target.device)
            samples = self.order[at * self.batch_size : (at + 1) * self.batch_size]
            self.optimizer.zero_grad()
            with self.mixed:
                loss = functional.cross_entropy(self.model(inputs[samples]), target[samples])
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.total += loss.detach()
            self.steps += 1


def cpu_s(run: Callable[[], Any]) -> float:
    """Return the processor time of a call, s."""
    start = time.process_time()
    run()
    return time.process_time() - start


def in_processes(case: str, steps: int) -> float:
    """Return the processor time that K processes at once take for training alone, s."""
    command = [sys.executable, "-m", "benchmarks.fused", "--one", case, "--steps", str(steps)]
    running = [subprocess.Popen([*command, "--seed", str(k)], stdout=subprocess.PIPE) for k in range(K)]
    return sum(float(process.communicate()[0]) for process in running)


def one_process(case: str, seed: int, steps: int) -> None:
    """Train one model and print the processor time of it, s."""
    build, shape, classes, batch, _ = CASES[case]
    alone = Alone(build, made_up(shape, classes), sweep_of(K)[seed], batch)
    alone.train(5)
    print(cpu_s(lambda: alone.train(steps)))


def best_of_rounds(ways: Mapping[str, Callable[[], None]]) -> dict[str, float]:
    """Return the least processor time of each way, s, measured in turns after one run of each."""
    for run in ways.values():
        run()
    rounds = [{way: cpu_s(run) for way, run in ways.items()} for _ in range(ROUNDS)]
    return {way: min(times[way] for times in rounds) for way in ways}


def speed() -> None:
    """Print how much faster than serial training each model is."""
    print(
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; K = {K}, ms of processor time per step of all models"
    )
    print(f"{'':30}{'serial':>8}{'processes':>10}{'vmap':>8}{'traced':>8}{'auto':>8}{'serial/auto':>13}  chosen")
    for case, (build, shape, classes, batch, steps) in CASES.items():
        data = made_up(shape, classes)
        alone = [Alone(build, data, configuration, batch) for configuration in sweep_of(K)]
        trainers = {
            way: FusedTrainer(build, functional.cross_entropy, data, sweep_of(K), batch_size=batch, way=way)
            for way in ("vmap", "traced", "auto")
        }
        ways: dict[str, Callable[[], None]] = {"serial": partial(train_all, alone, steps)}
        ways |= {way: partial(trainer.train, steps=steps) for way, trainer in trainers.items()}
        times = best_of_rounds(ways)
        processes = in_processes(case, steps * ROUNDS) / ROUNDS
        columns = [f"{1e3 * seconds / steps:8.2f}" for seconds in times.values()]
        row = f"{columns[0]}{1e3 * processes / steps:10.2f}{''.join(columns[1:])}"
        print(f"{case:30}{row}{times['serial'] / times['auto']:13.2f}  {trainers['auto'].way}")


def train_all(models: Sequence[Alone], steps: int) -> None:
    """Train one model after another."""
    for model in models:
        model.train(steps)


def fixed_cost() -> None:
    """Print what a step costs where there is nothing to compute."""

    def build(_: Mapping[str, Any]) -> nn.Module:
        return nn.Linear(1, 2)

    data = made_up((1,), 2)
    alone = Alone(build, data, sweep_of(1)[0], 1)
    fused = FusedTrainer(build, functional.cross_entropy, data, sweep_of(K), batch_size=1, way="traced")
    times = best_of_rounds({"one": partial(alone.train, 500), "fused": partial(fused.train, steps=500)})
    one, eight = (seconds / 500 * 1e3 for seconds in times.values())
    print(
        f"fixed cost of a step: PyTorch, one model {one:.3f} ms; {K} fused {eight:.3f} ms; more: {eight - one:+.3f} ms"
    )


def memory() -> None:
    """Print the memory of each further model beside that of one alone."""
    print(f"{'KiB':30}{'alone':>9}{'further':>9}{'ratio':>7}   (sum of tensors, SGD with momentum)")
    for case, (build, shape, classes, batch, _) in CASES.items():
        data = made_up(shape, classes)
        count = MemoryCount()
        with count:
            alone = Alone(build, data, sweep_of(1)[0], batch)
            count.peak = count.now
            alone.train(2)
        four, eight = (
            peak_bytes(k, build, functional.cross_entropy, data, sweep_of(1)[0], batch_size=batch) for k in (4, 8)
        )
        further, own = (eight - four) / 4, count.peak
        print(f"{case:30}{own / 1024:9.1f}{further / 1024:9.1f}{further / own:7.2f}")


def sweep(picture: Path | None) -> None:
    """Train a sweep over scikit-learn's digits fused and alone, and compare trials and curves."""
    digits = load_digits()
    images = torch.tensor(digits.images).div(8).sub(1).unsqueeze(1)
    target = torch.tensor(digits.target)
    order = torch.randperm(len(target), generator=torch.Generator().manual_seed(1))
    kept, left = order[:1_440], order[1_440:]
    rates, momenta = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3), (0.0, 0.9)
    pairs = [(lr, momentum) for lr in rates for momentum in momenta]
    trials = [{"lr": lr, "momentum": m, "seed": 0, "data_seed": number} for number, (lr, m) in enumerate(pairs)]
    curves: dict[str, list[list[list[float]]]] = {}
    for dtype in (torch.float64, torch.float32):
        inputs = images.to(dtype)
        for name, build in (("CNN", cnn), ("transformer", transformer)):
            curves[name] = []
            label = f"{name}, {str(dtype).removeprefix('torch.')}"
            for way in ("auto", "serial"):
                trainer = FusedTrainer(
                    lambda configuration, build=build, dtype=dtype: build(configuration).to(dtype),
                    functional.cross_entropy,
                    (inputs[kept], target[kept]),
                    trials,
                    batch_size=32,
                    validation=(inputs[left], target[left]),
                    way=way,
                )
                used = cpu_s(partial(trainer.train, epochs=12))
                curves[name].append([losses_of(trainer, number) for number in range(len(trials))])
                print(f"{label:22} {trainer.way:8}{used:7.2f} s of processor time for {len(trials)} trials")
            compare(label, *curves[name])
    if picture:
        draw(curves, picture)


def compare(label: str, fused: list[list[float]], alone: list[list[float]]) -> None:
    """Print the best trials of both, and how far their curves are apart."""
    best = [sorted(range(len(way)), key=lambda trial, way=way: way[trial][-1])[:3] for way in (fused, alone)]
    apart = [[abs(a - b) / b for a, b in zip(*pair, strict=True)] for pair in zip(fused, alone, strict=True)]
    alike = sum(max(differences) < 1e-3 for differences in apart)
    print(f"{label:22} best three trials: fused {best[0]}, alone {best[1]}")
    middle, most = median(median(differences) for differences in apart), max(max(differences) for differences in apart)
    print(f"{label:22} validation losses differ by {middle:.1e} in the median, {most:.1e} at most;", end=" ")
    print(f"{alike} of {len(apart)} curves by less than 0.1 %")


def losses_of(trainer: FusedTrainer, number: int) -> list[float]:
    """Return a trial's validation losses, one per epoch."""
    if number in trainer.finished:
        return [float(epoch.validation_loss or 0) for epoch in trainer.finished[number].history]
    return [epoch["validation_loss"] for epoch in trainer.checkpoint(number)["progress"]["history"]]


def draw(curves: Mapping[str, Sequence[list[list[float]]]], path: Path) -> None:
    """Draw the loss curves, fused on alone."""
    with canvas("Validation loss over epochs: fused curves lie on those alone", height=3.2, columns=2) as drawing:
        for axes, (name, (fused, alone)) in zip(drawing.panels, curves.items(), strict=True):
            for one, other in zip(fused, alone, strict=True):
                epochs = range(1, len(one) + 1)
                axes.plot(epochs, other, color="0.6", linewidth=3.0, label="alone" if one is fused[0] else None)
                axes.plot(epochs, one, color="#b00020", linewidth=0.9, label="fused" if one is fused[0] else None)
            axes.set(title=name, xlabel="epoch", ylabel="validation loss", yscale="log")
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter("")
            axes.legend()
    path.write_text(drawing.svg, encoding="utf-8")


def main() -> None:
    """Print what was asked for, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help="speed, memory, sweep; all without")
    parser.add_argument("--picture", type=Path, help="where to draw the loss curves of the sweep, as SVG")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=1, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.one:
        one_process(arguments.one, arguments.seed, arguments.steps)
        return
    parts = arguments.parts or ["speed", "memory", "sweep"]
    if "speed" in parts:
        speed()
        fixed_cost()
    if "memory" in parts:
        memory()
    if "sweep" in parts:
        sweep(arguments.picture)


if __name__ == "__main__":
    main()
