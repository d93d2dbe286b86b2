"""A table of somebody else's columns, loaded and replayed as a person would."""

from pathlib import Path

import pytest

from tests.story.shell import Helios

MAP = """timezone = "Europe/Berlin"
[columns]
job_id = "id"
user = "who"
submitted_at = "sub"
started_at = "beg"
ended_at = "fin"
gpus = "gpu"
nodes = "n"
time_limit_s = { column = "hours", unit = "hours" }
"""
ROWS = "".join(
    f"{number},u{number % 3},2024-03-0{number} 08:00:00,2024-03-0{number} 08:10:00,2024-03-0{number} 09:10:00,2,1,4\n"
    for number in range(1, 9)
)


@pytest.fixture
def table(tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "jobs.csv").write_text(f"id,who,sub,beg,fin,gpu,n,hours\n{ROWS}bad,u1,yesterday,,,1,1,1\n")
    (tmp_path / "map.toml").write_text(MAP)
    return tmp_path / "jobs.csv", tmp_path / "map.toml"


def test_a_table_is_loaded_by_a_map(helios: Helios, table: tuple[Path, Path]) -> None:
    answer = helios("trace", "load", table[0], "--columns", table[1], "--json")
    assert {"cluster": "jobs", "jobs_new": 8, "rejects": {"time is not understood": 1}}.items() <= answer.json.items()
    assert f"as the map {table[1]} says (SHA-256 " in answer.err and "'yesterday'" in answer.err
    assert helios("trace", "list", "--json").json[0]["timezone"] == "Europe/Berlin"
    assert "yesterday" in helios("trace", "describe").out


def test_the_same_file_and_map_are_loaded_once(helios: Helios, table: tuple[Path, Path]) -> None:
    helios("trace", "load", table[0], "--columns", table[1])
    assert helios("trace", "load", table[0], "--columns", table[1], "--json").json["already_loaded"]
    table[1].write_text(MAP.replace('"hours" }', '"days" }'))
    assert helios("trace", "load", table[0], "--columns", table[1], "--json").json["jobs_updated"] == 8


def test_a_table_without_a_map_is_to_be_loaded_first(helios: Helios, table: tuple[Path, Path]) -> None:
    said = " ".join(helios("trace", "describe", "--trace", table[0], code=2).err.split())
    assert f"helios trace load {table[0]} --cluster NAME" in said and "--columns MAP" in said
    helios("trace", "load", table[0], "--cluster", "site", "--columns", table[1])
    found = helios("trace", "describe", "--cluster", "site", "--json").json
    assert (found["jobs"], found["resource_hours"]) == (8, 16)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("load", "jobs.csv", "--columns", "help"), "f-data"),
        (("load", "jobs.csv", "--columns", "pm100"), "has no column 'job_id', which pm100 names for job_id"),
        (("load", "jobs.csv", "--columns", "map.toml", "--format", "sacct"), "Leave --format out"),
    ],
)
def test_a_map_used_wrongly_is_explained(
    helios: Helios, table: tuple[Path, Path], words: tuple[str, ...], said: str
) -> None:
    assert said in helios("trace", *words, code=2).err
