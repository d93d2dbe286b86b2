import json
import re
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

from rich.console import Console

from helios.report.job import (
    Blocker,
    Cause,
    Holder,
    OtherReplay,
    Overtaken,
    ShorterLimit,
    WaitExplanation,
    WaitInterval,
    wait_facts,
    wait_table,
)

HOUR = 3_600
SUBMITTED = datetime(2020, 9, 1, 10, tzinfo=UTC)
ANN = Blocker(job_id="812", user="ann", gpus=16)


def after(seconds: float) -> datetime:
    return SUBMITTED + timedelta(seconds=seconds)


def a_interval(
    cause: Cause, begin_s: int, length_s: int, *, blocker: Blocker | None = ANN, **overrides: Any
) -> WaitInterval:
    first_in_line = cause in {Cause.RESOURCES, Cause.PIECES}
    return WaitInterval(
        **{
            "began_at": after(begin_s),
            "ended_at": after(begin_s + length_s),
            "cause": cause,
            "blocker": None if first_in_line else blocker,
            "free": (4, 12),
            "room": (0, 8),
            "fitted_s": 0,
            "scattered_s": 0,
            **overrides,
        }
    )


def a_story(*intervals: WaitInterval, **overrides: Any) -> WaitExplanation:
    return WaitExplanation(
        **{
            "job": Blocker(job_id="900", user="eve", gpus=16),
            "cluster": "venus",
            "partition": "gpu",
            "unit": "GPU",
            "label": "FIFO + EASY (limit)",
            "is_today": True,
            "submitted_at": SUBMITTED,
            "started_at": intervals[-1].ended_at if intervals else SUBMITTED,
            "run_time_s": 780,
            "believed_s": None,
            "planned_s": 86_400.0,
            "planned_by": "limit",
            "rank": 3 if intervals else 0,
            "queued": 7 if intervals else 0,
            "intervals": intervals,
            "holders": (),
            "overtaken": Overtaken(by_order=0, by_backfill=0),
            "shorter": None,
            "beside": (),
            "recorded_wait_s": None,
            "notes": (),
            **overrides,
        }
    )


THREE_HOURS = (a_interval(Cause.PRIORITY, 0, 2 * HOUR), a_interval(Cause.PIECES, 2 * HOUR, HOUR, free=(16, 20)))


def said(story: WaitExplanation) -> str:
    return "\n".join(wait_facts(story))


def screen(story: WaitExplanation) -> str:
    console = Console(width=160, file=StringIO())
    with console.capture() as captured:
        console.print(wait_table(story))
    return captured.get()


def test_a_wait_is_told_cause_by_cause_the_longest_first() -> None:
    assert "waited 3 h, number 3 of 7 in the queue at first" in said(a_story(*THREE_HOURS))
    text = screen(a_story(*THREE_HOURS))
    assert re.search(r"Jobs before it in the order +2h00m +4-12 +0-8 +job 812 of ann \(16 GPUs\) 2h00m", text)
    assert re.search(r"Next in line: enough GPUs free, in pieces +1h00m +16-20 +0-8", text)
    assert text.index("Jobs before it") < text.index("Next in line")


def test_stretches_of_one_cause_are_one_row() -> None:
    causes = [Cause.PRIORITY, Cause.RESOURCES]
    text = screen(a_story(*(a_interval(causes[n % 2], 100 * n, 100) for n in range(30))))
    assert text.count("Next in line: too few GPUs free") == text.count("Jobs before it in the order") == 1
    assert "25m00s" in text


def test_many_who_came_first_are_named_up_to_three_and_counted() -> None:
    behind = [
        a_interval(Cause.PRIORITY, 100 * n, 100, blocker=Blocker(job_id=str(n), user="", gpus=1), free=(0, 0))
        for n in range(5)
    ]
    assert "job 0 (1 GPU) 1m40s, job 1 (1 GPU) 1m40s, job 2 (1 GPU) 1m40s, 2 more 3m20s" in screen(a_story(*behind))


def test_a_reserved_place_is_told_with_its_job() -> None:
    text = screen(a_story(a_interval(Cause.RESERVED, 0, HOUR, reserved_at=after(2 * HOUR))))
    assert re.search(r"It fits, but backfill keeps the place +1h00m +4-12 +0-8 +job 812 of ann", text)


def test_a_job_that_did_not_wait_has_a_short_story() -> None:
    assert wait_facts(a_story()) == [
        "Job 900 of eve in gpu: 16 GPUs, submitted 2020-09-01 10:00:00 UTC. Under FIFO + EASY (limit), what a Slurm "
        "site has today, it did not wait.",
        "It ran 13 min; backfill planned with 24 h (its time limit).",
    ]


def test_all_that_stands_beside_the_wait_is_told() -> None:
    story = a_story(
        *THREE_HOURS,
        holders=(Holder(job=ANN, held_s=HOUR, until=after(HOUR)),),
        overtaken=Overtaken(by_order=20, by_backfill=3),
        shorter=ShorterLimit(planned_s=1_800, started_at=after(HOUR)),
        beside=(OtherReplay(label="QSSF predicted", is_today=False, started_at=after(HOUR), wait_s=HOUR),),
        recorded_wait_s=7_200.0,
    )
    text = said(story)
    assert "Most was held meanwhile by job 812 of ann (16 GPUs) for 1 h." in text
    assert "Jobs submitted later that started earlier: 20 by the order, 3 let past by backfill." in text
    assert "With a time limit of 30 min backfill would have started it by 2020-09-01 11:00 UTC, 2 h earlier." in text
    assert "Under QSSF predicted, it would have started at 2020-09-01 11:00:00 UTC, having waited 1 h." in text
    assert "In truth it waited 2 h" in text


def test_a_name_is_never_read_as_a_style() -> None:
    interval = a_interval(Cause.PRIORITY, 0, HOUR, blocker=Blocker(job_id="1", user="[bold]x", gpus=1))
    assert "[bold]x" in screen(a_story(interval, *THREE_HOURS[1:]))


def test_a_program_gets_the_same_in_numbers() -> None:
    answer = json.loads(json.dumps(a_story(*THREE_HOURS).to_json(), allow_nan=False))
    assert answer["wait_s"] == 3 * HOUR
    assert answer["wait_s_by_cause"] == {"priority": 2 * HOUR, "resources": 0, "pieces": HOUR, "reserved": 0}
    assert sum(interval["length_s"] for interval in answer["intervals"]) == 3 * HOUR
    assert answer["intervals"][0]["behind"] == "812"
