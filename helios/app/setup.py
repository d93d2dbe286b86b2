"""Files that a machine needs to run Helios as a service.

They come from the package. Files that somebody has changed since are neither replaced nor removed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from helios.errors import HeliosError, UsageError

PREFIX = "/opt/helios"
"""Folder of Helios' Python environment as written in the packaged files, which is replaced by the real one."""
PACKAGE_PREFIX = Path("/usr/lib/helios")
"""The same in a package of a distribution, whose files lie where the package manager looks after them."""
RECORD = Path("var/lib/helios-setup/files.json")
"""File below the root with the digest of each installed file, by path.

Settings are not in it, because they are never replaced or removed."""
SYSTEMD_RUNS = Path("/run/systemd/system")
PROGRAM, TEXT = 0o755, 0o644


class FileState(StrEnum):
    """State of a file, or what a setup did to it."""

    WRITTEN = "written"
    REPLACED = "replaced"
    UNCHANGED = "unchanged"
    KEPT = "kept"
    """Its content is the site's own."""
    MISSING = "missing"
    OUTDATED = "outdated"
    REMOVED = "removed"


class SetupFailed(HeliosError):
    """A file could not be installed, or a step failed."""


@dataclass(frozen=True, slots=True)
class SetupFile:
    """A file to install.

    Attributes
    ----------
    path : Path
        Below the root, without a leading slash.
    content : bytes
    mode : int
    is_configuration : bool
        It is written once, and belongs to the site from then on.
    """

    path: Path
    content: bytes
    mode: int = TEXT
    is_configuration: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupResult:
    """Result of a setup, by file, with the remaining steps.

    Attributes
    ----------
    files : tuple of (str, FileState)
        Absolute paths on the machine.
    steps : tuple of str
        Other steps, done or not done, with the reason.
    next_steps : tuple of str
        What a person has to do next.
    """

    files: tuple[tuple[str, FileState], ...]
    steps: tuple[str, ...] = ()
    next_steps: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether no file is missing or outdated."""
        return not {FileState.MISSING, FileState.OUTDATED} & {state for _, state in self.files}

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "complete": self.is_complete,
            "files": [{"path": path, "state": state.value} for path, state in self.files],
            "steps": list(self.steps),
            "next_steps": list(self.next_steps),
        }


def deploy_folder() -> Path:
    """Return the folder of units, hook and programs.

    It is within an installed package, and beside the package in a checkout.
    """
    package = Path(__file__).resolve().parents[1]
    installed = package / "deploy"
    return installed if installed.is_dir() else package.parent / "deploy"


def setup_files(
    *, prefix: Path, hook: Path | None = None, power: Path | None = None, texts: Mapping[str, str] | None = None
) -> Iterator[SetupFile]:
    """Yield the files to install on a machine.

    Parameters
    ----------
    prefix : Path
        Folder of the Python environment that holds Helios, absolute.
    hook : Path, optional
        Folder of ``slurm.conf``, for the priority hook. None for no hook.
    power : Path, optional
        Folder for the programs that power nodes. None for no programs.
    texts : mapping of str to str, optional
        Completion scripts and manual pages by path below the root.
    """
    deploy, local = deploy_folder(), prefix != PACKAGE_PREFIX
    programs, system = ("usr/local/sbin", "etc") if local else ("usr/sbin", "usr/lib")

    def packaged(name: str, path: str | Path, mode: int = TEXT, *, is_configuration: bool = False) -> SetupFile:
        content = (deploy / name).read_bytes().replace(PREFIX.encode(), os.fsencode(prefix))
        return SetupFile(_below_root(path), content, mode, is_configuration)

    yield packaged("helios.toml", "etc/helios/helios.toml", is_configuration=True)
    yield packaged("systemd/sysusers.conf", f"{system}/sysusers.d/helios.conf")
    for unit in sorted((deploy / "systemd").glob("*.service")) + sorted((deploy / "systemd").glob("*.timer")):
        yield packaged(f"systemd/{unit.name}", f"{system}/systemd/system/{unit.name}")
    yield packaged("systemd/helios-as-service.sh", f"{programs}/helios", PROGRAM)
    yield packaged("slurm/helios-release.sh", prefix / "libexec/helios-release.sh", PROGRAM)
    yield packaged("slurm/helios-release.sh", f"{programs}/helios-release.sh", PROGRAM)
    yield packaged("systemd/helios-after-crash.sh", prefix / "libexec/helios-after-crash.sh", PROGRAM)
    for path, text in (texts or {}).items():
        yield SetupFile(_below_root(path), text.encode())
    if hook is not None:
        yield packaged("slurm/job_submit.lua", hook / "helios_hook.lua")
    if power is not None:
        for program in ("suspend", "resume", *(part.name for part in sorted((deploy / "slurm/power").glob("*.sh")))):
            yield packaged(f"slurm/power/{program}", power / program, PROGRAM)
        yield packaged("slurm/power/power.conf.example", power / "power.conf", is_configuration=True)


def _below_root(path: str | Path) -> Path:
    return Path(str(path).lstrip("/"))


def check_files(files: Sequence[SetupFile], *, root: Path) -> SetupResult:
    """Compare the files with those of the machine, and change nothing."""
    record = _read_record(root)
    return SetupResult(files=tuple((f"/{file.path}", _file_state(file, root, record)) for file in files))


def install_files(files: Sequence[SetupFile], *, root: Path, is_machine: bool) -> SetupResult:
    """Write missing files and replace unchanged ones.

    Files that somebody has changed are left.

    Parameters
    ----------
    root : Path
        Folder below which they are written: ``/``, or the root of a package that is built.
    is_machine : bool
        Whether the root is that of this machine. Then users are created and systemd is reloaded.

    Raises
    ------
    SetupFailed
        A file cannot be written, or a step fails.
    """
    record, states = _read_record(root), []
    try:
        for file in files:
            state, target = _file_state(file, root, record), root / file.path
            if state in {FileState.MISSING, FileState.OUTDATED}:
                _write(target, file)
                state = FileState.WRITTEN if state is FileState.MISSING else FileState.REPLACED
            if state is not FileState.KEPT and not file.is_configuration:
                record[str(file.path)] = _digest(file.content)
            states.append((f"/{file.path}", state))
        _write(root / RECORD, SetupFile(RECORD, json.dumps(record, indent=1, sort_keys=True).encode()))
    except OSError as reason:
        raise SetupFailed(
            f"{reason.filename or root}: {reason.strerror}. What was written until then is there; "
            "the same command goes on.",
            hint="Run it as root: sudo helios setup" if isinstance(reason, PermissionError) else "",
        ) from reason
    return SetupResult(files=tuple(states), steps=tuple(_machine_steps()) if is_machine else ())


def remove_files(*, root: Path, is_machine: bool) -> SetupResult:
    """Remove the installed files that nobody has changed.

    The configuration is kept.

    Raises
    ------
    SetupFailed
        A file cannot be removed.
    """
    record, states = _read_record(root), []
    try:
        for name, digest in sorted(record.items()):
            target = root / name
            if not target.is_file() or target.is_symlink():
                continue
            if _digest(target.read_bytes()) == digest:
                target.unlink()
                states.append((f"/{name}", FileState.REMOVED))
            else:
                states.append((f"/{name}", FileState.KEPT))
        (root / RECORD).unlink(missing_ok=True)
        with suppress(OSError):  # it is not there, or holds something else
            (root / RECORD).parent.rmdir()
    except OSError as reason:
        raise SetupFailed(f"{reason.filename}: {reason.strerror}.", hint="Run it as root.") from reason
    steps = [_run("systemctl", "daemon-reload")] if is_machine and SYSTEMD_RUNS.is_dir() else []
    return SetupResult(files=tuple(states), steps=tuple(steps))


def _file_state(file: SetupFile, root: Path, record: Mapping[str, str]) -> FileState:
    target = root / file.path
    if target.is_symlink() or (target.exists() and not target.is_file()):
        return FileState.KEPT
    if not target.exists():
        return FileState.MISSING
    found = target.read_bytes()
    if found == file.content and target.stat().st_mode & 0o777 == file.mode:
        return FileState.UNCHANGED
    unchanged = _digest(found) in {record.get(str(file.path)), _digest(file.content)}
    return FileState.OUTDATED if unchanged and not file.is_configuration else FileState.KEPT


def _write(target: Path, file: SetupFile) -> None:
    """Write a file atomically."""
    for part in reversed([part for part in (target.parent, *target.parent.parents) if not part.exists()]):
        part.mkdir()
        part.chmod(PROGRAM)
    unfinished = target.with_name(f".{target.name}.new")
    unfinished.unlink(missing_ok=True)
    handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, file.mode)
    with os.fdopen(handle, "wb") as stream:
        os.fchmod(stream.fileno(), file.mode)
        stream.write(file.content)
        stream.flush()
        os.fsync(stream.fileno())
    unfinished.replace(target)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _read_record(root: Path) -> dict[str, str]:
    try:
        found = json.loads((root / RECORD).read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as reason:
        raise SetupFailed(
            f"{root / RECORD} cannot be read: {reason}", hint="Remove it; files that differ are kept then."
        ) from reason
    return {str(name): str(digest) for name, digest in found.items()}


def _machine_steps() -> Iterator[str]:
    """Create the users and reload systemd."""
    if shutil.which("systemd-sysusers"):
        yield _run("systemd-sysusers")
    else:
        yield "no systemd-sysusers here: make the users helios and helios-power yourself"
    if SYSTEMD_RUNS.is_dir():
        yield _run("systemctl", "daemon-reload")


def _run(*words: str) -> str:
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        raise SetupFailed(f"{' '.join(words)} failed: {(done.stderr or done.stdout).strip()}")
    return f"ran {' '.join(words)}"


def refuse_prefix_of_others(prefix: Path) -> None:
    """Refuse an environment that somebody other than root can change.

    The units run what lies in it at each start of the machine.

    Raises
    ------
    UsageError
        A folder on the way to it belongs to another user, or everybody may write there.
    """
    for part in (prefix, *prefix.parents):
        found = part.stat()
        if found.st_uid != 0 or found.st_mode & 0o022:
            raise UsageError(
                f"Helios is installed in {prefix}, and {part} can be changed by others than root: "
                "services must not run from there.",
                hint=f"Install it anew as root: python3 -m venv {PREFIX} && {PREFIX}/bin/pip install WHEEL",
            )


def next_steps(*, hook: Path | None, power: Path | None) -> tuple[str, ...]:
    """Return the steps for a person after the installation."""
    steps = [
        "Make its user an operator: sacctmgr add user helios account=root adminlevel=operator maxsubmitjobs=0",
        "Look through the settings: /etc/helios/helios.toml",
        "Make the tables, and check everything: helios db upgrade && helios doctor",
        "Start it, in shadow: systemctl enable --now helios.service helios-nightly.timer",
    ]
    if hook is not None:
        own = hook / "job_submit.lua"
        steps.append(
            f'Call the hook from {own}: pcall(dofile, "{hook}/helios_hook.lua"), as docs/priority-hook.md shows'
            if own.exists()
            else f"Use the hook: ln -s helios_hook.lua {own}; JobSubmitPlugins=lua in slurm.conf; scontrol reconfigure"
        )
    if power is not None:
        steps.append(f"Say how nodes are switched: {power}/power.conf; then SuspendProgram={power}/suspend")
    return tuple(steps)


def environment_prefix() -> Path:
    """Return the folder of the Python environment that runs."""
    return Path(sys.prefix)
