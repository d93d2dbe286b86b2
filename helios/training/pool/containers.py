"""Containers of trials, started by the first runtime that works here.

A container is a *segment*: it starts once and then runs trials one after another. The Python in the image executes the
source of ``warm.py``, so that an image needs Python 3.9 or newer, but not Helios. Archives are unpacked once a node.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from helios.errors import FileUnwritable, HeliosError, UsageError
from helios.private_files import make_folder
from helios.training.pool import warm
from helios.training.pool.processes import POOL
from helios.training.pool.running import fill_placeholders
from helios.training.pool.sweep import TrainingSweep

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""``PATH`` in a container whose image does not set it."""
START_S = 600.0
"""Longest time for the first start, in which a runtime may pull an image, s."""
_SERVE = "import sys; sys.path.pop(0); exec(sys.argv.pop(1))"
"""Executes the next argument as source, without the trials' folder on ``sys.path``."""
_PROBE = """
import json, shutil, sys
print(json.dumps({"python": sys.version_info[:2], "found": shutil.which(sys.argv[1]) is not None}))
"""
_MACHINES = {3: "i686", 21: "ppc64le", 22: "s390x", 40: "armv7l", 62: "x86_64", 183: "aarch64", 243: "riscv64"}
"""Name by ``uname -m`` for the ``e_machine`` of an ELF file (``elf.h``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """Folders, environment and GPUs that a container gets.

    Attributes
    ----------
    binds : tuple of str
        Folders that are bound at the same path.
    folder : str
        Its working directory.
    environment : mapping
        Variables in addition to those of the image.
    gpus : bool
        Whether it needs the GPUs.
    notes : str
        Folder for files of the runtime.
    """

    binds: tuple[str, ...]
    folder: str
    notes: str
    environment: Mapping[str, str]
    gpus: bool


class Runtime(ABC):
    """A program that starts containers without privileges.

    In its commands, ``{segment}`` stands for the name of the container, ``{limit_mib}`` for its memory limit, and
    ``{node}`` for the node on which Slurm starts it.
    """

    keeps_limit: ClassVar[bool] = False
    """Whether it enforces the memory limit itself, so that it cannot be changed later."""
    remove: ClassVar[tuple[str, ...]] = ()
    """Command that removes a killed container. Empty where nothing remains of one."""
    root_file: ClassVar[str] = ""
    """File in ``notes`` with the id of the process that runs the container. Empty if that is the started process."""

    @abstractmethod
    def prepare(self, image: str) -> str:
        """Return the image to start, unpacked if needed.

        Raises
        ------
        ValueError
            The runtime cannot start such an image.
        """

    @abstractmethod
    def command(self, image: str, inside: Inside) -> list[str]:
        """Return the command that starts the image, without the program."""

    def remove_left(self, pool: str) -> None:
        """Remove the containers of a pool that was killed."""
        del pool


class _Slurm(Runtime):
    """Slurm's own containers, of pyxis or OCI bundles, inside of a job."""

    keeps_limit = True

    def prepare(self, image: str) -> str:
        if "SLURM_JOB_ID" not in os.environ or shutil.which("srun") is None:
            raise ValueError("this is no Slurm job")
        if not (Path(image) / "config.json").is_file():
            answer = subprocess.run(["srun", "--help"], capture_output=True, text=True, check=False)
            if "--container-image" not in answer.stdout:
                raise ValueError("pyxis is not installed, and this is no OCI bundle")
        return image

    def command(self, image: str, inside: Inside) -> list[str]:
        words = ["env", *(f"{name}={value}" for name, value in inside.environment.items())]
        words += ["srun", "--overlap", "--nodes=1", "--ntasks=1", "--mem={limit_mib}M"]
        words += ["--nodelist={node}"] if "SLURMD_NODENAME" in os.environ else []
        words.append("--export=" + ",".join(inside.environment))
        if (Path(image) / "config.json").is_file():  # an OCI bundle lists its mounts itself
            return [*words, f"--container={image}"]
        mounts = ",".join(f"{bind}:{bind}" for bind in inside.binds)
        return [
            *words,
            f"--container-image={image}",
            f"--container-name=helios-{inside.environment[POOL]}",  # unpacked once a node
            f"--container-mounts={mounts}",
            f"--container-workdir={inside.folder}",
            "--no-container-mount-home",
        ]


