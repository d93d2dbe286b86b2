import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from helios import config
from helios.config import LoadedSettings, example_file, load_configuration, without_password
from helios.errors import ConfigurationInvalid


def configured(folder: Path, toml: str = "", **environment: str) -> LoadedSettings:
    if toml:
        (folder / "helios.toml").write_text(toml)
    return load_configuration(environment=environment, folder=folder)


@contextmanager
def seen_as(uid: int) -> Iterator[None]:
    """Have the file's reader be another user than its writer."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "geteuid", lambda: uid)
        patched.setattr(config, "ROOT", -1)  # tests may run as root, whose files are believed
        yield


def origin_of(configuration: LoadedSettings, key: str) -> str:
    return next(setting.origin for setting in configuration.listing() if setting.key == key)


def test_without_file_or_environment_every_value_is_a_default(tmp_path: Path) -> None:
    assert {setting.origin for setting in configured(tmp_path).listing()} == {"default"}


def test_the_file_wins_over_the_default(tmp_path: Path) -> None:
    configuration = configured(tmp_path, "[model]\nseed = 7\n")
    assert configuration.settings.model.seed == 7
    assert origin_of(configuration, "model.seed") == str(tmp_path / "helios.toml")


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    configuration = configured(tmp_path, "[model]\nseed = 7\n", HELIOS_MODEL_SEED="8")
    assert configuration.settings.model.seed == 8
    assert origin_of(configuration, "model.seed") == "environment HELIOS_MODEL_SEED"


def test_the_database_is_named_by_its_variable(tmp_path: Path) -> None:
    configuration = configured(tmp_path, HELIOS_DATABASE_URL="sqlite:///there.db")
    assert configuration.settings.database.url == "sqlite:///there.db"


def test_an_unknown_key_is_named_with_the_allowed_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationInvalid, match=r"model\.sed .*not a key(.|\n)*model\.seed"):
        configured(tmp_path, "[model]\nsed = 7\n")


@pytest.mark.parametrize("toml", ["[model]\nseed = 'many'\n", "[model]\ntest_fraction = 2.0\n"])
def test_a_wrong_value_is_refused_with_its_key(tmp_path: Path, toml: str) -> None:
    with pytest.raises(ConfigurationInvalid, match=r"model\.(seed|test_fraction)"):
        configured(tmp_path, toml)


def test_a_wrong_value_is_told_with_the_meaning_of_its_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationInvalid) as caught:
        configured(tmp_path, HELIOS_DAEMON_INGEST_S="5")
    assert "Time between readings" in caught.value.hint
    assert "model.seed" not in caught.value.hint


def test_a_wrong_zone_is_refused_with_an_example(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationInvalid, match="Europe/Berlin"):
        configured(tmp_path, "[ingest]\ntimezone = 'CEST+3'\n")


def test_a_key_outside_a_section_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationInvalid, match="outside"):
        configured(tmp_path, "seed = 7\n")


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationInvalid, match=r"helios\.toml"):
        configured(tmp_path, "[model\n")


def test_a_configuration_file_that_was_asked_for_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationInvalid, match="nowhere"):
        configured(tmp_path, HELIOS_CONFIG=str(tmp_path / "nowhere.toml"))


def test_a_password_is_never_shown(tmp_path: Path) -> None:
    configuration = configured(tmp_path, HELIOS_DATABASE_URL="postgresql://ann:secret@db/helios")
    shown = {setting.key: setting.value for setting in configuration.listing()}
    assert shown["database.url"] == "postgresql://ann:***@db/helios"


def test_a_url_without_a_password_is_shown_as_it_is() -> None:
    assert without_password("postgresql://ann@db/helios") == "postgresql://ann@db/helios"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ann:p@ss/word@db/helios", "postgresql://ann:***@db/helios"),
        ("postgresql://db/helios?user=ann&password=secret", "postgresql://db/helios?user=ann&password=***"),
        ("postgresql://db/helios?sslpassword=secret&x=1", "postgresql://db/helios?sslpassword=***&x=1"),
        ("sqlite:////srv/helios.db", "sqlite:////srv/helios.db"),
    ],
)
def test_a_password_is_masked_wherever_a_url_carries_it(url: str, shown: str) -> None:
    assert without_password(url) == shown


def test_a_file_of_another_user_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "helios.toml").write_text("[model]\nseed = 7\n")
    with seen_as(4711):  # who runs Helios
        configuration = configured(tmp_path)
    assert configuration.settings.model.seed == 0
    (note,) = configuration.notes
    assert "belongs to another user" in note and f"helios --config {tmp_path / 'helios.toml'}" in note


def test_a_file_that_another_user_wrote_is_not_even_parsed(tmp_path: Path) -> None:
    (tmp_path / "helios.toml").write_text("[model\n")
    with seen_as(4711):
        assert configured(tmp_path).settings == configured(tmp_path / "nowhere").settings


@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_a_file_that_others_can_write_is_not_believed(tmp_path: Path, mode: int) -> None:
    (tmp_path / "helios.toml").write_text("[model]\nseed = 7\n")
    (tmp_path / "helios.toml").chmod(mode)
    configuration = configured(tmp_path)
    assert configuration.settings.model.seed == 0
    assert "can be written by others" in configuration.notes[0]


def test_a_named_file_that_others_can_write_is_used_and_told(tmp_path: Path) -> None:
    file = tmp_path / "site.toml"
    file.write_text("[model]\nseed = 7\n")
    file.chmod(0o666)
    configuration = configured(tmp_path, HELIOS_CONFIG=str(file))
    assert configuration.settings.model.seed == 7
    assert f"chmod go-w {file}" in configuration.notes[0]


def test_a_file_of_one_s_own_is_believed_without_a_word(tmp_path: Path) -> None:
    assert configured(tmp_path, "[model]\nseed = 7\n").notes == ()


def test_a_pipe_in_place_of_the_file_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "helios.toml")
    assert configured(tmp_path).settings.model.seed == 0


def test_a_mistyped_variable_is_refused_with_the_nearest_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationInvalid, match="HELIOS_DATABSE_URL") as refused:
        configured(tmp_path, HELIOS_DATABSE_URL="sqlite:///mine.db")
    assert "HELIOS_DATABASE_URL?" in refused.value.hint


def test_every_variable_that_the_repository_uses_is_known(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    own = (root / "tests", root / "tests" / "live", root / "benchmarks")
    files = [*(root / "deploy").rglob("*"), *(file for folder in own for file in folder.glob("*.py"))]
    reads = re.compile(r"environ(?:\.get\(|\[)[\"'](HELIOS_\w+)|\$\{?(HELIOS_\w+)|(?:Environment=|export )(HELIOS_\w+)")
    found = {name for file in files if file.is_file() for it in reads.findall(file.read_text("latin-1")) for name in it}
    assert found - {""}
    configured(tmp_path, **dict.fromkeys(found - {"", "HELIOS_CONFIG", "HELIOS_DAEMON_LISTEN"}, "/x"))


def test_the_example_file_holds_every_setting_at_its_default(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "deploy" / "helios.toml"
    configuration = load_configuration(environment={"HELIOS_CONFIG": str(example)}, folder=tmp_path)
    assert configuration.settings == configured(tmp_path).settings
    assert (
        example.read_text() == example_file()
    )  # python -c 'from helios.config import *; print(example_file(), end="")'


def test_every_key_of_the_example_file_shows_its_default(tmp_path: Path) -> None:
    lines = [line.removeprefix("#") if re.match(r"#\w+ = ", line) else line for line in example_file().splitlines()]
    configuration = configured(tmp_path, "\n".join(lines))
    assert {setting.key for setting in configuration.listing()} == set(configuration.origins)
    defaults = {it.key: it.value for it in configured(tmp_path / "nowhere").listing()}
    unlike = {it.key for it in configuration.listing() if it.value != defaults[it.key]}
    assert unlike == {"database.url", "control.state_folder", "report.folder"}  # they depend on the user


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o1777])
def test_a_file_in_a_folder_that_others_can_write_is_not_used(tmp_path: Path, mode: int) -> None:
    (tmp_path / "helios.toml").write_text("[model]\nseed = 7\n")
    tmp_path.chmod(mode)
    configuration = configured(tmp_path)
    assert configuration.settings.model.seed == 0
    assert "lies in a folder that can be written by others" in configuration.notes[0]


def test_an_own_file_in_a_foreign_folder_is_not_used(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    (tmp_path / "helios.toml").write_text("[slurm]\ncommands = '/tmp'\n")
    os.chown(tmp_path, 65534, 65534)
    configuration = configured(tmp_path)
    assert configuration.settings.slurm.commands == ""
    assert "lies in a folder that belongs to another user" in configuration.notes[0]


def test_a_relative_folder_of_commands_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationInvalid, match="absolute path"):
        configured(tmp_path, "[slurm]\ncommands = 'bin'\n")


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder in place of /etc/helios."""
    folder = tmp_path / "etc"
    (folder / "conf.d").mkdir(parents=True)
    monkeypatch.setattr(config, "SYSTEM_FOLDER", folder)
    return folder


