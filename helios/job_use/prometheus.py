"""A client of the HTTP API of Prometheus that trusts no answer."""

from __future__ import annotations

import http.client
import json
import math
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from helios.config import PrometheusSettings
from helios.errors import HeliosError
from helios.private_files import read_secret

MOST_BYTES = 64 * 2**20
"""Longest answer, bytes. The answer about a hundred jobs has some 100 KB."""
TRIES = 4
FIRST_PAUSE_S = 1.0
"""Pause after the first failure, s; it doubles. A server that starts anew answers again after seconds to minutes."""
MOST_SKEW_S = 60.0
"""Difference of the clocks from which samples would be given to the wrong jobs, s."""
HINT = "Is it the address of a Prometheus? See the setting prometheus.url, and: helios doctor"


class PrometheusUnavailable(HeliosError):
    """Prometheus does not answer, or answers what is no answer of Prometheus."""


class PrometheusRefused(HeliosError):
    """Prometheus refused a query."""


class TooMuchAsked(PrometheusRefused):
    """A query would read more samples, or take longer, than the server allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusSeries:
    """A series of an answer.

    Attributes
    ----------
    labels : mapping of str
    points : list of (float, float)
        Time, s since the epoch, and value.
    """

    labels: Mapping[str, str]
    points: list[tuple[float, float]]

    @property
    def value(self) -> float:
        """The last value."""
        return self.points[-1][1]


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follow no redirect, which would lose the query or give the token away."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Prometheus:
    """Client of a Prometheus server, with one query at a time.

    Parameters
    ----------
    settings : PrometheusSettings
        Address, token and time-out.
    tries : int
        Most tries of a query.
    sleep : callable
        Waits some seconds between two tries.
    """

    def __init__(
        self, settings: PrometheusSettings, *, tries: int = TRIES, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._settings, self._tries, self._sleep = settings, tries, sleep
        self._opener = urllib.request.build_opener(_NoRedirects)
        self._headers = {"Accept": "application/json"}
        if settings.token_file:
            self._headers["Authorization"] = f"Bearer {read_secret(Path(settings.token_file))}"
        self.queries = 0
        """Queries that were answered."""

    def query(self, expression: str, *, at: float | None = None) -> list[PrometheusSeries]:
        """Return the answer to an instant query.

        Parameters
        ----------
        at : float, optional
            Time of evaluation, s since the epoch. None for the server's own.

        Raises
        ------
        PrometheusUnavailable
            There is no answer after some tries, or it is none of Prometheus.
        PrometheusRefused
            The query was refused; ``TooMuchAsked`` if a smaller one may not be.
        """
        fields = {"query": expression} | ({} if at is None else {"time": f"{at:.3f}"})
        for number in range(self._tries):
            try:
                answer = self._post(urlencode(fields).encode())
            except PrometheusUnavailable:
                if number == self._tries - 1:
                    raise
                self._sleep(FIRST_PAUSE_S * 2.0**number)
            else:
                self.queries += 1
                return answer
        raise AssertionError("the last try returns or raises")

    def refuse_wrong_clock(self) -> None:
        """Raise ``PrometheusUnavailable`` if the server's clock is not this machine's."""
        before_s = time.time()
        answer = self.query("time()")
        skew_s = (answer[0].value if answer else math.nan) - (before_s + time.time()) / 2
        if not abs(skew_s) <= MOST_SKEW_S:
            raise PrometheusUnavailable(
                f"The clock of Prometheus is {abs(skew_s) / 60:,.0f} minutes "
                f"{'ahead' if skew_s > 0 else 'behind'}: its samples would be given to the wrong jobs.",
                hint="Set the clocks of its machine and of this one by NTP, both in UTC.",
            )

    def _post(self, body: bytes) -> list[PrometheusSeries]:
        request = urllib.request.Request(f"{self._settings.url}/api/v1/query", data=body, headers=self._headers)
        deadline_s = time.monotonic() + self._settings.timeout_s
        try:
            with self._opener.open(request, timeout=self._settings.timeout_s) as response:
                return _series(self._parse(self._read(response, deadline_s)))
        except urllib.error.HTTPError as error:
            with error:
                raise self._refusal(error, deadline_s) from error
        except (OSError, http.client.HTTPException) as error:  # URLError is an OSError
            reason = getattr(error, "reason", None) or error
            raise self._unavailable(f"does not answer: {reason or type(error).__name__}") from error

    def _read(self, response: Any, deadline_s: float) -> bytes:
        """Return the body of an answer, unless it is too long or comes too slowly."""
        parts, length = [], 0
        while part := response.read1(2**16):
            parts.append(part)
            length += len(part)
            if length > MOST_BYTES:
                raise TooMuchAsked(f"Prometheus gave an answer of more than {MOST_BYTES:,} bytes.", hint=HINT)
            if time.monotonic() > deadline_s:
                raise self._unavailable(f"had not answered after {self._settings.timeout_s:g} s")
        return b"".join(parts)

    def _parse(self, body: bytes) -> Mapping[str, Any]:
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise self._unavailable("answers what is no JSON") from error
        if not isinstance(answer, dict) or answer.get("status") not in {"success", "error"}:
            raise self._unavailable("answers what Prometheus does not")
        return answer

    def _refusal(self, error: urllib.error.HTTPError, deadline_s: float) -> HeliosError:
        if error.code in {301, 302, 303, 307, 308}:
            place = error.headers.get("Location", "elsewhere")
            return PrometheusRefused(f"Prometheus sends its reader to {place}.", hint="Set prometheus.url to that.")
        if error.code in {401, 403}:
            return PrometheusRefused(
                f"Prometheus lets nobody in without a right token (HTTP {error.code}).",
                hint="Set prometheus.token_file.",
            )
        try:
            answer = self._parse(self._read(error, deadline_s))
        except (HeliosError, OSError, http.client.HTTPException):
            return self._unavailable(f"answers with HTTP {error.code}")
        text = " ".join(str(answer.get("error", "")).split())[:300]
        if answer.get("errorType") in {"timeout", "canceled"} or "too many samples" in text:
            return TooMuchAsked(
                f"Prometheus refused a query: {text}.", hint="Raise its --query.max-samples or timeout."
            )
        if error.code >= 500:
            return self._unavailable(f"answers with HTTP {error.code}: {text}")
        return PrometheusRefused(f"Prometheus refused a query: {text or f'HTTP {error.code}'}.", hint=HINT)

    def _unavailable(self, what: str) -> PrometheusUnavailable:
        return PrometheusUnavailable(f"Prometheus at {self._settings.url} {what}.", hint=HINT)


def _series(answer: Mapping[str, Any]) -> list[PrometheusSeries]:
    """Return the series of an answer, whose numbers may be NaN or infinite."""
    try:
        kind, result = answer["data"]["resultType"], answer["data"]["result"]
        if kind == "scalar":
            return [PrometheusSeries(labels={}, points=[_point(result)])]
        key = {"vector": "value", "matrix": "values"}[kind]
        return [
            PrometheusSeries(
                labels={str(name): str(text) for name, text in row["metric"].items()},
                points=[_point(each) for each in ([row[key]] if kind == "vector" else row[key])],
            )
            for row in result
            if row[key]
        ]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise PrometheusUnavailable(
            "Prometheus gave an answer in another form than it documents.", hint=HINT
        ) from error


def _point(pair: Any) -> tuple[float, float]:
    time_s, text = pair
    if not math.isfinite(time_s):
        raise ValueError("a time that is none")
    return float(time_s), float(text)
