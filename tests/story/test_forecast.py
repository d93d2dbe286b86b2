"""A person asks how good forecasts of node demand are, of a file and of a loaded cluster."""

from datetime import UTC, datetime
from pathlib import Path

from helios.ingest import synthetic_trace, write_helios_csv
from tests.story.shell import Helios
from tests.traces import TRACES, needs_traces

HORIZONS = [1, 3, 6, 24]


@needs_traces
def test_a_published_series_is_judged(helios: Helios) -> None:
    series = TRACES / "philly_nodes_oct-nov2017.csv.gz"
    window = ("--from", "2017-11-27", "--to", "2017-12-01", "--timezone", "America/Los_Angeles")
    answer = helios("forecast", "evaluate", "--series", series, *window, "--json").json
    assert answer["series"] == "philly_nodes_oct-nov2017" and answer["step_s"] == 600
    assert [row["horizon_h"] for row in answer["rows"] if row["method"] == "helios"] == HORIZONS
    assert all(row["mae"] > 0 and row["pinball"] > 0 and 0 < row["smape"] < 200 for row in answer["rows"])
    assert {row["method"] for row in answer["most_needed"]} == {"helios", "now_plus_empirical_quantile"}
    assert any("hole" in note for note in answer["notes"])


def test_a_loaded_cluster_is_judged_and_read_by_a_person(helios: Helios, tmp_path: Path) -> None:
    write_helios_csv(synthetic_trace(start=datetime(2020, 9, 1, tzinfo=UTC), days=10), tmp_path / "venus.csv")
    helios("trace", "load", "venus.csv", "--timezone", "Asia/Shanghai")
    answer = helios("forecast", "evaluate", "--cluster", "venus", "--from", "2020-09-09")
    assert "as now" in answer.out and "now + empirical quantile" in answer.out
    assert "The forecast " in answer.out


def test_a_series_without_a_total_says_how_to_tell_it(helios: Helios, tmp_path: Path) -> None:
    (tmp_path / "nodes.csv").write_text("time,active\n2020-01-01 00:00:00,3\n2020-01-01 00:01:00,4\n", encoding="utf-8")
    answer = helios("forecast", "evaluate", "--series", "nodes.csv", code=2)
    assert "--total N" in answer.err


def test_a_series_and_a_cluster_at_once_are_refused(helios: Helios) -> None:
    assert "Give one of them" in helios("forecast", "evaluate", "--series", "x.csv", "--cluster", "v", code=2).err
