"""A Prometheus that is slow, starts anew, or lies."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from threading import Event

import pytest

from helios.config import PrometheusSettings
from helios.job_use import prometheus
from helios.job_use.prometheus import Prometheus, PrometheusRefused, PrometheusUnavailable, TooMuchAsked
from tests.prometheus_rig import Answer, Server, refusal, success, vector


def client(server: Server, *, slept: list[float] | None = None, **settings: object) -> Prometheus:
    chosen = PrometheusSettings.model_validate({"url": server.url, "timeout_s": 60} | settings)
    return Prometheus(chosen, sleep=[].append if slept is None else slept.append)


def test_values_are_read_with_their_labels() -> None:
    with Server(lambda _: vector(({"gpu": "0"}, 41.7), ({"gpu": "1"}, "NaN"))) as server:
        first, second = client(server).query("up")
    assert (first.labels, first.value) == ({"gpu": "0"}, 41.7)
    assert math.isnan(second.value)


def test_a_server_that_starts_anew_is_waited_for() -> None:
    answers = iter([(503, {}, b"Service Unavailable"), (502, {}, b""), vector(({}, 1))])
    slept: list[float] = []
    with Server(lambda _: next(answers)) as server:
        assert client(server, slept=slept).query("up")[0].value == 1
    assert slept == [1, 2]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((503, {}, b"Service Unavailable"), "HTTP 503"),
        ((200, {}, b"<html>Log in</html>"), "no JSON"),
        ((200, {}, b"[" * 100_000), "no JSON"),
        ((200, {}, b"[1]"), "does not"),
        (success({"resultType": "vector"}), "another form"),
        (success({"resultType": "vector", "result": [{"metric": {}, "value": ["x", "1"]}]}), "another form"),
        (success({"resultType": "vector", "result": [{"metric": {}, "value": [1, "one"]}]}), "another form"),
        (success({"resultType": "words", "result": []}), "another form"),
    ],
)
def test_what_is_no_answer_is_an_error_after_some_tries(answer: Answer, words: str) -> None:
    slept: list[float] = []
    with Server(lambda _: answer) as server, pytest.raises(PrometheusUnavailable, match=words) as raised:
        client(server, slept=slept).query("up")
    assert slept == [1, 2, 4]
    assert "prometheus.url" in raised.value.hint


def test_nobody_who_listens_is_an_error() -> None:
    with Server(lambda _: vector()) as server:
        gone = client(server)
    with pytest.raises(PrometheusUnavailable, match="does not answer"):
        gone.query("up")


def test_an_answer_that_does_not_come_is_given_up() -> None:
    released = Event()

    def wait(_: str) -> Answer:
        released.wait()
        return vector()

    with Server(wait) as server:
        try:
            with pytest.raises(PrometheusUnavailable):
                client(server, timeout_s=0.1).query("up")
        finally:
            released.set()


def test_an_answer_that_comes_drop_by_drop_is_given_up() -> None:
    gone = Event()

    def drops() -> Iterator[bytes]:
        while not gone.wait(0.01):
            yield b" "

    with Server(lambda _: (200, {}, drops())) as server:
        try:
            with pytest.raises(PrometheusUnavailable, match="had not answered"):
                client(server, timeout_s=0.2).query("up")
        finally:
            gone.set()


def test_a_huge_answer_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "MOST_BYTES", 1_000_000)
    with Server(lambda _: (200, {}, repeat(b" " * 65_536))) as server, pytest.raises(TooMuchAsked, match="bytes"):
        client(server).query("up")


def test_a_redirect_is_named_and_gets_no_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret-token-of-this-site")
    token.chmod(0o600)
    with Server(lambda _: vector()) as other:
        with Server(lambda _: (302, {"Location": other.url}, b"")) as server:
            with pytest.raises(PrometheusRefused, match=other.url):
                client(server, token_file=str(token)).query("up")
            assert server.headers[0]["Authorization"] == "Bearer secret-token-of-this-site"
        assert other.queries == []


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (refusal(422, "execution", "query processing would load too many samples into memory"), TooMuchAsked, "many"),
        (refusal(503, "timeout", "query timed out in expression evaluation"), TooMuchAsked, "timed out"),
        (refusal(400, "bad_data", "parse error"), PrometheusRefused, "parse error"),
        ((401, {}, b""), PrometheusRefused, "token"),
        ((404, {}, b"no such page"), PrometheusUnavailable, "HTTP 404"),
    ],
)
def test_a_refusal_says_why(answer: Answer, kind: type[Exception], words: str) -> None:
    with Server(lambda _: answer) as server, pytest.raises(kind, match=words):
        client(server).query("up")


@pytest.mark.parametrize(("ahead_h", "word"), [(5, "ahead"), (-5, "behind")])
def test_a_clock_of_another_zone_is_found(ahead_h: float, word: str) -> None:
    def clock(_: str) -> Answer:
        return success({"resultType": "scalar", "result": [1, str(time.time() + 3600 * ahead_h)]})

    with Server(clock) as server, pytest.raises(PrometheusUnavailable, match=f"300 minutes {word}"):
        client(server).refuse_wrong_clock()
