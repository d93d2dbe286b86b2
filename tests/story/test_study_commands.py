"""Each command that a study proposes runs on the same history, and prints the number that it is proposed for."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from helios.study.proposals import COMMANDS
from helios.units import percent
from tests.story.shell import Answer, Helios, shell
from tests.traces import TRACES, needs_traces

Json = dict[str, Any]
NEARLY = 0.02
"""Share by which numbers of two commands may differ: a report counts CPU hours without suspensions, for one."""
WINDOWS = {
    "kth": ("KTH-SP2-1996-2.1-cln.swf.gz", "1997-08-20", "1997-08-29"),
    "graham": ("sacct_graham_may-jun2021.txt.gz", "2021-05-22", "2021-05-29"),
    "cedar": ("sacct_cedar_may-jun2021.txt.gz", "2021-05-22", "2021-05-29"),
    "phillips": ("sacct_raw_phillips_dec2016.txt.gz", "2016-12-31", "2017-01-02"),
    "venus": ("helios_venus_users_may-jun2020.csv.gz", "2020-06-08", "2020-06-17"),
    "philly": ("philly_vc_aug-oct2017.csv.gz", "2017-10-20", "2017-10-27"),
    "sdsc": ("SDSC-BLUE-2000-4.2-cln.swf.gz", "2002-12-10", "2002-12-17"),
}
"""Trace, begin and end of what is studied: a part so short that replays take seconds."""
USUAL = {("phillips", False), ("venus", True)}
"""Trace, and whether it is loaded, of a usual run: 25 CPU s."""
TELLS_NOTHING = "philly"
"""A trace without users, starts and states."""


@dataclass(frozen=True)
class Told:
    """What a study said, and what a command that it proposed answered."""

    study: Json
    statement: Json
    answer: Answer

    @property
    def json(self) -> Json:
        found: Json = self.answer.json
        return found

    def part(self, number: int, name: str) -> float:
        found: float = self.study["statements"][number - 1]["parts"][name]
        return found

    def total(self, column: str) -> float:
        return float(sum(row[column] or 0 for row in self.json["rows"]))

    @property
    def hours(self) -> str:
        return "gpu_hours" if self.study["resource"] == "gpus" else "cpu_hours"


def orders(told: Told) -> bool:
    """The recorded mean wait of statement 12 beside that of each order, on the study's nodes."""
    recorded, mean_wait_s = told.json["recorded_wait"], told.part(12, "mean_wait_s")
    assert told.json["capacity"]["units"] == told.study["capacity"]["units"]
    assert recorded["mean_wait_s"] == pytest.approx(mean_wait_s, rel=NEARLY)
    return len(told.json["runs"]) > 1


def one_pool(told: Told) -> bool:
    """Waits on all nodes of the study as one pool."""
    assert sum(told.json["nodes"].values()) * told.json["gpus_per_node"] == told.study["capacity"]["units"]
    return all(run["mean_wait_s"] >= 0 for run in told.json["runs"])


def asleep(told: Told) -> bool:
    """Nodes that would sleep: no more than the study says idle."""
    idle = told.part(4, "node_hours_per_week") / (7 * 24)
    sleeping = {policy["policy"]: policy["mean_sleeping_nodes"] for policy in told.json["policies"]}
    return bool(0 < sleeping["ces"] <= idle * (1 + NEARLY))


def failed_hours(told: Told) -> bool:
    """The hours of all failed jobs, as the line below the command says."""
    lost = told.total(f"lost_{told.hours}")
    assert lost == pytest.approx(told.part(7, "failed_hours"), rel=NEARLY)
    return f"{told.part(7, 'failed_hours'):,.1f}" in told.statement["command_shows"]


def acts(told: Told) -> bool:
    """A replay in which the service acts."""
    return any("soft_limits" in str(run) for run in told.json["runs"])


def top_users(told: Told) -> bool:
    """The share of the hours of the first users."""
    hours = sorted((row[told.hours] or 0 for row in told.json["rows"] if row["group"] != "(unknown)"), reverse=True)
    top = sum(hours[: round(told.part(11, "top_users"))]) / sum(hours)
    return bool(top == pytest.approx(told.statement["value"], rel=NEARLY))


def ranks(told: Told) -> bool:
    """The rank correlation of predictions beside that of the user's last job."""
    return {told.json["spearman"] > 0, told.json["controls"]["user_last"]["spearman"] > -1} == {True}


def repeated(told: Told) -> bool:
    """The share of hours in groups of repeated one-GPU jobs."""
    low, high = (f"{100 * told.part(16, f'share_of_hours_repeated_{end}'):.1f} %" for end in ("low", "high"))
    assert f"{low} to {high}" in told.statement["sentence"]
    return f"{low} to {high}" in re.sub(r"\s+", " ", told.answer.out)


def freed(told: Told) -> bool:
    """The share of all GPU hours that an idle time-out frees."""
    timeout = next(case for case in told.json["cases"] if case["change"].startswith("Idle"))
    return bool(timeout["of_all"]["value"] == pytest.approx(told.statement["parts"]["freed_by_timeout"], rel=NEARLY))


def unused(told: Told) -> bool:
    """The shares of the memory and CPU hours that were asked for and not used."""
    memory, cpus = told.statement["value"], told.statement["parts"]["share_of_cpu_hours"]
    return f"{percent(memory)} was not used at the jobs' peak, of the CPU hours {percent(cpus)}." in str(told.json)


FOLLOWS: dict[int, Callable[[Told], bool]] = {
    **{1: one_pool, 3: orders, 4: asleep, 7: failed_hours, 10: acts},
    **{11: top_users, 12: orders, 13: orders, 14: ranks, 16: repeated, 21: freed, 22: freed, 23: unused},
}
"""By statement, whether the answer has the number of the statement or the one that follows from it."""
AS_TEXT = {16}
"""Statements whose number is in the text and not in the JSON."""


def test_every_command_has_the_number_that_follows_from_its_statement() -> None:
    assert FOLLOWS.keys() == COMMANDS.keys()


def answer_to(command: str, helios: Helios, *, as_json: bool) -> Answer:
    """Type what a study proposes, as JSON and without draws, which take minutes."""
    *before, last = command.split(" && ")
    for words in before:
        helios(*shlex.split(words)[1:])
    if "whatif" in last and "energy" not in last:
        last += " --draws 0"
    return helios(*shlex.split(last)[1:], *(["--json"] if as_json else []))


@needs_traces
@pytest.mark.parametrize(
    ("name", "loaded"),
    [
        case if case in USUAL else pytest.param(*case, marks=pytest.mark.nightly)
        for case in product(WINDOWS, (True, False))
    ],
)
def test_proposed_commands_print_the_number_of_their_statement(name: str, loaded: bool, tmp_path: Path) -> None:
    file, since, until = WINDOWS[name]
    helios = shell(tmp_path, HELIOS_INGEST_TIMEZONE="UTC")
    source = ["--trace", TRACES / file]
    if loaded:
        helios("trace", "load", TRACES / file, "--cluster", name)
        source = ["--cluster", name]
    study = helios("study", *source, "--from", since, "--to", until, "--json").json
    said = [one for one in study["statements"] if one["command"]]
    assert bool(said) is (name != TELLS_NOTHING)
    answers = dict[tuple[str, bool], Answer]()
    for statement in said:
        number, command = statement["number"], statement["command"]
        key = command, number not in AS_TEXT
        answers[key] = answers.get(key) or answer_to(command, helios, as_json=key[1])
        assert FOLLOWS[number](Told(study, statement, answers[key])), (number, command, answers[key].out)
