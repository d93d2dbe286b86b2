"""Runs of the launcher with the program of these tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.json_lines import whole_lines
from tests.waiting import until

ROOT = Path(__file__).parents[4]
PROGRAM = Path(__file__).with_name("program.py")
HUNG_S = 60.0
"""After which a worker is lost here, s: what a live one does takes less on a loaded machine too, and a test that
would wait for one in vain ends soon."""
LAUNCHER = Path(__file__).with_name("forked.py")


class Run:
    """A launcher in a folder of its own, as a pool starts it."""

    def __init__(
        self, folder: Path, devices: int, *words: str, start: int = 0, hung_s: float = HUNG_S, **settings: Any
    ) -> None:
        self.folder, self.number = folder, 0
        self.out = folder / f"start-{start}"
        self.out.mkdir(parents=True, exist_ok=True)
        self.request_file = folder / "requests"
        self.request_file.unlink(missing_ok=True)
        settings = {"devices": [{}] * devices, "batch": [8, 64], "local_batch": [1, 16], "threads": 1, **settings}
        environment = {
            "HELIOS_ELASTIC": json.dumps(settings),
            "HELIOS_REPORT": str(folder / "report"),
            "HELIOS_REQUESTS": str(self.request_file),
            "HELIOS_CHECKPOINTS": str(folder / "checkpoints"),
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "task")]),
        }
        with (folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(LAUNCHER), str(hung_s), str(PROGRAM), "--out", str(self.out), *words],
                env={**os.environ, **environment},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def reports(self) -> list[dict[str, Any]]:
        return whole_lines(self.folder / "report")

    def steps(self) -> dict[int, list[dict[str, Any]]]:
        """Return what each worker has said after each step, by how many steps there were."""
        steps = defaultdict(list)
        for path in self.out.glob("*.jsonl"):
            for said in whole_lines(path):
                steps[said["step"]].append({**said, "pid": int(path.stem)})
        return dict(steps)

    def last(self) -> int:
        """Return the last step, by the last line of each worker: it is looked for fifty times a second."""
        whole = (path.read_text().rpartition("\n")[0] for path in self.out.glob("*.jsonl"))
        return max((json.loads(lines.rpartition("\n")[2])["step"] for lines in whole if lines), default=0)

    def wait_for_steps(self, more: int = 5) -> None:
        """Wait until training has gone on."""
        goal = self.last() + more
        until(lambda: self.process.poll() is not None or self.last() >= goal)
        assert self.last() >= goal, self.log

    def request(self, name: str, **details: Any) -> None:
        partial = self.folder / "requests.partial"
        partial.write_text(json.dumps({"request": name, **details}))
        partial.replace(self.request_file)

    def resize(self, devices: int, **details: Any) -> dict[str, Any]:
        """Request a size, and return the answer."""
        self.number += 1
        self.request("resize", number=self.number, devices=[{}] * devices, **details)
        return self.answer(self.number)

    def answer(self, number: int) -> dict[str, Any]:
        """Wait for the answer to a request of a size."""

        def answers() -> list[dict[str, Any]]:
            return [report["elastic"] for report in self.reports() if report.get("answer") == "resize"]

        until(lambda: self.process.poll() is not None or any(each["number"] == number for each in answers()))
        found = [each for each in answers() if each["number"] == number]
        assert found, self.log
        return found[0]

    def worker(self, place: int) -> int:
        """Return the process of the worker in this place."""
        steps = self.steps()
        latest = [worker for step in sorted(steps, reverse=True) for worker in steps[step]]
        return next(int(worker["pid"]) for worker in latest if worker["rank"] == place)

    def kill(self, place: int) -> None:
        """Kill the worker in this place, and wait until others go on."""
        os.kill(self.worker(place), signal.SIGKILL)
        self.wait_for_steps()

    def order(self, place: int, text: str) -> None:
        """Order a worker to ``end``, or to ``hang``."""
        partial = self.out / "order"
        partial.write_text(text)
        partial.replace(self.out / f"order-{place}")

    def losses(self) -> list[dict[str, Any]]:
        """Return what was reported of workers that were lost."""
        return [report["elastic"] for report in self.reports() if "lost" in report.get("elastic", {})]

    def wait_for_losses(self, count: int) -> None:
        """Wait until so many workers were lost, and others go on."""
        until(lambda: self.process.poll() is not None or len(self.losses()) >= count)
        self.wait_for_steps()

    def end(self, request: str) -> int:
        self.request(request)
        until(lambda: self.process.poll() is not None)
        return self.process.returncode
