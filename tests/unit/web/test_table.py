"""Tables of pages: sorted, paged and filtered by the server, and the same rows as CSV."""

from __future__ import annotations

import csv
import io

import pandas as pd
import pytest

from helios.errors import UsageError
from helios.report.admin.sacct_format import FieldKind, ReportTable, declare_fields
from helios.web.table import ROWS_OF_PAGE, DataTable

FIELDS = declare_fields(
    ("User", "user", FieldKind.TEXT, 10, "User"),
    ("Jobs", "jobs", FieldKind.COUNT, 5, "Jobs"),
    ("Wait", "wait_s", FieldKind.LENGTH, 8, "Mean wait"),
    ("Unknown", "unknown", FieldKind.COUNT, 8, "Nobody knows"),
)


def table(rows: int = 120) -> DataTable:
    frame = pd.DataFrame(
        {
            "user": [f"user{number:03d}" for number in range(rows)],
            "jobs": [number % 7 for number in range(rows)],
            "wait_s": [None if number % 10 == 0 else 60.0 * number for number in range(rows)],
            "unknown": [None] * rows,
        }
    )
    return DataTable(answer=ReportTable(title="", fields=FIELDS, rows=frame, total={"user": "all", "jobs": 400}))


def users(found: DataTable, **given: str) -> list[str]:
    return [row[0] for row in found.view(given).cells.rows]


def test_a_long_table_comes_in_pages() -> None:
    view = table().view({"page": "3"})
    assert (view.rows, view.pages, view.first, len(view.cells.rows)) == (120, 3, 2 * ROWS_OF_PAGE + 1, 20)


@pytest.mark.parametrize("page", ["0", "4", "-1", "x", "²"])
def test_a_page_that_is_not_there_is_refused(page: str) -> None:
    with pytest.raises(UsageError, match="is not here"):
        table().view({"page": page})


def test_rows_are_sorted_over_all_pages_and_unknown_ones_last() -> None:
    assert users(table(), sort="-Wait")[:2] == ["user119", "user118"]
    assert users(table(), sort="Wait", page="3")[-12:] == [f"user{number:03d}" for number in range(0, 120, 10)]


def test_equal_rows_keep_the_order_of_the_report() -> None:
    assert users(table(), sort="-Jobs")[:3] == ["user006", "user013", "user020"]


def test_an_unknown_column_is_refused_with_those_there_are() -> None:
    with pytest.raises(UsageError) as refused:
        table().view({"sort": "Nothing"})
    assert "User, Jobs, Wait" in str(refused.value.hint)


def test_a_text_is_found_in_any_case_and_the_total_goes() -> None:
    view = table().view({"find": "USER11"})
    assert [row[0] for row in view.cells.rows] == [f"user{number}" for number in range(110, 120)]
    assert view.total is None and table().view({}).total is not None


def test_the_head_of_a_column_asks_for_the_other_direction() -> None:
    found, (user, jobs, _) = table(), table().fields
    assert (found.view({}).next_sort(user), found.view({}).next_sort(jobs)) == ("User", "-Jobs")
    assert found.view({"sort": "-Jobs"}).next_sort(jobs) == "Jobs"
    assert found.view({"sort": "-Jobs"}).direction(jobs) == "descending"


def test_csv_has_what_is_found_on_all_pages_without_empty_columns() -> None:
    rows = list(csv.reader(io.StringIO("".join(table().to_csv({"find": "user0", "sort": "-Wait", "page": "2"})))))
    assert rows[:2] == [["user", "jobs", "wait_s"], ["user099", "1", "5940.0"]]
    assert len(rows) == 101


def test_json_has_the_rows_of_a_page_and_all_without_one() -> None:
    found, values = table(), {"rows": [f"row {number}" for number in range(120)]}
    assert found.to_json(values, {}) == {}
    assert found.to_json(values, {"page": "3"})["rows"] == values["rows"][100:]
    assert found.to_json(values, {"find": "user11", "sort": "-User"})["rows"][:2] == ["row 119", "row 118"]


def test_a_spreadsheet_takes_no_name_of_a_user_for_a_formula() -> None:
    frame = pd.DataFrame(
        {"user": ['=HYPERLINK("x")', "+1", "bob"], "jobs": [-1, 1, 1], "wait_s": None, "unknown": None}
    )
    text = "".join(DataTable(answer=ReportTable(title="", fields=FIELDS, rows=frame)).to_csv({}))
    assert [row[0] for row in csv.reader(io.StringIO(text))][1:] == ['\'=HYPERLINK("x")', "'+1", "bob"]
    assert ",-1" in text
