"""Files of a machine are laid down, replaced and removed, and what a site has changed stays."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from helios.app.setup import FileState, deploy_folder, refuse_prefix_of_others
from helios.cli.main import COMMANDS, application, import_command
from helios.cli.manual import command_tree, describe_options, manual_pages
from helios.errors import UsageError

PREFIX = "/srv/helios"
OPTIONS = ("--prefix", PREFIX, "--hook", "/etc/slurm", "--power", "/etc/slurm/power", "--json")
UNIT, SETTINGS, HOOK = "/etc/systemd/system/helios.service", "/etc/helios/helios.toml", "/etc/slurm/helios_hook.lua"


def set_up(root: Path, *more: str, code: int = 0) -> dict[str, str]:
    done = CliRunner().invoke(application, ["setup", "--root", str(root), *OPTIONS, *more])
    assert done.exit_code == code, done.output
    return {file["path"]: file["state"] for file in json.loads(done.stdout)["files"]}


def at(root: Path, path: str) -> Path:
    return root / path.lstrip("/")


def test_what_is_laid_down_is_complete_and_stays_the_same(tmp_path: Path) -> None:
    assert set(set_up(tmp_path, "--check", code=1).values()) == {FileState.MISSING}
    assert not list(tmp_path.iterdir())
    assert set(set_up(tmp_path).values()) == {FileState.WRITTEN}
    assert set(set_up(tmp_path).values()) == {FileState.UNCHANGED}
    assert set(set_up(tmp_path, "--check").values()) == {FileState.UNCHANGED}


def test_everything_that_a_unit_starts_is_there_and_can_be_started(tmp_path: Path) -> None:
    written = set_up(tmp_path)
    for unit in (path for path in written if path.endswith(".service")):
        text = at(tmp_path, unit).read_text()
        assert "/opt/helios" not in text
        for line in text.splitlines():
            if line.startswith(("ExecStart=", "ExecStopPost=")):
                program = line.partition("=")[2].split()[0]
                assert program == f"{PREFIX}/bin/helios" or os.access(at(tmp_path, program), os.X_OK)
    for program in ("/usr/local/sbin/helios", "/etc/slurm/power/suspend", "/etc/slurm/power/power.sh"):
        assert os.access(at(tmp_path, program), os.X_OK)
        subprocess.run(["sh", "-n", at(tmp_path, program)], check=True)
    assert f"{PREFIX}/bin/helios" in at(tmp_path, "/usr/local/sbin/helios").read_text()
    units = {path.name for path in (deploy_folder() / "systemd").glob("*.*") if path.suffix in {".service", ".timer"}}
    assert units <= {Path(path).name for path in written}


def test_a_shell_completes_with_what_is_laid_down(tmp_path: Path) -> None:
    set_up(tmp_path)
    script = at(tmp_path, "/usr/share/bash-completion/completions/helios")
    said = subprocess.run(
        ["bash", "-c", f"source {script}; complete -p helios"], check=True, capture_output=True, text=True
    )
    assert said.stdout.split()[-1] == "helios"


def test_every_command_has_a_manual_page_and_units_name_them(tmp_path: Path) -> None:
    written = set_up(tmp_path)
    pages = {Path(path).stem for path in written if path.startswith("/usr/share/man/")}
    assert pages == {"helios", "helios.toml", *(f"helios-{name}" for name in COMMANDS)}
    for unit in (path for path in written if path.startswith("/etc/systemd/")):
        (page,) = re.findall(r"^Documentation=man:(.*)\(1\)$", at(tmp_path, unit).read_text(), flags=re.MULTILINE)
        assert page in pages


def test_a_manual_page_names_the_options_of_its_commands() -> None:
    text = manual_pages()["usr/share/man/man1/helios-pool.1"]
    for words, command in command_tree(import_command("pool"), "helios pool"):
        assert words in text
        for spelled, _, _ in describe_options(command):
            assert f".B {spelled}\n".replace("-", "\\-") in text


@pytest.mark.parametrize("lint", ["mandoc -T lint -W error", "groff -man -z -ww"])
def test_manual_pages_have_no_faults(tmp_path: Path, lint: str) -> None:
    if shutil.which(lint.split(maxsplit=1)[0]) is None:
        pytest.skip(f"{lint.split(maxsplit=1)[0]} is not here")
    set_up(tmp_path)
    pages = sorted(tmp_path.glob("usr/share/man/*/*"))
    done = subprocess.run([*lint.split(), *pages], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_new_release_replaces_what_nobody_changed_and_keeps_the_rest(tmp_path: Path) -> None:
    set_up(tmp_path)
    at(tmp_path, SETTINGS).write_text("# ours\n")
    at(tmp_path, HOOK).write_text("-- ours\n")
    states = set_up(tmp_path, "--prefix", "/srv/other")
    assert (states[UNIT], states[SETTINGS], states[HOOK]) == (FileState.REPLACED, FileState.KEPT, FileState.KEPT)
    assert "/srv/other/bin/helios" in at(tmp_path, UNIT).read_text()
    assert at(tmp_path, SETTINGS).read_text() == "# ours\n"
    assert at(tmp_path, HOOK).read_text() == "-- ours\n"


def test_a_file_that_was_there_before_is_the_sites_own(tmp_path: Path) -> None:
    at(tmp_path, UNIT).parent.mkdir(parents=True)
    at(tmp_path, UNIT).write_text("[Service]\n")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("theirs")
    at(tmp_path, HOOK).parent.mkdir(parents=True)
    at(tmp_path, HOOK).symlink_to(elsewhere)
    states = set_up(tmp_path)
    assert (states[UNIT], states[HOOK]) == (FileState.KEPT, FileState.KEPT)
    assert at(tmp_path, UNIT).read_text() == "[Service]\n"
    assert elsewhere.read_text() == "theirs"


def test_removing_leaves_settings_and_changed_files(tmp_path: Path) -> None:
    set_up(tmp_path)
    at(tmp_path, HOOK).write_text("-- ours\n")
    states = set_up(tmp_path, "--remove")
    assert (states[UNIT], states[HOOK]) == (FileState.REMOVED, FileState.KEPT)
    left = {f"/{path.relative_to(tmp_path)}" for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {SETTINGS, HOOK, "/etc/slurm/power/power.conf"}


def test_an_environment_that_others_can_change_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(UsageError, match="can be changed by others than root"):
        refuse_prefix_of_others(tmp_path)


def test_paths_must_be_absolute(tmp_path: Path) -> None:
    done = CliRunner().invoke(application, ["setup", "--root", str(tmp_path), "--hook", "etc/slurm"])
    assert isinstance(done.exception, UsageError)
    assert "not an absolute path" in done.exception.message


@pytest.mark.parametrize("folder", ["debian", "packages"])
def test_the_steps_of_packages_are_scripts_for_a_shell(folder: str) -> None:
    steps = [step for step in (deploy_folder() / folder).iterdir() if step.suffix in {"", ".sh"}]
    assert steps
    for step in steps:
        subprocess.run(["sh", "-n", step], check=True)
        assert os.access(step, os.X_OK)


def test_a_package_has_its_files_where_distributions_keep_them(tmp_path: Path) -> None:
    done = CliRunner().invoke(application, ["setup", "--root", str(tmp_path), "--prefix", "/usr/lib/helios", "--json"])
    written = {file["path"] for file in json.loads(done.stdout)["files"]}
    assert {"/usr/sbin/helios", "/usr/lib/systemd/system/helios.service", "/usr/lib/sysusers.d/helios.conf"} <= written
    assert {path.split("/")[1] for path in written} == {"etc", "usr"}
    assert {path for path in written if path.startswith(("/etc", "/usr/local"))} == {SETTINGS}
    assert "/usr/lib/helios/bin/helios" in at(tmp_path, "/usr/sbin/helios").read_text()
