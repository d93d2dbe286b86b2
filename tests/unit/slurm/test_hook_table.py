from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helios.errors import HookTableInvalid
from helios.slurm.hook_table import MOST_ROWS, SKEW, HookRow, HookTable, checksum, publish, read_table, render, retract

NOW = datetime(2026, 9, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
SCRIPT = Path(__file__).parents[3] / "deploy" / "slurm" / "job_submit.lua"


def a_row(**more: object) -> HookRow:
    named: dict[str, object] = {"user": "alice", "partition": "gpu", "site_factor": 4037}
    return HookRow(**(named | more))  # type: ignore[arg-type]  # because the names are HookRow's own


def a_text(*rows: HookRow, generation: int = 1, now: datetime = NOW, lasts: timedelta = HOUR) -> str:
    return render(rows, generation=generation, now=now, lasts=lasts)


def a_table(folder: Path, *rows: HookRow) -> HookTable:
    publish(folder / "table", a_text(*rows))
    return read_table(folder / "table", NOW)


@pytest.mark.parametrize("site_factor", [1, -1, 4000, 38, -2536, 7])
def test_a_row_without_the_mark_on_its_site_factor_cannot_be_made(site_factor: int) -> None:
    with pytest.raises(ValueError, match="does not end in 37"):
        a_row(site_factor=site_factor)


@pytest.mark.parametrize("site_factor", [0, 37, 137, -2537])
def test_a_row_with_the_mark_or_without_a_place_can_be_made(site_factor: int) -> None:
    assert a_row(site_factor=site_factor).site_factor == site_factor


@pytest.mark.parametrize("time_min", [-3, -7, 10, 8, 70])
def test_a_row_without_the_mark_on_its_soft_limit_cannot_be_made(time_min: int) -> None:
    with pytest.raises(ValueError, match="does not end in 7"):
        a_row(time_min=time_min)


@pytest.mark.parametrize(
    "key",
    [
        {"partition": None},
        {"user": None},
        {"limit_min": 60},
        {"user": None, "gpus": 2, "limit_min": 60},
        {"user": ""},
        {"partition": ""},
        {"gpus": -1},
    ],
)
def test_a_row_that_the_hook_never_looks_up_cannot_be_made(key: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="key"):
        a_row(**key)


def test_the_most_specific_row_is_found_first(tmp_path: Path) -> None:
    rows = [
        a_row(gpus=2, limit_min=60, site_factor=137),
        a_row(gpus=2, site_factor=237),
        a_row(site_factor=337),
        a_row(user=None, gpus=2, site_factor=437),
    ]
    table = a_table(tmp_path, *rows)
    asked = [("alice", 2, 60), ("alice", 2, 61), ("alice", 2, None), ("alice", 3, 60), ("bob", 2, 60)]
    found = [table.row_for(user=user, partition="gpu", gpus=gpus, limit_min=limit) for user, gpus, limit in asked]
    assert [row.site_factor for row in found if row] == [137, 237, 237, 337, 437]


def test_a_job_of_no_row_is_left_as_submitted(tmp_path: Path) -> None:
    table = a_table(tmp_path, a_row())
    assert table.row_for(user="bob", partition="gpu", gpus=2, limit_min=60) is None
    assert table.row_for(user="alice", partition="cpu", gpus=2, limit_min=60) is None


names = st.one_of(st.text(min_size=1), st.sampled_from(["*", "a b", "x\ny", "%2A", "\udc80", "end 1 1"]))


@given(user=names.filter(lambda name: not any("\ud800" <= c <= "\udc7f" or "\udd00" <= c <= "\udfff" for c in name)))
def test_any_name_survives_and_stays_apart_from_any_user(tmp_path_factory: pytest.TempPathFactory, user: str) -> None:
    folder = tmp_path_factory.mktemp("names")
    rows = {a_row(user=user, gpus=1), a_row(user=None, gpus=1), a_row(user="alice*")}
    assert set(a_table(folder, *rows).rows.values()) == rows


def test_names_are_written_with_letters_that_the_hook_writes_too() -> None:
    text = a_text(a_row(user="a+b.c-d_e~f@g", partition="größe"))
    assert "a%2Bb.c-d_e~f%40g gr%C3%B6%C3%9Fe * *" in text


def test_the_form_of_the_table_is_the_one_that_published_scripts_read() -> None:
    # A new form needs a new format number: a script in a controller is older than the Helios that publishes.
    text = a_text(a_row(gpus=2, limit_min=60, time_min=17), a_row(user=None, gpus=1, site_factor=-137), generation=7)
    assert text == (
        "helios-hook 1 7 1788264000 1788267600 2 40 1211081641\n* gpu 1 * -137 0\nalice gpu 2 60 4037 17\nend 7 2\n"
    )


def test_the_checksum_is_a_polynomial_in_words() -> None:
    assert checksum(b"\x01\x00\x00\x00\x02") == 1 * 31 + 2
    assert checksum(b"\xff" * 8) == (0xFFFFFFFF * 31 + 0xFFFFFFFF) % (2**31 - 1)
    assert checksum(b"") == 0


def test_the_order_of_the_rows_does_not_change_the_table() -> None:
    rows = [a_row(user=name) for name in "cab"]
    assert a_text(*rows) == a_text(*reversed(rows))


def test_two_rows_of_one_key_are_refused() -> None:
    with pytest.raises(ValueError, match="same key"):
        a_text(a_row(site_factor=37), a_row(site_factor=137))


def test_more_rows_than_the_hook_reads_are_refused() -> None:
    rows = (a_row(user=None, gpus=n) for n in range(MOST_ROWS + 1))
    with pytest.raises(ValueError, match="the hook reads"):
        a_text(*rows)


def test_an_empty_table_can_be_published(tmp_path: Path) -> None:
    assert a_table(tmp_path).rows == {}


def test_generation_and_times_are_read_back(tmp_path: Path) -> None:
    publish(tmp_path / "table", a_text(a_row(), generation=41, lasts=2 * HOUR))
    table = read_table(tmp_path / "table", NOW)
    assert (table.generation, table.published_at, table.expires_at) == (41, NOW, NOW + 2 * HOUR)


def test_a_table_is_not_believed_from_its_expiry_on(tmp_path: Path) -> None:
    publish(tmp_path / "table", a_text(a_row()))
    read_table(tmp_path / "table", NOW + HOUR - timedelta(seconds=1))
    with pytest.raises(HookTableInvalid, match="good from"):
        read_table(tmp_path / "table", NOW + HOUR)


def test_a_table_from_the_future_is_not_believed(tmp_path: Path) -> None:
    publish(tmp_path / "table", a_text(a_row()))
    read_table(tmp_path / "table", NOW - SKEW)
    with pytest.raises(HookTableInvalid, match="good from"):
        read_table(tmp_path / "table", NOW - SKEW - timedelta(seconds=1))


@given(data=st.data())
def test_a_table_cut_anywhere_is_recognised(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("cut") / "table"
    text = a_text(a_row(), a_row(user="bob"))
    path.write_text(text[: data.draw(st.integers(0, len(text) - 1))])
    with pytest.raises(HookTableInvalid):
        read_table(path, NOW)


@given(data=st.data())
def test_a_flipped_bit_is_recognised(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("flip") / "table"
    content = bytearray(a_text(a_row(), a_row(user="bob")).encode())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    with pytest.raises(HookTableInvalid):
        read_table(path, NOW)


@pytest.mark.parametrize("content", [b"", b"\n", b"prose\n", bytes(range(256)), b"helios-hook 1 1 1 1 1 1 1"])
def test_what_is_no_table_is_recognised(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "table").write_bytes(content)
    with pytest.raises(HookTableInvalid):
        read_table(tmp_path / "table", NOW)


def test_a_whole_table_with_a_row_without_the_mark_is_recognised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HookRow, "__post_init__", lambda row: None)
    publish(tmp_path / "table", a_text(a_row(site_factor=4038)))
    monkeypatch.undo()
    with pytest.raises(HookTableInvalid, match="does not end in 37"):
        read_table(tmp_path / "table", NOW)


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(HookTableInvalid, match="cannot be read"):
        read_table(tmp_path / "table", NOW)


def test_a_published_table_is_for_its_owner_and_group(tmp_path: Path) -> None:
    publish(tmp_path / "hook" / "table", a_text(a_row()))
    assert (tmp_path / "hook").stat().st_mode & 0o777 == 0o750
    assert (tmp_path / "hook" / "table").stat().st_mode & 0o777 == 0o640


def test_who_may_read_the_folder_may_read_the_table(tmp_path: Path) -> None:
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook").chmod(0o755)
    publish(tmp_path / "hook" / "table", a_text(a_row()))
    assert (tmp_path / "hook" / "table").stat().st_mode & 0o777 == 0o644


def test_publishing_leaves_nothing_beside_the_table(tmp_path: Path) -> None:
    publish(tmp_path / "table", a_text(a_row()))
    publish(tmp_path / "table", a_text(a_row(user="bob")))
    assert {path.name for path in tmp_path.iterdir()} == {"table", "published"}


def test_a_reader_of_the_old_table_keeps_it_whole(tmp_path: Path) -> None:
    old = a_text(a_row())
    publish(tmp_path / "table", old)
    with (tmp_path / "table").open() as reader:
        publish(tmp_path / "table", a_text(a_row(user="bob")))
        assert reader.read() == old


def test_a_table_that_cannot_be_put_in_place_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "table").mkdir()
    with pytest.raises(HookTableInvalid, match="cannot be published"):
        publish(tmp_path / "table", a_text(a_row()))
    assert {path.name for path in tmp_path.iterdir()} == {"table", "published"}


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "hook").touch()
    with pytest.raises(HookTableInvalid, match="cannot be published"):
        publish(tmp_path / "hook" / "table", a_text(a_row()))


def test_a_retracted_table_is_gone(tmp_path: Path) -> None:
    publish(tmp_path / "table", a_text(a_row()))
    assert retract(tmp_path / "table")
    assert not (tmp_path / "table").exists()


def test_retracting_twice_is_fine(tmp_path: Path) -> None:
    assert not retract(tmp_path / "table")
    assert not retract(tmp_path / "no folder" / "table")


def test_a_table_that_cannot_be_retracted_is_named(tmp_path: Path) -> None:
    (tmp_path / "table").mkdir()
    with pytest.raises(HookTableInvalid, match="cannot be removed"):
        retract(tmp_path / "table")


def test_both_sides_of_the_hook_have_the_same_bounds() -> None:
    script = SCRIPT.read_text()
    bounds = dict(re.findall(r"    (most_\w+|skew_s) = ([\d* ]+),", script))
    assert int(bounds["most_rows"]) == MOST_ROWS
    assert bounds["most_bytes"] == "32 * 1024 * 1024"
    assert int(bounds["skew_s"]) == SKEW.total_seconds()
