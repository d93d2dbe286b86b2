from pathlib import Path

import pytest

from helios.config import Configuration, load_configuration, without_password
from helios.errors import ConfigurationInvalid


def configured(folder: Path, toml: str = "", **environment: str) -> Configuration:
    if toml:
        (folder / "helios.toml").write_text(toml)
    return load_configuration(environment=environment, folder=folder)


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
    assert "Time between readings" in caught.value.remedy
    assert "model.seed" not in caught.value.remedy


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


def test_the_example_file_holds_every_setting_at_its_default(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "deploy" / "helios.toml"
    configuration = load_configuration(environment={"HELIOS_CONFIG": str(example)}, folder=tmp_path)
    assert configuration.settings == configured(tmp_path).settings
    commented = example.read_text()
    assert all(f"{setting.key.split('.')[1]} = " in commented for setting in configuration.listing())
