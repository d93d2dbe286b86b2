"""A person with ten minutes: one command, from nothing to a report, by what is installed from the wheel."""

import os
import re
import shutil
import subprocess
import sys
import urllib.request
import venv
from pathlib import Path

import pytest
from numba.core.caching import UserProvidedCacheLocator

from helios.jit import cache_folder
from tests.story.shell import shell
from tests.waiting import TEST_TIMEOUT_S

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that holds the built wheel; its dependencies are borrowed from the one that runs the tests."""
    folder = tmp_path_factory.mktemp("wheel")
    words = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    built = subprocess.run(words, check=False, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    venv.create(folder / "env", with_pip=False)
    (wheel,) = folder.glob("*.whl")
    python = folder / "env" / "bin" / "python"
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", wheel], check=True
    )
    # Compiled code goes by the content of the sources, which are the same: the test need not compile them once more.
    for source in (ROOT / "helios").rglob("*.py"):
        theirs = Path(site, source.relative_to(ROOT))
        before, after = (UserProvidedCacheLocator.get_suitable_cache_subpath(str(path)) for path in (source, theirs))
        for compiled in cache_folder().glob(f"*/{before}"):
            shutil.copytree(compiled, folder / "compiled" / compiled.parent.name / after, dirs_exist_ok=True)
    borrowed = [path for path in sys.path if path.endswith("site-packages")]
    # A plain path entry runs no .pth of the borrowed folder, so the editable install there stays invisible.
    (Path(site) / "borrowed.pth").write_text("\n".join(borrowed) + "\n")
    return folder / "env" / "bin"


def run(installed: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "NUMBA_CACHE_DIR": str(installed.parents[1] / "compiled"),
        "HELIOS_DATABASE_URL": f"sqlite:///{folder}/helios.db",
    }
    return subprocess.run(
        [installed / arguments[0], *arguments[1:]],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_package_is_the_installed_one(installed: Path, tmp_path: Path) -> None:
    where = run(installed, tmp_path, "python", "-c", "import helios; print(helios.__file__)").stdout
    assert str(installed.parent) in where


def test_an_installed_helios_has_its_maps(installed: Path, tmp_path: Path) -> None:
    done = run(installed, tmp_path, "helios", "trace", "load", "jobs.csv", "--columns", "help")
    assert "pm100, slurmdbd" in done.stderr


def test_an_installed_helios_makes_its_own_schema(installed: Path, tmp_path: Path) -> None:
    done = run(installed, tmp_path, "helios", "db", "upgrade")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "helios.db").exists()
    assert "already at" in run(installed, tmp_path, "helios", "db", "upgrade").stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("try")


@pytest.fixture(scope="module")
def trial(installed: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    done = run(installed, folder, "helios", "try", "--days", "2")
    assert done.returncode == 0, done.stderr
    return done


def test_the_table_ends_in_the_terminal_with_the_controls_beside_qssf(trial: subprocess.CompletedProcess[str]) -> None:
    for policy in ("FIFO", "QSSF", "SJF", "SRTF"):
        assert policy in trial.stdout.upper()


def test_the_report_is_named_and_complete_in_itself(trial: subprocess.CompletedProcess[str], folder: Path) -> None:
    page = (folder / "helios-try" / "report.html").read_text()
    assert "helios-try/report.html" in trial.stderr
    assert "<svg" in page
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", page)


def test_it_says_what_to_type_next_with_an_own_sacct_file(trial: subprocess.CompletedProcess[str]) -> None:
    assert "sacct " in trial.stderr
    assert "helios trace load" in trial.stderr


def test_the_command_that_it_names_shows_its_month(
    trial: subprocess.CompletedProcess[str], installed: Path, folder: Path
) -> None:
    (command,) = re.findall(r"^ *(HELIOS_DATABASE_URL=.* helios web .*)$", trial.stderr, re.MULTILINE)
    environment = {"PATH": f"{installed}:{os.environ['PATH']}", "HOME": str(folder)}
    words = ["sh", "-c", f"exec env {command} --listen 127.0.0.1:0"]
    with subprocess.Popen(words, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True) as web:
        try:
            assert web.stderr is not None
            address, _, token = web.stderr.readline().removeprefix("Open ").strip().partition("?token=")
            asked = urllib.request.Request(f"{address}users", headers={"Authorization": f"Bearer {token}"})
            with urllib.request.urlopen(asked, timeout=TEST_TIMEOUT_S) as answer:
                page = answer.read().decode()
        finally:
            web.kill()
    assert "Hours held and jobs submitted by user, 2020-09-01" in page


def test_the_site_s_own_warehouse_is_not_touched(trial: subprocess.CompletedProcess[str], folder: Path) -> None:
    assert not (folder / "helios.db").exists()


def test_the_same_seed_gives_the_same_answer(trial: subprocess.CompletedProcess[str], tmp_path: Path) -> None:
    """The other run is a fork, with another hash seed."""
    assert shell(tmp_path)("try", "--days", 2, "--out", tmp_path / "again").out == trial.stdout


def test_an_installed_helios_brings_units_hook_and_programs(installed: Path, tmp_path: Path) -> None:
    done = run(installed, tmp_path, "helios", "setup", "--root", str(tmp_path / "machine"), "--hook", "/etc/slurm")
    assert done.returncode == 0, done.stderr
    unit = (tmp_path / "machine/etc/systemd/system/helios.service").read_text()
    assert f"ExecStart={installed}/helios daemon" in unit
    assert (tmp_path / "machine/etc/slurm/helios_hook.lua").read_bytes() == (
        ROOT / "deploy/slurm/job_submit.lua"
    ).read_bytes()
