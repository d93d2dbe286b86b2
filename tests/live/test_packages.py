"""The packages and the Ansible role, tried in a clean root of Debian that has no network."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.waiting import until

REPOSITORY = Path(__file__).parents[2]
SUITE = {(3, 11): "bookworm", (3, 13): "trixie"}.get(sys.version_info[:2])
NEEDED = (
    "python3 python3-apt libgomp1 systemd ansible-core munge mariadb-server slurmctld slurmd slurmdbd "
    "slurm-client slurm-wlm-basic-plugins slurm-wlm-mysql-plugin"
)
PATHS = "PATH=/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
# Slurm looks for an address that is not of loopback, and for control groups.
ALONE = "ip link set lo up; ip address add 10.99.0.1/24 dev lo"
ENTER = """
mount -t proc proc "$0/proc"; mount --rbind /sys "$0/sys"
exec chroot "$0" env -i HOME=/root LANG=C.UTF-8 "$1" sh -euc "$2"
"""
VARIABLES = """
helios_package: /srv/helios.deb
helios_settings: |
  [daemon]
  cycle_s = 30
helios_environment: {SLURM_CONF: /srv/cluster/conf/slurm.conf}
"""
ROLE = """
echo "127.0.0.1 localhost $(hostname)" >/etc/hosts
export DEVCLUSTER_FOLDER=/srv/cluster
/srv/deploy/devcluster/devcluster up >&2
eval "$(/srv/deploy/devcluster/devcluster env)"
for run in 1 2; do ansible-playbook -i localhost, -c local -e @/srv/variables.yml /srv/deploy/ansible/helios.yml; done
sacctmgr --noheader --parsable2 show user format=User,AdminLevel
helios config
helios doctor || true
"""
# An own /run, since systemd-nspawn wants one in memory.
BOOT = """
mount -t tmpfs tmpfs /run
exec systemd-nspawn --directory="$0" --register=no --keep-unit --private-network --console=pipe --boot
"""
UNITS = """
dpkg -i /srv/helios.deb >&2
echo "127.0.0.1 localhost $(hostname)" >/etc/hosts
export DEVCLUSTER_FOLDER=/srv/units
/srv/deploy/devcluster/devcluster up >&2
eval "$(/srv/deploy/devcluster/devcluster env)"
(umask 077; echo "SLURM_CONF='$SLURM_CONF'" >/etc/helios/environment; openssl rand -hex 24 >/etc/helios/web.token)
sacctmgr -i add user helios account=root adminlevel=operator >&2
sacctmgr -i add user helios-power account=root adminlevel=admin >&2
helios db upgrade >&2
systemctl daemon-reload
systemctl start helios helios-web helios-nightly.timer
systemctl start helios-power || systemctl show --property=ExecMainStatus,NRestarts helios-power
mkdir -p /etc/helios/conf.d; echo "[services.ces]" >/etc/helios/conf.d/power.toml
systemctl start helios-power helios-nightly
systemctl is-active helios helios-web helios-nightly.timer helios-power
"""
ASK = """
/usr/lib/helios/bin/python3 - <<'END'
import sys, urllib.error, urllib.request
token = open("/etc/helios/web.token").read().strip()
for address, head in (
    ("http://127.0.0.1:9842/healthz", {}),
    ("http://127.0.0.1:9850/", {"Authorization": f"Bearer {token}"}),
    ("http://127.0.0.1:9850/", {}),
):
    try:
        print(urllib.request.urlopen(urllib.request.Request(address, headers=head)).status)
    except urllib.error.URLError as reason:
        print(getattr(reason, "code", "does not listen"))
