"""What the doctor is told about a cluster's settings."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from helios.errors import ClusterUnavailable
from helios.slurm import preflight
from helios.slurm.preflight import FindingLevel, PreflightContext, PreflightFinding, hook_table_check, run_checks
from helios.slurm.shell import Shell
from tests.unit.slurm.test_commands import Program, program

__all__ = ["program"]  # a fixture

GOOD = {
    "SLURM_VERSION": "25.11.2",
    "ClusterName": "venus",
    "PriorityType": "priority/multifactor",
    "PriorityFlags": "",
    "PriorityWeightPartition": "100000",
    "SchedulerParameters": "bf_interval=30,time_min_as_soft_limit",
    "SlurmctldParameters": "(null)",
    "SlurmUser": "slurm(64030)",
    "SuspendProgram": "(null)",
    "SuspendTime": "INFINITE",
    "JobSubmitPlugins": "lua",
    "AccountingStorageTRES": "cpu,mem,energy,node,billing,fs/disk,vmem,pages,gres/gpu",
}
NOW = datetime(2026, 11, 21, 10, tzinfo=UTC)

Examine = Callable[..., dict[str, PreflightFinding]]


@pytest.fixture
def examined(program: Program) -> Examine:
    def run(
        *, user: str = "helios", level: str = "Operator", skew_s: int = 0, nodes: str = "", **settings: str
    ) -> dict[str, PreflightFinding]:
        program("scontrol", f"echo '{nodes}'")
        folder = program("sdiag", f"echo 'sdiag output at Sat ({int(NOW.timestamp()) + skew_s})'")
        program("sacctmgr", f"case $* in *config) echo 'PurgeJobAfter = 12 months';; *) echo '{level}';; esac")
        findings = run_checks(
            shell=Shell(folder=str(folder)),
            configuration=lambda: GOOD | settings,
            user=user,
            site_factor_most=10_000,
            clock=lambda: NOW,
        )
        return {finding.check: finding for finding in findings}

    return run


def test_a_well_set_cluster_has_nothing_to_complain_about(examined: Examine) -> None:
    findings = examined()
    assert {finding.verdict for finding in findings.values()} == {FindingLevel.OK}
    assert len(findings) == 11


@pytest.mark.parametrize(
    ("check", "verdict", "settings"),
    [
        ("controller", FindingLevel.WARN, {"SLURM_VERSION": "21.08.8"}),
        ("priority", FindingLevel.FAIL, {"PriorityType": "priority/basic"}),
        ("priority", FindingLevel.FAIL, {"PriorityFlags": "CALCULATE_RUNNING,INCR_ONLY"}),
        ("weights", FindingLevel.WARN, {"PriorityWeightPartition": "0"}),
        ("weights", FindingLevel.WARN, {"PriorityWeightPartition": "9999"}),
        ("soft limits", FindingLevel.WARN, {"SchedulerParameters": "bf_interval=30"}),
        ("soft limits", FindingLevel.WARN, {"SLURM_VERSION": "23.02.7"}),
        ("rate limit", FindingLevel.WARN, {"SlurmctldParameters": "rl_enable,rl_log_freq=60"}),
        ("rate limit", FindingLevel.OK, {"SlurmctldParameters": "rl_enable", "user": "root"}),
        ("clock", FindingLevel.FAIL, {"skew_s": -31}),
        ("clock", FindingLevel.OK, {"skew_s": 29}),
        ("privileges", FindingLevel.FAIL, {"level": "None"}),
        ("privileges", FindingLevel.FAIL, {"level": ""}),
        ("privileges", FindingLevel.WARN, {"level": "", "user": "slurm"}),
        ("priority hook", FindingLevel.WARN, {"JobSubmitPlugins": "(null)"}),
        ("priority hook", FindingLevel.WARN, {"JobSubmitPlugins": "all_partitions,require_timelimit"}),
        ("priority hook", FindingLevel.OK, {"JobSubmitPlugins": "all_partitions,lua"}),
    ],
)
def test_a_setting_is_judged(examined: Examine, check: str, verdict: FindingLevel, settings: dict[str, str]) -> None:
    found = examined(**settings)[check]
    assert found.verdict is verdict, found
    assert bool(found.hint) == (verdict is not FindingLevel.OK)


DEFAULT_TRES = "cpu,mem,energy,node,billing,fs/disk,vmem,pages"


@pytest.mark.parametrize(
    ("tracked", "gres", "line"),
    [
        (DEFAULT_TRES, "gpu:a100:8(S:0-1)", "AccountingStorageTRES=gres/gpu "),
        (f"{DEFAULT_TRES},license/ansys", "gpu:2", "AccountingStorageTRES=license/ansys,gres/gpu "),
        (f"{DEFAULT_TRES},gres/gpu", "gpu:l40:4,shard:l40:32", "AccountingStorageTRES=gres/gpu,gres/shard "),
        (f"{DEFAULT_TRES},gres/gpu", "gpu:l40:4,mps:400", "AccountingStorageTRES=gres/gpu,gres/mps "),
        (DEFAULT_TRES, "gpu:l40:4,shard:l40:32", "AccountingStorageTRES=gres/gpu,gres/shard "),
        (f"{DEFAULT_TRES},gres/shard", "gpu:l40:4,shard:l40:32", "AccountingStorageTRES=gres/shard,gres/gpu "),
        (f"{DEFAULT_TRES},gres/gpumem,gres/gpuutil", "gpu:1g.5gb:7", "AccountingStorageTRES=gres/gpumem,gres/gpuutil,"),
        (f"{DEFAULT_TRES},gres/gpu:a100", "gpu:h100:8", "AccountingStorageTRES=gres/gpu:a100,gres/gpu "),
    ],
)
def test_gpus_that_slurm_does_not_account_for_are_found(examined: Examine, tracked: str, gres: str, line: str) -> None:
    found = examined(AccountingStorageTRES=tracked, nodes=f"NodeName=n1 Gres={gres} State=IDLE")["gpu accounting"]
    assert found.verdict is FindingLevel.WARN
    assert line in found.hint


RECORDED = Path(__file__).parents[2] / "golden"


@pytest.mark.parametrize("folder", sorted(RECORDED.glob("slurm-*")), ids=lambda folder: folder.name)
@pytest.mark.parametrize("drops", [(), ("gres/gpu", "gres/gpumem", "gres/gpuutil")])
def test_recorded_clusters_account_for_their_gpus(examined: Examine, folder: Path, drops: tuple[str, ...]) -> None:
    config = (folder / "scontrol-show-config.txt").read_text()
    (tracked,) = re.findall(r"^AccountingStorageTRES *= (\S+)$", config, re.MULTILINE)
    kept = ",".join(name for name in tracked.split(",") if name not in drops)
    nodes = (folder / "scontrol-show-node.txt").read_text()
    found = examined(AccountingStorageTRES=kept, nodes=nodes)["gpu accounting"]
    assert found.verdict is (FindingLevel.WARN if drops else FindingLevel.OK)
    assert not drops or "Set AccountingStorageTRES=gres/gpu in slurm.conf" in found.hint


@pytest.mark.parametrize(
    ("tracked", "gres"),
    [
        (f"{DEFAULT_TRES},gres/gpu", "gpu:a100:8"),
        (f"{DEFAULT_TRES},gres/gpu:a100", "gpu:a100:8"),
        (f"{DEFAULT_TRES},gres/gpu,gres/shard", "gpu:a100:8,shard:32"),
        (DEFAULT_TRES, "(null)"),
        (DEFAULT_TRES, "craynetwork:4"),
    ],
)
def test_tracked_gpus_and_clusters_without_are_fine(examined: Examine, tracked: str, gres: str) -> None:
    found = examined(AccountingStorageTRES=tracked, nodes=f"NodeName=n1 Gres={gres} State=IDLE")["gpu accounting"]
    assert found.verdict is FindingLevel.OK


def test_a_site_script_that_does_not_call_the_hook_is_found(examined: Examine, tmp_path: Path) -> None:
    script, asked = tmp_path / "job_submit.lua", {"SLURM_CONF": str(tmp_path / "slurm.conf")}
    assert examined(**asked)["priority hook"].verdict is FindingLevel.OK  # nobody can read it here
    script.write_text("function slurm_job_submit() return slurm.SUCCESS end")
    assert str(script) in examined(**asked)["priority hook"].message
    script.write_text('pcall(dofile, "/etc/slurm/helios_hook.lua")')
    assert examined(**asked)["priority hook"].verdict is FindingLevel.OK


def test_a_table_that_slurmctld_may_not_read_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ground = PreflightContext(
        configuration=GOOD | {"SlurmUser": "slurm(64030)"}, shell=Shell(), user="x", site_factor_most=1
    )
    asked = []
    monkeypatch.setattr(preflight, "find_denied", lambda user, path: asked.append((user, path)) or tmp_path)
    (found,) = hook_table_check(tmp_path / "hook" / "table")(ground)
    assert asked == [("slurm", tmp_path / "hook" / "table")]
    assert (found.check, found.verdict) == ("priority hook", FindingLevel.WARN)
    assert found.hint.startswith(f"Let slurm into the group of {tmp_path},")
    monkeypatch.setattr(preflight, "find_denied", lambda user, path: None)
    assert list(hook_table_check(tmp_path)(ground)) == []


def test_a_silent_controller_is_the_only_finding() -> None:
    def silent() -> dict[str, str]:
        raise ClusterUnavailable("slurmctld does not answer", hint="scontrol ping")

    (finding,) = run_checks(shell=Shell(), configuration=silent, user="root", site_factor_most=1000)
    assert (finding.check, finding.verdict, finding.hint) == ("controller", FindingLevel.FAIL, "scontrol ping")


def test_a_check_that_cannot_be_made_does_not_hide_the_others(program: Program, examined: Examine) -> None:
    examined()
    folder = program("sacctmgr", "echo 'Unable to connect to slurmdbd' >&2; exit 1")
    found = run_checks(
        shell=Shell(folder=str(folder)), configuration=lambda: GOOD, user="root", site_factor_most=10, clock=lambda: NOW
    )
    by_check = {finding.check: finding.verdict for finding in found}
    assert by_check["accounting"] is FindingLevel.WARN
    assert by_check["clock"] is FindingLevel.OK
