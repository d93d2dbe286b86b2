from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from helios.cli.main import COMMANDS, import_command
from helios.cli.options import duration, moment
from helios.errors import UsageError


def test_a_time_without_a_zone_is_in_the_cluster_s() -> None:
    assert moment("2020-09-01", timezone="Asia/Shanghai") == datetime(2020, 8, 31, 16, tzinfo=UTC)


def test_a_time_with_a_zone_keeps_it() -> None:
    assert moment("2020-09-01T08:00:00+08:00", timezone="Europe/Berlin") == datetime(2020, 9, 1, tzinfo=UTC)


def test_no_time_stays_none() -> None:
    assert moment(None, timezone="UTC") is None


@pytest.mark.parametrize("text", ["last week", "2020-13-01", ""])
def test_what_is_no_time_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="2026-09-01"):
        moment(text, timezone="UTC")


@pytest.mark.parametrize(("text", "days"), [("7d", 7), ("12h", 0.5), (None, 0)])
def test_a_length_of_time_is_read(text: str | None, days: float) -> None:
    assert duration(text) == timedelta(days=days)


@pytest.mark.parametrize("text", ["long", "-7d", ""])
def test_what_is_no_length_of_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        duration(text)


MOST_HEADS, MOST_ROWS = 58, 345
"""What a person can look through: commands that can be run, and options that their help lists."""
POOLS = ("pool run", "pool submit", "pool whatif")
MEANINGS = {
    "--cluster": {"trace load": "names what is loaded"},
    "--format": {"trace load": "is of a file; that of reports is sacct's"},
    "--service": {"report decisions": "chooses rows"} | dict.fromkeys(POOLS, "is of pools"),
    "--set": {"whatif slurm": "is a line of slurm.conf"} | dict.fromkeys(POOLS, "is of pools"),
    "--for": {"study": "is a reader"},
    "--nodes": {"pool submit": "is sbatch's"},
    "--gpus": {"pool submit": "is sbatch's"},
    "--gpus-per-node": {"pool whatif": "is of pools"},
    "--memory": {"pool submit": "is sbatch's"},
    "--partition": {"pool submit": "is sbatch's"},
    "--account": {"pool submit": "is sbatch's"},
}
"""Commands in which an option means something else than elsewhere, and what."""


def test_commands_and_options_are_few() -> None:
    heads = [command for _, command in every_command() if can_be_run(command)]
    rows = [option for command in heads for option in shown_options(command)]
    assert len(heads) <= MOST_HEADS
    assert len(rows) <= MOST_ROWS


def test_an_option_means_the_same_in_every_command() -> None:
    meanings: dict[str, dict[str, list[str]]] = {}
    for words, command in every_command():
        for option in shown_options(command):
            name, typed = next(it for it in option.opts if it.startswith("--")), " ".join(words)
            if typed not in MEANINGS.get(name, {}):
                meanings.setdefault(name, {}).setdefault(option.help, []).append(typed)
    assert {name: found for name, found in meanings.items() if len(found) > 1} == {}


def can_be_run(command: Any) -> bool:
    return not hasattr(command, "commands") or command.invoke_without_command


def shown_options(command: Any) -> list[Any]:
    if not can_be_run(command):
        return []
    options = [it for it in command.params if it.param_type_name == "option" and not it.hidden]
    return [it for it in options if "--help" not in it.opts]


FILE_OPTIONS = {"--format", "--columns", "--timezone", "--gpus-from"}


def test_how_a_file_is_read_is_said_where_it_is_loaded() -> None:
    having = {
        " ".join(words)
        for words, command in every_command()
        for option in command.params
        if FILE_OPTIONS & {*option.opts} and "-o" not in option.opts  # a report's --format names its fields
    }
    assert having == {"trace load", "trace use"}


def every_command() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each command with its words."""
    left: list[tuple[tuple[str, ...], Any]] = [((name,), import_command(name)) for name in COMMANDS]
    while left:
        words, command = left.pop()
        yield words, command
        left += [((*words, name), inner) for name, inner in getattr(command, "commands", {}).items()]
