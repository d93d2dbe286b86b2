"""What is installed is the wheel, not the folder it was built in."""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that holds the built wheel; its dependencies are borrowed from the one that runs the tests."""
    folder = tmp_path_factory.mktemp("wheel")
    words = [sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(ROOT)]
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
    for compiled in (ROOT / "helios").rglob("__pycache__/*.nb[ci]"):
        there = Path(site, compiled.relative_to(ROOT))
        if there.parent.parent.is_dir():  # a package that was removed may have left a cache behind
            there.parent.mkdir(exist_ok=True)
            shutil.copy2(compiled, there)
    borrowed = [path for path in sys.path if path.endswith("site-packages")]
    # A plain path entry runs no .pth of the borrowed folder, so the editable install there stays invisible.
    (Path(site) / "borrowed.pth").write_text("\n".join(borrowed) + "\n")
    return folder / "env" / "bin"


def run(installed: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
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


def test_an_installed_helios_makes_its_own_schema(installed: Path, tmp_path: Path) -> None:
    done = run(installed, tmp_path, "helios", "db", "upgrade")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "helios.db").exists()
    assert "up to date" in run(installed, tmp_path, "helios", "db", "status").stdout


def test_an_installed_helios_runs_the_whole_path(installed: Path, tmp_path: Path) -> None:
    done = run(installed, tmp_path, "helios", "try", "--days", "4")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "helios-try" / "report.html").stat().st_size > 10_000