def test_each_file_wins_over_the_ones_before_it(system: Path, tmp_path: Path) -> None:
    home, here = tmp_path / "home", tmp_path / "here"
    places = {
        "lease_s": (system / "helios.toml", 60),
        "breaker_s": (system / "conf.d" / "10-a.toml", 2),
        "failures_to_suspend": (system / "conf.d" / "20-b.toml", 3),
        "most_of_one_user": (home / ".config" / "helios" / "helios.toml", 0.4),
        "mismatches_to_open": (here / "helios.toml", 7),
    }
    names = list(places)
    for place, (path, _) in enumerate(places.values()):
        path.parent.mkdir(parents=True, exist_ok=True)
        own = {name: places[name][1] for name in names[place:]}  # each sets its own key and those of all after it
        path.write_text("[control]\n" + "".join(f"{name} = {value!r}\n" for name, value in own.items()))
    configuration = configured(here, HOME=str(home), HELIOS_CONTROL_LEASE_S="90")
    control = configuration.settings.control
    assert {name: getattr(control, name) for name in names} == {
        "lease_s": 90, **{name: value for name, (_, value) in places.items() if name != "lease_s"}
    }  # fmt: skip
    for name in names[1:]:
        assert origin_of(configuration, f"control.{name}") == str(places[name][0])
    assert configuration.files == tuple(str(path) for path, _ in places.values())


