import os
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from helios.daemon.daemon import Notifier
from tests.waiting import TEST_TIMEOUT_S


@pytest.fixture(params=["in the file system", "abstract"])
def ear(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """A service manager's ear, and its name as systemd would give it."""
    name = str(tmp_path / "notify") if request.param == "in the file system" else f"@helios-{uuid.uuid4()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("\0" + name[1:] if name.startswith("@") else name)
        listener.settimeout(TEST_TIMEOUT_S)
        yield listener, name


def test_the_service_manager_hears_each_word(ear: tuple[socket.socket, str]) -> None:
    listener, name = ear
    notifier = Notifier({"NOTIFY_SOCKET": name})
    notifier.send("READY=1")
    notifier.send("WATCHDOG=1")
    notifier.send("STATUS=3 pending\nSTOPPING=1")
    notifier.send("STOPPING=1")
    assert [listener.recv(1000).decode() for _ in range(4)] == [
        "READY=1",
        "WATCHDOG=1",
        "STATUS=3 pending STOPPING=1",
        "STOPPING=1",
    ]


def test_without_a_service_manager_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    Notifier({}).send("READY=1")
    assert caplog.records == []


def test_a_manager_that_does_not_listen_is_mentioned_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "nobody")})
    notifier.send("READY=1")
    notifier.send("WATCHDOG=1")
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "often"}, None),
    ],
)
def test_the_watchdog_is_ours_only_if_it_names_us(environment: dict[str, str], expected: float | None) -> None:
    assert Notifier(environment).watchdog_s == expected
