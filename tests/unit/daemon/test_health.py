import json
import os
import stat
from pathlib import Path

import pytest

from helios.daemon.health import Health, HealthFile
from tests.unit.daemon.builders import HandSet, a_cycle

LATELY = {"cycle": 240.0, "ingest": 960.0}


def well(hand: HandSet) -> Health:
    health = Health(longest_silence_s=LATELY, times=hand.times)
    for name in LATELY:
        health.record_begin(name, at=hand.times.now())
        health.record_success(name, at=hand.times.now(), line="done")
    return health


def test_before_the_first_success_it_is_not_well() -> None:
    reasons = Health(longest_silence_s=LATELY, times=HandSet().times).reasons()
    assert [reason.split()[0] for reason in reasons] == ["cycle", "ingest"]


def test_lately_is_different_for_each_task() -> None:
    hand = HandSet()
    health = well(hand)
    hand.move(240)
    assert health.reasons() == []
    hand.move(1)
    assert health.reasons() == ["cycle has not succeeded for 241 s"]


def test_the_reason_names_the_problem() -> None:
    hand = HandSet()
    health = well(hand)
    health.record_failure("ingest", at=hand.times.now(), problem="slurmdbd is away")
    assert health.reasons() == []
    hand.move(961)
    assert "ingest has not succeeded for 961 s: slurmdbd is away" in health.reasons()


def test_two_failures_in_a_row_are_borne_and_three_are_not() -> None:
    hand = HandSet()
    health = well(hand)
    for expected in ([], [], ["cycle failed 3 times in a row: the lock is held"]):
        health.record_failure("cycle", at=hand.times.now(), problem="the lock is held")
        assert health.reasons() == expected
    assert health.report()["state"] == "failing"


def test_a_long_first_reading_says_that_it_is_at_work() -> None:
    hand = HandSet()
    health = Health(longest_silence_s=LATELY, times=hand.times)
    health.record_begin("ingest", at=hand.times.now())
    hand.move(2000)
    assert "ingest has not succeeded for 2000 s: at work" in health.reasons()


def test_failures_are_counted_in_a_row() -> None:
    hand = HandSet()
    health = well(hand)
    for _ in range(3):
        health.record_failure("cycle", at=hand.times.now(), problem="no")
    assert health.of("cycle").failures == 3
    health.record_success("cycle", at=hand.times.now(), line="")
    fares = health.of("cycle")
    assert (fares.failures, fares.problem, fares.line) == (0, "", "done")


@pytest.mark.parametrize(
    ("cycle", "state"),
    [
        (a_cycle(), "at work"),
        (a_cycle(suspended=("paused",)), "suspended"),
        (a_cycle(suspended=("the lease is another's",), lease_held=False), "standby"),
    ],
)
def test_a_daemon_that_is_well_says_what_it_does(cycle: object, state: str) -> None:
    health = well(HandSet())
    health.record_cycle("cycle", cycle)  # type: ignore[arg-type]  # because parametrize loses the type
    assert health.report()["state"] == state
    assert health.report()["healthy"]


def test_one_that_ends_is_not_well() -> None:
    health = well(HandSet())
    health.record_ending("stopping")
    assert (health.report()["healthy"], health.report()["state"]) == (False, "stopping")


def test_the_report_is_plain_json() -> None:
    health = well(HandSet())
    health.record_cycle("cycle", a_cycle(suspended=("paused",)))
    report = json.loads(json.dumps(health.report()))
    assert report["pid"] == os.getpid()
    assert report["cycle"]["suspended"] == ["paused"]
    assert report["tasks"]["cycle"]["succeeded_at"] == "2026-11-20T12:00:00+00:00"


def test_the_file_holds_the_report_and_nothing_lies_beside_it(tmp_path: Path) -> None:
    HealthFile(tmp_path / "state").write(lambda: {"healthy": True})
    assert json.loads((tmp_path / "state" / "health.json").read_text()) == {"healthy": True}
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["health.json"]


def test_the_file_and_its_folder_are_closed_to_other_accounts(tmp_path: Path) -> None:
    HealthFile(tmp_path / "state").write(dict)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "state", tmp_path / "state" / "health.json")]
    assert modes == [0o750, 0o640]


def test_a_reader_with_the_file_open_never_sees_half_a_file(tmp_path: Path) -> None:
    file = HealthFile(tmp_path)
    file.write(lambda: {"a": 1})
    with (tmp_path / "health.json").open() as opened:
        file.write(lambda: {"b": 2})
        assert json.loads(opened.read()) == {"a": 1}


def test_an_unwritable_folder_is_said_once_and_so_is_its_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    in_the_way = tmp_path / "state"
    in_the_way.write_text("a file where the folder should be")
    file = HealthFile(in_the_way)
    for _ in range(3):
        file.write(dict)
    in_the_way.unlink()
    for _ in range(3):
        file.write(dict)
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
