"""GPUs and the CPU of this machine as devices of a pool."""

from __future__ import annotations

import math
import os
import re
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

from helios.errors import UsageError
from helios.model.pools import Device

CPU_MEMORY_SHARE = 0.9
"""Share of the memory that is free now which trials may use; the rest is for files and for Helios."""
_MIB = 2.0**20
LOOK_S = 60.0
"""How long ``scontrol`` may take, s."""
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "NUMBA_NUM_THREADS")
"""How many threads numerical libraries start in one process; else each takes all cores."""


def find_devices(
    *, kind: str | None = None, slots: int | None = None, memory_mib: float | None = None, gpu_slots: int = 1
) -> tuple[Device, ...]:
    """Return the devices that this process may use.

    Parameters
    ----------
    kind : str, optional
        ``gpu`` or ``cpu``. None for the GPUs, or for the CPU where there are none.
    slots : int, optional
        Most trials at the same time on each. None for ``gpu_slots`` on a GPU, and one for each core of the CPU.
    memory_mib : float, optional
        Memory of each that trials may share. None for what is free now, and in a Slurm job of shards at most for the
        part of the GPU that they are.

    Raises
    ------
    UsageError
        There are no GPUs that can be asked for, or it is not known what a shard is.
    """
    gpus = () if kind == "cpu" else _visible_gpus(os.environ.get("CUDA_VISIBLE_DEVICES"))
    if gpus:
        part = 1.0 if memory_mib else min(1.0, gpus_by_shards(os.environ) / len(gpus))
        return tuple(
            Device(
                name=f"gpu:{place}",
                kind="gpu",
                model=gpu.model,
                memory_mib=memory_mib or min(gpu.free_mib, part * gpu.total_mib),
                slots=slots or gpu_slots,
            )
            for place, gpu in enumerate(gpus)
        )
    if kind == "gpu":
        raise UsageError(
            "No NVIDIA GPU is visible here.",
            hint='Install what asks for them with pip install "helios-slurm[gpu]", or write --device cpu.',
        )
    return (
        Device(
            name="cpu:0",
            kind="cpu",
            model=f"{cores()} cores",
            memory_mib=memory_mib or free_memory_mib(),
            slots=slots or cores(),
        ),
    )


def gpus_by_shards(environment: Mapping[str, str]) -> float:
    """Return the shards of a Slurm job on this node as a number of GPUs.

    It is infinite where the job has whole GPUs. Slurm keeps nobody from using more than their shards.

    Raises
    ------
    UsageError
        Slurm does not say how many shards a GPU has.
    """
    shards, node = environment.get("SLURM_SHARDS_ON_NODE"), environment.get("SLURMD_NODENAME")
    if not shards or node is None:
        return math.inf
    words = ["scontrol", "show", "node", "--oneliner", node]
    try:
        shown = subprocess.run(words, capture_output=True, text=True, check=True, timeout=LOOK_S).stdout
        listed = re.findall(r"(?:^|,)(gpu|shard)(?::[^:,()]+)?:(\d+)", re.findall(r"\bGres=(\S+)", shown)[0])
        gpus, shards_there = (sum(int(count) for name, count in listed if name == kind) for kind in ("gpu", "shard"))
        return int(shards) / (shards_there / gpus)
    except (OSError, subprocess.SubprocessError, ValueError, IndexError, ZeroDivisionError) as reason:
        raise UsageError(
            f"This job has {shards} shards, and {' '.join(words)} does not say how many a GPU has.",
            hint="Name the GPU memory that trials may share, such as --memory 10G.",
        ) from reason


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


def free_memory_mib() -> float:
    """Return the memory that trials may use, MiB.

    It is bounded by the machine, the control group and the Slurm job.
    """
    bounds: list[float] = [psutil.virtual_memory().available / _MIB]
    with suppress(KeyError, ValueError):
        bounds.append(float(os.environ["SLURM_MEM_PER_NODE"]))
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # "max" is no number
            bounds.append(int(Path(file).read_text()) / _MIB)
    return CPU_MEMORY_SHARE * min(bounds)


@dataclass(frozen=True)
class _Gpu:
    uuid: str
    model: str
    free_mib: float
    total_mib: float


@cache
def _visible_gpus(visible: str | None) -> tuple[_Gpu, ...]:
    """Return the GPUs allowed by CUDA_VISIBLE_DEVICES."""
    try:
        import pynvml  # noqa: PLC0415 - it is optional, and loads the driver
    except ImportError:
        return ()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:  # there is no driver
        return ()
    try:
        if visible is None:
            handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        else:
            names = [name for part in visible.split(",") if (name := part.strip()) and name != "-1"]
            handles = [
                pynvml.nvmlDeviceGetHandleByIndex(int(name))
                if name.isdigit()
                else pynvml.nvmlDeviceGetHandleByUUID(name)
                for name in names
            ]
        return tuple(
            _Gpu(
                uuid=str(pynvml.nvmlDeviceGetUUID(handle)),
                model=str(pynvml.nvmlDeviceGetName(handle)),
                free_mib=memory.free / _MIB,
                total_mib=memory.total / _MIB,
            )
            for handle in handles
            for memory in [pynvml.nvmlDeviceGetMemoryInfo(handle)]
        )
    except pynvml.NVMLError as reason:
        raise UsageError(
            f"The GPUs of CUDA_VISIBLE_DEVICES={visible} cannot be used: {reason}",
            hint="nvidia-smi -L lists the GPUs; or write --device cpu.",
        ) from reason
    finally:
        pynvml.nvmlShutdown()


def gpu_id(device: Device) -> str | None:
    """Return what CUDA calls a device, and None for the CPU."""
    if device.kind != "gpu":
        return None
    return _visible_gpus(os.environ.get("CUDA_VISIBLE_DEVICES"))[int(device.name.rpartition(":")[2])].uuid


def device_environment(device: Device) -> Mapping[str, str]:
    """Return the environment of a trial on a device.

    A number of threads that the user has set stays.
    """
    gpu = gpu_id(device)
    if gpu is not None:
        return {"HELIOS_DEVICE": device.name, "CUDA_VISIBLE_DEVICES": gpu}
    threads = str(max(1, cores() // device.slots))
    return {"HELIOS_DEVICE": device.name} | {name: threads for name in THREADS if name not in os.environ}
