"""Tables of any columns, read as a map says."""

import gzip
import json
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helios.errors import FileUnreadable, FormatUnknown, NothingUnderstood, UsageError
from helios.ingest import open_trace, read_map, reader, requeued
from helios.model import Batch

AT = 1_700_000_000
"""2023-11-14T22:13:20Z, s since the epoch."""
PLAIN = """
timezone = "America/New_York"
[columns]
job_id = "id"
user = "who"
name = "title"
submitted_at = { column = "sub", unit = "epoch s" }
started_at = { column = "beg", unit = "epoch s", missing = [0] }
ended_at = { column = "fin", unit = "epoch s", missing = [0] }
time_limit_s = { column = "lim", unit = "minutes", missing = [4294967295] }
memory_mib = { column = "mem", unit = "GiB" }
gpus = "gpu"
state = { column = "st", values = { 3 = "COMPLETED", 4 = "CANCELLED" } }
"""
HEADER = "id,who,title,sub,beg,fin,lim,mem,gpu,st"
ROW = f"7,ann,fit,{AT},{AT + 60},{AT + 3660},90,2.5,4,3"


def a_map(folder: Path, text: str) -> str:
    path = folder / "map.toml"
    path.write_text(text)
    return str(path)


def a_file(folder: Path, content: str | bytes, name: str = "table") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def read(path: Path, columns: str, *, cluster: str | None = None, timezone: str | None = None) -> Batch:
    batches = [*open_trace(path, columns=read_map(columns), timezone=timezone).read(cluster=cluster)]
    return Batch(
        jobs=pd.concat([batch.jobs for batch in batches], ignore_index=True),
        rejects=pd.concat([batch.rejects for batch in batches], ignore_index=True),
        bytes_read=batches[-1].bytes_read,
        notes=batches[-1].notes,
    )


def a_table(folder: Path, *rows: str, text: str = PLAIN, header: str = HEADER) -> Batch:
    return read(a_file(folder, "\n".join([header, *rows]) + "\n"), a_map(folder, text))


def moments(jobs: pd.DataFrame, name: str) -> list[float | None]:
    return [None if pd.isna(at) else at.timestamp() for at in jobs[name]]


def test_columns_units_and_values_are_read_as_the_map_says(tmp_path):
    jobs = a_table(tmp_path, ROW).jobs
    (job,) = jobs.to_dict(orient="records")
    assert (job["job_id"], job["user"], job["name"], job["state"], job["gpus"]) == ("7", "ann", "fit", "COMPLETED", 4)
    assert (job["time_limit_s"], job["memory_mib"], job["run_time_s"]) == (5400, 2560, 3600)
    assert [job[name].timestamp() - AT for name in ("submitted_at", "started_at", "ended_at")] == [0, 60, 3660]


def test_missing_values_are_unknown(tmp_path):
    jobs = a_table(tmp_path, f"7,ann,fit,{AT},0,0.0,4294967295,,,4").jobs
    assert jobs[["started_at", "ended_at", "time_limit_s", "run_time_s", "memory_mib"]].isna().all(axis=None)


def test_the_notes_name_the_map_and_its_digest(tmp_path):
    found = a_table(tmp_path, ROW)
    columns = read_map(str(tmp_path / "map.toml"))
    assert [note for note in found.notes if str(tmp_path / "map.toml") in note and columns.sha256 in note]


def test_another_map_makes_another_load_of_the_same_file(tmp_path):
    path = a_file(tmp_path, f"{HEADER}\n{ROW}\n")
    first, second = (open_trace(path, columns=read_map(a_map(tmp_path, text))) for text in (PLAIN, PLAIN + "#"))
    assert first.sha256 != second.sha256


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_separators_and_encodings_are_recognised(tmp_path, separator, encoding):
    lines = f"{HEADER}\n{ROW.replace('fit', 'grün')}\n".replace(",", separator)
    jobs = read(a_file(tmp_path, gzip.compress(lines.encode(encoding))), a_map(tmp_path, PLAIN)).jobs
    assert jobs["name"].tolist() == ["grün"]


