import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from helios.daemon.metrics import Metrics
from helios.daemon.server import Server, address_of
from helios.errors import ConfigurationInvalid
from tests.unit.daemon.builders import HandSet, a_turn


@contextmanager
def served(health: dict[str, Any], *, host: str = "127.0.0.1") -> Iterator[str]:
    metrics = Metrics(times=HandSet().times)
    metrics.turned(a_turn(predictions=5))
    server = Server(f"{host}:0", registry=metrics.registry, health=lambda: health)
    try:
        yield f"http://{host}:{server.port}"
    finally:
        server.close()


def ask(url: str) -> tuple[int, str, str]:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as refusal:
        return refusal.code, refusal.headers["Content-Type"], refusal.read().decode()


@pytest.mark.parametrize(("healthy", "code"), [(True, 200), (False, 503)])
def test_healthz_answers_by_its_code_and_says_why(healthy: bool, code: int) -> None:
    with served({"healthy": healthy, "reasons": ["turn is late"]}) as url:
        status, kind, body = ask(f"{url}/healthz?verbose=1")
    assert (status, kind) == (code, "application/json")
    assert json.loads(body)["reasons"] == ["turn is late"]


def test_metrics_are_prometheus_text() -> None:
    with served({}) as url:
        status, kind, body = ask(f"{url}/metrics")
    assert status == 200
    assert kind.startswith("text/plain")
    assert "helios_predictions_total 5.0" in body


def test_nothing_else_is_served() -> None:
    with served({}) as url:
        assert ask(f"{url}/")[0] == 404


def test_it_serves_ipv6() -> None:
    with served({"healthy": True}, host="[::1]") as url:
        assert ask(f"{url}/healthz")[0] == 200


def test_a_client_that_says_nothing_holds_nobody_up() -> None:
    with served({"healthy": True}) as url:
        port = int(url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)):
            assert ask(f"{url}/healthz")[0] == 200


def test_a_port_that_is_taken_is_an_error_that_says_what_to_change() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigurationInvalid, match=f"daemon.listen {listen} cannot be bound: Address") as refusal:
            Server(listen, registry=Metrics(times=HandSet().times).registry, health=dict)
    assert "another helios daemon" in refusal.value.remedy


def test_after_closing_the_port_is_free_again() -> None:
    server = Server("127.0.0.1:0", registry=Metrics(times=HandSet().times).registry, health=dict)
    server.close()
    with socket.create_server(("127.0.0.1", server.port)):
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
    assert address_of(listen) == expected


@pytest.mark.parametrize("listen", ["9842", ":9842", "host:", "::1:80", "host:70000", "host:http", "[host]:1"])
def test_what_is_no_address_is_refused_with_an_example(listen: str) -> None:
    with pytest.raises(ConfigurationInvalid, match="not HOST:PORT") as refusal:
        address_of(listen)
    assert "127.0.0.1:9842" in refusal.value.remedy