class _Apptainer(Runtime):
    def prepare(self, image: str) -> str:
        if self._program() is None:
            raise ValueError("it is not installed")
        if image.startswith("/") and not image.endswith(".sif") and not Path(image).is_dir():
            raise ValueError("it starts .sif files, folders, and docker://NAME")
        return image

    @staticmethod
    def _program() -> str | None:
        return shutil.which("apptainer") or shutil.which("singularity")

    def command(self, image: str, inside: Inside) -> list[str]:
        words = [self._program() or "apptainer", "exec", "--cleanenv", "--no-home", *(["--nv"] if inside.gpus else [])]
        words += [f"--bind={bind}:{bind}" for bind in inside.binds]
        words += [f"--env={name}={value}" for name, value in inside.environment.items()]
        return [*words, f"--pwd={inside.folder}", image]


class _Podman(Runtime):
    root_file = "{segment}.pid"
    remove = ("podman", "rm", "--force", "--time=0", "{segment}")

    def __init__(self, *more: str) -> None:
        self._more = more

    def prepare(self, image: str) -> str:
        if shutil.which("podman") is None:
            raise ValueError("it is not installed")
        if Path(image).is_file():
            raise ValueError("it starts folders, and images that it was given by podman pull or podman load")
        if not Path(image).is_dir() and subprocess.run(["podman", "image", "exists", image], check=False).returncode:
            pulled = subprocess.run(
                ["podman", "pull", "--quiet", image], capture_output=True, text=True, check=False, timeout=START_S
            )
            if pulled.returncode:
                raise ValueError(_last_line(pulled.stderr) or "podman pull failed")
        return image

    def command(self, image: str, inside: Inside) -> list[str]:
        words = ["podman", "run", "--rm", "--interactive", "--pull=never", "--name={segment}", *self._more]
        words += [f"--conmon-pidfile={inside.notes}/{self.root_file}", f"--label={POOL}={inside.environment[POOL]}"]
        words += ["--network=host", "--no-hosts", "--userns=keep-id", "--ulimit=host", "--security-opt=label=disable"]
        words += ["--device=nvidia.com/gpu=all"] if inside.gpus else []
        words += [f"--volume={bind}:{bind}" for bind in inside.binds]
        words += [f"--env={name}={value}" for name, value in inside.environment.items()]
        words.append(f"--workdir={inside.folder}")
        return [*words, "--rootfs", image] if Path(image).is_dir() else [*words, image]

    def remove_left(self, pool: str) -> None:
        with suppress(OSError, subprocess.TimeoutExpired):
            listed = ["podman", "ps", "--all", "--quiet", f"--filter=label={POOL}={pool}"]
            left = subprocess.run(listed, capture_output=True, text=True, check=False, timeout=60).stdout.split()
            if left:
                subprocess.run([*self.remove[:-1], *left], capture_output=True, check=False, timeout=60)


class _Charliecloud(Runtime):
    def prepare(self, image: str) -> str:
        if shutil.which("ch-run") is None:
            raise ValueError("it is not installed")
        if not image.startswith("/"):
            raise ValueError("it starts folders and archives of a root file system")
        return image if Path(image).is_dir() else str(unpack(Path(image)))

    def command(self, image: str, inside: Inside) -> list[str]:
        # ch-run binds TMPDIR at /tmp, and needs a USER.
        words = ["env", "--unset=TMPDIR", "USER=helios", "ch-run", "--env-no-expand", "--unset-env=*"]
        words.append(f"--set-env=PATH={PATH}")
        words += ["--set-env"] if (Path(image) / "ch" / "environment").is_file() else []
        own = {"HOME": inside.notes, **inside.environment}
        words += [f"--set-env={name}={value}" for name, value in own.items()]
        for bind in inside.binds:
            if not Path(bind).is_relative_to("/tmp"):  # which ch-run binds by itself
                _make_mount_point(Path(image), bind)
                words.append(f"--bind={bind}:{bind}")
        return [*words, f"--cd={inside.folder}", image, "--"]


