"""Many models in one program on an NVIDIA GPU, beside PyTorch training them one after another, and a process each.

    python -m benchmarks.fused_gpu [ways] [processes] [memory] [compiled] [--models 1,8,64] [--seconds 1.0]

Throughput in steps of one model a second, for an MLP, a small CNN, ResNet-18 on 32 x 32 and a PointNet-like model.
``processes`` trains each model in a process of its own, with the GPU's time sharing and under NVIDIA's MPS. Data are
random: for speed their values do not matter. Precision is PyTorch's default (TF32 in convolutions only).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.fused import Alone, made_up, wide_mlp
from helios.training.fused import FusedTrainer

DEVICE = "cuda"


def cnn(_: Mapping[str, Any]) -> nn.Module:
    """Return a small CNN for images of 32 x 32."""
    layers: list[nn.Module] = []
    for inside, outside in ((3, 32), (32, 64), (64, 64)):
        layers += [nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 16, 10))


class Block(nn.Module):
    """A block of ResNet-18: two convolutions beside a shortcut."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outside),
            nn.ReLU(),
            nn.Conv2d(outside, outside, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outside),
        )
        same = inside == outside and stride == 1
        shortcut = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))
        self.shortcut = nn.Identity() if same else shortcut

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return both added."""
        return functional.relu(self.path(images) + self.shortcut(images))


def resnet18(_: Mapping[str, Any]) -> nn.Module:
    """Return ResNet-18 as it is used on CIFAR-10."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    inside = 64
    for outside, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Block(inside, outside, stride), Block(outside, outside, 1)]
        inside = outside
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


class PointNet(nn.Module):
    """PointNet's classification without its transforms."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inside, outside in ((3, 64), (64, 128), (128, 1024)):
            layers += [nn.Conv1d(inside, outside, 1), nn.BatchNorm1d(outside), nn.ReLU()]
        self.points = nn.Sequential(*layers)
        self.out = nn.Sequential(nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 16))

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        """Return the scores of the classes."""
        return self.out(self.points(points).amax(2))


def pointnet(_: Mapping[str, Any]) -> nn.Module:
    """Return the PointNet-like model."""
    return PointNet()


CASES: dict[str, tuple[Callable[[Mapping[str, Any]], nn.Module], tuple[int, ...], int, int]] = {
    "MLP 64-512-512-10, batch 128": (wide_mlp, (64,), 10, 128),
    "CNN 32 x 32, batch 32": (cnn, (3, 32, 32), 10, 32),
    "ResNet-18 32 x 32, batch 32": (resnet18, (3, 32, 32), 10, 32),
    "PointNet 1,024 points, batch 32": (pointnet, (3, 1_024), 16, 32),
}


def configurations(count: int) -> list[dict[str, Any]]:
    """Return configurations of which none diverges: that would leave."""
    return [{"lr": 1e-4 * (1 + k % 8), "momentum": 0.9, "seed": k} for k in range(count)]


def data_of(case: str) -> Any:
    """Return a case's data on the GPU."""
    _, shape, classes, _ = CASES[case]
    return tuple(tensor.to(DEVICE) for tensor in made_up(shape, classes, 512))


def steps_a_second(train: Callable[[int], Any], seconds: float) -> float:
    """Return how many steps a call takes in a second, after a first look at its speed."""
    count, spent = 2, 0.0
    train(count)
    while True:
        torch.cuda.synchronize()
        start = time.perf_counter()
        train(count)
        torch.cuda.synchronize()
        spent = time.perf_counter() - start
        if spent > seconds / 2:
            return count / spent
        count = max(count + 1, int(count * min(20.0, seconds / max(spent, 1e-4))))


def by_steps(trainer: FusedTrainer, steps: int) -> None:
    """Take so many steps."""
    trainer.train(steps=steps)


def alone_on_gpu(case: str, seed: int = 0, precision: str | None = None) -> Alone:
    """Return one model in an ordinary PyTorch loop on the GPU."""
    build, _, _, batch = CASES[case]
    return Alone(lambda given: build(given).to(DEVICE), data_of(case), configurations(seed + 1)[seed], batch, precision)


