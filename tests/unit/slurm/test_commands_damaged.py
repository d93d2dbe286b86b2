"""Answers of Slurm's programs that are cut, doubled or something else: told apart from whole ones, never believed."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from helios.errors import AnswerNotUnderstood, ClusterUnavailable, HeliosError
from helios.slurm import translate
from helios.slurm.accounting import Accounting
from helios.slurm.commands import CommandsBackend, Sprio
from helios.slurm.connect import partition_names
from helios.slurm.shell import CommandResult, Shell
from tests.fuzz.mutate import mutated
from tests.golden.record import NONCE, PLACEHOLDER
from tests.unit.slurm.recorded import GOLDEN, RELEASES
from tests.unit.slurm.test_commands_answers import NOW

SCRON = b"ScronParameters         = enable\n\nSlurmctld("
SACCT = b"JobIDRaw<d>JobID<d>\n1<d>1<d>\n2<d>2<d>\n"
EVENTS = b"n3|1795256457|1795256500|DRAIN|a fan\nn1|1795256457|Unknown|DOWN|fire\n"
PARTITIONS = b"PartitionName=gpu Nodes=n1\nPartitionName=big Nodes=n2\n"
MUTANTS = [40, pytest.param(1_000, marks=pytest.mark.nightly)]
"""Mutated answers tried of each release."""


class Answers(Shell):
    """A shell that gives each program's answer as it is told to, its random words as the caller chose them."""

    __slots__ = ()
    outputs: ClassVar[dict[str, bytes]] = {}
    errors: ClassVar[dict[str, str]] = {}

    def answer(self, program: str, *words: str, stdin: bytes = b"", timeout_s: float | None = None) -> CommandResult:
        asked = " ".join([program, *words])
        name = next(name for name in self.outputs if all(word in asked for word in name.split()))
        output, delimiters = self.outputs[name], re.findall(r"--delimiter=(\S+)", asked)
        for nonce in NONCE.findall(asked.encode()):
            output = output.replace(PLACEHOLDER, nonce)
        output = output.replace(b"<d>", delimiters[0].encode() if delimiters else b"")
        return CommandResult(output=output, error_output=self.errors.get(program, ""), status=0)

    def write(self, path: Path, program: str, *words: str, timeout_s: float | None = None) -> None:
        answer = self.answer(program, *words)
        path.write_bytes(answer.output)
        answer.check(program)


def recorded(release: str) -> dict[str, bytes]:
    """Return what each program said, scrontab switched on so that all of them are asked."""
    read = {name: (GOLDEN / release / f"{slug}.txt").read_bytes() for name, slug in FILES.items()}
    read["show config"] = read["show config"].replace(b"\nSlurmctld(", SCRON, 1)
    ids = sorted(set(re.findall(rb"^(\d+)\x1f", read["squeue"].replace(PLACEHOLDER + b"\n", b"\n"), re.MULTILINE)))
    read["show job"] = b"".join(b"JobId=%s JobName=a CronJob=No UserId=alice(1)\n" % job for job in ids)
    return read | {"show partition": PARTITIONS, "show event": EVENTS, "sacct": SACCT}


FILES = {
    "squeue": "squeue",
    "show node": "scontrol-show-node",
    "show config": "scontrol-show-config",
    "sprio": "sprio",
}


def asked(outputs: dict[str, bytes], folder: Path, *, errors: dict[str, str] | None = None) -> dict[str, object]:
    """Ask for everything that Helios reads, and return what it makes of it."""
    shell = Answers(folder=str(folder))
    Answers.outputs, Answers.errors = outputs, errors or {}
    backend, accounting = CommandsBackend(), Accounting(shell=shell)
    backend.shell = shell
    hour = NOW.replace(hour=11)
    window = folder / "window.txt"
    accounting.sacct_window(NOW, hour, path=window)
    release, jobs, nodes, factors = (25, 11), backend.queue(), backend.nodes(), Sprio(shell=shell)()
    frames = {
        "pending": translate.pending(jobs, factors, most=10_000, release=release),
        "running": translate.running(jobs, release=release),
        "nodes": translate.node_states(nodes),
        "events": accounting.node_events(NOW, hour),
    }
    return {
        **{name: frame.to_json(date_format="iso") for name, frame in frames.items()},
        "configuration": backend.configuration(),
        "partitions": partition_names(shell),
        "sacct": len(window.read_text(errors="replace").splitlines()),
    }


