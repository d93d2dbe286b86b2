"""A pool as a Slurm job."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helios.errors import ClusterRefused, ClusterUnavailable, FileUnwritable, UsageError
from helios.private_files import make_folder
from helios.training.pool.sweep_file import pool_folders, read_training_sweep
from helios.training.services import build_for_pool, choose_common_service

SUBMIT_S = 60.0
"""How long sbatch may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """Slurm options of a pool's job.

    None stands for the site's default.

    Attributes
    ----------
    memory, time_limit : str, optional
        As ``sbatch`` takes them.
    signal_s : int
        How long before the end of the allocation trials are asked for a checkpoint, s.
    nodes : int
        Nodes of one allocation. The other options are for each node.
    shards : int, optional
        Shards of GPUs (``gres/shard``) instead of whole ones.
    more : sequence of str
        Other options of ``sbatch``.
    """

    partition: str | None = None
    account: str | None = None
    gpus: int | None = None
    cpus: int | None = None
    memory: str | None = None
    time_limit: str | None = None
    signal_s: int = 120
    more: Sequence[str] = ()
    nodes: int = 1
    shards: int | None = None


def job_script(
    paths: Sequence[Path],
    allocation: Allocation,
    *,
    folder: Path | None = None,
    slots: int | None = None,
    warm: Sequence[str] = (),
    mps: bool = False,
    service: str | None = None,
    options: Mapping[str, Any] = {},
    target: str | None = None,
    pool: int | None = None,
) -> str:
    """Return a batch script that runs sweeps in one allocation.

    Parameters
    ----------
    paths : sequence of Path
        The sweep files.
    slots, warm, mps, service, options, target
        As of :class:`~helios.training.plan.PoolOptions`.
    pool : int, optional
        Number of the pool among several that share the folder, from 1.

    Raises
    ------
    UsageError
        A sweep cannot be run, there is no such service, or an option has more than one line.
    """
    folders = pool_folders(paths, folder)
    choice = choose_common_service(
        [read_training_sweep(path, target=target).service for path in paths], service, options
    )
    if choice is not None:
        build_for_pool(choice.name, choice.options)
    into = folders[paths[0]]
    # One allocation at a time for the same folders.
    place = hashlib.sha256(b"\0".join(map(os.fsencode, folders.values()))).hexdigest()[:8]
    asked = {
        "job-name": f"{paths[0].stem}-{place}" + ("" if pool is None else f"-{pool}"),
        "nodes": allocation.nodes,
        "ntasks-per-node": 1,
        "dependency": "singleton",
        "signal": f"B:USR1@{allocation.signal_s}",
        "output": str(into / "slurm-%j.log"),
        "partition": allocation.partition,
        "account": allocation.account,
        "gpus-per-node": allocation.gpus,
        "gres": None if allocation.shards is None else f"shard:{allocation.shards}",
        "cpus-per-task": allocation.cpus,
        "mem": allocation.memory,
        "time": allocation.time_limit,
    }
    directives = [f"--{name}={value}" for name, value in asked.items() if value is not None] + list(allocation.more)
    if any(not option.isprintable() for option in directives):
        raise UsageError("An option for sbatch has more than one line.", hint="Write each on one line.")
    command = [sys.executable, "-m", "helios", "pool", "run", *(str(path.absolute()) for path in paths), "--json"]
    command += ["--folder", str(into)] if len(paths) == 1 else []
    command += [] if slots is None else ["--slots", str(slots)]
    command += [word for module in warm for word in ("--warm", module)] + ["--mps"] * mps
    command += [] if service is None else ["--service", service]
    if choice is not None:
        command += [word for name in options for word in ("--set", f"{choice.name}.{name}={json.dumps(options[name])}")]
    command += [] if target is None else ["--target", target]
    command += [] if pool is None else ["--shared"]
    # exec, so that the signal before the end of the allocation reaches Helios itself.
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in directives), "", f"exec {shlex.join(command)}"]
    return "\n".join(lines) + "\n"


def submit_pool(scripts: Sequence[str], *, folder: Path, chain: int = 1) -> list[str]:
    """Submit batch scripts, and return the ids of the jobs.

    Parameters
    ----------
    scripts : sequence of str
        One for each pool of the folder.
    chain : int
        How many allocations at most, each of which goes on where the last one ended.

    Raises
    ------
    ClusterUnavailable
        There is no ``sbatch`` here, or it did not answer.
    ClusterRefused
        It refused the job.
    FileUnwritable
        The folder cannot be made, which is for the jobs' output.
    """
    try:
        make_folder(folder)
    except OSError as reason:
        raise FileUnwritable(f"{folder} cannot be made: {reason}", hint="Choose another place: --folder") from reason
    jobs = []
    for script in [script for _ in range(chain) for script in scripts]:
        try:
            answer = subprocess.run(
                ["sbatch", "--parsable"], input=script, capture_output=True, text=True, check=False, timeout=SUBMIT_S
            )
        except (OSError, subprocess.TimeoutExpired) as reason:
            raise ClusterUnavailable(
                f"sbatch cannot be run: {reason}", hint="Submit it where sbatch works, or run it here: helios pool run"
            ) from reason
        if answer.returncode:
            raise ClusterRefused(
                f"Slurm refused the job: {' '.join(answer.stderr.split())}",
                hint="See what is asked with --dry-run, and change it with the options of helios pool submit.",
            )
        jobs.append(answer.stdout.strip().partition(";")[0])
    return jobs
