"""sacct's accounting as CSV, as pandas, spreadsheets and ``--delimiter=,`` write it."""

import csv
import io

import pytest

from helios.errors import NothingUnderstood
from helios.ingest import open_trace
from tests.unit.ingest.builders import a_file, a_sacct_row, read, rejects_of, the_job

TRES = "billing=16,cpu=16,gres/gpu:a100=8,gres/gpu=8,mem=128G,node=2"
ROW = a_sacct_row(NNodes="2", ReqTRES=TRES, AllocTRES=TRES, NodeList="n[1-2]", JobName="train")


def as_csv(*rows, **options):
    text = io.StringIO()
    table = csv.writer(text, **options)
    table.writerows([list(rows[0]), *(list(row.values()) for row in rows)])
    return text.getvalue()


def as_delimited(*rows, delimiter=","):
    return "".join(f"{delimiter.join(line)}\n" for line in [list(rows[0]), *(row.values() for row in rows)])


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
def test_quoted_fields_may_hold_the_delimiter(tmp_path, delimiter, quoting):
    row = ROW | {"NodeList": "n1,n3", "JobName": f'lr{delimiter} "0.1"'}
    job = the_job(a_file(tmp_path, as_csv(row, delimiter=delimiter, quoting=quoting)))
    assert job[["gpus", "nodes", "node_list", "name", "tres_allocated"]].tolist() == [
        *(8, 2.0, "n1,n3", f'lr{delimiter} "0.1"', TRES),
    ]


def test_a_quoted_name_may_hold_a_newline(tmp_path):
    rows = [ROW | {"JobName": "two\nlines"}, ROW | {"JobIDRaw": "101", "JobID": "101"}]
    jobs = read(a_file(tmp_path, as_csv(*rows))).jobs
    assert jobs["name"].tolist() == ["two\nlines", "train"] and jobs["gpus"].tolist() == [8, 8]


def test_the_index_column_of_pandas_is_no_field(tmp_path):
    lines = as_csv(ROW).splitlines()
    text = "\n".join(["," + lines[0], "0," + lines[1]])
    assert the_job(a_file(tmp_path, text))["gpus"] == 8


def test_quoted_fields_cannot_be_forged_and_no_note_says_so(tmp_path):
    notes = [batch.notes for batch in open_trace(a_file(tmp_path, as_csv(ROW))).read()][-1]
    assert not any("forge" in note for note in notes)


def test_unquoted_lists_of_tres_and_nodes_are_told_apart(tmp_path):
    row = ROW | {"NodeList": "n[1,3]"}
    job = the_job(a_file(tmp_path, as_delimited(row)))
    assert job[["gpus", "gpu_type", "node_list", "name"]].tolist() == [8, "a100", "n[1,3]", "train"]
    assert job[["tres_requested", "tres_allocated"]].tolist() == [TRES, TRES]


def test_an_unquoted_list_ends_where_the_next_column_begins(tmp_path):
    row = ROW | {"ReqTRES": "cpu=1,mem=4G", "AllocTRES": "billing=2,cpu=2,mem=4G"}
    job = the_job(a_file(tmp_path, as_delimited(row)))
    assert job[["tres_requested", "tres_allocated"]].tolist() == ["cpu=1,mem=4G", "billing=2,cpu=2,mem=4G"]


def test_unquoted_node_names_are_joined_where_their_number_fits(tmp_path):
    job = the_job(a_file(tmp_path, as_delimited(ROW | {"NodeList": "n1,n3"})))
    assert job[["node_list", "name"]].tolist() == ["n1,n3", "train"]


def test_an_unquoted_name_with_commas_is_joined_where_the_nodes_fit(tmp_path):
    job = the_job(a_file(tmp_path, as_delimited(ROW | {"JobName": "lr=0.1,seed=2"})))
    assert job[["node_list", "name", "gpus"]].tolist() == ["n[1-2]", "lr=0.1,seed=2", 8]


def test_a_row_that_fits_no_way_is_refused_and_not_guessed(tmp_path):
    bad = ROW | {"JobIDRaw": "101", "NodeList": "n1,n3", "JobName": "a,b"}
    assert rejects_of(a_file(tmp_path, as_delimited(ROW, bad))) == [(3, "wrong number of fields")]


def test_times_of_a_spreadsheet_are_refused_with_their_text(tmp_path):
    row = ROW | {"Submit": "01.03.2024 08:00"}
    with pytest.raises(NothingUnderstood, match=r"'01\.03\.2024 08:00' in submit on line 2") as refused:
        read(a_file(tmp_path, as_csv(row, delimiter=";")))
    assert "spreadsheet" in str(refused.value.hint)


def test_rows_without_names_say_how_many_names_are_missing(tmp_path):
    lines = as_delimited(ROW, delimiter="|").splitlines()
    with pytest.raises(Exception, match=f"put the {len(ROW)} names"):
        open_trace(a_file(tmp_path, lines[1] + "\n"))