def test_a_named_file_is_read_instead_of_all_others(system: Path, tmp_path: Path) -> None:
    (system / "helios.toml").write_text("[model]\nseed = 1\nkept = 5\n")
    (tmp_path / "site.toml").write_text("[model]\nseed = 2\n")
    configuration = configured(tmp_path, "[model]\nkept = 6\n", HELIOS_CONFIG=str(tmp_path / "site.toml"))
    assert (configuration.settings.model.seed, configuration.settings.model.kept) == (2, 30)


@pytest.mark.parametrize("open_to_others", ["helios.toml", "conf.d", "conf.d/10-a.toml", "."])
def test_a_system_file_that_others_can_write_is_an_error(system: Path, tmp_path: Path, open_to_others: str) -> None:
    (system / "helios.toml").write_text("[power]\nnever = 'login1'\n")
    (system / "conf.d" / "10-a.toml").write_text("[model]\nseed = 2\n")
    place = system / open_to_others
    place.chmod(place.stat().st_mode | 0o020)
    with pytest.raises(ConfigurationInvalid, match="can be written by others") as refused:
        configured(tmp_path)
    assert "chmod go-w" in refused.value.hint


def test_services_of_several_files_add_up(system: Path, tmp_path: Path) -> None:
    (system / "helios.toml").write_text("[services.qssf]\n")
    (system / "conf.d" / "ces.toml").write_text("[services.ces]\n")
    (system / "conf.d" / "ces.toml.rpmsave").write_text("broken")
    assert set(configured(tmp_path).settings.services) == {"qssf", "ces"}


def test_a_home_that_another_user_owns_is_not_used(tmp_path: Path) -> None:
    own = tmp_path / "home" / ".config" / "helios"
    own.mkdir(parents=True)
    (own / "helios.toml").write_text("[model]\nseed = 7\n")
    assert configured(tmp_path, HOME=str(tmp_path / "home")).settings.model.seed == 7
    with seen_as(4711):  # as root, with the HOME of who typed sudo
        assert configured(tmp_path, HOME=str(tmp_path / "home")).settings.model.seed == 0


@pytest.mark.parametrize(
    "name", ["HELIOS_TEST_ANYTHING", "HELIOS_REPORT", "HELIOS_REQUESTS", "HELIOS_CHECKPOINTS", "HELIOS_TRIAL",
             "HELIOS_PARAMETERS", "HELIOS_DEVICE"],
)  # fmt: skip
def test_variables_of_tests_and_of_training_tasks_are_left_alone(tmp_path: Path, name: str) -> None:
    assert configured(tmp_path, **{name: "1"}).settings == configured(tmp_path).settings


@pytest.mark.parametrize(
    ("toml", "near"),
    [("[model]\nsead = 7\n", "model.seed"), ("[modle]\nseed = 7\n", "model")],
)
def test_an_unknown_key_or_section_is_refused_with_the_nearest_one(tmp_path: Path, toml: str, near: str) -> None:
    with pytest.raises(ConfigurationInvalid, match=r"helios\.toml\): is not a key") as refused:
        configured(tmp_path, toml)
    assert refused.value.hint.startswith(f"Did you mean {near}?")


@pytest.mark.parametrize("toml", ["[daemon]\nturn_s = 77\n", "[web]\nin_daemon = true\n", "[power]\ntiers = 3\n"])
def test_a_key_that_is_gone_is_unknown(tmp_path: Path, toml: str) -> None:
    (tmp_path / "helios.toml").write_text(toml)
    with pytest.raises(ConfigurationInvalid, match="is not a key of Helios"):
        load_configuration(environment={}, folder=tmp_path)