def test_a_quoted_field_holds_separators_and_line_breaks(tmp_path):
    rows = [ROW.replace("fit", '"a, ""b""\nc"'), ROW.replace("7,", "8,", 1)]
    assert a_table(tmp_path, *rows).jobs["name"].tolist() == ['a, "b"\nc', "fit"]


def test_a_row_with_too_few_fields_is_a_reject_with_its_line(tmp_path):
    found = a_table(tmp_path, ROW, "8,bob")
    assert found.rejects[["line", "reason"]].values.tolist() == [[3, "wrong number of fields"]]


def test_a_value_that_is_not_understood_is_a_reject(tmp_path):
    found = a_table(tmp_path, ROW, ROW.replace("7,", "8,", 1).replace("2.5", "much"))
    assert found.rejects["reason"].tolist() == ["number is not understood"] and len(found.jobs) == 1


def test_runs_of_one_job_are_numbered(tmp_path):
    again = f"7,ann,fit,{AT},{AT + 5000},{AT + 6000},90,2.5,4,3"
    assert a_table(tmp_path, ROW.replace(",3", ",REQUEUED"), again).jobs["restart"].tolist() == [0, 1]


def times_of(tmp_path: Path, text: str, source: str) -> list[float | None]:
    columns = f'timezone = "America/New_York"\n[columns]\njob_id = "id"\nsubmitted_at = {source}\n'
    return moments(a_table(tmp_path, f"7,{text}", text=columns, header="id,t").jobs, "submitted_at")


@pytest.mark.parametrize(
    ("text", "source"),
    [
        (f"{AT}", '{ column = "t", unit = "epoch s" }'),
        (f"{AT}000", '{ column = "t", unit = "epoch ms" }'),
        (f"{AT}000000", '{ column = "t", unit = "epoch us" }'),
        (f"{AT}.0", '{ column = "t", unit = "epoch s" }'),
        ("2023-11-14T22:13:20Z", '"t"'),
        ("2023-11-14 17:13:20", '"t"'),
        ("14.11.2023 17:13:20", '{ column = "t", unit = "%d.%m.%Y %H:%M:%S" }'),
        ("11/14/23 23:13:20 +0100", '{ column = "t", unit = "%m/%d/%y %H:%M:%S %z" }'),
    ],
)
def test_times_are_read_in_the_unit_and_zone_of_the_map(tmp_path, text, source):
    assert times_of(tmp_path, text, source) == [AT]


def test_a_number_is_no_time_without_its_unit(tmp_path):
    with pytest.raises(NothingUnderstood, match="time is not understood"):
        times_of(tmp_path, str(AT), '"t"')


def test_a_time_of_another_format_is_a_reject(tmp_path):
    with pytest.raises(NothingUnderstood, match="time is not understood"):
        times_of(tmp_path, "2023-11-14", '{ column = "t", unit = "%d.%m.%Y" }')


LOCAL = '[columns]\njob_id = "id"\nsubmitted_at = "t"\n'


def test_local_times_without_a_zone_are_an_error(tmp_path):
    with pytest.raises(UsageError, match=r"does not say which zone(.|\n)*timezone ="):
        a_table(tmp_path, "7,2023-11-14 17:13:20", text=LOCAL, header="id,t")


def test_a_zone_may_be_given_where_the_map_has_none(tmp_path):
    path = a_file(tmp_path, "id,t\n7,2023-11-14 17:13:20\n")
    jobs = read(path, a_map(tmp_path, LOCAL), timezone="America/New_York").jobs
    assert moments(jobs, "submitted_at") == [AT]


def test_the_zone_of_the_map_comes_first(tmp_path):
    path, columns = a_file(tmp_path, f"{HEADER}\n{ROW}\n"), read_map(a_map(tmp_path, PLAIN))
    assert open_trace(path, columns=columns, timezone="UTC").timezone == "America/New_York"


def one(tmp_path: Path, source: str, header: str, row: str) -> pd.Series:
    text = (
        f'timezone = "UTC"\n[columns]\njob_id = "id"\nsubmitted_at = {{ column = "t", unit = "epoch s" }}\n{source}\n'
    )
    return a_table(tmp_path, f"7,{AT},{row}", text=text, header=f"id,t,{header}").jobs.iloc[0]


