"""Devices of a pool: the CPU as it is, and GPUs of a stand-in for NVIDIA's library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from helios.errors import UsageError
from helios.training.pool import devices
from helios.training.pool.devices import cores, device_environment, find_devices, free_memory_mib, gpus_by_shards
from tests.unit.training.pool.sizes_service import add_sizes_service

PYNVML = """
# NVML with two GPUs, of which one is in use.
class NVMLError(Exception):
    pass
class Memory:
    def __init__(self, free):
        self.free, self.total = free, 1600 * 2**20
UUIDS = ["GPU-a", "GPU-b"]
def nvmlInit(): pass
def nvmlShutdown(): pass
def nvmlDeviceGetCount(): return 2
def nvmlDeviceGetHandleByIndex(index):
    if index not in (0, 1):
        raise NVMLError("Invalid Argument")
    return index
def nvmlDeviceGetHandleByUUID(uuid): return UUIDS.index(uuid)
def nvmlDeviceGetUUID(handle): return UUIDS[handle]
def nvmlDeviceGetName(handle): return "Toy"
def nvmlDeviceGetMemoryInfo(handle): return Memory((1000 + 500 * handle) * 2**20)
class Rates:
    gpu = 50
def nvmlDeviceGetUtilizationRates(handle):
    if handle == 1:
        raise NVMLError("Not Supported")
    return Rates()
def nvmlDeviceGetTotalEnergyConsumption(handle):
    import time
    return int(time.time() * 100_000)  # mJ
class Process:
    def __init__(self, pid, used):
        self.pid, self.usedGpuMemory = pid, used
def nvmlDeviceGetComputeRunningProcesses(handle):
    import pathlib
    path = pathlib.Path("users")  # "pid MiB" on each line
    lines = path.read_text().splitlines() if path.exists() else []
    return [Process(int(line.split()[0]), int(line.split()[1]) * 2**20) for line in lines]
"""


@pytest.fixture
def gpus(tmp_path: Path) -> dict[str, str]:
    """An environment in which there are two GPUs."""
    (tmp_path / "pynvml.py").write_text(PYNVML)
    kept = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    root = str(Path(__file__).parents[3])
    return {**kept, "PYTHONPATH": os.pathsep.join([str(tmp_path), root])}


def show(environment: dict[str, str]) -> list[str]:
    """Return what Helios finds in this environment."""
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ.keys() - environment.keys():
            patch.delenv(name)
        for name, value in environment.items():
            patch.setenv(name, value)
        nvml = ModuleType("pynvml")
        exec(PYNVML, vars(nvml))
        patch.setitem(sys.modules, "pynvml", nvml)
        patch.setattr(devices, "_visible_gpus", devices._visible_gpus.__wrapped__)  # it looks once in a process
        return [
            f"{found.name} {found.model} {found.memory_mib} {found.slots} "
            + device_environment(found)["CUDA_VISIBLE_DEVICES"]
            for found in find_devices()
        ]


def test_the_cpu_has_free_memory_and_a_slot_each_core() -> None:
    (cpu,) = find_devices(kind="cpu")
    assert (cpu.name, cpu.slots) == ("cpu:0", cores())
    assert 0 < cpu.memory_mib <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.parametrize("wrong", [{"kind": "tpu"}, {"memory_mib": -5.0}])
def test_what_is_no_device_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        find_devices(**wrong)


def test_a_slurm_job_has_no_more_memory_than_it_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "100")
    assert free_memory_mib() == pytest.approx(90.0)


def test_each_gpu_is_a_device_with_its_free_memory(gpus: dict[str, str]) -> None:
    assert show(gpus) == ["gpu:0 Toy 1000.0 1 GPU-a", "gpu:1 Toy 1500.0 1 GPU-b"]


def test_a_job_of_shards_must_know_how_many_a_gpu_has(gpus: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "scontrol").touch(0o755)
    job = {"SLURM_SHARDS_ON_NODE": "2", "SLURMD_NODENAME": "n1", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    with pytest.raises(UsageError, match="how many a GPU has"):
        gpus_by_shards(job | {"PATH": str(tmp_path)})
    for listed in ("gpu:a100:2", "shard:8", "vgpu:2,shard:8", "(null)"):
        (tmp_path / "scontrol").write_text(f"#!/bin/sh\necho 'NodeName=n1 Gres={listed}'\n")
        with pytest.raises(UsageError, match="how many a GPU has"):
            show(gpus | job)
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho 'NodeName=n1 Gres=gpu:a100:2(S:0-1),shard:a100:8(S:0-1) A=b'\n")
    assert show(gpus | job | {"CUDA_VISIBLE_DEVICES": "0"}) == ["gpu:0 Toy 800.0 1 GPU-a"]


def test_a_job_of_shards_says_that_no_size_changes(gpus: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho 'NodeName=n1 Gres=gpu:a100:2(S:0-1),shard:a100:8(S:0-1) A=b'\n")
    (tmp_path / "scontrol").chmod(0o755)
    (tmp_path / "sweep.toml").write_text(
        'command = "true {x}"\n[parameters]\nx = [1]\n[elastic]\nmost = 2\nbatch = [32, 32]\nlocal_batch = [8, 64]\n'
    )
    job = {"SLURM_SHARDS_ON_NODE": "2", "SLURMD_NODENAME": "n1", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = [sys.executable, "-m", "helios", "pool", "run", "sweep.toml", "--service", "elastic"]
    environment = gpus | job | {"CUDA_VISIBLE_DEVICES": "0"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "Trials of sweep.toml keep one device, since the pool has no more" in done.stderr


def test_gpus_that_are_hidden_are_no_devices(gpus: dict[str, str]) -> None:
    assert show({**gpus, "CUDA_VISIBLE_DEVICES": "1"}) == ["gpu:0 Toy 1500.0 1 GPU-b"]
    assert show({**gpus, "CUDA_VISIBLE_DEVICES": "GPU-b,GPU-a"})[0] == "gpu:0 Toy 1500.0 1 GPU-b"
    with pytest.raises(UsageError, match="cannot be used"):
        show({**gpus, "CUDA_VISIBLE_DEVICES": "5"})


def test_a_trial_on_a_gpu_is_killed_above_its_memory_limit(gpus: dict[str, str], tmp_path: Path) -> None:
    # The first waits until the second was killed and started again, and so was measured with it.
    (tmp_path / "train.py").write_text("""
