"""Statements on what jobs held and did not use, against plain counts over small random histories."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.metrics.blocks import Finding
from helios.model import JOB_USE
from helios.study.statements.use import fits_a_part, held_and_unused, unused_requests, use_of_history
from tests.examples import examples
from tests.unit.study.random_worlds import END, STEP_S, Row, frame_row, history_of, rows
from tests.unit.study.worlds import a_history

worlds = settings(max_examples=examples(15), deadline=None)
TWO_HOURS = 8


@dataclass(frozen=True)
class Used:
    """What was measured of a run; None is not known."""

    row: Row
    busy: float | None
    memory: float | None
    session: int | None
    idle_steps: int | None
    peak: float | None
    cpu: float | None
    covered: float
    shared: int
    quality: str

    @property
    def stands(self) -> bool:
        """Whether the measurement of GPUs stands for the run."""
        covers = self.row.run is None or self.covered >= 0.9
        return covers and not self.shared and self.quality == "ok" and self.row.hours > 0 and self.row.gpus > 0


@st.composite
def used(draw: st.DrawFn) -> tuple[list[Row], list[Used]]:
    """Runs, of which some were measured."""
    world = draw(rows())
    percent = st.none() | st.sampled_from([0.0, 0.9, 1.0, 24.0, 25.0, 49.0, 50.0, 90.0])
    held = st.none() | st.sampled_from([0.0, 9.0, 10.0, 19.0, 20.0, 40.0])
    found = [
        Used(
            row=row,
            busy=draw(percent),
            memory=draw(held),
            session=draw(st.sampled_from([0, 1, 1, None])),
            idle_steps=draw(st.none() | st.integers(0, 30)),
            peak=draw(st.none() | st.sampled_from([0.0, 50.0, 120.0])),
            cpu=draw(st.none() | st.sampled_from([0.0, 1.5, 9.0])),
            covered=draw(st.sampled_from([0.5, 0.9, 1.0])),
            shared=draw(st.sampled_from([0, 0, 0, 1])),
            quality=draw(st.sampled_from(["ok", "ok", "partial", "broken"])),
        )
        for row in world
        if draw(st.booleans())
    ]
    return world, found


def measured_frame(found: Sequence[Used]) -> pd.DataFrame:
    """Return the measurements as ``JOB_USE``, with GPUs of 40 MiB and limits of 100 MiB."""
    return JOB_USE.conform(
        pd.DataFrame(
            [
                {name: frame_row(one.row)[name] for name in ("submitted_at", "job_id", "restart")}
                | {
                    "source": "jobstats",
                    "busy_means": "a kernel ran",
                    "quality": one.quality,
                    "utilization": one.busy,
                    "gpu_memory_peak_mib": one.memory,
                    "gpu_memory_total_mib": 40.0,
                    "is_interactive": one.session,
                    "is_shared": one.shared,
                    "longest_idle_s": None if one.idle_steps is None else one.idle_steps * STEP_S,
                    "covered_s": None if one.row.run is None else one.covered * one.row.run * STEP_S,
                    "memory_peak_mib": one.peak,
                    "memory_limit_mib": 100.0,
                    "cpu_s": None if one.cpu is None or one.row.run is None else one.cpu * one.row.run * STEP_S,
                }
                for one in found
            ]
        )
    )


def seen(world: Iterable[Used]) -> list[Used]:
    return [one for one in world if one.row.submitted >= 0 or one.row.ended is None or one.row.ended > 0]


def same(found: Finding, part: float, whole: float) -> None:
    """Compare a finding with two sums, not known where the second is 0."""
    expected = pytest.approx(part / whole, abs=1e-9) if whole else None
    assert found.estimate.value == expected


@worlds
@given(used())
def test_hours_held_and_unused_are_those_of_a_plain_count(case: tuple[list[Row], list[Used]]) -> None:
    world, found = case
    if not found:
        return
    history = history_of(world)
    finding = held_and_unused(history, use_of_history(history, measured_frame(found)))
    known = [one for one in seen(found) if one.stands and one.busy is not None]
    idle = [one for one in known if (one.busy or 0) < 1]
    same(finding, sum(one.row.hours for one in idle), sum(one.row.hours for one in known))
    if not known:
        return
    sessions = [one for one in known if one.session == 1]
    if sessions:
        unused = sum(one.row.hours for one in idle if one.session == 1) / sum(one.row.hours for one in sessions)
        assert finding.parts["by_kind"]["interactive"]["unused"] == pytest.approx(unused)
    freed, someone = 0.0, False
    for one in seen(found):
        if one.session is None or one.quality == "broken" or one.row.hours == 0:
            continue
        idle_steps = one.idle_steps if one.stands else None
        if one.stands and one.busy == 0:
            idle_steps = one.row.run or 0
        if one.session == 0 or idle_steps is not None:
            someone = True
        if one.session == 1 and idle_steps is not None:
            steps = max(min(idle_steps, one.row.run or 0) - TWO_HOURS, 0)
            freed += min(steps * one.row.gpus / 4, one.row.hours)
    total = sum(row.hours for row in world if row.submitted >= 0 or row.ended is None or row.ended > 0)
    assert finding.parts["freed_by_timeout"] == (pytest.approx(freed / total) if someone else None)


@worlds
@given(used())
def test_hours_that_fit_half_a_gpu_are_those_of_a_plain_count(case: tuple[list[Row], list[Used]]) -> None:
    world, found = case
    if not found:
        return
    history = history_of(world)
    finding = fits_a_part(history, use_of_history(history, measured_frame(found)))
    known = [one for one in seen(found) if one.stands and one.busy is not None and one.memory is not None]
    half = [one for one in known if (one.busy or 0) < 50 and (one.memory or 0) < 20]
    quarter = [one for one in known if (one.busy or 0) < 25 and (one.memory or 0) < 10]
    hours = sum(one.row.hours for one in known)
    same(finding, sum(one.row.hours for one in half), hours)
    if known:
        fits = sum(one.row.hours for one in quarter)
        assert finding.parts["share_that_fits_a_quarter"] == pytest.approx(fits / hours)


@worlds
@given(used())
def test_memory_and_cpus_not_used_are_those_of_a_plain_count(case: tuple[list[Row], list[Used]]) -> None:
    world, found = case
    if not found:
        return
    history = history_of(world)
    finding = unused_requests(history, use_of_history(history, measured_frame(found)))
    found = [one for one in found if one.quality != "broken"]
    steps = {id(one): len(one.row.steps()) for one in found}
    memory = [one for one in seen(found) if one.peak is not None and steps[id(one)]]
    left = sum(max(100 - (one.peak or 0), 0) * steps[id(one)] for one in memory)
    same(finding, left, sum(100 * steps[id(one)] for one in memory))
    cpus = [one for one in seen(found) if one.cpu is not None and one.row.run and steps[id(one)]]
    if memory and cpus:
        unused = sum(max(4 - (one.cpu or 0), 0) * steps[id(one)] for one in cpus)
        expected = unused / sum(4 * steps[id(one)] for one in cpus)
        assert finding.parts["share_of_cpu_hours"] == pytest.approx(expected)


def test_nothing_measured_is_not_known_and_not_zero() -> None:
    history = history_of([Row(0, 0, 0, 8, "COMPLETED", 1)])
    for finding in (held_and_unused(history, None), fits_a_part(history, None), unused_requests(history, None)):
        assert finding.estimate.value is None
        assert finding.missing
    unknown = measured_frame([Used(Row(0, 0, 0, 8, "COMPLETED", 1), *[None] * 6, 1.0, 0, "none")])
    measured = use_of_history(history, unknown)
    assert np.isnan(measured["utilization"]).all()
    assert held_and_unused(history, measured).estimate.value is None


def test_a_session_is_known_by_the_name_of_its_job() -> None:
    row = Row(0, 0, 0, 8, "COMPLETED", 1)
    history = a_history(frame_row(row) | {"name": "sys/dashboard/sys/jupyter"}, end=END * STEP_S)
    found = measured_frame([Used(row, 0.0, *[None] * 5, 1.0, 0, "ok")])
    finding = held_and_unused(history, use_of_history(history, found))
    assert [*finding.parts["by_kind"]] == ["interactive"]