# With --cgroups=disabled a container stays in the control group of its parent. crun can do that, runc cannot.
RUNTIMES: Sequence[tuple[str, Runtime]] = (
    ("slurm", _Slurm()),
    ("apptainer", _Apptainer()),
    ("podman", _Podman("--cgroups=disabled")),
    ("podman", _Podman()),
    ("charliecloud", _Charliecloud()),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """An image that can be started here, with its runtime.

    Attributes
    ----------
    runtime : str
        Name of the runtime.
    image : str
        The image, or the folder in which it was unpacked.
    gpus : bool
        Whether trials use GPUs.
    """

    runtime: str
    image: str
    gpus: bool
    how: Runtime

    def segment(
        self, folder: Path, sweep: TrainingSweep, imports: Sequence[str], *, pool: str, environment: Mapping[str, str]
    ) -> dict[str, Any]:
        """Return the agent's order to start a segment.

        Parameters
        ----------
        folder : Path
            Folder of the pool.
        imports : sequence of str
            Modules that are imported once in each segment.
        environment : mapping
            Environment of the trials on the device, which the imported modules may read.
        """
        inside = _inside(sweep, folder, pool=pool, gpus=self.gpus, environment=environment)
        interpreter = sweep.command[0] if imports else "python3"
        text = Path(warm.__file__).read_text(encoding="utf-8")
        return {
            "command": self.how.command(self.image, inside),
            "serve": [interpreter, "-c", _SERVE, text, warm.SEGMENT, *imports],
            "remove": list(self.how.remove),
            "root_file": str(folder / self.how.root_file) if self.how.root_file else "",
            "keeps_limit": self.how.keeps_limit,
        }

    def remove_left(self, pool: str, folder: Path) -> None:
        """Remove the containers of a pool that was killed."""
        self.how.remove_left(pool)
        for left in folder.glob(f"helios-{pool}-*.pid"):
            left.unlink(missing_ok=True)


def find_container(sweep: TrainingSweep, folder: Path, *, gpus: bool) -> Container | None:
    """Return the container of a sweep.

    It is started once, to check that the program is in it. None where the sweep names no image.

    Parameters
    ----------
    folder : Path
        Folder of the pool, which is bound into the container.

    Raises
    ------
    UsageError
        No runtime here can start it, it is of another architecture, or Python or the program is not in it.
    """
    choice = sweep.container
    if choice is None:
        return None
    faults: dict[str, str] = {}
    for name, how in RUNTIMES:
        if choice.runtime in {"", name}:
            try:
                image = how.prepare(choice.image)
                found = _probe(how, image, sweep, folder, gpus=gpus)
            except (OSError, ValueError, subprocess.TimeoutExpired) as reason:
                faults[name] = str(reason)
                continue
            if tuple(found["python"]) < (3, 9):
                have = ".".join(map(str, found["python"]))
                raise UsageError(
                    f"The container image {choice.image} has Python {have}, and 3.9 or newer starts the trials in it.",
                    hint="Add a newer python3 to it; trials may use another one.",
                )
            if not found["found"]:
                raise UsageError(
                    f"The command {sweep.command[0]!r} is not in the container image {choice.image}.",
                    hint="Check its name; paths are relative to the folder in which trials run, which is passed in.",
                )
            return Container(runtime=name, image=image, gpus=gpus, how=how)
    machine = _image_architecture(Path(choice.image))
    if machine and machine != platform.machine():
        raise UsageError(
            f"The container image {choice.image} is for {machine}, and this machine is {platform.machine()}.",
            hint="Build it for this machine.",
        )
    reasons = "; ".join(f"{name}: {fault}" for name, fault in faults.items())
    raise UsageError(
        f"The container image {choice.image} cannot be started here. {reasons}.",
        hint="It needs one of these runtimes, and python3 inside. See docs/pools.md, Containers.",
    )


def _inside(
    sweep: TrainingSweep, folder: Path, *, pool: str, gpus: bool, environment: Mapping[str, str] | None = None
) -> Inside:
    asked = sweep.container.binds if sweep.container is not None else ()
    wanted = sorted({str(sweep.cwd), str(folder), *asked})
    binds = [bind for bind in wanted if not any(Path(bind).is_relative_to(o) for o in wanted if o != bind)]
    for bind in binds:
        if {*":,"} & {*bind}:
            raise UsageError(f"{bind} cannot be bound into a container.", hint="Use a folder without ':' and ','.")
    own = {**(environment or {}), **sweep.env, POOL: pool}
    return Inside(binds=tuple(binds), folder=str(sweep.cwd), notes=str(folder), environment=own, gpus=gpus)


def _probe(how: Runtime, image: str, sweep: TrainingSweep, folder: Path, *, gpus: bool) -> dict[str, Any]:
    """Start a container and return its content.

    Raises
    ------
    ValueError
        It did not start.
    """
    make_folder(folder)
    name = f"helios-probe-{os.getpid()}"
    inside = _inside(sweep, folder, pool=name, gpus=gpus)
    words = [fill_placeholders(word, segment=name, limit_mib=None) for word in how.command(image, inside)]
    done = subprocess.run(
        [*words, "python3", "-c", _PROBE, sweep.command[0]],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=START_S,
    )
    if how.root_file:
        (folder / how.root_file.replace("{segment}", name)).unlink(missing_ok=True)
    if done.returncode:
        raise ValueError(_last_line(done.stderr) or f"exit status {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _image_architecture(image: Path) -> str:
    """Return the machine that an unpacked image is for, empty if unknown."""
    for name in ("usr/bin/python3", "bin/sh", "usr/bin/env"):
        place = image / name
        for _ in range(20):  # absolute links are relative to the root of the image
            if not place.is_symlink():
                break
            target = str(place.readlink())
            place = image / target.lstrip("/") if target.startswith("/") else place.parent / target
        with suppress(OSError):
            with place.open("rb") as file:
                start = file.read(20)
            if start[:4] == b"\x7fELF":
                return _MACHINES.get(int.from_bytes(start[18:20], "big" if start[5] == 2 else "little"), "")
    return ""


def _make_mount_point(image: Path, inside: str) -> None:
    """Create a mount point in an unpacked image.

    Raises
    ------
    ValueError
        It cannot be made.
    """
    place = image
    for part in Path(inside).parts[1:]:
        place = place / part
        if place.is_symlink():
            raise ValueError(f"{place} is a link, so that nothing can be bound below it")
        try:
            place.mkdir(exist_ok=True)
        except OSError as reason:
            raise ValueError(f"there is no folder {inside} in the image, and it cannot be made: {reason}") from reason


def unpack(archive: Path) -> Path:
    """Unpack an archive once a node, and return its folder.

    Raises
    ------
    ValueError
        It cannot be unpacked.
    FileUnwritable
        There is no place for it.
    """
    known = archive.stat()
    key = hashlib.sha256(f"{archive}\n{known.st_size}\n{known.st_mtime_ns}".encode()).hexdigest()[:16]
    images = Path(tempfile.gettempdir()) / f"helios-images-{os.getuid()}"
    target = images / key
    try:
        images.mkdir(mode=0o700, exist_ok=True)
        if images.is_symlink() or images.stat().st_uid != os.getuid():
            raise PermissionError(f"{images} belongs to another account")
        lock = os.open(images / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as reason:
        raise FileUnwritable(
            f"Images cannot be unpacked: {reason}.", hint="Set TMPDIR to a folder of your own on each node."
        ) from reason
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            part = images / f"{key}.part"
            shutil.rmtree(part, ignore_errors=True)  # of a process that was killed
            if archive.suffix in {".sqfs", ".sqsh", ".squashfs"}:
                words = ["unsquashfs", "-quiet", "-no-progress", "-no-xattrs", "-dest", str(part), str(archive)]
            else:
                part.mkdir()
                devices = [f"--exclude={prefix}dev/*" for prefix in ("", "./")]
                words = ["tar", "--extract", f"--file={archive}", f"--directory={part}", "--no-same-owner", *devices]
            try:
                done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=START_S)
            except OSError as reason:
                raise HeliosError(
                    f"{words[0]} cannot be run: {reason}", hint="Install it, or unpack the image."
                ) from reason
            if done.returncode or not any(part.iterdir()):
                shutil.rmtree(part, ignore_errors=True)
                raise ValueError(f"it cannot be unpacked: {_last_line(done.stderr) or 'it is empty'}")
            part.rename(target)
    finally:
        os.close(lock)
    return target