import os, pathlib, sys, time
users, mine = pathlib.Path("users"), sys.argv[1]
while mine == "1600" and not users.exists():
    time.sleep(0.02)
with users.open("a") as file:
    file.write(f"{os.getpid()} {mine}\\n")
while mine == "1600" or users.read_text().count(" 1600") < 2:
    time.sleep(0.02)
""")
    (tmp_path / "sweep.toml").write_text(
        f'command = "{sys.executable} train.py {{x}}"\nmemory = "800MiB"\nattempts = 1\n[parameters]\nx = [700, 1600]\n'
    )
    command = [sys.executable, "-m", "helios", "pool", "run", "sweep.toml", "--events"]
    done = subprocess.run(command, env=gpus, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert '"event": "finished", "number": 0' in done.stdout, done.stderr
    assert '"peak_memory_mib": 700.0' in done.stdout
    assert '"event": "out_of_memory", "number": 1' in done.stdout


def test_without_gpus_none_can_be_asked_for() -> None:
    with pytest.raises(UsageError, match="No NVIDIA GPU"):
        find_devices(kind="gpu")


def test_threads_are_shared_by_the_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    (cpu,) = find_devices(kind="cpu", slots=1)
    assert device_environment(cpu)["OMP_NUM_THREADS"] == str(cores())


MPS = """#!/usr/bin/env python3
# A stand-in for NVIDIA's program: makes its pipe, starts a server, and ends at "quit".
import os, pathlib, subprocess, sys, time
folder = pathlib.Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
if "-f" not in sys.argv:
    assert sys.stdin.readline() == "quit\\n"
    (folder / "quit").touch()
    sys.exit()
server = subprocess.Popen(["sleep", "600"])
(folder / "control").touch()
while not (folder / "quit").exists():
    time.sleep(0.01)
server.kill()
(folder.parent / "ended").touch()
"""


@pytest.fixture
def mps(gpus: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """An environment with a stand-in for NVIDIA's program, since no GPU is here."""
    control = tmp_path / "nvidia-cuda-mps-control"
    control.write_text(MPS)
    control.chmod(0o755)
    return {**gpus, "PATH": f"{tmp_path}:{gpus['PATH']}", "TMPDIR": str(tmp_path)}


def test_mps_is_started_for_the_pool_and_stopped_after_it(mps: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os, pathlib\npathlib.Path('env').write_text(repr(dict(os.environ)))\n")
    (tmp_path / "sweep.toml").write_text('command = "python3 train.py {x}"\n[parameters]\nx = [1]\n')
    command = [sys.executable, "-m", "helios", "pool", "run", "sweep.toml", "--mps", "--memory", "800M"]
    done = subprocess.run(command, cwd=tmp_path, env=mps, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = (tmp_path / "env").read_text()
    assert "'CUDA_MPS_PINNED_DEVICE_MEM_LIMIT': '0=800M'" in told
    assert f"'CUDA_MPS_PIPE_DIRECTORY': '{tmp_path}/helios-mps-" in told
    assert (tmp_path / "ended").exists()
    assert not list(tmp_path.glob("helios-mps-*"))


def test_each_worker_of_a_trial_is_limited_by_mps(mps: dict[str, str], tmp_path: Path) -> None:
    add_sizes_service(tmp_path / "site")
    (tmp_path / "sweep.toml").write_text(
        f'command = "{sys.executable} {Path(__file__).with_name("elastic_program.py")} {{how}}"\n'
        '[parameters]\nhow = ["takes"]\n[elastic]\nmost = 2\nbatch = [32, 32]\nlocal_batch = [8, 64]\nevery_s = 1\n'
        '[service]\nname = "sizes"\nsizes = "2"\n'
    )
    environment = {**mps, "PYTHONPATH": f"{tmp_path / 'site'}:{mps['PYTHONPATH']}"}
    command = [
        sys.executable,
        "-m",
        "helios",
        "pool",
        "run",
        "sweep.toml",
        "--mps",
        "--memory",
        "800M",
        "--events",
        "--slots",
        "1",
    ]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as pool:
        assert pool.stdout is not None
        for line in pool.stdout:
            if json.loads(line)["event"] == "resized":
                (tmp_path / "go").touch()
    request = json.loads((tmp_path / "seen").read_text().splitlines()[-1])["request"]
    assert [device["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] for device in request["devices"]] == ["0=800M", "0=800M"]


def test_mps_without_its_program_is_refused(gpus: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "sweep.toml").write_text('command = "echo {x}"\n[parameters]\nx = [1]\n')
    command = [sys.executable, "-m", "helios", "pool", "run", "sweep.toml", "--mps"]
    done = subprocess.run(command, cwd=tmp_path, env=gpus, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "MPS needs" in done.stderr
