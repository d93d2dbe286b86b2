"""A stranger writes a service: the package installs, passes its own tests, and acts through Helios like any other."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "tests" / "thirdparty" / "helios-night-owl"
PAGE = ROOT / "docs" / "write-a-service.md"

ONE_CYCLE = """
from datetime import timedelta

from helios.changes import to_job_changes
from helios.services.registry import build, installed
from helios.testing import NOON, FakeCluster

facts = installed()["night_owl"]
print(facts.package, "|", facts.summary, "|", "; ".join(map(str, facts.options)), "|", facts.broken)

cluster = FakeCluster(now=NOON + timedelta(hours=12))
small, large = cluster.submit(gpus=1), cluster.submit(gpus=8)
service = build("night_owl", {"large_gpus": 4})
for cycle in range(2):
    outcomes = cluster.apply(to_job_changes(list(service.decide(cluster.snapshot()))).changes)
    print([(outcome.job_id == large, outcome.result.value) for outcome in outcomes], cluster.queue == [large, small])
"""

MISSPELT = """
from helios.services.registry import build
build("night_owl", {"large_gpu": 4})
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the installed package, for PYTHONPATH; Helios comes from the environment of the tests."""
    folder = tmp_path_factory.mktemp("night-owl")
    source = shutil.copytree(PACKAGE, folder / "source")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*pip, "--target", folder / "site", source], check=True, capture_output=True)
    return folder / "site"


def python(installed: Path, *arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": str(installed)},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_package_passes_its_own_tests(installed: Path, tmp_path: Path) -> None:
    shutil.copytree(PACKAGE / "tests", tmp_path / "tests")
    done = python(installed, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "9 passed" in done.stdout


def test_the_service_is_found_by_name_and_reorders_a_queue_once(installed: Path, tmp_path: Path) -> None:
    done = python(installed, "-c", ONE_CYCLE, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    facts, first, second = done.stdout.splitlines()
    assert facts.split(" | ") == [
        "helios-night-owl 1.0.0",
        "Prefer large jobs at night, the largest first.",
        "large_gpus: int = 8; begins: int = 22; ends: int = 6; timezone: str = 'UTC'",
        "",
    ]
    assert (first, second) == ("[(True, 'done')] True", "[(True, 'unchanged')] True")


def test_a_misspelt_option_of_a_foreign_service_is_named_with_those_allowed(installed: Path, tmp_path: Path) -> None:
    done = python(installed, "-c", MISSPELT, cwd=tmp_path)
    assert done.returncode == 1
    assert "has no option 'large_gpu'" in done.stderr
    assert "large_gpus: int = 8" in done.stderr


def code_on_the_page(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)


def test_the_page_shows_the_service_and_its_tests_as_they_are() -> None:
    service, tests, *_ = code_on_the_page("python")
    assert service == (PACKAGE / "helios_night_owl.py").read_text()
    assert (PACKAGE / "tests" / "test_night_owl.py").read_text().startswith(tests)
    assert "check_service" in tests


def test_the_page_shows_the_project_file_as_it_is() -> None:
    project = (PACKAGE / "pyproject.toml").read_text()
    assert any(block == project for block in code_on_the_page("toml"))


def test_the_service_is_as_short_as_the_page_says() -> None:
    assert len((PACKAGE / "helios_night_owl.py").read_text().splitlines()) <= 60
    assert "60 lines" in PAGE.read_text()