def test_of_several_columns_the_first_known_value_counts(tmp_path):
    assert one(tmp_path, 'user = ["a", "b"]', "a,b", ",bob")["user"] == "bob"


def test_a_template_joins_columns_where_all_are_known(tmp_path):
    source = 'name = { template = ["{a}/{b}", "{a}"], missing = [0] }'
    assert [one(tmp_path, source, "a,b", row)["name"] for row in ("x,2", "x,0")] == ["x/2", "x"]


def test_a_template_without_columns_is_a_constant(tmp_path):
    assert one(tmp_path, 'gpus = { template = "0" }', "a", "x")["gpus"] == 0


@pytest.mark.parametrize("text", ["-1", "1.5"])
def test_a_number_of_a_restart_is_whole(tmp_path, text):
    with pytest.raises(NothingUnderstood, match=f"number is not understood.*'{text}' in r"):
        one(tmp_path, 'restart = "r"', "r", text)


def test_gpus_that_the_map_leaves_out_are_unknown(tmp_path):
    assert pd.isna(one(tmp_path, 'user = "a"', "a", "x")["gpus"])


def test_numbers_are_multiplied_by_another_column(tmp_path):
    source = 'memory_mib = { column = "each", unit = "GiB", times = "n" }'
    assert one(tmp_path, source, "each,n", "2,4")["memory_mib"] == 8 * 1024


def test_a_missing_end_is_start_plus_run_time(tmp_path):
    source = 'started_at = { column = "b", unit = "epoch s" }\nrun_time_s = { column = "d", unit = "hours" }'
    assert one(tmp_path, source, "b,d", f"{AT},2")["ended_at"].timestamp() == AT + 7200


def test_a_run_time_that_contradicts_the_times_is_noted(tmp_path):
    text = PLAIN + 'run_time_s = { column = "lim", unit = "s" }\n'
    found = a_table(tmp_path, ROW, text=text)
    assert found.jobs["run_time_s"].tolist() == [90]
    assert [note for note in found.notes if "other than end minus start" in note and "'7'" in note]


@pytest.mark.parametrize(
    ("source", "text", "expected"),
    [
        ('{ column = "x", tres = "gres/gpu" }', '"cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=62.50G"', 2),
        ('{ column = "x", gres = "gpu" }', "gpu:a100:3(IDX:0-2)", 3),
        ('{ column = "x", tres = "gres/gpu", unit = "tres ids" }', '"1=8,1001=5,2=100"', 5),
        ('{ column = "x", unit = "percent" }', "200", 2),
    ],
)
def test_gpus_are_read_from_lists(tmp_path, source, text, expected):
    tres = '\n[tres]\n1001 = "gres/gpu"'
    assert one(tmp_path, f"gpus = {source}{tres}", "x", text)["gpus"] == expected


def test_a_tres_without_a_name_is_noted(tmp_path):
    source = 'gpus = { column = "x", tres = "gres/gpu", unit = "tres ids" }'
    text = (
        f'timezone = "UTC"\n[columns]\njob_id = "id"\nsubmitted_at = {{ column = "t", unit = "epoch s" }}\n{source}\n'
    )
    found = a_table(tmp_path, f'7,{AT},"1=8,1001=5"', text=text, header="id,t,x")
    assert [note for note in found.notes if "the TRES 1001" in note and "'7'" in note]


@pytest.mark.parametrize(
    ("number", "state"),
    [
        (3, "COMPLETED"),
        (0x400, "REQUEUED"),
        (0x2000 | 1, "RESIZING"),
        (0x8000 | 5, "FAILED"),
        (0x80000 | 4, "REVOKED"),
        (11, "OUT_OF_MEMORY"),
    ],
)
def test_slurms_numbers_of_states_are_read_with_their_flags(tmp_path, number, state):
    assert one(tmp_path, 'state = { column = "s", unit = "slurm state" }', "s", str(number))["state"] == state


