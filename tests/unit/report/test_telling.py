import json
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

from rich.console import Console

from helios.report.job_wait import (
    ROWS,
    Blocker,
    Cause,
    Holder,
    OtherReplay,
    Overtaken,
    ShorterLimit,
    WaitExplanation,
    WaitInterval,
    story_lines,
    story_screen,
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
    return "\n".join(story_lines(story))


def screen(story: WaitExplanation) -> str:
    console = Console(width=160, file=StringIO())
    with console.capture() as captured:
        console.print(story_screen(story))
    return captured.get()


def test_a_wait_is_told_cause_by_cause_the_longest_first() -> None:
    first, second, third, *_ = story_lines(a_story(*THREE_HOURS))
    assert "waited 3 h, number 3 of 7 in the queue at first" in first
    assert second == "- 2 h on priority behind job 812 of ann (16 GPUs); 4 to 12 GPUs were free."
    assert third == (
        "- 1 h next in line, for 16 GPUs in one piece; 16 to 20 GPUs were free, but on nodes that hold a job of "
        "0 to 8 at most."
    )


def test_many_who_came_first_are_named_up_to_three_and_counted() -> None:
    behind = [
        a_interval(Cause.PRIORITY, 100 * n, 100, blocker=Blocker(job_id=str(n), user="", gpus=1), free=(0, 0))
        for n in range(5)
    ]
    assert "behind job 0 (1 GPU), 1 min 40 s behind job 1 (1 GPU)" in said(a_story(*behind))
    assert "3 min 20 s behind 2 others; no GPU was free." in said(a_story(*behind))


def test_gpus_that_were_free_in_pieces_for_those_who_came_first_are_told() -> None:
    interval = a_interval(Cause.PRIORITY, 0, HOUR, scattered_s=600, fitted_s=300)
    assert "for 10 min enough for who came first, but in pieces; for 5 min it would have fitted" in said(
        a_story(interval)
    )


def test_a_place_that_backfill_kept_is_told_with_the_start_it_was_kept_for() -> None:
    interval = a_interval(Cause.RESERVED, 0, HOUR, reserved_at=after(2 * HOUR))
    assert (
        "- 1 h it would have fitted, but backfill kept the place for job 812 of ann (16 GPUs), expected to start by "
        "2020-09-01 12:00 UTC." in said(a_story(interval))
    )


def test_a_job_that_did_not_wait_has_a_short_story() -> None:
    assert story_lines(a_story()) == [
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
    assert "23 jobs submitted later started earlier: 20 that the order put before it and 3 that backfill let" in text
    assert "With a time limit of 30 min backfill would have started it by 2020-09-01 11:00 UTC, 2 h earlier." in text
    assert (
        "Under QSSF predicted, it would have started at 2020-09-01 11:00:00 UTC, having waited 1 h: 2 h shorter."
        in text
    )
    assert "In truth it waited 2 h" in text


def test_a_screen_shows_the_longest_phases_and_counts_the_others() -> None:
    causes = [Cause.PRIORITY, Cause.RESOURCES]
    many = [a_interval(causes[n % 2], 100 * n, 100) for n in range(30)]
    text = screen(a_story(*many))
    assert text.count("resources: next in line") + text.count("priority: job 812") == ROWS
    assert "18 shorter phases" in text


def test_a_name_is_never_read_as_a_style() -> None:
    interval = a_interval(Cause.PRIORITY, 0, HOUR, blocker=Blocker(job_id="1", user="[bold]x", gpus=1))
    assert "[bold]x" in screen(a_story(interval, *THREE_HOURS[1:]))


def test_a_program_gets_the_same_in_numbers() -> None:
    answer = json.loads(json.dumps(a_story(*THREE_HOURS).to_json(), allow_nan=False))
    assert answer["wait_s"] == 3 * HOUR
    assert answer["wait_s_by_cause"] == {"priority": 2 * HOUR, "resources": 0, "pieces": HOUR, "reserved": 0}
    assert sum(interval["length_s"] for interval in answer["intervals"]) == 3 * HOUR
    assert answer["intervals"][0]["behind"] == "812"
