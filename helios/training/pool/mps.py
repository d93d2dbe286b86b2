"""NVIDIA's Multi-Process Service, which runs while a pool does."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

from helios.training.pool.processes import POOL, prepare_child, signal_group

MPS_CONTROL = "nvidia-cuda-mps-control"
_MPS_TIMEOUT_S = 10.0
"""Longest time for the control process of MPS to answer, and to end."""


def mps_environment(folder: str) -> dict[str, str]:
    """Return the environment of programs that use the MPS in a folder."""
    return {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}


def start_mps(folder: str, pool: str) -> subprocess.Popen[bytes]:
    """Start MPS, and return its control process.

    NVIDIA's Multi-Process Service lets programs of one user run on a GPU at the same time instead of in turns.

    Raises
    ------
    OSError
        It does not start.
    """
    Path(folder).mkdir(mode=0o700)
    control = subprocess.Popen(
        [MPS_CONTROL, "-f"],
        env={**os.environ, **mps_environment(folder), POOL: pool},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=partial(prepare_child, os.getpid(), None),  # noqa: PLW1509 - there are no threads here
    )
    deadline = time.monotonic() + _MPS_TIMEOUT_S
    while not (Path(folder) / "control").exists():
        if control.poll() is not None or time.monotonic() >= deadline:
            stop_mps(control, folder)
            raise OSError(f"{MPS_CONTROL} did not start (exit status {control.returncode})")
        time.sleep(0.02)
    return control


def stop_mps(control: subprocess.Popen[bytes], folder: str) -> None:
    """Stop MPS, and remove its folder."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        if control.poll() is None:
            environment = {**os.environ, **mps_environment(folder)}
            subprocess.run(
                [MPS_CONTROL],
                env=environment,
                input=b"quit\n",
                capture_output=True,
                check=False,
                timeout=_MPS_TIMEOUT_S,
            )
            control.wait(timeout=_MPS_TIMEOUT_S)
    signal_group(control.pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)
