"""The Debian package, installed in a clean root of Debian that has no network, and removed again."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
SUITE = {(3, 11): "bookworm", (3, 13): "trixie"}.get(sys.version_info[:2])
NEEDED = "python3,python3-venv,libgomp1,systemd"
PATHS = "PATH=/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(os.geteuid() != 0, reason="a chroot needs root"),
    pytest.mark.skipif(shutil.which("debootstrap") is None, reason="debootstrap is not here"),
    pytest.mark.skipif(SUITE is None, reason="no release of Debian has this Python"),
]


def run(*words: str | Path, code: int = 0) -> str:
    done = subprocess.run(words, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == code, done.stdout
    return done.stdout


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    asked = ["--format", "$(SITE)", "Created-By: Packages", "Origin: Debian"]
    mirrors = [line for line in run("apt-get", "indextargets", *asked).splitlines() if "security" not in line]
    folder = tmp_path / "root"
    run("unshare", "--mount", "debootstrap", "--variant=minbase", f"--include={NEEDED}", SUITE, folder, mirrors[0])
    yield folder
    shutil.rmtree(folder)


def inside(root: Path, command: str, code: int = 0) -> str:
    mounted = 'mount -t proc proc "$0/proc"; exec chroot "$0" env -i "$1" sh -c "$2"'
    return run("unshare", "--mount", "--net", "sh", "-c", mounted, root, PATHS, command, code=code)


def test_it_installs_without_a_network_and_leaves_what_is_the_sites(root: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path, REPOSITORY)
    (wheel,) = tmp_path.glob("*.whl")
    os.environ.setdefault("PYTHON", sys.executable)
    run(REPOSITORY / "deploy/debian/build.sh", wheel, tmp_path)
    (package,) = tmp_path.glob("*.deb")
    shutil.copy(package, root / "helios.deb")
    (root / "etc/slurm").mkdir()
    inside(root, "dpkg -i /helios.deb")
    assert "helios 0." in inside(root, "helios --version")
    assert "scontrol was not found" in inside(root, "helios doctor", code=1)
    inside(root, "/opt/helios/bin/helios setup --check --hook /etc/slurm --power /etc/slurm/power")
    (root / "etc/helios/helios.toml").write_text("# ours\n")
    inside(root, "dpkg --purge helios-slurm")
    assert (root / "etc/helios/helios.toml").read_text() == "# ours\n"
    assert not (root / "opt/helios").exists()
    assert not list((root / "etc/systemd/system").glob("helios*"))
    assert not list((root / "usr/local/sbin").iterdir())
