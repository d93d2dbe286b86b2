"""Records told apart by counting: no name forges a row, whatever is in it."""

from __future__ import annotations

import gzip
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helios.errors import FileUnreadable, FormatUnknown
from helios.ingest import open_trace
from helios.ingest.sacct import FORGEABLE
from tests.examples import examples
from tests.unit.ingest.crafted import NAMES

WORD = "3b1f0e5e-6c5e-4d5c-9f5e-b9a1de1dc5d7"
FIELDS = ("JobIDRaw", "User", "State", "Submit", "Start", "End", "JobName")
TRUE = ("COMPLETED", "1795255120", "1795255121", "1795255181")


def export(*names: str, word: str = WORD, fields: tuple[str, ...] = FIELDS, closes: bool = True) -> bytes:
    """What sacct prints of one job of alice for each name, with ``word`` between the fields."""
    jobs = [dict(zip(FIELDS, (str(number), "alice", *TRUE, name), strict=True)) for number, name in enumerate(names, 1)]
    rows = [list(fields), *([job[field] for field in fields] for job in jobs)]
    return "".join(word.join(row) + word * closes + "\n" for row in rows).encode("utf-8", "surrogateescape")


def jobs_of(folder: Path, content: bytes, **options: int) -> pd.DataFrame:
    path = folder / "sacct.txt"
    path.write_bytes(content)
    return pd.concat([batch.jobs for batch in open_trace(path).read(**options)], ignore_index=True)


def as_read(name: str) -> str | None:
    text = name.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")
    latin = "".join(chr(ord(one) - 0xDC00) if "\udc80" <= one <= "\udcff" else one for one in text)
    return latin.replace("\r\n", "\n").replace("\0", "\ufffd") or None


def assert_true_jobs(jobs: pd.DataFrame, names: list[str]) -> None:
    assert jobs["job_id"].tolist() == [str(number) for number in range(1, len(names) + 1)]
    assert set(jobs["user"]) == {"alice"} and set(jobs["run_time_s"]) == {60}
    assert jobs["name"].astype(object).where(jobs["name"].notna(), None).tolist() == [as_read(name) for name in names]


@pytest.mark.parametrize("rows", [1, 7, 10_000])
@pytest.mark.parametrize("closes", [True, False])
@pytest.mark.parametrize("first", ["JobIDRaw", "State"])
def test_not_one_of_a_hundred_crafted_names_forges_a_row(tmp_path: Path, rows: int, closes: bool, first: str) -> None:
    fields = tuple(sorted(FIELDS, key=lambda field: field != first))
    assert len(NAMES) >= 100
    names = NAMES if closes else [name.rstrip("\r\n") for name in NAMES]  # as below
    assert_true_jobs(jobs_of(tmp_path, export(*names, fields=fields, closes=closes), rows_per_batch=rows), names)


def test_a_first_name_is_read_where_a_delimiter_closes_the_row(tmp_path: Path) -> None:
    assert_true_jobs(jobs_of(tmp_path, export(*NAMES, fields=FIELDS[::-1])), NAMES)


def test_a_first_name_is_refused_where_nothing_closes_the_row(tmp_path: Path) -> None:
    with pytest.raises(FormatUnknown, match="jobname"):
        jobs_of(tmp_path, export("a", "b", fields=FIELDS[::-1], closes=False))


CHARACTERS = st.sampled_from([*"ab|\n\r;,\"'\\\x1e\x1f\x1b\0", WORD[:7], WORD[1:], *FIELDS])


@settings(max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    names=st.lists(st.lists(CHARACTERS, max_size=8).map("".join).filter(lambda name: WORD not in name), min_size=1),
    closes=st.booleans(),
    rows=st.integers(1, 5),
)
def test_names_of_pieces_of_records_forge_no_row(tmp_path: Path, names: list[str], closes: bool, rows: int) -> None:
    # A row that no delimiter closes ends with its newline: which of several at its end it is cannot be told.
    names = names if closes else [name.rstrip("\r\n") for name in names]
    assert_true_jobs(jobs_of(tmp_path, export(*names, closes=closes), rows_per_batch=rows), names)


