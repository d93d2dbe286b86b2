"""Submissions to a real Slurm with the priority hook and without, in one run.

Batches with and without the hook take cycles, because a machine's speed drifts by more than the hook costs. Besides the
rate that a user sees (one sbatch after another), the controller's own time for a submission is asked of sdiag.

Usage: python -m benchmarks.hook_rate [SUBMISSIONS] [ROWS]   (as root, with Slurm installed)
"""

import re
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from helios.slurm.hook_table import HookRow, publish, render
from tests.live.rig import Rig

SCRIPT = Path(__file__).parents[1] / "deploy" / "slurm" / "job_submit.lua"
BATCH = 50
# A partition that is down takes jobs and starts none.
PARTITION = "PartitionName=gpu Nodes=ALL Default=YES MaxTime=7-0 State=DOWN"


# Times the hook inside the controller, on the processor's clock: taking in a new table, then calls with it in memory.
CLOCK = """
function slurm_job_submit(job_desc, part_list, submit_uid)
    if job_desc.name == "clock" then
        local began = os.clock()
        helios_hook.submit(job_desc, part_list, submit_uid)
        local first = os.clock()
        for _ = 1, 2000 do
            job_desc.site_factor = slurm.NO_VAL
            helios_hook.submit(job_desc, part_list, submit_uid)
        end
        slurm.log_info("clock: %.0f %.2f", 1e6 * (first - began), 1e6 * (os.clock() - first) / 2000)
        return slurm.SUCCESS
    end
    return helios_hook.submit(job_desc, part_list, submit_uid)
end
return slurm.SUCCESS
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """What one batch showed: submissions a second, and the controller's mean time for one, microseconds."""

    per_s: float
    controller_us: float


def a_table(rows: int) -> str:
    """Return a table of ``rows`` rows, the last of them alice's."""
    others = (HookRow(user=f"user{n:06}", partition="gpu", gpus=n % 8, site_factor=137) for n in range(rows - 1))
    alices = HookRow(user="alice", partition="gpu", site_factor=4037)
    return render([*others, alices], generation=1, now=datetime.now(UTC), lasts=timedelta(hours=2))


def submit(rig: Rig, n: int) -> Rate:
    """Submit ``n`` jobs one after another."""
    rig.run("sdiag", "--reset")
    began = time.perf_counter()
    for _ in range(n):
        rig.submit()
    took_s = time.perf_counter() - began
    found = re.search(r"REQUEST_SUBMIT_BATCH_JOB .*count:(\d+)\s+ave_time:(\d+)", rig.run("sdiag"))
    assert found and int(found[1]) == n, "sdiag does not know the submissions"
    return Rate(per_s=n / took_s, controller_us=float(found[2]))


def switch(rig: Rig, *, hook: bool) -> None:
    """Load or unload Slurm's Lua plugin in the running controller, and see that it is so."""
    path = rig.folder / "conf" / "slurm.conf"
    text = path.read_text().replace("JobSubmitPlugins=lua\n", "")
    path.write_text(("JobSubmitPlugins=lua\n" if hook else "") + text)
    rig.run("scontrol", "reconfigure")
    rig.until(lambda: is_hooked(rig) == hook)


def is_hooked(rig: Rig) -> bool:
    """Submit a job and say whether the hook had it."""
    return rig.show_job(rig.submit())["Priority"].endswith("4037")


def measure(rig: Rig, submissions: int) -> dict[bool, list[Rate]]:
    """Return the batches of both kinds; which comes first alternates."""
    rates: dict[bool, list[Rate]] = {True: [], False: []}
    for cycle in range(max(submissions // BATCH, 1)):
        for hook in (cycle % 2 == 0, cycle % 2 == 1):
            switch(rig, hook=hook)
            rates[hook].append(submit(rig, BATCH))
        rig.empty()
    return rates


def clocked(rig: Rig) -> tuple[float, float]:
    """Return the hook's own microseconds: the call that takes in the table, and one that finds it in memory."""
    job = rig.submit(name="clock")
    assert rig.show_job(job)["Priority"].endswith("4037"), "the hook did not act"
    log = (rig.folder / "log" / "slurmctld.log").read_text(errors="replace")
    first, each = re.findall(r"clock: (\d+) ([\d.]+)", log)[-1]
    return float(first), float(each)


def script_with_clock(table: Path) -> str:
    """Return the hook's script with its table at ``table``, and a clock for jobs of that name."""
    text = SCRIPT.read_text().replace("/var/lib/helios/hook/table", str(table))
    return text.removesuffix("return slurm.SUCCESS\n") + CLOCK


def tell(rates: dict[bool, list[Rate]]) -> None:
    """Print both figures and what the hook keeps of each."""
    medians = {
        hook: (statistics.median(b.per_s for b in batches), statistics.median(b.controller_us for b in batches))
        for hook, batches in rates.items()
    }
    for hook, words in ((False, "without the hook"), (True, "with the hook")):
        per_s, us = medians[hook]
        print(f"{words:20} {per_s:8.1f} submissions/s   {us:8.0f} us of the controller each")
    paired = statistics.median(w.per_s / n.per_s for w, n in zip(rates[True], rates[False], strict=True))
    print(f"rate with / without: {medians[True][0] / medians[False][0]:.3f} (medians), {paired:.3f} (median of pairs)")


def main() -> None:
    """Bring a cluster up, print the figures, and take it away."""
    submissions, rows = (int(word) for word in [*sys.argv[1:], *("1000", "20000")[len(sys.argv) - 1 :]])
    folder = Path(tempfile.mkdtemp(prefix="helios-hook-rate-"))
    folder.chmod(0o755)
    script = folder / "job_submit.lua"
    table = folder / "state" / "hook" / "table"
    script.write_text(script_with_clock(table))
    publish(table, a_table(rows))
    rig = Rig(folder / "cluster", settings={"LUA": str(script), "NODES": "1", "PARTITIONS": PARTITION})
    try:
        rig.control("up")
        first, each = clocked(rig)
        print(f"the hook in the controller: {each:.1f} us a submission; {first / 1000:.1f} ms to take in {rows} rows")
        print(f"{submissions} submissions of each kind, in cycles of {BATCH}; a table of {rows} rows")
        tell(measure(rig, submissions))
    finally:
        rig.control("wipe")
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