def test_rows_that_the_map_does_not_keep_are_counted(tmp_path):
    text = PLAIN.replace("[columns]", "[keep]\ngpu = [4]\n[columns]")
    found = a_table(tmp_path, ROW, ROW.replace("7,", "8,", 1).replace(",4,", ",1,"), text=text)
    assert found.jobs["job_id"].tolist() == ["7"]
    assert [note for note in found.notes if note.startswith("1 row was left out")]


def a_parquet(folder: Path, **columns: object) -> Path:
    path = folder / "table.parquet"
    pq.write_table(pa.table(columns), path)
    return path


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", None])
def test_timestamps_of_parquet_need_no_unit(tmp_path, unit, zone):
    local = AT + (9 * 3600 if zone is None else 0)
    at = pa.array([local * {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]], pa.timestamp(unit, tz=zone))
    path = a_parquet(tmp_path, id=["7"], t=at)
    jobs = read(path, a_map(tmp_path, f'timezone = "Asia/Tokyo"\n{LOCAL}')).jobs
    assert moments(jobs, "submitted_at") == [AT]


def test_ids_that_pandas_made_floats_are_whole_again(tmp_path):
    path = a_parquet(tmp_path, id=[7.0, 8.0, None], t=pa.array([AT] * 3, pa.timestamp("s", tz="UTC")))
    found = read(path, a_map(tmp_path, f'timezone = "UTC"\n{LOCAL}'))
    assert found.jobs["job_id"].tolist() == ["7", "8"]
    assert found.rejects[["line", "reason"]].values.tolist() == [[3, "no job id"]]


def test_a_column_of_lists_is_named(tmp_path):
    path = a_parquet(tmp_path, id=[["7"]], t=pa.array([AT], pa.timestamp("s")))
    with pytest.raises(FormatUnknown, match=r"lists in its column id"):
        read(path, a_map(tmp_path, f'timezone = "UTC"\n{LOCAL}'))


def test_json_is_read_as_a_list_and_one_after_the_other(tmp_path):
    records = [{"id": 7, "t": "2023-11-14T22:13:20"}, {"_source": {"id": 8, "t": "2023-11-14T22:13:20"}}]
    columns = a_map(tmp_path, f'timezone = "UTC"\n{LOCAL}')
    lines = read(a_file(tmp_path, "\n".join(map(json.dumps, records))), columns).jobs
    listed = read(a_file(tmp_path, json.dumps(records)), columns).jobs
    pd.testing.assert_frame_equal(lines, listed)
    assert lines["job_id"].tolist() == ["7", "8"] and moments(lines, "submitted_at") == [AT, AT]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a = = 1", "no TOML file.*line 1"),
        ('timezon = "UTC"\n' + LOCAL, "line 1: timezon is no key.*Did you mean 'timezone'"),
        ('[columns]\njob_id = "id"\nsubmited_at = "t"', "line 3: .*no column of Helios.*Did you mean 'submitted_at'"),
        ('[columns]\njob_id = "id"\nsubmitted_at = { colum = "t" }', "line 3: .*Did you mean 'column'"),
        ('[columns]\njob_id = "id"\nsubmitted_at = { column = "t", unit = "epoch m" }', "'epoch m'.*'epoch ms'"),
        ('[columns]\njob_id = "id"', "lacks submitted_at"),
        (LOCAL + 'time_limit_s = "l"', "line 4: .*needs the unit(.|\n)*minutes"),
        (LOCAL + 'memory_mib = { column = "m", unit = "GB/s" }', "'GB/s', which is none"),
        (LOCAL + 'gpus = { column = "x", tres = "gres/gpus" }', "Did you mean 'gres/gpu'"),
        (LOCAL + 'user = { column = "u", values = { 1 = 2 } }', "is not understood"),
        (LOCAL + 'user = { unit = "s" }', "needs either a column or a template"),
        (LOCAL + 'user = { column = "u", times = "x" }', "times is for numbers"),
        (LOCAL + '[sacct]\njobidraw = "id"\nsubmit = "t"', "cannot stand beside"),
        ('[sacct]\njobidraw = "id"\nsubmit = "t"\nstates = "s"', "no field of sacct.*Did you mean 'state'"),
    ],
)
def test_an_error_in_a_map_names_its_line_and_what_is_near(tmp_path, text, said):
    with pytest.raises(UsageError, match=f"(?s){said}"):
        read_map(a_map(tmp_path, text))


