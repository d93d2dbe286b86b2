"""What stops Helios works on a disk that takes nothing: the revert comes first, and then what was not written."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from helios.app.modes import PAUSE_FILE
from helios.app.operations import Operations
from helios.choices import Domain
from helios.cli.main import application
from helios.control import ServiceMode
from helios.errors import HeliosError
from helios.model import Mode
from helios.slurm.hook_table import TABLE
from tests.disks import fill, small_disk
from tests.unit.app.node_sites import FakeNodeSite, down
from tests.unit.app.sites import FakeSite

ACTIVE = {"qssf": ServiceMode(mode=Mode.ACTIVE)}
FAILURES = (errno.EROFS, errno.EIO)
"""One error of a disk that can still be read, and one of a disk that cannot."""
UNREADABLE = {errno.EIO}
STOP = "systemctl stop helios"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system."""
    with small_disk(tmp_path / "disk") as folder:
        yield folder


@pytest.fixture(params=FAILURES, ids=[errno.errorcode[number] for number in FAILURES])
def fail(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """A function after whose call nothing can be written in a folder."""

    def start(folder: Path) -> None:
        def guard(function: Callable[..., Any], *, always: bool = True) -> Callable[..., Any]:
            def guarded(path: Any, *arguments: Any, **options: Any) -> Any:
                writes = always or bool(arguments[0] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
                inside = isinstance(path, (str, Path)) and Path(path).is_relative_to(folder)
                if inside and (writes or request.param in UNREADABLE):
                    raise OSError(request.param, os.strerror(request.param), str(path))
                return function(path, *arguments, **options)

            return guarded

        for name in ("mkdir", "unlink", "rename", "replace", "link", "chmod"):
            monkeypatch.setattr(os, name, guard(getattr(os, name)))
        monkeypatch.setattr(os, "open", guard(os.open, always=False))
        if request.param in UNREADABLE:
            for name in ("stat", "lstat", "statvfs", "listdir", "scandir"):
                monkeypatch.setattr(os, name, guard(getattr(os, name)))

    return start


def made(folder: Path) -> FakeSite:
    """Two jobs wait, and Helios has ordered both."""
    folder.mkdir(exist_ok=True)
    fake_site = FakeSite(folder)
    fake_site.learn()
    fake_site.cluster.submit(user="bob")
    fake_site.cluster.submit(user="alice")
    assert fake_site.cycles.cycle(modes=ACTIVE).acted == 2
    return fake_site


@pytest.fixture
def fake_site(tmp_path: Path) -> FakeSite:
    return made(tmp_path / "fake_site")


@pytest.fixture
def pause(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """The command ``helios pause`` or another on a fake site."""

    def run(fake_site: FakeSite, *words: str) -> Result:
        monkeypatch.setenv("HELIOS_DATABASE_URL", fake_site.url)
        monkeypatch.setenv("HELIOS_CONTROL_STATE_FOLDER", str(fake_site.folder / "state"))
        here = {"open_cluster": lambda _: fake_site.live_cluster(), "clock": lambda: fake_site.cluster.now}
        monkeypatch.setattr(Operations.__init__, "__kwdefaults__", Operations.__init__.__kwdefaults__ | here)
        return CliRunner().invoke(application, words or ("pause",))

    return run


def said(result: Result) -> str:
    hint = result.exception.hint if isinstance(result.exception, HeliosError) else ""
    return " ".join(f"{result.output} {result.exception} {hint}".split())


def jobs_set(fake_site: FakeSite) -> int:
    return sum(fake_site.cluster.site_factor_of(job) != 0 for job in fake_site.cluster.queue)


def operations(fake_site: FakeSite) -> Operations:
    return Operations(
        fake_site.settings, open_cluster=lambda _: fake_site.live_cluster(), clock=lambda: fake_site.cluster.now
    )


def test_a_pause_on_a_full_disk_reverts_everything_and_says_what_lacks(
    disk: Path, pause: Callable[..., Result]
) -> None:
    fake_site = made(disk)
    fill(disk)
    result = pause(fake_site)
    assert jobs_set(fake_site) == 0
    assert result.exit_code == 1
    assert "No space left on device" in said(result)


def test_a_pause_on_a_full_disk_leaves_an_empty_file_that_pauses(disk: Path, pause: Callable[..., Result]) -> None:
    fake_site = made(disk)
    fill(disk)
    assert STOP not in said(pause(fake_site))
    assert (disk / "state" / PAUSE_FILE).read_bytes() == b""
    assert fake_site.another().pause() is not None


def test_a_pause_that_can_write_nothing_reverts_everything(
    fake_site: FakeSite, fail: Callable[[Path], None], pause: Callable[..., Result]
) -> None:
    fail(fake_site.folder)
    pause(fake_site)
    assert jobs_set(fake_site) == 0


def test_a_pause_that_can_write_nothing_says_to_stop_the_daemon(
    fake_site: FakeSite, fail: Callable[[Path], None], pause: Callable[..., Result]
) -> None:
    (fake_site.folder / "helios.db").write_text("no database")
    fail(fake_site.folder)
    result = pause(fake_site)
    assert result.exit_code == 1
    assert "a running daemon sets its changes again" in said(result)
    assert STOP in said(result)


def test_a_pause_reverts_before_it_prints(
    fake_site: FakeSite, pause: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (fake_site.folder / "helios.db").write_text("no database")
    monkeypatch.setattr("helios.cli.control.print_message", full)
    pause(fake_site)
    assert jobs_set(fake_site) == 0


def test_a_pause_wakes_nodes_though_it_can_write_nothing(tmp_path: Path, fail: Callable[[Path], None]) -> None:
    fake_site = FakeNodeSite(tmp_path)
    fake_site.cycle(*down("n1"))
    fake_site.nodes.tick(timedelta(minutes=5))
    fail(fake_site.state)
    report = fake_site.another().release("enough")
    assert report.woken == ("n1",)


def test_a_stopped_daemon_reverts_though_it_can_write_nothing(
    fake_site: FakeSite, fail: Callable[[Path], None]
) -> None:
    fail(fake_site.folder)
    with suppress(HeliosError):  # it says what it could not look at
        operations(fake_site).release_on_stop("SIGTERM", domains=[Domain.JOBS])
    assert jobs_set(fake_site) == 0


def test_a_stopped_daemon_reverts_on_a_full_disk(disk: Path) -> None:
    fake_site = made(disk)
    fill(disk)
    assert "2 jobs set back" in operations(fake_site).release_on_stop("SIGTERM", domains=[Domain.JOBS])


@pytest.mark.parametrize("fail", [errno.EROFS], indirect=True)
def test_a_cycle_that_finds_a_pause_reverts_though_it_can_write_nothing(
    fake_site: FakeSite, fail: Callable[[Path], None]
) -> None:
    (fake_site.folder / "state" / PAUSE_FILE).touch()
    fail(fake_site.folder / "state")
    fake_site.cycles.cycle(modes=ACTIVE)
    assert jobs_set(fake_site) == 0


def test_a_cycle_that_finds_a_pause_reverts_on_a_full_disk(disk: Path) -> None:
    fake_site = made(disk)
    (fake_site.folder / "state" / PAUSE_FILE).touch()
    fill(disk)
    fake_site.cycles.cycle(modes=ACTIVE)
    assert jobs_set(fake_site) == 0


def test_a_resume_on_a_full_disk_leaves_helios_paused(disk: Path, pause: Callable[..., Result]) -> None:
    fake_site = made(disk)
    pause(fake_site)
    fill(disk)
    result = pause(fake_site, "resume")
    assert result.exit_code == 1
    assert "stays paused" in said(result)
    assert (fake_site.folder / "state" / PAUSE_FILE).exists()


@pytest.mark.parametrize("fail", [errno.EROFS], indirect=True)
@pytest.mark.parametrize("is_there", [False, True])
def test_a_resume_on_a_read_only_disk_fails_only_with_a_file(
    fake_site: FakeSite, fail: Callable[[Path], None], pause: Callable[..., Result], is_there: bool
) -> None:
    if is_there:
        (fake_site.folder / "state" / PAUSE_FILE).touch()
    fail(fake_site.folder / "state")
    result = pause(fake_site, "resume")
    assert result.exit_code == is_there, said(result)
    assert ("stays paused" in said(result)) == is_there


def test_a_table_that_cannot_be_removed_does_not_keep_the_jobs(
    fake_site: FakeSite, fail: Callable[[Path], None]
) -> None:
    table = fake_site.folder / "state" / TABLE
    table.parent.mkdir()
    table.touch()
    fail(fake_site.folder)
    with pytest.raises(HeliosError, match=r"cannot be removed.*2 jobs set back"):
        operations(fake_site).release("enough")
