import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from helios import config
from helios.config import Configuration, load_configuration, without_password
from helios.errors import ConfigurationInvalid


def configured(folder: Path, toml: str = "", **environment: str) -> Configuration:
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


def origin_of(configuration: Configuration, key: str) -> str:
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


def test_a_wrong_value_is_told_with_what_the_key_means_and_not_with_all_keys(tmp_path: Path) -> None:
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


def test_a_file_that_another_user_wrote_is_not_believed_and_that_is_told(tmp_path: Path) -> None:
    (tmp_path / "helios.toml").write_text("[model]\nseed = 7\n")
    with seen_as(4711):  # who runs Helios
        configuration = configured(tmp_path)
    assert configuration.settings.model.seed == 0
    (note,) = configuration.notes
    assert "belongs to another user" in note and f"HELIOS_CONFIG={tmp_path / 'helios.toml'}" in note


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
    configured(tmp_path, **dict.fromkeys(found - {"", "HELIOS_CONFIG", "HELIOS_DAEMON_LISTEN"}, "x"))


def test_the_example_file_holds_every_setting_at_its_default(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "deploy" / "helios.toml"
    configuration = load_configuration(environment={"HELIOS_CONFIG": str(example)}, folder=tmp_path)
    assert configuration.settings == configured(tmp_path).settings
    commented = example.read_text()
    assert all(f"{setting.key.split('.')[1]} = " in commented for setting in configuration.listing())
