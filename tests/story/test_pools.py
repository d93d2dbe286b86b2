"""A pool from Python, as the page says it and in a notebook's thread."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from helios import pools
from helios.errors import UsageError
from tests.waiting import until

ROOT = Path(__file__).parents[2]
TRAIN = """
import json, os, sys
rate = float(sys.argv[sys.argv.index("--lr") + 1])
print(json.dumps({"step": 0, "accuracy": 1 - rate}), file=open(os.environ["HELIOS_REPORT"], "a"))
"""
WAITS = "import pathlib, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.02)\n"


def a_sweep(*values: float) -> dict[str, object]:
    command = [sys.executable, "train.py", "--lr", "{lr}"]
    return {"command": command, "parameters": {"lr": list(values)}, "search": {"metric": "accuracy"}}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    return tmp_path


def test_the_text_of_the_page_runs(folder: Path) -> None:
    page = (ROOT / "docs" / "pools.md").read_text()
    [text] = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "helios.pools" in block]
    answer = subprocess.run([sys.executable, "-c", text], cwd=folder, capture_output=True, text=True, check=True)
    assert answer.stdout.startswith("{'lr': 0.001} 0.999")


def test_rows_and_frame_have_each_trial(folder: Path) -> None:
    pool = pools.run(a_sweep(0.1, 0.2), kind="cpu")
    assert [row["state"] for row in pool.rows] == ["finished", "finished"]
    frame = pool.trials
    assert [*frame["lr"]] == [0.1, 0.2]
    assert frame["accuracy"].max() == pytest.approx(0.9)
    assert pool.best is not None
    assert pool.best["parameters"] == {"lr": 0.1}


def test_a_folder_may_be_a_text(folder: Path) -> None:
    assert pools.run(a_sweep(0.1), folder="other.pool", kind="cpu").folder == folder / "other.pool"
    assert len(pools.load("other.pool").rows) == 1


def test_a_pool_runs_outside_the_main_thread(folder: Path) -> None:
    found: list[pools.Pool] = []
    thread = threading.Thread(target=lambda: found.append(pools.run(a_sweep(0.1), kind="cpu")))
    thread.start()
    thread.join()
    assert len(found[0].rows) == 1


def test_signal_handlers_stay_those_of_the_caller(folder: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    pools.run(a_sweep(0.1), kind="cpu")
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_an_interruption_ends_the_trials_and_the_call_goes_on(folder: Path) -> None:
    (folder / "train.py").write_text(WAITS + TRAIN)
    code = f"import json, helios.pools\nhelios.pools.run(json.loads({json.dumps(a_sweep(0.1, 0.2))!r}), kind='cpu')"
    process = subprocess.Popen([sys.executable, "-c", code], cwd=folder, stderr=subprocess.PIPE, text=True)
    state = folder / "sweep.pool/state.jsonl"
    until(lambda: state.exists() and "started" in state.read_text())
    process.send_signal(signal.SIGINT)
    said = process.communicate()[1]
    assert "KeyboardInterrupt" in said
    assert {row["state"] for row in pools.load("sweep.pool").rows} == {"waiting"}
    (folder / "go").touch()
    assert {row["state"] for row in pools.run(a_sweep(0.1, 0.2), kind="cpu").rows} == {"finished"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"parameter": {}}, "'parameter' is unknown"),
        ({"parameters": {"lr": {1, 2}}}, "not JSON serializable"),
        ({"command": "nothing-there {lr}"}, "nothing-there"),
    ],
)
def test_a_wrong_sweep_is_refused(folder: Path, change: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        pools.run(a_sweep(0.1) | change)


def test_where_an_interruption_is_raised_no_trial_runs(folder: Path) -> None:
    (folder / "train.py").write_text(WAITS + TRAIN)
    sweep = json.dumps({**a_sweep(0.1, 0.2), "grace_s": 0.1})
    code = (
        f"import json, helios.pools as pools\ntry:\n    pools.run(json.loads({sweep!r}), kind='cpu')\n"
        "except KeyboardInterrupt:\n    print({row['state'] for row in pools.load('sweep.pool').rows})"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=folder, stdout=subprocess.PIPE, text=True)
    state = folder / "sweep.pool/state.jsonl"
    until(lambda: state.exists() and "started" in state.read_text())
    process.send_signal(signal.SIGINT)
    assert process.communicate()[0].strip() == "{'waiting'}"