Damage = Callable[[bytes], bytes]
DAMAGES: dict[str, Damage] = {
    "cut inside a record": lambda text: text.rstrip()[:-3],
    "begun inside a record": lambda text: text[7:],
    "garbage": lambda _: b"\xff\xfe\x00 oh no \x1f|=\n",
    "a page": lambda _: b"<html><body>502 Bad Gateway</body></html>\n",
}
EMPTY: Damage = lambda _: b""  # noqa: E731 - as the others
DOUBLED: Damage = lambda text: text + text  # noqa: E731 - as the others
CASES: Sequence[tuple[str, str, Damage]] = [
    *((name, what, damage) for name in (*FILES, "show partition", "show event") for what, damage in DAMAGES.items()),
    *(("sacct", what, DAMAGES[what]) for what in DAMAGES),
    *((name, "empty", EMPTY) for name in ("show node", "show config", "show job", "show partition", "sacct")),
    *((name, "doubled", DOUBLED) for name in ("squeue", "show node")),
    ("show job", "garbage", DAMAGES["garbage"]),
    ("show job", "cut inside a record", DAMAGES["cut inside a record"]),
    ("show config", "cut at a line", lambda text: b"".join(text.splitlines(keepends=True)[:40])),
    ("sprio", "two values of a job", lambda text: text + text.splitlines()[0].replace(b"|0|", b"|137|", 1) + b"\n"),
    ("show node", "without a state", lambda text: text.replace(b" State=", b" Stat=", 1)),
    ("show node", "with a count that is none", lambda text: text.replace(b" CPUTot=", b" CPUTot=x", 1)),
    ("squeue", "a job that has no number", lambda text: b"x" + text),
]


@pytest.mark.parametrize(("name", "what", "damage"), CASES, ids=[f"{name}, {what}" for name, what, _ in CASES])
def test_a_damaged_answer_is_not_understood(name: str, what: str, damage: Damage, tmp_path: Path) -> None:
    outputs = recorded("slurm-22.05")
    asked(outputs, tmp_path)
    with pytest.raises(AnswerNotUnderstood):
        asked(outputs | {name: damage(outputs[name])}, tmp_path)


@pytest.mark.parametrize("name", ["squeue", "show node", "show config", "sprio", "show event", "sacct"])
def test_the_answer_of_another_program_is_not_understood(name: str, tmp_path: Path) -> None:
    outputs = recorded("slurm-22.05")
    for other in outputs.keys() - {name}:
        with pytest.raises(AnswerNotUnderstood):
            asked(outputs | {name: outputs[other]}, tmp_path)


@pytest.mark.parametrize("program", ["squeue", "scontrol", "sprio", "sacct", "sacctmgr"])
def test_an_error_beside_an_answer_counts_whatever_the_exit_status(program: str, tmp_path: Path) -> None:
    outputs = recorded("slurm-22.05")
    said = {program: "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n"}
    with pytest.raises(ClusterUnavailable, match=program):
        asked(outputs, tmp_path, errors=said)


def test_a_warning_beside_an_answer_is_no_error(tmp_path: Path) -> None:
    outputs = recorded("slurm-22.05")
    said = dict.fromkeys(("squeue", "scontrol", "sprio", "sacct"), 'error: The option "CacheGroups" is defunct\n')
    assert asked(outputs, tmp_path, errors=said) == asked(outputs, tmp_path)


def test_records_in_another_order_are_the_same_answer(tmp_path: Path) -> None:
    outputs = recorded("slurm-22.05")
    turned = {name: b"".join(reversed(outputs[name].splitlines(keepends=True))) for name in ("sprio", "show node")}
    jobs = outputs["squeue"].split(PLACEHOLDER + b"\n")
    turned["squeue"] = b"".join(job + PLACEHOLDER + b"\n" for job in reversed(jobs[:-1]))
    assert asked(outputs | turned, tmp_path) == asked(outputs, tmp_path)


@pytest.mark.parametrize("release", RELEASES)
def test_a_record_cut_anywhere_is_whole_records_or_an_error(release: str, tmp_path: Path) -> None:
    outputs = recorded(release)
    ends = PLACEHOLDER + b"\n"
    at_records = {found.end() for found in re.finditer(re.escape(ends), outputs["squeue"])} | {0}
    chance = random.Random(1)
    for cut in chance.sample(range(len(outputs["squeue"])), 60):
        if cut not in at_records:
            with pytest.raises(AnswerNotUnderstood):
                asked(outputs | {"squeue": outputs["squeue"][:cut]}, tmp_path)


@pytest.mark.parametrize("mutants", MUTANTS)
@pytest.mark.parametrize("release", RELEASES)
def test_a_mutated_answer_is_read_or_an_error_that_says_so(release: str, mutants: int, tmp_path: Path) -> None:
    outputs, chance = recorded(release), random.Random(0)
    refused = 0
    for _ in range(mutants):
        name = chance.choice(sorted(outputs))
        try:
            asked(outputs | {name: mutated(chance, [outputs[name]])}, tmp_path)
        except HeliosError:
            refused += 1
    assert refused > mutants / 4
