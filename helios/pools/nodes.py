"""Other nodes of an allocation, each with a job step.

The step runs the same agent as on this machine, and Slurm carries what it is told and says. So a node needs one step,
however many trials it runs, and there is no network protocol of our own.

As a program, ``python -m helios.pools.nodes OPTIONS``, it prints the devices of the node that it runs on.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from helios.errors import ClusterUnavailable, HeliosError
from helios.model.pools import Device
from helios.pools.containers import find_container
from helios.pools.devices import device_environment, find_devices, gpu_id
from helios.pools.space import read_training_sweep

LOOK_S = 600.0
"""How long a node may take to say what it has, in which it may unpack an image."""


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
    """

    name: str
    step: Sequence[str]
    devices: Sequence[Device]
    gpus: Mapping[str, str | None]
    environment: Mapping[str, Mapping[str, str]]


def find_nodes(
    sweep: Path, folder: Path, options: Mapping[str, Any], *, environment: Mapping[str, str] = os.environ
) -> tuple[Node, ...]:
    """Return the other nodes of this Slurm job.

    Parameters
    ----------
    sweep, folder : Path
        The sweep file, and the folder of the pool.
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
    request = json.dumps({"sweep": str(sweep.absolute()), "folder": str(folder), "options": dict(options)})
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
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=LOOK_S
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
        find_container(
            read_training_sweep(Path(request["sweep"])), Path(request["folder"]), gpus=devices[0].kind == "gpu"
        )
    except HeliosError as reason:
        sys.stdout.write(json.dumps({"problem": reason.message, "hint": reason.hint}) + "\n")
        return
    has = [
        {"device": asdict(each), "gpu": gpu_id(each), "environment": dict(device_environment(each))} for each in devices
    ]
    sys.stdout.write(json.dumps({"has": has}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
