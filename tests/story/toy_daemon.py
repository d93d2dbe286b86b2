"""The real ``helios`` command, toy tasks behind its daemon: a cluster that is one file, a diary that is another."""

import os
import sys
import types
from pathlib import Path

import helios.cli.main
from helios.app.controller_state import CycleSummary, DaemonOperations
from helios.errors import ClusterUnavailable
from helios.ports import Domain

FOLDER = Path(os.environ["TOY_FOLDER"])
APPLIED = FOLDER / "standing"


def write_down(line: str) -> str:
    with (FOLDER / "diary").open("a") as diary:
        diary.write(f"{line}\n")
    return line


def cycle() -> CycleSummary:
    APPLIED.touch()
    write_down("cycle")
    return CycleSummary(pending=3, running=2, acted=1, seconds=0.1, predictions=3)


def read() -> str:
    if (FOLDER / "no accounting").exists():
        raise ClusterUnavailable("slurmdbd does not answer", hint="sacctmgr show cluster")
    return write_down("ingest")


def release(why: str) -> str:
    APPLIED.unlink(missing_ok=True)
    return write_down(f"release {why}")


def tasks(configuration: object, *, cluster: str | None, domains: frozenset[Domain], ingest: bool) -> DaemonOperations:
    assert domains == frozenset(Domain)
    return DaemonOperations(
        ingest=read if ingest else None,
        cycle=cycle,
        hook=lambda: write_down("hook"),
        nightly=lambda: write_down(f"nightly of {cluster}"),
        release=release,
    )


if __name__ == "__main__":
    toys = types.ModuleType("helios.app.operations")
    toys.operations_for = tasks  # type: ignore[attr-defined]  # because a module made by hand declares nothing
    toys.Operations = object  # type: ignore[attr-defined]  # as above
    sys.modules["helios.app.operations"] = toys
    helios.cli.main.main()
