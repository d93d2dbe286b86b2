"""A real Prometheus on loopback with known samples, and one that lies."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote

import pytest

from tests.waiting import until

STEP_S = 30
TIMEOUT_S = 60
Answer = tuple[int, dict[str, str], bytes | Iterable[bytes]]
"""Status, headers, and a body or its parts."""


class Samples:
    """Series with their samples, for the storage of a Prometheus."""

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = defaultdict(list)

    def add(
        self, name: str, labels: dict[str, str], begin_s: float, end_s: float, value: Callable[[float], float | None]
    ) -> None:
        """Add a sample each ``STEP_S``, of the time since the begin; None is a gap."""
        written = ",".join(f'{key}="{text}"' for key, text in labels.items())
        for time_s in range(int(begin_s), int(end_s) + 1, STEP_S):
            if (number := value(time_s - begin_s)) is not None:
                self._lines[name].append(f"{name}{{{written}}} {number} {time_s}")

    def store(self, folder: Path) -> None:
        """Write them as blocks."""
        lines = [line for family in self._lines.values() for line in family]
        (folder / "samples.txt").write_text("\n".join([*lines, "# EOF", ""]))
        words = ["promtool", "tsdb", "create-blocks-from", "openmetrics", "samples.txt", "data"]
        subprocess.run(words, cwd=folder, check=True, capture_output=True)


class RealPrometheus:
    """The program itself, which scrapes some targets and evaluates some rules each second."""

    def __init__(
        self, folder: Path, *, samples: Samples | None = None, targets: Iterable[int] = (), rules: Path | None = None
    ) -> None:
        if shutil.which("prometheus") is None or shutil.which("promtool") is None:
            pytest.skip("prometheus (Debian: prometheus) is not installed")
        if samples is not None:
            samples.store(folder)
        scraped = [f"127.0.0.1:{port}" for port in targets]
        configuration = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [] if rules is None else [str(rules)],
            "scrape_configs": [{"job_name": "exporter", "static_configs": [{"targets": scraped}]}],
        }
        (folder / "prometheus.yml").write_text(json.dumps(configuration))
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        with (folder / "log").open("w") as log:
            self._process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{port}",
                ],
                stderr=log,
                stdout=log,
            )

    def __enter__(self) -> RealPrometheus:
        until(self._is_ready)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def values(self, query: str) -> list[tuple[dict[str, str], float]]:
        """Return the labels and the value of each series that a query finds."""
        answer = self._get(f"query?query={quote(query)}")
        return [(row["metric"], float(row["value"][1])) for row in answer["result"]]

    def rules(self) -> list[dict[str, Any]]:
        """Return the alert rules with how the last evaluation went."""
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def _get(self, what: str) -> Any:
        with urllib.request.urlopen(f"{self.url}/api/v1/{what}", timeout=TIMEOUT_S) as answer:
            body = json.load(answer)
        assert body["status"] == "success", body
        return body["data"]

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready") as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


class Server:
    """A server on loopback whose answers a test decides.

    ``answer`` gets the query and returns status, headers and body.
    """

    def __init__(self, answer: Callable[[str], Answer]) -> None:
        self.queries: list[str] = []
        self.headers: list[dict[str, str]] = []
        rig = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                rig.queries.append(parse_qs(body)["query"][0])
                rig.headers.append(dict(self.headers))
                status, headers, text = answer(rig.queries[-1])
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                with suppress(OSError):  # the reader has gone
                    self.wfile.writelines([text] if isinstance(text, bytes) else text)

            def do_GET(self) -> None:
                rig.queries.append(self.path)
                self.send_response(200)
                self.end_headers()
                self.wfile.write(answer(self.path)[2])  # type: ignore[arg-type]  # a page has one part

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Server:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def vector(*series: tuple[dict[str, str], object]) -> Answer:
    """Return the answer of a Prometheus with a value for each series."""
    result = [{"metric": labels, "value": [1_700_000_000, str(value)]} for labels, value in series]
    return success({"resultType": "vector", "result": result})


def success(data: object) -> Answer:
    """Return an answer of a Prometheus."""
    return 200, {"Content-Type": "application/json"}, json.dumps({"status": "success", "data": data}).encode()


def refusal(status: int, kind: str, text: str) -> Answer:
    """Return a refusal of a Prometheus."""
    return status, {}, json.dumps({"status": "error", "errorType": kind, "error": text}).encode()
