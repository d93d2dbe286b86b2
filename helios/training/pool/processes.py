"""Processes of trials on this machine, and what they use."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Iterable
from pathlib import Path

import psutil

from helios.training.pool.control_groups import MIB, join_group

POOL = "HELIOS_POOL"
"""Environment variable that identifies the processes of a pool."""
TRIAL = "HELIOS_TRIAL"
SET_PDEATHSIG = 1
"""Option of ``prctl`` from ``linux/prctl.h``."""
OOM_SCORE = "500"
"""Trials are killed before the coordinator when the machine's memory is short (``proc_pid_oom_score_adj``)."""
LIBC = ctypes.CDLL(None, use_errno=True)


def kill_leftovers(pool: str) -> int:
    """Kill every process of a pool, and return how many there were.

    Processes are known by the environment that they were started with.
    """
    killed, own_pid = 0, os.getpid()
    for _ in range(100):  # what is killed may have forked meanwhile
        leftovers = [
            process
            for process in psutil.process_iter()
            if process.pid != own_pid and environment_variable(process, POOL) == pool
        ]
        for process in leftovers:
            with contextlib.suppress(psutil.Error):
                process.kill()
        killed += len(leftovers)
        if not leftovers:
            break
        psutil.wait_procs(leftovers, timeout=5)
    return killed


def environment_variable(process: psutil.Process, name: str) -> str | None:
    """Return a variable of a process's environment, None where it has none."""
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        value = process.environ().get(name)
    except (psutil.Error, OSError):
        return None
    return str(value) if value is not None else None


def prepare_child(parent: int | None, group: Path | None) -> None:
    """Prepare a forked process, before its program starts.

    It ends with ``parent``, where there is one.
    """
    if parent is not None:
        LIBC.prctl(SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123 - in a fork
        file.write(OOM_SCORE)
    if group is not None:
        join_group(group)


def signal_group(pid: int, signal_number: signal.Signals) -> None:
    """Send a signal to the processes of a group, if there are any."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal_number)


def is_ending(pid: int) -> bool:
    """Return whether a process is ending."""
    with contextlib.suppress(psutil.Error):
        return bool(psutil.Process(pid).memory_info().vms == 0)
    return True


def is_running(child_pid: int) -> bool:
    """Return whether a child of this process runs."""
    try:
        return os.waitpid(child_pid, os.WNOHANG) == (0, 0)
    except ChildProcessError:
        return False


def child_pids() -> list[int]:
    """Return the children of this process."""
    own_pid = os.getpid()
    try:
        return [int(pid) for pid in Path(f"/proc/{own_pid}/task/{own_pid}/children").read_text().split()]
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN
        return [child.pid for child in psutil.Process().children()]


def descendants(process: psutil.Process, children: dict[int, list[psutil.Process]]) -> Iterable[psutil.Process]:
    """Yield all that descend from a process, by the children of each."""
    for child in children.get(process.pid, ()):
        yield child
        yield from descendants(child, children)


def resident_bytes(process: psutil.Process) -> float:
    """Return the resident memory of a process, 0 where it has ended."""
    with contextlib.suppress(psutil.Error):
        return float(process.memory_info().rss)
    return 0.0


def proportional_bytes(process: psutil.Process) -> float:
    """Return the memory of a process, with its part of shared pages."""
    with contextlib.suppress(psutil.Error, AttributeError):
        return float(process.memory_full_info().pss)
    return resident_bytes(process)


def run_delay_s(pid: int) -> float:
    """Return how long a process waited for a core, s.

    It is 0 on a kernel that does not tell.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    return 0.0


def gpu_memory_mib(uuid: str, pids: set[int]) -> float:
    """Return the memory of a GPU that processes use, MiB.

    It is 0 where the driver does not know, as in a container with process ids of its own.
    """
    try:
        import pynvml  # noqa: PLC0415 - it is optional, and loads the driver
    except ImportError:
        return 0.0
    try:
        pynvml.nvmlInit()  # cheap after the first call
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except pynvml.NVMLError:
        return 0.0
    return float(sum(process.usedGpuMemory or 0 for process in processes if process.pid in pids)) / MIB


def gpu_use(uuid: str) -> tuple[float | None, float | None]:
    """Return the energy and the utilization of a GPU.

    The energy is that since the driver was loaded, J. Both are None where the driver does not know.
    """
    energy_j = utilization = None
    with contextlib.suppress(ImportError):
        import pynvml  # noqa: PLC0415 - it is optional, and loads the driver

        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            with contextlib.suppress(pynvml.NVMLError):  # a part of a GPU has none
                utilization = float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100
            energy_j = float(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1000
    return energy_j, utilization
