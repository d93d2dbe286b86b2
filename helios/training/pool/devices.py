"""GPUs and CPUs of an allocation as devices of a pool.

Other nodes have a job step each, which runs the same agent as on this machine. Slurm carries what the agent is told and
says, so a node needs one step, however many trials it runs, and there is no network protocol of our own.

As a program, ``python -m helios.training.pool.devices OPTIONS``, it prints the devices of the node that it runs on.
"""

from __future__ import annotations

import json
import math
import os
import re
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from helios.errors import ClusterUnavailable, HeliosError, UsageError
from helios.training.model import Device
from helios.training.pool.containers import find_container
from helios.training.pool.sweep_file import read_training_sweep
from helios.units import count_in_words

CPU_MEMORY_SHARE = 0.9
"""Share of the memory that is free now which trials may use; the rest is for files and for Helios."""
_MIB = 2.0**20
LOOK_S = 60.0
"""How long ``scontrol`` may take, s."""
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "NUMBA_NUM_THREADS")
"""How many threads numerical libraries start in one process; else each takes all cores."""
STEP_LOOK_S = 600.0
"""How long a node may take to say what it has, in which it may unpack an image."""


def find_devices(
    *,
    kind: str | None = None,
    slots: int | None = None,
    memory_mib: float | None = None,
    gpu_slots: int = 1,
    split: bool = False,
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
    split : bool
        Whether each slot of the CPU is a device of its own, with an equal part of the memory.

    Raises
    ------
    UsageError
        There are no GPUs that can be asked for, or it is not known what a shard is.
    """
    if kind not in {None, "gpu", "cpu"}:
        raise UsageError(f"{kind!r} is no kind of device.", hint="Choose gpu or cpu.")
    if memory_mib is not None and memory_mib <= 0:
        raise UsageError(f"{memory_mib:g} MiB is no memory to share.", hint="Say how much of each device is.")
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
    slots = slots or cores()
    count = slots if split else 1
    own = max(1, cores() // count)
    return tuple(
        Device(
            name=f"cpu:{place}",
            kind="cpu",
            model=count_in_words(own, "core"),
            memory_mib=(memory_mib or free_memory_mib()) / count,
            slots=slots // count,
            places=1 if split else cores() // max(1, cores() // slots),
            cores=own if split else None,
        )
        for place in range(count)
    )


def gpus_by_shards(environment: Mapping[str, str]) -> float:
    """Return a job's shards on this node as a number of GPUs.

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
    threads = str(max(1, (device.cores or cores()) // device.slots))
    return {"HELIOS_DEVICE": device.name} | {name: threads for name in THREADS if name not in os.environ}


def join_environments(environments: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return the environment of a trial on several devices of a node.

    Names are joined by commas, as CUDA has it. Numbers of threads are added.
    """
    values = {name: [each[name] for each in environments if name in each] for name in environments[0]}
    return {name: str(sum(map(int, texts))) if name in THREADS else ",".join(texts) for name, texts in values.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Another node of this allocation.

    Attributes
    ----------
    name : str
    step : sequence of str
        Words that run a program there.
    devices : sequence of Device
        Their names begin with the node's.
    gpus : mapping
        What CUDA calls each device, None for the CPU.
    environment : mapping
        Environment of the trials on each device.
    host : str
        What other nodes call it.
    """

    name: str
    step: Sequence[str]
    devices: Sequence[Device]
    gpus: Mapping[str, str | None]
    environment: Mapping[str, Mapping[str, str]]
    host: str = "localhost"


def find_nodes(
    sweeps: Mapping[Path, Path], options: Mapping[str, Any], *, environment: Mapping[str, str] = os.environ
) -> tuple[Node, ...]:
    """Return the other nodes of this Slurm job.

    Parameters
    ----------
    sweeps : mapping of Path to Path
        The folder of each sweep file.
    options : mapping
        Options of :func:`find_devices`.

    Raises
    ------
    ClusterUnavailable
        A node cannot be used.
    """
    count = environment.get("SLURM_JOB_NUM_NODES", environment.get("SLURM_NNODES", "1"))
    here = environment.get("SLURMD_NODENAME")
    if count == "1" or here is None or "SLURM_JOB_ID" not in environment:
        return ()
    listed = _output(["scontrol", "show", "hostnames", environment["SLURM_JOB_NODELIST"]])
    names = listed.split()
    cores = dict(zip(names, _counts(environment.get("SLURM_JOB_CPUS_PER_NODE", "")), strict=False))
    folders = {str(path.absolute()): str(folder) for path, folder in sweeps.items()}
    request = json.dumps({"sweeps": folders, "options": dict(options)})
    found = []
    for name in names:
        if name == here:
            continue
        step = ["srun", "--exact", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={name}", "--mem=0", "--quiet"]
        step += [f"--cpus-per-task={cores[name]}"] if name in cores else []
        answer = json.loads(_output([*step, sys.executable, "-m", __spec__.name, request]).splitlines()[-1])
        if "problem" in answer:
            raise ClusterUnavailable(f"{name} cannot be used: {answer['problem']}", hint=answer["hint"])
        devices = [replace(Device(**each["device"]), name=f"{name}/{each['device']['name']}") for each in answer["has"]]
        found.append(
            Node(
                name=name,
                step=step,
                devices=devices,
                gpus={device.name: each["gpu"] for device, each in zip(devices, answer["has"], strict=True)},
                environment={
                    device.name: {**each["environment"], "HELIOS_DEVICE": device.name}
                    for device, each in zip(devices, answer["has"], strict=True)
                },
                host=answer["host"],
            )
        )
    return tuple(found)


def _counts(cores_per_node: str) -> list[int]:
    """Return the cores of each node, from Slurm's short form, as ``4(x2),8``."""
    counts: list[int] = []
    for cores, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", cores_per_node):
        counts += [int(cores)] * int(times or 1)
    return counts


def _output(words: Sequence[str]) -> str:
    hint = "Use one node, or see that srun works in the job: srun --overlap hostname"
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=STEP_LOOK_S
        )
    except (OSError, subprocess.TimeoutExpired) as reason:
        raise ClusterUnavailable(f"{words[0]} cannot be run: {reason}", hint=hint) from reason
    if done.returncode:
        raise ClusterUnavailable(f"{words[0]} failed: {' '.join(done.stderr.split())[-500:]}", hint=hint)
    return done.stdout


def main(text: str) -> None:
    """Print what this node has."""
    request = json.loads(text)
    try:
        devices = find_devices(**request["options"])
        for path, folder in request["sweeps"].items():
            find_container(read_training_sweep(Path(path)), Path(folder), gpus=devices[0].kind == "gpu")
    except HeliosError as reason:
        sys.stdout.write(json.dumps({"problem": reason.message, "hint": reason.hint}) + "\n")
        return
    has = [
        {"device": asdict(each), "gpu": gpu_id(each), "environment": dict(device_environment(each))} for each in devices
    ]
    sys.stdout.write(json.dumps({"has": has, "host": socket.gethostname()}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