def test_a_delimiter_cut_by_the_end_of_a_chunk_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("helios.ingest.lines.Decoded.read.__defaults__", (5,), raising=False)
    monkeypatch.setattr("helios.ingest.lines.CHUNK_BYTES", 5)
    assert_true_jobs(jobs_of(tmp_path, export(*NAMES), rows_per_batch=3), NAMES)


def test_a_file_that_passed_through_another_system_is_read(tmp_path: Path) -> None:
    content = b"\xef\xbb\xbf" + export("a\nb", "c").replace(b"\n", b"\r\n")
    assert_true_jobs(jobs_of(tmp_path, gzip.compress(content), rows_per_batch=1), ["a\nb", "c"])


def test_files_with_one_delimiter_behind_each_other_are_one(tmp_path: Path) -> None:
    names = ["a", "b\n"]
    second = export(*names).replace(b"\n1", b"\n3").replace(b"\n2", b"\n4")
    assert len(jobs_of(tmp_path, export(*names) + second)) == 4


def test_what_has_another_delimiter_is_refused_and_no_part_of_a_job(tmp_path: Path) -> None:
    path = tmp_path / "sacct.txt"
    path.write_bytes(export("a") + export("b", word=WORD[::-1]) + export("c", "d"))
    (batch,) = open_trace(path).read()
    assert "b" not in set(batch.jobs["name"])
    assert any(text.startswith("JobIDRaw" + WORD[::-1]) for text in batch.rejects["text"])


def test_a_record_that_does_not_follow_the_last_one_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "sacct.txt"
    path.write_bytes(export("a", "b").replace(b"\n2", b" 2"))
    with pytest.raises(FileUnreadable, match="record 3 does not begin"):
        list(open_trace(path).read())


def test_a_record_that_was_cut_is_counted_with_its_text(tmp_path: Path) -> None:
    path = tmp_path / "sacct.txt"
    path.write_bytes(export("a", "b")[:-50])
    (batch,) = open_trace(path).read()
    assert batch.jobs["job_id"].tolist() == ["1"]
    assert batch.rejects[["line", "reason"]].values.tolist() == [[3, "wrong number of fields"]]
    assert batch.rejects["text"][0].startswith("2|alice|COMPLETED")


def test_a_refused_record_is_kept_with_its_number_and_text(tmp_path: Path) -> None:
    path = tmp_path / "sacct.txt"
    path.write_bytes(export("a\nb", "c", "d").replace(b"\n2" + WORD.encode(), b"\ntwo" + WORD.encode()))
    (batch,) = open_trace(path).read()
    assert batch.rejects["line"].tolist() == [3]
    assert batch.rejects["text"][0].strip() == "two|alice|COMPLETED|1795255120|1795255121|1795255181|c|"


def test_the_same_jobs_under_another_word_are_known_as_the_same_content(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b", tmp_path / "c"]
    contents = (export(*NAMES), export(*NAMES, word=WORD[::-1]), export(*NAMES[1:]))
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    first, second, other = (open_trace(path).sha256 for path in paths)
    assert first == second != other


@pytest.mark.parametrize(
    ("word", "fields", "told"),
    [(WORD, FIELDS, False), ("|", FIELDS, True), (";", FIELDS, True), ("|~|", FIELDS, True), ("|", FIELDS[:-1], False)],
)
def test_a_delimiter_that_users_can_write_is_told(
    tmp_path: Path, word: str, fields: tuple[str, ...], told: bool
) -> None:
    path = tmp_path / "sacct.txt"
    path.write_bytes(export("a", "b", word=word, fields=fields))
    (batch,) = open_trace(path).read()
    assert len(batch.jobs) == 2
    assert any(FORGEABLE in note for note in batch.notes) is told
