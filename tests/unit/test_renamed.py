"""Old names go on for one release, and say so."""

from datetime import timedelta
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from typer.testing import CliRunner

from helios.app.live_cluster import configured_services
from helios.cli.main import COMMANDS, RENAMED_COMMANDS, RENAMED_OPTIONS, RENAMED_VERBS, application, import_command
from helios.cli.options import rename_services
from helios.config import RENAMED_KEYS, RENAMED_SERVICES, Settings, load_configuration
from helios.errors import ConfigurationInvalid
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


def test_a_removed_key_has_no_effect_and_a_note_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "helios.toml").write_text("[web]\nin_daemon = true\n")
    environment = {"HELIOS_WEB_IN_DAEMON": "true"}
    for found in (
        load_configuration(environment={}, folder=tmp_path),
        load_configuration(environment=environment, folder=tmp_path / "none"),
    ):
        assert found.settings.web == Settings().web
        assert "systemctl enable --now helios-web" in "".join(found.notes)


@pytest.mark.parametrize(("section", "old", "new"), KEYS)
def test_a_new_key_exists_and_the_old_one_does_not(section: str, old: str, new: str) -> None:
    known = type(getattr(Settings(), section)).model_fields
    assert new in known and old not in known


@pytest.mark.parametrize(("old", "new"), RENAMED_SERVICES.items())
def test_an_old_service_in_the_file_is_the_new_one_with_a_note(tmp_path: Path, old: str, new: str) -> None:
    (tmp_path / "helios.toml").write_text(f"[services.{old}]\nevery_s = 7\n")
    configuration = load_configuration(environment={}, folder=tmp_path)
    assert configuration.settings.services == {new: {"every_s": 7}}
    assert [f"[services.{old}] is called [services.{new}] now" in note for note in configuration.notes] == [True]
    assert configured_services(configuration.settings)[new].every == timedelta(seconds=7)


@pytest.mark.parametrize(("old", "new"), RENAMED_SERVICES.items())
def test_a_file_with_both_names_of_a_service_is_refused(tmp_path: Path, old: str, new: str) -> None:
    (tmp_path / "helios.toml").write_text(f"[services.{old}]\n[services.{new}]\n")
    with pytest.raises(ConfigurationInvalid, match=rf"services\.{old} is the old name of services\.{new}"):
        load_configuration(environment={}, folder=tmp_path)


@pytest.mark.parametrize(("old", "new"), RENAMED_SERVICES.items())
def test_an_old_service_is_found_under_its_new_name(monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    assert registry.find(old) is registry.find(new)
    assert old not in registry.installed()
    value = registry.installed()[new].target
    entries = [EntryPoint(name=name, value=value, group=registry.GROUP) for name in (old, new)]
    monkeypatch.setattr(registry, "entry_points", lambda **_: entries)
    assert list(registry.installed()) == [new]
    assert not registry.installed()[new].broken


@pytest.mark.parametrize(
    ("given", "renamed"),
    [
        ("packing", "node_fill_order"),
        (["qssf,packing", "packing"], ["qssf,node_fill_order", "node_fill_order"]),
        (["packing.tiers=3", "qssf.name=packing"], ["node_fill_order.tiers=3", "qssf.name=packing"]),
        ("repacking", "repacking"),
        (None, None),
    ],
)
def test_an_option_with_an_old_service_is_read_as_the_new_one(
    capsys: pytest.CaptureFixture[str], given: object, renamed: object
) -> None:
    assert rename_services(given) == renamed
    assert ("note: packing is called node_fill_order now" in capsys.readouterr().err) is (given != renamed)


@pytest.mark.parametrize(
    ("command", "at"),
    [(["mode"], "service"), (["simulate"], "service"), (["simulate"], "option"), (["report", "decisions"], "service")],
)
def test_options_that_name_a_service_take_old_names(command: list[str], at: str) -> None:
    found = import_command(command[0])
    for name in command[1:]:
        found = found.commands[name]
    (parameter,) = [parameter for parameter in found.params if parameter.name == at]
    assert parameter.callback is not None