def test_a_map_that_does_not_exist_names_those_of_helios():
    with pytest.raises(UsageError, match=r"no map 'help'(.|\n)*f-data.*pm100.*slurmdbd"):
        read_map("help")


CONTENTS = {
    "csv": b"idd,t\n7,2023-11-14T22:13:20Z\n",
    "json": b'{"idd": 7, "t": "2023-11-14T22:13:20Z"}\n',
    "sql": b"CREATE TABLE `jobs` (\n  `idd` int,\n  `t` text\n);\nINSERT INTO `jobs` VALUES (7,'2023-11-14');\n",
}


@pytest.mark.parametrize("kind", CONTENTS)
def test_a_column_that_the_file_lacks_is_named_with_what_is_near(tmp_path, kind):
    columns = a_map(tmp_path, f'timezone = "UTC"\ntable = "jobs"\n{LOCAL}')
    with pytest.raises(UsageError, match=r"no column 'id', .* for job_id. Did you mean 'idd'(.|\n)*idd, t"):
        read(a_file(tmp_path, CONTENTS[kind]), columns)


def test_a_column_that_may_lack_is_left_out(tmp_path):
    text = f'timezone = "UTC"\n{LOCAL}user = {{ column = "who", optional = true }}'
    assert a_table(tmp_path, "7,2023-11-14", text=text, header="id,t").jobs["user"].isna().all()


@pytest.mark.parametrize("name", sorted(path.stem for path in Path(reader.__file__).parent.glob("maps/*.toml")))
def test_every_map_of_helios_can_be_read(name):
    assert read_map(name).keys.timezone


JOBS_TABLE = (
    "CREATE TABLE `jobs` (\n  `id` int(10) NOT NULL,\n  `t` text,\n  `name` tinytext,\n  PRIMARY KEY (`id`)\n);\n"
)
DUMP_MAP = f'timezone = "UTC"\ntable = "jobs"\n{LOCAL}name = "name"\n'


def a_dump(folder: Path, *statements: str, create: str = JOBS_TABLE) -> Batch:
    content = "-- MariaDB dump 10.19 it's\n/*!40101 SET NAMES utf8mb4; */;\n" + create + "\n".join(statements)
    return read(a_file(folder, content), a_map(folder, DUMP_MAP))


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("'fit'", "fit"),
        (r"'it\'s'", "it's"),
        ("'it''s'", "it's"),
        (r"'a\\b'", "a\\b"),
        (r"'two\nlines\tö'", "two\nlines\tö"),
        ("'raw\nline'", "raw\nline"),
        (r"'),(9,\'2023-11-14\',\'x\');'", "),(9,'2023-11-14','x');"),
        ("'\nINSERT INTO `jobs` VALUES (9,1,2);\n'", "\nINSERT INTO `jobs` VALUES (9,1,2);\n"),
        ("'NULL'", "NULL"),
        ("0x666974", "fit"),
        ("X'666974'", "fit"),
        ("_binary 'fit'", "fit"),
    ],
)
def test_texts_of_a_dump_are_read_as_mysql_reads_them(tmp_path, written, name):
    found = a_dump(tmp_path, f"INSERT INTO `jobs` VALUES (7,'2023-11-14',{written}),(8,'2023-11-14',NULL);")
    assert found.jobs["job_id"].tolist() == ["7", "8"] and found.rejects.empty
    assert found.jobs["name"].iloc[0] == name and pd.isna(found.jobs["name"].iloc[1])


