"""CPU seconds of tests are told by folder, whichever worker ran them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUSY_S = 0.5
BUSY = f"""
import subprocess, sys, time

def burn():
    started = time.process_time()
    while time.process_time() - started < {BUSY_S}:
        pass

def test_busy():
    burn()

def test_busy_child():
    subprocess.run([sys.executable, "-c", "import time\\nwhile time.process_time() < {BUSY_S}: pass"], check=True)
"""
IDLE = "def test_idle(): pass"


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("suite")
    for name, text in (("busy", BUSY), ("idle", IDLE)):
        (folder / name).mkdir()
        (folder / name / f"test_{name}.py").write_text(text)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.cpu_times",
        "-n",
        "2",
        "--rootdir",
        folder,
        "--durations",
        "3",
    ]
    surroundings = {"PYTHONPATH": str(ROOT), "PATH": ""}
    return subprocess.run(
        [*command, "-c", "/dev/null", folder], capture_output=True, text=True, check=True, env=surroundings
    ).stdout


def test_work_of_a_test_and_its_children_is_counted(printed: str) -> None:
    assert 2 * BUSY_S <= seconds(printed, "busy") < 20 * BUSY_S


def test_an_idle_folder_has_a_row_too(printed: str) -> None:
    assert seconds(printed, "idle") < BUSY_S


def test_the_last_row_is_the_sum(printed: str) -> None:
    assert seconds(printed, "all") == pytest.approx(seconds(printed, "busy") + seconds(printed, "idle"), abs=0.2)


def seconds(printed: str, folder: str) -> float:
    return float(re.search(rf"^ *([\d.]+)s  {folder}$", printed, flags=re.MULTILINE)[1])
