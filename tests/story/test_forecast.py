"""A person asks how many nodes will be needed tomorrow, of a file and of a loaded cluster."""

from datetime import UTC, datetime
from pathlib import Path

from helios.ingest import synthetic_trace, write_helios_csv
from tests.story.shell import Helios, shell
from tests.traces import TRACES, needs_traces


@needs_traces
def test_a_published_series_is_forecast_hour_by_hour(tmp_path: Path) -> None:
    series = TRACES / "philly_nodes_oct-nov2017.csv.gz"
    helios = shell(tmp_path, HELIOS_INGEST_TIMEZONE="America/Los_Angeles")
    answer = helios("forecast", "--series", series, "--to", "2017-10-29", "--json").json
    assert answer["series"] == "philly_nodes_oct-nov2017"
    assert answer["hours"][0]["begin"] == "2017-10-31T00:00:00-07:00" and len(answer["hours"]) == 24
    assert all(0 <= hour["low"] <= hour["expected"] <= hour["high"] <= answer["nodes"] for hour in answer["hours"])
    assert {row["method"] for row in answer["scores"]} == {"helios", "as_now", "same_hour_last_week"}
    assert any("hole" in note for note in answer["notes"])


def test_a_loaded_cluster_is_forecast_and_read_by_a_person(helios: Helios, tmp_path: Path) -> None:
    write_helios_csv(synthetic_trace(start=datetime(2020, 8, 1, tzinfo=UTC), days=20), tmp_path / "venus.csv")
    helios("trace", "load", "venus.csv", "--timezone", "Asia/Shanghai")
    answer = helios("forecast", "--cluster", "venus")
    assert "venus: nodes needed on " in answer.out
    assert "Fewest nodes are needed from " in answer.out and "a week ago" in answer.out


def test_a_series_without_a_total_says_how_to_tell_it(helios: Helios, tmp_path: Path) -> None:
    (tmp_path / "nodes.csv").write_text("time,active\n2020-01-01 00:00:00,3\n2020-01-01 00:01:00,4\n", encoding="utf-8")
    answer = helios("forecast", "--series", "nodes.csv", code=2)
    assert "--total N" in answer.err


def test_a_history_of_days_says_how_much_it_takes(helios: Helios, tmp_path: Path) -> None:
    (tmp_path / "nodes.csv").write_text("time,active,total\n2020-01-01 00:00,3,5\n2020-01-01 00:10,4,5\n", "utf-8")
    assert "0 days before the forecast, and it takes 14" in helios("forecast", "--series", "nodes.csv", code=1).err


def test_a_series_and_a_cluster_at_once_are_refused(helios: Helios) -> None:
    assert "Give one of them" in helios("forecast", "--series", "x.csv", "--cluster", "v", code=2).err
