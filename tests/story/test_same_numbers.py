"""Every command takes the same window and the same size of the cluster, and says so."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from tests.story.shell import Answer, shell

HEADER = (
    "JobID|User|Account|Partition|State|Submit|Eligible|Start|End|ElapsedRaw|TimelimitRaw|NNodes|NCPUS"
    "|AllocTRES|NodeList"
)
BEGIN = datetime(2026, 3, 2, tzinfo=UTC)
DAYS, JOBS_A_DAY = 20, 24
COMMANDS = {
    "study": ["study"],
    "whatif": ["whatif", "--policy", "fifo", "--draws", "0"],
    "evaluate": ["model", "evaluate", "--draws", "0"],
    "energy": ["whatif", "energy"],
    "forecast": ["forecast"],
}


def sacct_of(*, node_lists: bool, gpus: bool) -> str:
    """What sacct prints of a window: survivors from weeks before, and then jobs of two partitions that share a node."""
    random = np.random.default_rng(1)
    lines = [HEADER]
    for job in range(DAYS * JOBS_A_DAY + 3):
        survives = job < 3
        submitted = (
            BEGIN - timedelta(days=30 - 8 * job) if survives else BEGIN + timedelta(hours=(job - 3) * 24 / JOBS_A_DAY)
        )
        run_s = int(timedelta(days=35).total_seconds()) if survives else int(np.exp(random.normal(8, 1)))
        node = int(random.integers(1, 5))
        partition = ("a" if job % 2 else "b") if node == 1 else ("a" if node < 3 else "b")
        size = int(random.integers(1, 5 if node < 4 else 9))
        start = submitted + timedelta(minutes=10)
        held = f"cpu={4 * size},gres/gpu={size}" if gpus else f"cpu={4 * size}"
        times = [f"{at:%Y-%m-%dT%H:%M:%S}" for at in (submitted, submitted, start, start + timedelta(seconds=run_s))]
        row = [
            str(job + 1),
            f"u{job % 7}",
            "lab",
            partition,
            "COMPLETED",
            *times,
            str(run_s),
            "60000",
            "1",
            str(4 * size),
        ]
        lines.append("|".join([*row, held, f"n{node}" if node_lists else ""]))
    return "\n".join(lines) + "\n"


def swf() -> str:
    """A log in the Standard Workload Format whose header names the machine."""
    random = np.random.default_rng(2)
    head = ["; UnixStartTime: 1772409600", "; MaxNodes: 12", "; MaxProcs: 90", "; TimeZoneString: UTC"]
    rows = [
        f"{job + 1} {job * 3600} 60 {int(np.exp(random.normal(8, 1)))} 8 -1 -1 8 60000 -1 1 {job % 7} 1 -1 1 -1 -1 -1"
        for job in range(DAYS * JOBS_A_DAY)
    ]
    return "\n".join([*head, *rows]) + "\n"


HISTORIES: dict[str, Callable[[], str]] = {
    "nodes.txt": lambda: sacct_of(node_lists=True, gpus=True),
    "use.txt": lambda: sacct_of(node_lists=False, gpus=False),
    "header.swf": swf,
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Answer]]:
    """What each command says of each history."""
    folder = tmp_path_factory.mktemp("site")
    helios = shell(folder)
    found: dict[str, dict[str, Answer]] = {}
    for file, write in HISTORIES.items():
        (folder / file).write_text(write(), encoding="utf-8")
        options = ("--trace", folder / file, "--json")
        found[file] = {name: helios(*command, *options) for name, command in COMMANDS.items()}
    return found


@pytest.mark.parametrize("file", HISTORIES)
def test_commands_name_the_same_capacity(answers: dict[str, dict[str, Answer]], file: str) -> None:
    found = {name: answer.json["capacity"] for name, answer in answers[file].items()}
    first = found["whatif"]
    assert {name: {key: size[key] for key in first} for name, size in found.items()} == dict.fromkeys(COMMANDS, first)


@pytest.mark.parametrize("name", COMMANDS)
def test_survivors_of_an_export_are_named_in_one_line(answers: dict[str, dict[str, Answer]], name: str) -> None:
    answer = answers["nodes.txt"][name]
    said = " ".join(f"{answer.out} {answer.err}".split())
    assert "4 jobs submitted before, from 2026-01-31 on, are not counted" in said
