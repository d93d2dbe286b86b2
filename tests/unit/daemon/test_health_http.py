import gzip
import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from helios.daemon.health import AddressTaken, Metrics, Server, parse_address
from helios.errors import ConfigurationInvalid
from tests.unit.daemon.builders import PATIENCE_S, HandSet, a_cycle


@contextmanager
def served(health: dict[str, Any], *, host: str = "127.0.0.1") -> Iterator[str]:
    metrics = Metrics(times=HandSet().times)
    metrics.record_cycle(a_cycle(predictions=5))
    serving = Server(f"{host}:0", registry=metrics.registry, health=lambda: health)
    try:
        yield f"http://{host}:{serving.port}"
    finally:
        serving.close()


def ask(url: str) -> tuple[int, str, str]:
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as refusal:
        return refusal.code, refusal.headers["Content-Type"], refusal.read().decode()


@pytest.mark.parametrize(("healthy", "code"), [(True, 200), (False, 503)])
def test_healthz_answers_by_its_code_and_says_why(healthy: bool, code: int) -> None:
    with served({"healthy": healthy, "reasons": ["cycle is late"]}) as url:
        status, kind, body = ask(f"{url}/healthz?verbose=1")
    assert (status, kind) == (code, "application/json")
    assert json.loads(body)["reasons"] == ["cycle is late"]


def test_metrics_are_prometheus_text() -> None:
    with served({}) as url:
        status, kind, body = ask(f"{url}/metrics")
    assert status == 200
    assert kind.startswith("text/plain")
    assert "helios_predictions_total 5.0" in body


def test_nothing_else_is_served() -> None:
    with served({}) as url:
        assert ask(f"{url}/")[0] == 404


def test_an_answer_that_fails_writes_no_traceback_into_the_journal(capfd: pytest.CaptureFixture[str]) -> None:
    with served({}) as url:  # a report without "healthy": a defect
        assert ask(f"{url}/healthz")[0] == 500
        assert ask(f"{url}/metrics")[0] == 200
    assert capfd.readouterr().err == ""


def test_it_serves_ipv6() -> None:
    with served({"healthy": True}, host="[::1]") as url:
        assert ask(f"{url}/healthz")[0] == 200


def test_a_client_that_says_nothing_holds_nobody_up() -> None:
    with served({"healthy": True}) as url:
        port = int(url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)):
            assert ask(f"{url}/healthz")[0] == 200


def test_a_port_that_is_taken_says_by_whom_to_ask() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(AddressTaken, match=f"another process listens on {listen}") as refusal:
            Server(listen, registry=Metrics(times=HandSet().times).registry, health=dict)
    assert "ss -ltnp" in refusal.value.hint


def test_a_foreign_address_is_a_mistake_in_the_settings() -> None:
    with pytest.raises(ConfigurationInvalid, match=r"192\.0\.2\.1:9842 cannot be bound"):  # TEST-NET-1, nobody's
        Server("192.0.2.1:9842", registry=Metrics(times=HandSet().times).registry, health=dict)


def test_a_scraper_is_answered_among_many_silent_clients() -> None:
    before = threading.active_count()
    with served({"healthy": True, "reasons": ["x" * 30_000] * 10}) as url, ExitStack() as clients:
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        for number in range(400):
            client = clients.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            client.connect(address)
            client.sendall(b"GET /healthz HTTP/1.1\r\n\r\n" if number % 2 else b"GET")
        assert ask(f"{url}/metrics")[0] == 200
        assert threading.active_count() <= before + 1


def test_a_scraper_that_takes_openmetrics_and_gzip_has_both() -> None:
    with served({}) as url:
        accepted = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain", "Accept-Encoding": "gzip"}
        with urllib.request.urlopen(urllib.request.Request(f"{url}/metrics", headers=accepted)) as answer:
            assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
            assert gzip.decompress(answer.read()).endswith(b"# EOF\n")
        assert "# EOF" not in ask(f"{url}/metrics")[2]


def test_head_has_no_body() -> None:
    with served({"healthy": True}) as url:
        asked = urllib.request.Request(f"{url}/healthz", method="HEAD")
        with urllib.request.urlopen(asked, timeout=PATIENCE_S) as answer:
            assert (answer.status, answer.read()) == (200, b"")


@pytest.mark.parametrize("request_", [b"\r\n\r\n", b"\x16\x03\x01\n\n", b"GET\n\n", b"GET \xff\xfe\n\xff: \xff\n\n"])
def test_what_is_no_request_is_answered_in_kind(request_: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    with served({}) as url, socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as client:
        client.settimeout(PATIENCE_S)
        client.sendall(request_)
        assert client.recv(100).startswith(b"HTTP/1.1 404 Not Found")
    assert capfd.readouterr().err == ""


def test_after_closing_the_port_is_free_again() -> None:
    served_once = Server("127.0.0.1:0", registry=Metrics(times=HandSet().times).registry, health=dict)
    served_once.close()
    with socket.create_server(("127.0.0.1", served_once.port)):
        pass


@pytest.mark.parametrize(
    ("listen", "expected"),
    [
        ("127.0.0.1:9842", ("127.0.0.1", 9842)),
        ("[::1]:80", ("::1", 80)),
        ("mgmt.example.org:1", ("mgmt.example.org", 1)),
    ],
)
def test_an_address_is_host_and_port(listen: str, expected: tuple[str, int]) -> None:
    assert parse_address(listen) == expected


@pytest.mark.parametrize("listen", ["9842", ":9842", "host:", "::1:80", "host:70000", "host:http", "[host]:1"])
def test_what_is_no_address_is_refused_with_an_example(listen: str) -> None:
    with pytest.raises(ConfigurationInvalid, match="not HOST:PORT") as refusal:
        parse_address(listen)
    assert "127.0.0.1:9842" in refusal.value.hint
