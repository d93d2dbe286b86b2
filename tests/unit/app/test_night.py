"""What the daemon's night does with the settings it was given."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from helios.app.nightly import Night, night
from helios.app.nightly_pages import nightly_pages
from helios.app.reading import Reading
from helios.config import Settings
from helios.errors import HeliosError
from helios.model import Snapshot
from tests.unit.app.sites import Town


def a_night(town: Town, **model: object) -> Night:
    def nothing_read(_: timedelta) -> Reading:
        raise HeliosError("slurmdbd is away")

    def nothing_seen() -> Snapshot:
        raise HeliosError("slurmctld is away")

    settings = Settings.model_validate(
        town.settings.model_dump() | {"model": model, "report": {"folder": str(town.folder / "reports")}}
    )
    return night(settings=settings, cluster="dev", now=town.cluster.now, read=nothing_read, look=nothing_seen)


def test_the_night_trains_on_the_dask_that_is_configured_and_a_dask_that_is_away_stops_no_other_step(
    tmp_path: Path,
) -> None:
    town = Town(tmp_path)
    town.learn(jobs=150)
    done = a_night(town, dask="nowhere://here:1")
    assert any("nowhere://here:1" in trouble.fact or "Dask" in trouble.fact for trouble in done.troubles)
    assert done.report is not None


def test_without_a_dask_the_night_trains_here(tmp_path: Path) -> None:
    town = Town(tmp_path)
    town.learn(jobs=150)
    done = a_night(town)
    assert [trouble.fact for trouble in done.troubles] == ["slurmdbd is away", "slurmctld is away"]
    assert any(step.startswith("model ") for step in done.did)


def test_the_report_of_a_night_and_those_before_it_are_closed_to_other_accounts(tmp_path: Path) -> None:
    town = Town(tmp_path)
    town.learn()
    earlier = nightly_pages(town.url, "dev", "2019-11-20", tmp_path / "reports", now=town.cluster.now).page
    earlier.chmod(0o644)  # as an older Helios left it
    report = nightly_pages(town.url, "dev", "yesterday", tmp_path / "reports", now=town.cluster.now)
    files = [earlier, report.page, report.text, report.mail]
    assert {file.stat().st_mode & 0o777 for file in files} == {0o640}
    assert (tmp_path / "reports").stat().st_mode & 0o777 == 0o750
