import json
import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helios.errors import UsageError
from helios.report.admin import decisions, predictions, usage
from helios.report.admin.sacct_format import (
    Field,
    FieldKind,
    ReportTable,
    as_json,
    as_lines,
    as_parsable,
    chosen_fields,
    declare_fields,
    named_fields,
    slurm_length,
    write_values,
)

FIELDS = declare_fields(
    ("User", "user", FieldKind.TEXT, 8, "Who"),
    ("Jobs", "jobs", FieldKind.COUNT, 5, "How many"),
    ("MeanWait", "mean_wait_s", FieldKind.LENGTH, 8, "How long"),
    ("Failed", "failed_share", FieldKind.SHARE, 6, "How often"),
)


def an_answer(**overrides: object) -> ReportTable:
    rows = pd.DataFrame(
        {
            "user": ["alice", "bartholomew"],
            "jobs": [12, 3],
            "mean_wait_s": [3661.0, np.nan],
            "failed_share": [0.25, 0.0],
        }
    )
    answer = {"title": "Users", "fields": FIELDS, "shown": ("User", "Jobs", "MeanWait"), "rows": rows}
    return ReportTable(**{**answer, **overrides})  # type: ignore[arg-type]


def lines(answer: ReportTable, asked: str | None = None, *, header: bool = True) -> list[str]:
    return list(as_lines(answer, chosen_fields(answer, asked), header=header))


def test_a_report_looks_as_sacct_s() -> None:
    assert lines(an_answer()) == [
        "User      Jobs MeanWait",
        "-------- ----- --------",
        "alice       12 01:01:01",
        "barthol+     3",
    ]


def test_without_header_only_rows_are_printed() -> None:
    assert lines(an_answer(), header=False) == ["alice       12 01:01:01", "barthol+     3"]


def test_a_total_stands_below_a_rule() -> None:
    answer = an_answer(total={"user": "Total", "jobs": 15, "mean_wait_s": 60.0})
    assert lines(answer)[-2:] == ["-------- ----- --------", "Total       15 00:01:00"]


def test_fields_are_chosen_by_name_without_regard_to_case() -> None:
    assert lines(an_answer(), "failed,USER")[:3] == ["Failed User", "------ --------", " 25.0% alice"]


def test_a_width_pads_a_text_and_a_minus_aligns_numbers_left() -> None:
    assert lines(an_answer(), "user%12,jobs%-6,failed")[2:] == [
        "alice        12      25.0%",
        "bartholomew  3        0.0%",
    ]


def test_a_number_is_never_cut_unless_a_width_was_asked_for() -> None:
    answer = an_answer(rows=an_answer().rows.assign(jobs=[1_234_567, 1]))
    assert lines(answer, "jobs")[2:] == ["1234567", "      1"]
    assert lines(answer, "jobs%4")[2:] == ["123+", "   1"]


@pytest.mark.parametrize("asked", ["nodes", "user,nodes", "user%", "user%0", "user%x", "user%-", ",", ""])
def test_a_field_or_width_that_makes_no_sense_is_refused(asked: str) -> None:
    with pytest.raises(UsageError):
        chosen_fields(an_answer(), asked)


def test_a_wrong_field_names_those_there_are() -> None:
    with pytest.raises(UsageError, match="no field 'usr'") as refused:
        chosen_fields(an_answer(), "usr")
    assert [line.split()[0] for line in refused.value.hint.splitlines()[1:]] == ["User", "Jobs", "MeanWait", "Failed"]


def test_the_parsable_form_is_uncut() -> None:
    answer = an_answer(total={"user": "Total", "jobs": 15})
    fields = chosen_fields(answer, "user,jobs")
    assert list(as_parsable(answer, fields)) == ["User|Jobs", "alice|12", "bartholomew|3"]
    assert list(as_parsable(answer, fields, header=False)) == ["alice|12", "bartholomew|3"]


def test_json_has_every_field_of_every_row_as_plain_values() -> None:
    answer = an_answer(total={"user": "Total", "jobs": np.int64(15), "mean_wait_s": np.nan}, notes=("a note",))
    read = json.loads(json.dumps(as_json(answer), allow_nan=False))
    assert read["rows"][1] == {"user": "bartholomew", "jobs": 3, "mean_wait_s": None, "failed_share": 0.0}
    assert read["total"] == {"user": "Total", "jobs": 15, "mean_wait_s": None}
    assert read["notes"] == ["a note"]


def test_moments_are_written_on_the_cluster_s_clock() -> None:
    moment = pd.Timestamp("2026-11-20T20:00:00Z")
    assert write_values(moment, FieldKind.MOMENT, timezone="Asia/Shanghai") == "2026-11-21T04:00:00"
    assert write_values(pd.NaT, FieldKind.MOMENT) == ""


def test_a_line_break_in_a_reason_does_not_break_the_row() -> None:
    assert write_values("first\nsecond\x1b[31m", FieldKind.TEXT) == "first second [31m"


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (0.1234, FieldKind.SHARE, "12.3%"),
        (2.34, FieldKind.FACTOR, "2.3x"),
        (123_456.0, FieldKind.FACTOR, "123456x"),
        (3.0, FieldKind.COUNT, "3"),
        (12.345, FieldKind.DECIMAL, "12.3"),
        (None, FieldKind.TEXT, ""),
    ],
)
def test_each_kind_is_written_in_its_way(value: object, kind: FieldKind, text: str) -> None:
    assert write_values(value, kind) == text


@given(st.integers(0, 10**9))
def test_a_length_reads_back_as_the_seconds_it_was(seconds: int) -> None:
    found = re.fullmatch(r"(?:(\d+)-)?(\d\d):([0-5]\d):([0-5]\d)", slurm_length(seconds))
    assert found is not None
    days, hours, minutes, left = (int(part or 0) for part in found.groups())
    assert hours < 24
    assert ((days * 24 + hours) * 60 + minutes) * 60 + left == seconds


REPORTS = {
    "users": (usage.fields_by("user"), ("User", *usage.SHOWN_GPU)),
    "users without GPUs": (usage.fields_by("user"), ("User", *usage.SHOWN_CPU)),
    "queue over time": (usage.OVER_TIME, tuple(field.name for field in usage.OVER_TIME)),
    "shadow": (decisions.SHADOW_FIELDS, tuple(field.name for field in decisions.SHADOW_FIELDS)),
}


@pytest.mark.parametrize("name", REPORTS)
def test_the_default_columns_fit_100_characters(name: str) -> None:
    fields, shown = REPORTS[name]
    widths = [abs(field.width) for field in fields if field.name in shown]
    assert len(widths) == len(shown)
    assert sum(widths) + len(widths) - 1 <= 100


@pytest.mark.parametrize(
    "fields",
    [
        usage.fields_by("user"),
        usage.NOW,
        usage.OVER_TIME,
        predictions.FIELDS,
        decisions.LINES,
        decisions.BY_SERVICE,
        decisions.SHADOW_FIELDS,
    ],
)
def test_every_field_has_a_line_and_a_name_of_its_own(fields: tuple[Field, ...]) -> None:
    assert len({field.name.lower() for field in fields}) == len(fields)
    assert len({field.column for field in fields}) == len(fields)
    with pytest.raises(UsageError) as refused:
        named_fields(fields, "help")
    lines = [line.strip() for line in refused.value.hint.splitlines()[1:]]
    assert len(lines) == len(fields)
    assert all(line.split(maxsplit=1)[1] and len(line) <= 100 for line in lines)
