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
    JobExplanation,
    ReplayedStart,
    ReplayedWait,
    ShorterLimit,
    WaitInterval,
)

HOUR = 3_600
SUBMITTED = datetime(2020, 9, 1, 10, tzinfo=UTC)
ANN = Blocker(job_id="812", user="ann", gpus=16)


def after(seconds: float) -> datetime:
    return SUBMITTED + timedelta(seconds=seconds)


def an_interval(
    cause: Cause, begin_s: int, length_s: int, *, blocker: Blocker | None = ANN, **overrides: Any
) -> WaitInterval:
    first_in_line = cause in {Cause.RESOURCES, Cause.PIECES}
    return WaitInterval(
        **{
            "began_at": after(begin_s),
            "ended_at": after(begin_s + length_s),
            "length_s": length_s,
            "cause": cause,
            "blocker": None if first_in_line else blocker,
            "free": (4, 12),
            "largest_that_fits": (0, 8),
            "fitted_s": 0,
            "scattered_s": 0,
            **overrides,
        }
    )


def an_explanation(*intervals: WaitInterval, **overrides: Any) -> JobExplanation:
    wait_s = sum(interval.length_s for interval in intervals)
    replay = ReplayedWait(
        **{
            "unit": "GPU",
            "starts": (ReplayedStart(label="FIFO + EASY (limit) (plain)", started_at=after(wait_s), wait_s=wait_s),),
            "believed_s": None,
            "planned_s": 86_400.0,
            "planned_by": "limit",
            "rank": 3 if intervals else 0,
            "queued": 7 if intervals else 0,
            "intervals": intervals,
            "holders": (),
            "overtaken_by_order": 0,
            "overtaken_by_backfill": 0,
            "shorter": None,
            **overrides,
        }
    )
    return JobExplanation(
        job_id="900",
        state="COMPLETED",
        user="eve",
        partition="gpu",
        waited_s=7_200.0,
        gpus=16,
        tasks=1,
        time_limit_s=86_400.0,
        run_time_s=780.0,
        replay=replay,
    )


THREE_HOURS = (an_interval(Cause.PRIORITY, 0, 2 * HOUR), an_interval(Cause.PIECES, 2 * HOUR, HOUR, free=(16, 20)))


def screen(explanation: JobExplanation) -> str:
    console = Console(width=160, file=StringIO())
    with console.capture() as captured:
        for part in explanation.parts():
            console.print(part)
    return captured.get()


def test_causes_of_a_wait_come_with_the_longest_first() -> None:
    text = screen(an_explanation(*THREE_HOURS))
    assert re.search(r"Jobs before it in the order +2h00m +4-12 +0-8 +job 812 of ann \(16 GPUs\) 2h00m", text)
    assert re.search(r"Next in line: enough GPUs free, in pieces +1h00m +16-20 +0-8", text)
    assert text.index("Jobs before it") < text.index("Next in line")


def test_intervals_of_one_cause_are_one_row() -> None:
    causes = [Cause.PRIORITY, Cause.RESOURCES]
    text = screen(an_explanation(*(an_interval(causes[n % 2], 100 * n, 100) for n in range(30))))
    assert text.count("Next in line: too few GPUs free") == text.count("Jobs before it in the order") == 1
    assert "25m00s" in text


def test_three_blockers_are_named_and_the_others_counted() -> None:
    behind = [
        an_interval(Cause.PRIORITY, 100 * n, 100, blocker=Blocker(job_id=str(n), user="", gpus=1), free=(0, 0))
        for n in range(5)
    ]
    assert "job 0 (1 GPU) 1m40s, job 1 (1 GPU) 1m40s, job 2 (1 GPU) 1m40s, 2 more 3m20s" in screen(
        an_explanation(*behind)
    )


def test_a_place_that_backfill_keeps_names_the_job_it_is_for() -> None:
    text = screen(an_explanation(an_interval(Cause.RESERVED, 0, HOUR, reserved_at=after(2 * HOUR))))
    assert re.search(r"It fits, but backfill keeps the place +1h00m +4-12 +0-8 +job 812 of ann", text)


def test_a_job_that_did_not_wait_has_no_causes() -> None:
    assert an_explanation().lines() == [
        "Job 900 of eve in gpu: COMPLETED, 16 GPUs, waited 2 h.",
        "It ran 13 min. Its limit is 24 h.",
        "Backfill planned with 24 h (its time limit).",
        "In the replay it did not wait.",
    ]


def test_all_that_belongs_to_the_wait_is_shown() -> None:
    text = screen(
        an_explanation(
            *THREE_HOURS,
            starts=(
                ReplayedStart(label="FIFO", started_at=after(3 * HOUR), wait_s=3 * HOUR),
                ReplayedStart(label="QSSF predicted", started_at=after(HOUR), wait_s=HOUR),
            ),
            holders=(Holder(job_id="812", user="ann", gpus=16, held_s=HOUR, until=after(HOUR)),),
            overtaken_by_order=20,
            overtaken_by_backfill=3,
            shorter=ShorterLimit(planned_s=1_800, started_at=after(HOUR)),
        )
    )
    assert "In the replay it was number 3 of 7 in its partition at first." in text
    assert "Most was held meanwhile by job 812 of ann (16 GPUs) for 1 h." in text
    assert "Jobs submitted later that started earlier: 20 by the order, 3 let past by backfill." in text
    assert "With a time limit of 30 min it would start 2 h earlier: by 2020-09-01 11:00 UTC." in text
    assert re.search(r"QSSF predicted +1h00m +2020-09-01 11:00:00", text)


def test_a_name_is_never_read_as_a_style() -> None:
    interval = an_interval(Cause.PRIORITY, 0, HOUR, blocker=Blocker(job_id="1", user="[bold]x", gpus=1))
    assert "[bold]x" in screen(an_explanation(interval, *THREE_HOURS[1:]))


def test_a_program_gets_the_same_in_numbers() -> None:
    answer = json.loads(json.dumps(an_explanation(*THREE_HOURS).to_json(), allow_nan=False, default=str))
    assert sum(interval["length_s"] for interval in answer["replay"]["intervals"]) == 3 * HOUR
    assert answer["replay"]["intervals"][0]["blocker"]["job_id"] == "812"
