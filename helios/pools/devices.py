"""GPUs and the CPU of this machine as devices of a pool."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from helios.errors import UsageError
from helios.model.pools import Device

CPU_MEMORY_SHARE = 0.9
"""Share of the memory that is free now which trials may use; the rest is for files and for Helios."""
_MIB = 2.0**20
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "NUMBA_NUM_THREADS")
"""How many threads numerical libraries start in one process; else each takes all cores."""


def find_devices(
    *, kind: str | None = None, slots: int | None = None, memory_mib: float | None = None
) -> tuple[Device, ...]:
    """Return the devices that this process may use.

    Parameters
    ----------
    kind : str, optional
        ``gpu`` or ``cpu``. None for the GPUs, or for the CPU where there are none.
    slots : int, optional
        Most trials at the same time on each. None for one on a GPU, and one for each core of the CPU.
    memory_mib : float, optional
        Memory of each that trials may share. None for what is free now.

    Raises
    ------
    UsageError
        There are no GPUs that can be asked for.
    """
    gpus = () if kind == "cpu" else _gpus(slots=slots or 1, memory_mib=memory_mib)
    if gpus:
        return gpus
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


def _gpus(*, slots: int, memory_mib: float | None) -> tuple[Device, ...]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves, named by their place among these."""
    try:
        import pynvml  # noqa: PLC0415 - it is optional, and loads the driver

        pynvml.nvmlInit()
    except (ImportError, OSError):
        return ()
    except pynvml.NVMLError:
        return ()
    try:
        found = []
        for place, handle in enumerate(_visible(pynvml)):
            free = pynvml.nvmlDeviceGetMemoryInfo(handle).free / _MIB
            model = pynvml.nvmlDeviceGetName(handle)
            found.append(
                Device(name=f"gpu:{place}", kind="gpu", model=str(model), memory_mib=memory_mib or free, slots=slots)
            )
        return tuple(found)
    finally:
        pynvml.nvmlShutdown()


def _visible(pynvml: Any) -> list[Any]:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    return [
        pynvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdigit() else pynvml.nvmlDeviceGetHandleByUUID(name)
        for name in (part.strip() for part in visible.split(","))
        if name and name != "-1"
    ]


def gpu_id(device: Device) -> str | None:
    """Return what CUDA calls a device, and None for the CPU."""
    if device.kind != "gpu":
        return None
    place = int(device.name.rpartition(":")[2])
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return str(place) if visible is None else [part.strip() for part in visible.split(",")][place]


def device_environment(device: Device) -> Mapping[str, str]:
    """Return the environment of a trial on a device.

    A number of threads that the user has set stays.
    """
    gpu = gpu_id(device)
    if gpu is not None:
        return {"HELIOS_DEVICE": device.name, "CUDA_VISIBLE_DEVICES": gpu}
    threads = str(max(1, cores() // device.slots))
    return {"HELIOS_DEVICE": device.name} | {name: threads for name in _THREADS if name not in os.environ}
