"""Old names go on for one release, and say so."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from helios.cli.main import COMMANDS, RENAMED_COMMANDS, RENAMED_OPTIONS, RENAMED_VERBS, application, import_command
from helios.config import RENAMED_KEYS, Settings, load_configuration
from helios.errors import ConfigurationInvalid, ServiceUnknown
from helios.services import registry

OLD_COMMANDS = [
    *(([old], [new]) for old, new in RENAMED_COMMANDS.items()),
    *(([noun, old], [noun, new]) for noun, verbs in RENAMED_VERBS.items() for old, new in verbs.items()),
]
KEYS = [(section, old, new) for (section, old), new in RENAMED_KEYS.items()]


@pytest.mark.parametrize(("old", "new"), OLD_COMMANDS)
def test_an_old_command_is_the_new_one_with_a_note(old: list[str], new: list[str]) -> None:
    answer = CliRunner().invoke(application, [*old, "--help"])
    assert answer.exit_code == 0
    assert f"note: {old[-1]} is called {new[-1]} now" in answer.stderr
    assert answer.stdout == CliRunner().invoke(application, [*new, "--help"]).stdout


@pytest.mark.parametrize("value", [["--office", "nodes"], ["--office=nodes"]])
def test_an_old_option_is_the_new_one_with_a_note(value: list[str]) -> None:
    answer = CliRunner().invoke(application, ["daemon", *value, "--help"])
    assert answer.exit_code == 0
    assert "note: --office is called --domain now" in answer.stderr


def test_old_names_are_in_no_help() -> None:
    assert not {*RENAMED_COMMANDS} & {*COMMANDS}
    options = {option for parameter in import_command("daemon").params for option in parameter.opts}
    assert not {*RENAMED_OPTIONS} & options and {*RENAMED_OPTIONS.values()} <= options


@pytest.mark.parametrize(("section", "old", "new"), KEYS)
def test_an_old_key_of_the_file_is_read_as_the_new_one(tmp_path: Path, section: str, old: str, new: str) -> None:
    (tmp_path / "helios.toml").write_text(f"[{section}]\n{old} = 77\n")
    configuration = load_configuration(environment={}, folder=tmp_path)
    assert getattr(getattr(configuration.settings, section), new) == 77
    assert configuration.origins == {f"{section}.{new}": str(tmp_path / "helios.toml")}


@pytest.mark.parametrize(("section", "old", "new"), KEYS)
def test_an_old_variable_sets_the_new_key_and_is_its_origin(tmp_path: Path, section: str, old: str, new: str) -> None:
    name = f"HELIOS_{section}_{old}".upper()
    configuration = load_configuration(environment={name: "77"}, folder=tmp_path)
    assert getattr(getattr(configuration.settings, section), new) == 77
    assert configuration.origins == {f"{section}.{new}": f"environment {name}"}


def test_the_new_variable_wins_over_the_old_one(tmp_path: Path) -> None:
    environment = {"HELIOS_DAEMON_TURN_S": "77", "HELIOS_DAEMON_CYCLE_S": "78"}
    assert load_configuration(environment=environment, folder=tmp_path).settings.daemon.cycle_s == 78


def test_a_file_with_both_names_of_a_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / "helios.toml").write_text("[daemon]\nturn_s = 77\ncycle_s = 78\n")
    with pytest.raises(ConfigurationInvalid, match=r"daemon\.turn_s is the old name of daemon\.cycle_s"):
        load_configuration(environment={}, folder=tmp_path)


def test_a_removed_key_has_a_note_that_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "helios.toml").write_text("[web]\nin_daemon = true\n")
    environment = {"HELIOS_WEB_IN_DAEMON": "true"}
    for found in (
        load_configuration(environment={}, folder=tmp_path),
        load_configuration(environment=environment, folder=tmp_path / "none"),
    ):
        assert found.settings.web == Settings().web
        assert "systemctl enable --now helios-web" in "".join(found.notes)


@pytest.mark.parametrize("section", ["services.node_fill_order", "services.packing"])
def test_a_removed_service_has_no_effect_and_a_note_says_what_does(tmp_path: Path, section: str) -> None:
    (tmp_path / "helios.toml").write_text(f"[{section}]\nevery_s = 7\n[services.ces]\n[power]\ntiers = 3\n")
    found = load_configuration(environment={}, folder=tmp_path)
    assert found.settings.services == {"ces": {}}
    assert ["helios power weights" in note for note in found.notes] == [True, True]


def test_a_removed_service_that_is_named_is_unknown_and_its_successor_said() -> None:
    with pytest.raises(ServiceUnknown, match="helios power weights"):
        registry.find("node_fill_order")


@pytest.mark.parametrize(("section", "old", "new"), KEYS)
def test_a_new_key_exists_and_the_old_one_does_not(section: str, old: str, new: str) -> None:
    known = type(getattr(Settings(), section)).model_fields
    assert new in known and old not in known
