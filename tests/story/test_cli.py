"""The small commands a person leans on: help, settings, schema, what is loaded and learned."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from helios.cli.main import import_command
from helios.ingest import synthetic_trace, write_helios_csv
from tests.story.shell import Helios, shell
from tests.unit.ingest.builders import an_swf_file, an_swf_row


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Helios:
    """A site with four days of history loaded and a model trained."""
    folder = tmp_path_factory.mktemp("site")
    write_helios_csv(synthetic_trace(start=datetime(2020, 9, 1, tzinfo=UTC), days=4), folder / "venus.csv.gz")
    helios = shell(folder)
    helios("trace", "load", "venus.csv.gz", "--timezone", "Asia/Shanghai")
    helios("model", "train", "--to", "2020-09-03")
    return helios


def test_help_names_every_noun(helios: Helios) -> None:
    text = helios("--help").out
    assert all(noun in text for noun in ("try", "trace", "model", "whatif", "db", "config"))


@pytest.mark.parametrize(
    "command", [("trace", "load"), ("whatif",), ("model", "evaluate"), ("db", "upgrade"), ("try",), ("config",)]
)
def test_help_shows_an_example(helios: Helios, command: tuple[str, ...]) -> None:
    assert "Example: " in helios(*command, "--help").out


def test_settings_say_where_they_come_from(helios: Helios) -> None:
    origins = {setting["key"]: setting["origin"] for setting in helios("config", "--json").json["settings"]}
    assert origins["database.url"] == "environment HELIOS_DATABASE_URL"
    assert origins["model.seed"] == "default"


def test_a_wrong_setting_is_misuse_and_named(helios: Helios, tmp_path: Path) -> None:
    (tmp_path / "helios.toml").write_text("[model]\nsead = 1\n")
    assert "model.sead" in helios("config", code=2).err


def test_a_new_database_is_brought_to_the_schema_and_says_so(helios: Helios) -> None:
    assert helios("db", "upgrade", "--json").json["applied"]
    assert helios("db", "upgrade", "--json").json["applied"] == []


def test_what_is_loaded_is_listed(site: Helios) -> None:
    (cluster,) = site("trace", "list", "--json").json
    assert cluster["name"] == "venus"
    assert cluster["timezone"] == "Asia/Shanghai"


def test_a_trained_model_is_listed_and_ends_where_it_was_told(site: Helios) -> None:
    (model,) = site("model", "list", "--json").json["models"]
    assert model["jobs"] > 1000
    assert "2020-09-03 16:00" in str(model["trained_until"])


def test_the_day_is_described_on_the_cluster_s_own_clock(site: Helios) -> None:
    assert site("trace", "describe", "--json").json["timezone"] == "Asia/Shanghai"


def test_a_report_can_be_written_for_a_history(site: Helios, tmp_path: Path) -> None:
    site("trace", "describe", "--report", tmp_path / "history.html")
    assert "<svg" in (tmp_path / "history.html").read_text()


def test_a_report_that_cannot_be_written_is_an_error(site: Helios, tmp_path: Path) -> None:
    assert "nowhere" in site("trace", "describe", "--report", tmp_path / "nowhere" / "history.html", code=2).err


def test_a_warm_up_is_replayed_but_not_counted(site: Helios) -> None:
    def whatif(*options: str) -> dict[str, float]:
        # A small cluster, so that the day before leaves a queue behind.
        answer = site(
            *("whatif", "--nodes", "40", "--oversized", "skip", "--from", "2020-09-03", "--policy", "fifo"),
            *("--draws", "0", "--json", *options),
        )
        run: dict[str, float] = answer.json["runs"][1]
        return run

    cold, warm = whatif(), whatif("--warm-up", "1d")
    assert cold["jobs"] == warm["jobs"]
    assert warm["mean_wait_s"] > cold["mean_wait_s"]


def test_a_database_of_a_later_schema_is_left_alone(site: Helios, tmp_path: Path) -> None:
    import sqlite3  # noqa: PLC0415 - only this story looks into the file

    helios = shell(tmp_path)
    helios("db", "upgrade")
    with sqlite3.connect(tmp_path / "helios.db") as database:
        database.execute("update alembic_version set version_num = '9999'")
    assert "9999" in helios("trace", "list", code=1).err
    checks = {it["check"]: it for it in helios("doctor", "--json", code=1).json}
    assert "9999" in checks["warehouse"]["message"] and "newer" in checks["warehouse"]["hint"]


def test_lines_of_a_help_break_where_the_terminal_ends() -> None:
    evaluate = import_command("model").commands["evaluate"]
    paragraphs = evaluate.help.split("\n\n")
    assert len(paragraphs) > 1
    assert not any("\n" in paragraph for paragraph in paragraphs)


def test_an_swf_file_is_replayed_on_the_machine_of_its_header(helios: Helios, tmp_path: Path) -> None:
    rows = [an_swf_row(job=number, submit=number, procs=8, requested_procs=5, run=3600) for number in range(1, 5)]
    path = an_swf_file(tmp_path, "; MaxNodes: 4", "; MaxProcs: 16", *rows)
    assert helios("trace", "describe", "--trace", path, "--json").json["resource_hours"] == 4 * 8
    replay = ("whatif", "--trace", path, "--policy", "fifo", "--json")
    found = helios(*replay)
    assert (found.json["nodes"], found.json["gpus_per_node"]) == ({"all": 4}, 4)
    assert found.json["runs"][0]["max_wait_s"] == 3598  # two at a time
    assert "4 nodes of 4 CPUs (the header of the file)" in found.err
    described = helios(*replay, "--nodes", "8").json
    assert (described["nodes"], described["gpus_per_node"]) == ({"all": 8}, 4)
    helios("trace", "load", path, "--cluster", "lab")
    loaded = helios("whatif", "--cluster", "lab", "--policy", "fifo", "--json")
    assert loaded.json["runs"] == found.json["runs"]
    assert (loaded.json["nodes"], loaded.json["gpus_per_node"]) == ({"all": 4}, 4)
    assert "4 nodes of 4 CPUs (the header of the file)" in loaded.err


def test_weights_are_printed_alone_and_the_rest_is_said_beside_them(helios: Helios, tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text("NodeName=n[1-9] Gres=gpu:8\nPartitionName=all Nodes=ALL\n")
    answer = helios("power", "weights", "--slurm-conf", tmp_path / "slurm.conf")
    assert answer.out.splitlines() == [
        "# In place of the line of NodeName=n[1-9]:",
        "NodeName=n[1-8] Gres=gpu:8 Weight=1",
        "NodeName=n9 Gres=gpu:8 Weight=2",
    ]
    assert "9 nodes in blocks of 8, 2 weights." in answer.err
    assert "scontrol reconfigure" in answer.err


def test_weights_of_files_that_include_each_other_name_the_line(helios: Helios, tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text("ClusterName=venus\nInclude nodes.conf\n")
    (tmp_path / "nodes.conf").write_text("NodeName=n1\n\nInclude slurm.conf\n")
    answer = helios("power", "weights", "--slurm-conf", tmp_path / "slurm.conf", code=2)
    assert "line 2: files include each other without an end" in answer.err
