"""How soon the command line answers: what is typed in a hurry does not wait for what it does not need."""

import subprocess
import sys

import pytest

from helios.cli.main import COMMANDS, imported

# What takes a tenth of a second and more to import, and only some commands need.
HEAVY = ("alembic", "apscheduler", "lightgbm", "matplotlib", "numba")


def loaded_by(code: str, *, of: tuple[str, ...]) -> list[str]:
    asked = f"import sys\n{code}\nprint(*(name for name in {of!r} if name in sys.modules))"
    answer = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    return answer.stdout.split("\n")[-2].split()


@pytest.mark.parametrize("command", ["pause", "resume", "mode", "doctor", "report", "trace", "service", "config"])
def test_what_neither_predicts_nor_draws_does_not_wait_for_it(command: str) -> None:
    assert loaded_by(f"from helios.cli.main import imported\nimported({command!r})", of=HEAVY) == []


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_help_and_version_enter_no_room(option: str) -> None:
    command = f"sys.argv = ['helios', {option!r}]\ntry:\n    helios.cli.main.main()\nexcept SystemExit: pass"
    run = f"import helios.cli.main\n{command}"
    assert loaded_by(run, of=(*HEAVY, "pandas", "sqlalchemy")) == []


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_of_each_what_it_says_of_itself(name: str) -> None:
    first = imported(name).help.split("\n\n")[0].replace("\n", " ")
    assert first == COMMANDS[name][1]