@pytest.mark.parametrize(
    "insert",
    [
        "INSERT INTO `jobs` VALUES\n(7,'2023-11-14','x'),\n(8,'2023-11-14','y');\n",
        "INSERT INTO `jobs` (`name`, `id`, `t`) VALUES ('x',7,'2023-11-14'),('y',8,'2023-11-14');",
        "insert ignore into db.jobs values (7, '2023-11-14', 'x') , (8, '2023-11-14', 'y') ;",
        "INSERT INTO jobs VALUES (7,'2023-11-14','x');\nINSERT INTO other VALUES (1);\nREPLACE INTO jobs VALUES "
        "(8,'2023-11-14','y');",
    ],
)
def test_inserts_are_read_in_every_form(tmp_path, insert):
    other = "CREATE TABLE `other` (\n  `a` int\n);\n"
    found = a_dump(tmp_path, insert, create=JOBS_TABLE + other)
    assert found.jobs[["job_id", "name"]].values.tolist() == [["7", "x"], ["8", "y"]]


def test_a_row_of_a_dump_with_too_few_values_is_a_reject(tmp_path):
    found = a_dump(tmp_path, "INSERT INTO `jobs` VALUES (7,'2023-11-14','x'),(8,'y'),(9,'2023-11-14','z');")
    assert found.jobs["job_id"].tolist() == ["7", "9"]
    assert found.rejects[["reason", "text"]].values.tolist() == [["wrong number of fields", "(8,'y')"]]


def test_a_dump_that_was_cut_is_an_error(tmp_path):
    with pytest.raises(FileUnreadable, match="ends within a statement"):
        a_dump(tmp_path, "INSERT INTO `jobs` VALUES (7,'2023-11-14','x'),(8,'2023-")


def test_a_dump_without_names_of_columns_is_an_error(tmp_path):
    with pytest.raises(FormatUnknown, match="which columns the table jobs has"):
        a_dump(tmp_path, "INSERT INTO jobs VALUES (7,'2023-11-14','x');", create="")


def test_a_map_without_a_table_names_those_of_the_dump(tmp_path):
    path = a_file(tmp_path, JOBS_TABLE)
    with pytest.raises(FormatUnknown, match=r'names none of them(.|\n)*table = "NAME"(.|\n)*jobs'):
        read(path, a_map(tmp_path, DUMP_MAP.replace('table = "jobs"\n', "")))


def test_repeated_rows_of_a_dump_too_large_to_keep_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr(requeued, "LARGEST_KEPT_BYTES", 0)
    row = "(7,'2023-11-14','x')"
    found = a_dump(tmp_path, f"INSERT INTO jobs VALUES {row};", f"INSERT INTO jobs VALUES {row};")
    assert found.rejects[["line", "reason"]].values.tolist() == [[2, "duplicate row"]]


def test_statements_longer_than_a_chunk_are_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("helios.ingest.sql_dump.CHUNK_BYTES", 7)
    found = a_dump(tmp_path, "INSERT INTO jobs VALUES (7,'2023-11-14','a;b'),\n(8,'2023-11-14','--');")
    assert found.jobs["name"].tolist() == ["a;b", "--"]


def test_a_text_that_is_not_understood_is_named_with_its_column(tmp_path):
    found = a_table(tmp_path, ROW, ROW.replace("7,", "8,", 1).replace("2.5", "much"))
    assert "Number is not understood: first 'much' in mem on line 3" in found.notes


def two_tables(folder: Path) -> Path:
    tables = [JOBS_TABLE.replace("jobs", f"{name}_jobs") for name in ("mars", "venus")]
    rows = [
        f"INSERT INTO {name}_jobs VALUES ({number},'2023-11-14','x');" for number, name in ((7, "mars"), (8, "venus"))
    ]
    return a_file(folder, "\n".join([*tables, *rows]))


def test_tables_of_several_clusters_are_never_read_as_one(tmp_path):
    columns = a_map(tmp_path, DUMP_MAP.replace('"jobs"', '"*_jobs"'))
    with pytest.raises(UsageError, match=r"several clusters: mars, venus(.|\n)*--cluster"):
        read(two_tables(tmp_path), columns)
    assert read(two_tables(tmp_path), columns, cluster="venus").jobs["job_id"].tolist() == ["8"]
