"""What connections of a user without privileges can do to the daemon and the page: nothing."""

import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.live.rig import Rig, roomy_folder
from tests.live.test_daemon import Site
from tests.live.test_strangers import AS_ALICE, free_port
from tests.waiting import TEST_TIMEOUT_S

TOKEN = "a token of this test"
CONNECTIONS = 2_000
"""Connections of the attacker to each port."""
READER_S = 5.0
"""Time within which a reader must have an answer, s. Where the machine is loaded, the reader asks again."""
PATIENCE_S = 120.0
"""Longest wait for an answer or a change on the cluster, s."""
FLOOD = """
import selectors, socket, sys

ports, each = [int(port) for port in sys.argv[2:]], int(sys.argv[1])
waiting = selectors.DefaultSelector()
opened = 0


def connect(port, number):
    global opened
    client = socket.socket()
    client.setblocking(False)
    if number % 2:  # half of them are the neighbours of a reader on 127.0.0.1, half have other addresses
        client.bind((f"127.0.{number % 100}.9", 0))
    client.connect_ex(("127.0.0.1", port))
    opened += 1
    waiting.register(client, selectors.EVENT_WRITE, (port, number))


def slow(client, port, number):
    try:
        client.getpeername()  # else it was refused
        if number % 4 < 2:
            client.send(b"G")
        waiting.modify(client, selectors.EVENT_READ, (port, number))
    except OSError:
        again(client, port, number)


def again(client, port, number):
    waiting.unregister(client)
    client.close()
    connect(port, number)


for number in range(each):
    for port in ports:
        connect(port, number)
said = False
while True:
    for key, what in waiting.select():
        (slow if what & selectors.EVENT_WRITE else again)(key.fileobj, *key.data)
    if not said and opened >= 2 * each * len(ports):  # half of them at least were closed and came back
        said = True
        print(flush=True)
"""


@dataclass
class Flooded:
    """A daemon that has set what it wants, and a page, both under a flood."""

    site: Site
    daemon: subprocess.Popen[bytes]
    page: subprocess.Popen[bytes]
    metrics_port: int
    page_port: int

    def is_read(self, port: int, path: str) -> bool:
        asked = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Authorization": f"Bearer {TOKEN}"})
        try:
            with urllib.request.urlopen(asked, timeout=READER_S) as answer:
                return bool(answer.status == 200 and answer.read())
        except OSError:
            return False


def descriptors(process: subprocess.Popen[bytes]) -> int:
    return len(list(Path(f"/proc/{process.pid}/fd").iterdir()))


@pytest.fixture
def flooded(rig: Rig) -> Iterator[Flooded]:
    pytest.importorskip("uvicorn")
    folder = roomy_folder()
    rig.fill()
    rig.submit(user="bob")
    site = Site(rig, folder)
    site.environment |= {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    site.helios("trace", "sync")
    site.helios("mode", "qssf", "active", "--reason", "a test")
    metrics_port, page_port = free_port(), free_port()
    (folder / "token").write_text(TOKEN)
    (folder / "token").chmod(0o600)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        stack.callback(site.end)
        site.environment["HELIOS_DAEMON_LISTEN"] = f"127.0.0.1:{metrics_port}"
        daemon = site.start()
        log = stack.enter_context((folder / "web.log").open("ab"))
        words = ["web", "--listen", f"127.0.0.1:{page_port}"]
        surroundings = site.environment | {"HELIOS_WEB_TOKEN_FILE": str(folder / "token")}
        page = start(stack, [sys.executable, "-m", "helios", *words], cwd=folder, env=surroundings, stderr=log)
        found = Flooded(site, daemon, page, metrics_port, page_port)
        site.until_all_are_set()
        rig.until(lambda: found.is_read(page_port, "/") and found.is_read(metrics_port, "/metrics"))
        python = shutil.which("python3", path="/usr/bin") or sys.executable
        ports = [str(metrics_port), str(page_port)]
        words = [f"--nofile={4 * CONNECTIONS}", *AS_ALICE, python, "-c", FLOOD, str(CONNECTIONS), *ports]
        attacker = start(stack, ["prlimit", *words], stdout=subprocess.PIPE, cwd="/")
        assert attacker.stdout is not None and attacker.stdout.readline() == b"\n"
        yield found


def start(stack: ExitStack, words: list[str], **options: object) -> subprocess.Popen[bytes]:
    process: subprocess.Popen[bytes] = subprocess.Popen(words, **options)  # type: ignore[call-overload]
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


def test_a_flood_of_slow_connections_keeps_nothing_from_acting_or_answering(flooded: Flooded) -> None:
    site, rig = flooded.site, flooded.site.rig
    rig.until(lambda: flooded.is_read(flooded.page_port, "/"), longest_s=PATIENCE_S)
    rig.until(lambda: flooded.is_read(flooded.metrics_port, "/metrics"), longest_s=PATIENCE_S)
    paused = site.folder / "state" / "PAUSED"
    paused.touch()
    rig.until(lambda: set(rig.site_factors().values()) == {0}, longest_s=PATIENCE_S)
    paused.unlink()
    rig.until(lambda: all(rig.site_factors().values()), longest_s=PATIENCE_S)
    assert descriptors(flooded.daemon) < 512 and descriptors(flooded.page) < 512
    flooded.daemon.send_signal(signal.SIGTERM)
    assert flooded.daemon.wait(TEST_TIMEOUT_S) == 0, site.log()
    assert set(rig.site_factors().values()) == {0}
    logs = site.log() + (site.folder / "web.log").read_text()
    assert "Traceback" not in logs and len(logs) < 20_000
