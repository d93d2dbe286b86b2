"""What the doctor is told about putting a cluster's nodes to sleep."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from helios.slurm.preflight import FindingLevel, PreflightFinding, power_checks, run_checks
from helios.slurm.shell import Shell
from tests.unit.slurm.test_commands import Program, program

__all__ = ["program"]  # a fixture

GOOD = {
    "SLURM_VERSION": "25.11.2",
    "SlurmUser": "slurm(64030)",
    "SuspendTime": "604800 sec",
    "SuspendTimeout": "30 sec",
    "ResumeTimeout": "300 sec",
    "SuspendRate": "60 nodes/min",
    "ResumeRate": "300 nodes/min",
    "BatchStartTimeout": "60 sec",
    "MessageTimeout": "10 sec",
    "ReconfigFlags": "KeepPowerSaveSettings",
}
CHECKS = {"power programs", "idle timer", "power timeouts", "power rates", "administrator"}
MAY = "slurm_update error: Invalid node name specified"
MAY_NOT = "slurm_update error: Invalid user id"
NOW = datetime(2026, 11, 21, 10, tzinfo=UTC)

Examine = Callable[..., dict[str, PreflightFinding]]


@pytest.fixture
def examined(program: Program, tmp_path: Path) -> Examine:
    for name in ("suspend", "resume"):
        program(name, "true")

    def run(
        *, mechanism: str = "sleep", user: str = "helios", said: str = MAY, **settings: str
    ) -> dict[str, PreflightFinding]:
        script = f"case $* in update*) echo \"$*\" >>{tmp_path}/asked; echo '{said}' >&2; exit 1;; esac"
        folder = program("scontrol", script)
        given = GOOD | {"SuspendProgram": str(folder / "suspend"), "ResumeProgram": str(folder / "resume")} | settings
        findings = run_checks(
            shell=Shell(folder=str(folder)),
            configuration=lambda: given,
            user=user,
            site_factor_most=1000,
            clock=lambda: NOW,
            more=power_checks(mechanism),
        )
        # Of several findings of one check the last complaint counts.
        ranked = sorted(findings, key=lambda finding: finding.verdict is not FindingLevel.OK)
        return {finding.check: finding for finding in ranked}

    return run


def test_a_well_set_cluster_has_nothing_to_complain_about(examined: Examine) -> None:
    for mechanism, more in (("sleep", {}), ("keep_awake", {"SuspendTime": "600 sec"})):
        findings = examined(mechanism=mechanism, **more)
        checks = CHECKS | ({"keep-awake list"} if more else set())
        assert {check: findings[check].verdict for check in checks} == dict.fromkeys(checks, FindingLevel.OK)


@pytest.mark.parametrize(
    ("check", "verdict", "settings"),
    [
        ("power programs", FindingLevel.FAIL, {"SuspendProgram": "(null)"}),
        ("power programs", FindingLevel.FAIL, {"ResumeProgram": "(null)"}),
        ("power programs", FindingLevel.OK, {"ResumeProgram": "/on/the/controller"}),
        ("idle timer", FindingLevel.FAIL, {"SuspendTime": "INFINITE"}),
        ("idle timer", FindingLevel.WARN, {"SuspendTime": "600 sec"}),
        ("idle timer", FindingLevel.WARN, {"SuspendTime": "604800 sec", "mechanism": "keep_awake"}),
        ("idle timer", FindingLevel.FAIL, {"SuspendTime": "INFINITE", "mechanism": "keep_awake"}),
        ("power timeouts", FindingLevel.WARN, {"BatchStartTimeout": "10 sec"}),
        ("power timeouts", FindingLevel.OK, {"BatchStartTimeout": "10 sec", "ResumeTimeout": "40 sec"}),
        ("power rates", FindingLevel.WARN, {"ResumeRate": "0 nodes/min"}),
        ("keep-awake list", FindingLevel.FAIL, {"SLURM_VERSION": "22.05.8", "mechanism": "keep_awake"}),
        ("keep-awake list", FindingLevel.WARN, {"ReconfigFlags": "(null)", "mechanism": "keep_awake"}),
        ("kept awake", FindingLevel.OK, {"SLURM_VERSION": "23.11.10", "SuspendExcNodes": "n[1-9]:2"}),
        ("kept awake", FindingLevel.WARN, {"SLURM_VERSION": "24.05.0", "SuspendExcNodes": "n[1-9]:2"}),
        ("administrator", FindingLevel.FAIL, {"said": MAY_NOT}),
        ("administrator", FindingLevel.FAIL, {"said": "Unable to contact slurm controller"}),
        ("administrator", FindingLevel.OK, {"said": MAY_NOT, "user": "root"}),
        ("administrator", FindingLevel.OK, {"said": MAY_NOT, "user": "slurm"}),
    ],
)
def test_a_setting_is_judged(examined: Examine, check: str, verdict: FindingLevel, settings: dict[str, str]) -> None:
    found = examined(**settings)[check]
    assert found.verdict is verdict, found
    assert bool(found.hint) == (verdict is not FindingLevel.OK)


@pytest.mark.parametrize("name", ["suspend", "resume"])
def test_a_program_that_cannot_be_run_is_named(examined: Examine, tmp_path: Path, name: str) -> None:
    (tmp_path / name).chmod(0o644)
    found = examined()["power programs"]
    assert (found.verdict, found.message) == (
        FindingLevel.FAIL,
        f"{name.title()}Program is {tmp_path / name}, which cannot be run",
    )


def test_who_may_is_asked_of_a_node_that_does_not_exist(examined: Examine, tmp_path: Path) -> None:
    examined()
    assert (tmp_path / "asked").read_text() == "update NodeName=helios-probe Weight=1\n"


def test_where_no_service_acts_on_nodes_nobody_asks_about_power(program: Program) -> None:
    folder = program("scontrol", "true")
    findings = run_checks(
        shell=Shell(folder=str(folder)),
        configuration=lambda: GOOD,
        user="root",
        site_factor_most=1000,
        clock=lambda: NOW,
    )
    assert not CHECKS & {finding.check for finding in findings}