def trainer_of(case: str, count: int, way: str, precision: str | None = None) -> FusedTrainer:
    """Return a fused trainer of so many models."""
    build, _, _, batch = CASES[case]
    given: dict[str, Any] = {"batch_size": batch, "device": DEVICE, "way": way, "precision": precision}
    return FusedTrainer(build, functional.cross_entropy, data_of(case), configurations(count), **given)


def ways(counts: Sequence[int], seconds: float, precision: str | None) -> dict[str, float]:
    """Print the throughput of each way over the number of models, and return the highest of each case."""
    best = {}
    for case in CASES:
        serial = steps_a_second(alone_on_gpu(case, precision=precision).train, seconds)
        best[case] = 0.0
        print(f"\n{case}: serial {serial:,.0f} steps of one model a second", flush=True)
        head = "".join(f"{way:>9}" for way in ("serial", "vmap", "traced", "graph", "streams"))
        print(f"{'models':>7}{head}{'chosen':>9}{'x serial':>9}{'GiB':>6}{'ready s':>8}  way", flush=True)
        for count in counts:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            start = time.perf_counter()
            try:
                trainer = trainer_of(case, count, "auto", precision)
            except Exception as error:  # because the other rows are to be printed too
                print(f"{count:7}  {type(error).__name__}: {str(error)[:120]}", flush=True)
                continue
            ready = time.perf_counter() - start
            if trainer.obstacles:
                print(f"{count:7}  not fused: {trainer.obstacles[0]}", flush=True)
            rate = count * steps_a_second(partial(by_steps, trainer), seconds)
            best[case] = max(best[case], rate)
            measured = trainer.measured_s
            row = "".join(
                f"{count / measured[way]:9,.0f}" if way in measured else f"{'-':>9}"
                for way in ("serial", "vmap", "traced", "graph", "streams")
            )
            peak = torch.cuda.max_memory_reserved() / 2**30
            print(f"{count:7}{row}{rate:9,.0f}{rate / serial:9.2f}{peak:6.1f}{ready:8.1f}  {trainer.way}", flush=True)
            del trainer
    return best


def processes(counts: Sequence[int], seconds: float, best: Mapping[str, float]) -> None:
    """Print the throughput of a process for each model, with and without MPS."""
    print("\na process for each model, steps of one model a second together")
    for mps in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
            control = shutil.which("nvidia-cuda-mps-control")
            if mps:
                if control is None:
                    print("MPS: nvidia-cuda-mps-control is not installed")
                    return
                started = subprocess.run([control, "-d"], env=environment, capture_output=True, text=True, check=False)
                print(f"MPS control: exit status {started.returncode} {started.stdout}{started.stderr}".strip())
                if started.returncode:
                    return
            try:
                for count in counts:
                    rates = run_processes(count, seconds, environment if mps else dict(os.environ))
                    for case, rate in rates.items():
                        against = f", fused at best {best[case] / rate:.2f} x" if best.get(case) else ""
                        print(
                            f"{'MPS' if mps else 'time sharing':13}{count:3} {case:32}{rate:9,.0f}{against}", flush=True
                        )
            finally:
                if mps and control is not None:
                    subprocess.run([control], input="quit\n", env=environment, text=True, check=False, timeout=30)


