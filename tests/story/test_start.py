"""How soon the command line answers: what is typed in a hurry does not wait for what it does not need."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from helios.app.explain_socket import ExplainServer, JobAnswer
from helios.cli.main import COMMANDS, import_command
from helios.config import load_configuration
from tests.unit.cli.test_options import every_command

# What takes a tenth of a second and more to import, and only some commands need.
HEAVY = ("alembic", "apscheduler", "lightgbm", "matplotlib", "numba")
NEVER_FOR_HELP = (*HEAVY, "jinja2", "pandas", "pyarrow", "scipy", "sklearn", "sqlalchemy")


def loaded_by(code: str, *, of: tuple[str, ...], folder: Path | None = None) -> list[str]:
    asked = f"import sys\n{code}\nprint(*(name for name in {of!r} if name in sys.modules))"
    answer = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True, cwd=folder)
    return answer.stdout.split("\n")[-2].split()


def loaded_by_running(*lines: str, of: tuple[str, ...], folder: Path | None = None) -> list[str]:
    """Type one command after the other in one process, and return which modules it has imported by then."""
    commands = [["helios", *line.split()] for line in lines]
    run = "try: helios.cli.main.main()\n    except SystemExit as end: assert not end.code"
    return loaded_by(f"import helios.cli.main\nfor sys.argv in {commands}:\n    {run}", of=of, folder=folder)


def test_what_neither_predicts_nor_draws_does_not_wait_for_it() -> None:
    commands = ["pause", "resume", "mode", "doctor", "report", "trace", "config"]
    lines = "from helios.cli.main import import_command", f"for name in {commands}: import_command(name)"
    assert loaded_by("\n".join(lines), of=HEAVY) == []


def test_help_and_version_enter_no_room() -> None:
    assert loaded_by_running("--version", "--help", of=(*NEVER_FOR_HELP, "pydantic")) == []


def test_no_help_needs_a_heavy_module(tmp_path: Path) -> None:
    typed = ["config --example", *(f"{' '.join(words)} --help" for words, _ in every_command())]
    assert loaded_by_running(*typed, of=NEVER_FOR_HELP, folder=tmp_path) == []


def test_a_load_needs_no_model_and_no_statistics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELIOS_DATABASE_URL", f"sqlite:///{tmp_path}/helios.db")
    (tmp_path / "jobs.txt").write_text("JobIDRaw|Submit|State\n1|2026-09-01T00:00:00|PENDING\n")
    heavy = ("apscheduler", "lightgbm", "matplotlib", "numba", "scipy", "sklearn")
    assert loaded_by_running("trace load jobs.txt", of=heavy, folder=tmp_path) == []


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_of_each_what_it_says_of_itself(name: str) -> None:
    first = import_command(name).help.split("\n\n")[0].replace("\n", " ")
    assert first == COMMANDS[name][1]


@pytest.mark.parametrize("command", [["why", "1"], ["status"], ["report", "usage"]])
def test_a_question_trains_and_draws_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setenv("HELIOS_DATABASE_URL", f"sqlite:///{tmp_path}/helios.db")
    monkeypatch.setenv("HELIOS_SLURM_COMMANDS", str(tmp_path))  # there is no Slurm, which is found out last
    heavy = ("apscheduler", "lightgbm", "matplotlib", "numba", "scipy", "sklearn")
    run = "import helios.cli.main\ntry: helios.cli.main.main()\nexcept SystemExit: pass"
    assert loaded_by(f"sys.argv = {['helios', *command]}\n{run}", of=(*heavy, "pandas"), folder=tmp_path) == ["pandas"]


@pytest.mark.parametrize("form", ["", "--json"])
def test_a_question_that_the_daemon_answers_needs_no_heavy_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setenv("HELIOS_CONTROL_STATE_FOLDER", str(tmp_path))
    settings = load_configuration(environment=os.environ, folder=tmp_path).settings
    daemon = ExplainServer(settings, lambda job, _: JobAnswer(values={"job": job}, lines=("It waits.",)))
    try:
        assert loaded_by_running(f"why 1 {form}", of=(*NEVER_FOR_HELP, "numpy"), folder=tmp_path) == []
    finally:
        daemon.close()