END
"""

UNPRIVILEGED = "runuser -u helios -- env HOME=/var/lib/helios PATH=/usr/lib/helios/bin"
MOST_MB = 600
"""Of a package on the disk."""

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(os.geteuid() != 0, reason="a chroot needs root"),
    pytest.mark.skipif(shutil.which("debootstrap") is None, reason="debootstrap is not here"),
    pytest.mark.skipif(SUITE is None, reason="no release of Debian has this Python"),
]


def run(*words: str | Path, code: int = 0) -> str:
    done = subprocess.run(words, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == code, done.stdout[-4_000:]
    return done.stdout


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--wheel", "--outdir", folder, REPOSITORY)
    (wheel,) = folder.glob("*.whl")
    os.environ.setdefault("PYTHON", sys.executable)
    run(REPOSITORY / "deploy/packages/build.sh", wheel, folder)
    return folder


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A root that has all but Helios; a test leaves it like that."""
    asked = ["--format", "$(SITE)", "Created-By: Packages", "Origin: Debian"]
    mirrors = [line for line in run("apt-get", "indextargets", *asked).splitlines() if "security" not in line]
    folder = tmp_path_factory.mktemp("machine") / "root"
    folder.parent.chmod(0o755)
    run("unshare", "--mount", "debootstrap", "--variant=minbase", SUITE, folder, mirrors[0])
    # debootstrap itself does not know of virtual packages, which Ansible's need.
    added = f"apt-get update -q; DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends {NEEDED}"
    run("unshare", "--mount", "sh", "-euc", ENTER, folder, PATHS, added)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def root(machine: Path) -> Iterator[Path]:
    """The machine without what an earlier test has left."""
    (machine / "etc/slurm").mkdir(exist_ok=True)
    yield machine
    for name in ("etc/helios", "etc/slurm", "var/cache/helios", "var/lib/helios", "var/lib/helios-setup"):
        shutil.rmtree(machine / name, ignore_errors=True)


def inside(root: Path, command: str, code: int = 0) -> str:
    namespaces = ("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child")
    return run(*namespaces, "sh", "-euc", ALONE + ENTER, root, PATHS, command, code=code)


@contextmanager
def booted(root: Path) -> Iterator[Callable[[str], str]]:
    """Run systemd in the machine, and give what runs commands beside it."""
    nspawn = subprocess.Popen(["unshare", "--mount", "sh", "-euc", BOOT, str(root)], stdout=subprocess.DEVNULL)
    process = psutil.Process(nspawn.pid)

    def machines() -> list[psutil.Process]:
        return [child for child in process.children() if child.name() == "systemd"]

    try:
        until(machines)
        enter = [
            "nsenter",
            f"--target={machines()[0].pid}",
            "--mount",
            "--uts",
            "--ipc",
            "--net",
            "--pid",
            "env",
            "-i",
            PATHS,
        ]
        enter += ["HOME=/root", "LANG=C.UTF-8", "sh", "-euc"]

        def ready() -> bool:
            answer = subprocess.run(
                [*enter, "systemctl is-system-running"], capture_output=True, text=True, check=False
            )
            return answer.stdout.strip() in {"running", "degraded"}

        until(ready)
        yield lambda command: run(*enter, command)
    finally:
        for child in process.children():
            child.kill()
        nspawn.wait()


def check_and_remove(root: Path, *remove: str | Path) -> None:
    """Check what a package has installed, and that nothing but the site's own is left without it."""
    assert "helios 0." in inside(root, "helios --version")
    assert "scontrol" in inside(root, "helios doctor", code=1)
    inside(root, "/usr/lib/helios/bin/helios setup --hook /etc/slurm --power /etc/slurm/power")
    assert (root / "etc/slurm/helios_hook.lua").exists()
    inside(root, "/usr/lib/helios/bin/helios setup --remove --hook /etc/slurm --power /etc/slurm/power")
    inside(root, "/usr/lib/helios/bin/python3 -c 'import psycopg, starlette, uvicorn'")
    assert (root / "usr/share/man/man1/helios-pool.1.gz").exists()
    (root / "etc/helios/helios.toml").write_text("# ours\n")
    run(*remove)
    assert (root / "etc/helios/helios.toml").read_text() == "# ours\n"
    assert not (root / "usr/lib/helios").exists()
    assert not list((root / "usr/lib/systemd/system").glob("helios*"))
    assert not list((root / "usr/sbin").glob("helios*"))
    assert not list((root / "usr/share/man").glob("man*/helios*"))