def run_processes(count: int, seconds: float, environment: Mapping[str, str]) -> dict[str, float]:
    """Train each case in so many processes at once, and return the sums of their speeds."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.fused_gpu", "--one", folder, "--of", str(count)]
        command += ["--seconds", str(seconds)]
        running = [
            subprocess.Popen([*command, "--seed", str(seed)], env=dict(environment), stdout=subprocess.PIPE, text=True)
            for seed in range(count)
        ]
        answers = [json.loads(process.communicate()[0].splitlines()[-1]) for process in running]
    return {case: sum(answer[case] for answer in answers) for case in CASES}


def one_process(folder: Path, seed: int, count: int, seconds: float) -> None:
    """Train each case once all processes are ready, and print the speeds as JSON."""
    rates = {}
    for number, case in enumerate(CASES):
        model = alone_on_gpu(case)
        model.train(5)
        torch.cuda.synchronize()
        (folder / f"{number}-{seed}").touch()
        while len(list(folder.glob(f"{number}-*"))) < count:
            time.sleep(0.01)
        start, steps = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            model.train(5)
            torch.cuda.synchronize()
            steps += 5
        rates[case] = steps / (time.perf_counter() - start)
        del model
        torch.cuda.empty_cache()
    print(json.dumps(rates))


def memory() -> None:
    """Print the memory of each further model beside one alone."""
    print("\nmemory that is reserved at most, MiB")
    print(f"{'':32}{'alone':>8}" + "".join(f"{way:>9}{'ratio':>7}" for way in ("traced", "graph", "streams")))

    def peak(train: Callable[[], Any]) -> float:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        torch.cuda.reset_peak_memory_stats()
        kept = train()
        torch.cuda.synchronize()
        del kept
        return (torch.cuda.max_memory_reserved() - before) / 2**20

    for case in CASES:

        def alone(case: str = case) -> Any:
            model = alone_on_gpu(case)
            model.train(3)
            return model

        def fused(count: int, way: str, case: str = case) -> Any:
            trainer = trainer_of(case, count, way)
            torch.cuda.empty_cache()  # what the checks before training took is free again
            torch.cuda.reset_peak_memory_stats()
            trainer.train(steps=3)
            return trainer

        own = peak(alone)
        row = f"{case:32}{own:8.1f}"
        for way in ("traced", "graph", "streams"):
            four, eight = (peak(partial(fused, count, way)) for count in (4, 8))
            row += f"{(eight - four) / 4:9.1f}{(eight - four) / 4 / own:7.2f}"
        print(row, flush=True)


def compiled(seconds: float) -> None:
    """Print what torch.compile brings and costs at eight models."""
    print("\neight models, steps of one model a second")
    for case in CASES:
        rates = {}
        for way in ("graph", "streams", "compiled"):
            torch.cuda.empty_cache()
            start = time.perf_counter()
            try:
                trainer = trainer_of(case, 8, way)
                trainer.train(steps=2)
            except Exception as error:  # because the other rows are to be printed too
                print(f"{case:32} {way}: {type(error).__name__}: {str(error)[:300]}", flush=True)
                continue
            torch.cuda.synchronize()
            ready = time.perf_counter() - start
            rates[way] = 8 * steps_a_second(partial(by_steps, trainer), seconds)
            print(f"{case:32} {way:9}{rates[way]:9,.0f}  ready after {ready:.1f} s", flush=True)


def main() -> None:
    """Print what was asked for, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help="ways, processes, memory, compiled; all without")
    parser.add_argument("--models", default="1,2,4,8,16,32,64", help="how many in one program")
    parser.add_argument("--precision", choices=("float16", "bfloat16"), help="mixed precision, of fused and alone")
    parser.add_argument("--seconds", type=float, default=1.0, help="how long each figure is measured")
    parser.add_argument("--cases", help="only cases that start so, as 'MLP,CNN'")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--of", type=int, default=1, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("There is no NVIDIA GPU that PyTorch can use here.")
    torch.set_num_threads(1)
    if arguments.cases:
        for case in list(CASES):
            if not case.startswith(tuple(arguments.cases.split(","))):
                del CASES[case]
    if arguments.one:
        one_process(arguments.one, arguments.seed, arguments.of, arguments.seconds)
        return
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, {os.cpu_count()} cores")
    parts = arguments.parts or ["ways", "processes", "memory", "compiled"]
    best = {}
    if "ways" in parts:
        best = ways([int(count) for count in arguments.models.split(",")], arguments.seconds, arguments.precision)
    if "memory" in parts:
        memory()
    if "compiled" in parts:
        compiled(arguments.seconds)
    if "processes" in parts:
        processes((4, 16), arguments.seconds, best)


if __name__ == "__main__":
    main()
