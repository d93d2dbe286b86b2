"""What Helios writes is closed to other accounts, follows no link, and belongs to the folder's owner."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from helios.errors import UsageError
from helios.private_files import (
    file_name,
    find_denied,
    make_folder,
    open_private,
    require_cluster_name,
    restrict_access,
    write_private,
)

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture(autouse=True)
def careless_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def touch(path: Path) -> None:
    os.close(open_private(path))


def test_folders_and_files_are_made_closed_to_others(tmp_path: Path) -> None:
    make_folder(tmp_path / "a" / "b")
    touch(tmp_path / "a" / "b" / "lock")
    write_private(tmp_path / "a" / "b" / "health", b"well")
    modes = {path.name: mode(path) for path in sorted((tmp_path / "a").rglob("*"))}
    assert (mode(tmp_path / "a"), modes) == (0o750, {"b": 0o750, "lock": 0o600, "health": 0o640})


def test_a_folder_that_is_there_is_left_as_it_is(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    make_folder(tmp_path)
    assert mode(tmp_path) == 0o755


def test_a_file_of_one_s_own_that_others_could_open_is_closed(tmp_path: Path) -> None:
    (tmp_path / "lock").touch(0o666)
    touch(tmp_path / "lock")
    assert mode(tmp_path / "lock") == 0o600


@pytest.mark.parametrize("there", [True, False])
def test_a_link_is_not_opened_and_what_it_names_not_made(tmp_path: Path, there: bool) -> None:
    victim = tmp_path / "victim"
    if there:
        victim.touch(0o644)
    (tmp_path / "lock").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic"):
        open_private(tmp_path / "lock")
    assert victim.exists() == there
    assert not there or mode(victim) == 0o644


def test_a_pipe_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "lock")
    with pytest.raises(OSError, match="plain file"):
        open_private(tmp_path / "lock")


def test_a_link_is_replaced_and_what_it_names_left_alone(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("as it was")
    for name in ("PAUSED", f".PAUSED.{os.getpid()}"):
        (tmp_path / name).symlink_to(victim)
    write_private(tmp_path / "PAUSED", b"by root")
    assert victim.read_text() == "as it was"
    assert (tmp_path / "PAUSED").read_text() == "by root"
    assert {path.name for path in tmp_path.iterdir()} == {"victim", "PAUSED"}


def test_what_cannot_be_written_leaves_nothing_beside_it(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    with pytest.raises(OSError, match="file"):
        write_private(tmp_path / "file", b"")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_tightening_takes_from_others_and_leaves_the_group_its_reading(tmp_path: Path) -> None:
    file = tmp_path / "helios.db"
    file.touch(0o664)
    restrict_access(file)
    assert mode(file) == 0o640
    restrict_access(tmp_path / "missing")


@as_root
def test_what_root_makes_in_a_service_s_folder_is_the_service_s(tmp_path: Path) -> None:
    os.chown(tmp_path, NOBODY, NOBODY)
    make_folder(tmp_path / "state" / "hook")
    touch(tmp_path / "state" / "cycle.lock")
    write_private(tmp_path / "state" / "PAUSED", b"")
    assert {(path.stat().st_uid, path.stat().st_gid) for path in tmp_path.rglob("*")} == {(NOBODY, NOBODY)}


@as_root
def test_root_changes_nothing_that_lay_in_a_service_s_folder(tmp_path: Path) -> None:
    os.chown(tmp_path, NOBODY, NOBODY)
    (tmp_path / "planted").touch(0o666)
    restrict_access(tmp_path / "planted")
    assert mode(tmp_path / "planted") == 0o666


def test_what_keeps_an_account_from_a_file_is_named_from_the_outside() -> None:
    with tempfile.TemporaryDirectory() as made:
        outer, folder = Path(made), Path(made) / "hook"
        folder.mkdir()
        table = folder / "table"
        table.touch()
        for place, mode in ((outer, 0o711), (folder, 0o755), (table, 0o644)):
            place.chmod(mode)
        assert find_denied("nobody", table) is None
        for place, mode in ((table, 0o640), (folder, 0o750), (outer, 0o750)):
            place.chmod(mode)
            assert find_denied("nobody", table) == place
        assert find_denied("root", table) is None
        assert find_denied("nobody-of-that-name", table) is None
        assert find_denied("nobody", folder / "not-there") == outer


def test_a_group_that_is_let_in_may_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as made:
        table = Path(made) / "table"
        table.touch()
        for place, mode in ((Path(made), 0o750), (table, 0o640)):
            place.chmod(mode)
        monkeypatch.setattr("os.getgrouplist", lambda user, group: [group, table.stat().st_gid])
        assert find_denied("nobody", table) is None
        table.chmod(0o604)  # as Slurm sees it, too: the group's bits count, not everybody's
        assert find_denied("nobody", table) == table


NO_NAMES = [
    "",
    " ",
    " venus",
    "../venus",
    "a/b",
    "a\\b",
    ".",
    "..",
    ".venus",
    "-venus",
    "a\nb",
    "a\x00b",
    "\x1b[2J",
    "v" * 101,
]


@pytest.mark.parametrize("name", NO_NAMES)
def test_a_path_is_no_name_of_a_cluster(name: str) -> None:
    with pytest.raises(UsageError, match="cannot be the name of a cluster"):
        require_cluster_name(name)


@pytest.mark.parametrize("name", ["venus", "kth-1996", "my trace", "v" * 100, "Zürich", "a.b"])
def test_an_ordinary_name_of_a_cluster_is_kept(name: str) -> None:
    assert require_cluster_name(name) == name


def test_every_text_has_a_file_name_of_its_own() -> None:
    texts = [*NO_NAMES, "venus", "a_b", "a b", "_venus", "v" * 300, "v" * 301, "\u00fc" * 300, "\udc80"]
    names = [file_name(text) for text in texts]
    assert len(set(names)) == len(texts)
    for name in names:
        assert Path("folder", name).name == name
        assert name[0] != "." and len(name.encode()) < 200
    assert (file_name("venus"), file_name("kth-1996")) == ("venus", "kth-1996")