def test_a_package_has_all_compiled_and_no_file_is_the_machines(root: Path, packages: Path) -> None:
    (package,) = packages.glob("*.deb")
    shutil.copy(package, root / "srv/helios.deb")
    inside(root, "dpkg -i /srv/helios.deb")
    said = inside(root, f"cd /var/lib/helios; {UNPRIVILEGED} helios try --days 3 2>&1")
    assert "Traceback" not in said
    assert "Compiling" not in said
    # What is copied keeps the time of the package.
    assert not inside(root, "find /var/lib/helios -name '*.nbc' -newer /usr/lib/helios/pyvenv.cfg")
    assert inside(root, "find /var/lib/helios -name '*.nbc'")
    owned = set(inside(root, "dpkg -L helios-slurm").splitlines())
    found = inside(root, "find /usr/lib/helios /usr/share/helios /etc/helios ! -type d").splitlines()
    assert set(found) <= owned
    assert int(inside(root, "du -sm /usr/lib/helios").split()[0]) < MOST_MB
    inside(root, "dpkg --purge helios-slurm")


def test_the_debian_package_installs_offline_and_leaves_files_of_the_site(root: Path, packages: Path) -> None:
    (package,) = packages.glob("*.deb")
    shutil.copy(package, root / "srv/helios.deb")
    inside(root, "dpkg -i /srv/helios.deb")
    check_and_remove(root, "chroot", root, "dpkg", "--remove", "helios-slurm")
    inside(root, "dpkg --purge helios-slurm")


@pytest.mark.skipif(shutil.which("rpmbuild") is None, reason="rpmbuild (Debian: rpm) is not here")
def test_the_rpm_installs_without_a_network_and_leaves_what_is_the_sites(root: Path, packages: Path) -> None:
    (package,) = packages.glob("*.rpm")
    files = run("rpm", "--query", "--package", "--list", package)
    assert "/usr/lib/helios/bin/helios" in files
    # What it requires are names of packages of other distributions.
    rpm = ["unshare", "--net", "rpm", "--root", root, "--nodeps"]
    run(*rpm, "--install", package)
    run(*rpm, "--upgrade", "--force", package)
    check_and_remove(root, *rpm, "--erase", "helios-slurm")


def test_the_ansible_role_changes_nothing_the_second_time(root: Path, packages: Path) -> None:
    (package,) = packages.glob("*.deb")
    shutil.copy(package, root / "srv/helios.deb")
    shutil.copytree(REPOSITORY / "deploy", root / "srv/deploy")
    (root / "srv/variables.yml").write_text(VARIABLES)
    said = inside(root, ROLE)
    first, second = (line for line in said.splitlines() if "failed=0" in line)
    assert "changed=8" in first
    assert "changed=0" in second
    assert "helios|Operator" in said
    assert "/etc/helios/conf.d/50-ansible.toml" in said
    assert "user helios has AdminLevel Operator" in said
    inside(root, "dpkg --purge helios-slurm")


@pytest.mark.skipif(shutil.which("systemd-nspawn") is None, reason="systemd-nspawn (systemd-container) is not here")
def test_the_units_run_under_systemd(root: Path, packages: Path) -> None:
    (package,) = packages.glob("*.deb")
    shutil.copy(package, root / "srv/helios.deb")
    shutil.copytree(REPOSITORY / "deploy", root / "srv/deploy", dirs_exist_ok=True)
    with booted(root) as say:
        said = say(f"{ALONE}\n{UNITS}")
        # Without a service for nodes it says so and is not started again and again.
        assert "ExecMainStatus=2" in said
        assert "NRestarts=0" in said
        assert said.splitlines()[-4:] == ["active"] * 4
        until(lambda: say(ASK).split()[-3:] == ["200", "200", "401"])
        say("kill -9 $(systemctl show --property=MainPID --value helios)")
        until(lambda: say("systemctl show --property=NRestarts,ActiveState --value helios").split() == ["1", "active"])
        assert "taking back what it set" in say("journalctl --unit=helios --no-pager")
        say("systemctl stop helios helios-web helios-power")
        assert "looked again, nothing is left" in say("journalctl --unit=helios-power --no-pager")
        say("dpkg --purge helios-slurm")


@pytest.mark.skipif(shutil.which("ansible-lint") is None, reason="ansible-lint is not here")
def test_the_ansible_role_is_as_ansible_lint_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY / "deploy/ansible")
    run("ansible-lint", "--offline", "--profile", "production")
