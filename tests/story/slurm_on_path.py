"""Slurm's commands as a shell script sees them: programs that keep a queue in one file, for helios-release.sh."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "deploy" / "slurm" / "helios-release.sh"
SUBMITTED = 1_795_255_200
_COLUMNS = ("id", "array", "task", "submitted", "user", "partition", "limit", "least", "priority", "restart", "factor")
_TOOLS = ("sh", "awk", "sed", "sort", "uniq", "head", "tr", "env", "date", "mktemp", "mkdir", "rm", "cp", "mv", "cat")
_TOOLS += ("sleep", "ls", "id", "setpriv")

_PROGRAM = f"""#!{sys.executable} -S
import re, sys
QUEUE, LOG, COLUMNS = {{queue!r}}, {{log!r}}, {_COLUMNS!r}
import os
name, words = sys.argv[0].rpartition("/")[2], sys.argv[1:]
only = words[words.index("-j") + 1].split(",") if "-j" in words else []
def read():
    return [dict(zip(COLUMNS, line.rstrip("\\n").split("|"))) for line in open(QUEUE)]
def named():
    return [job for job in read() if not only or {{job["id"], job["array"]}} & set(only)]
def tasks(text):
    for part in text.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)
if name == "squeue":
    most = int(open(QUEUE + ".cut").read()) if os.path.exists(QUEUE + ".cut") else None
    for job in named()[:most]:
        print("|".join(job[column] for column in COLUMNS[:-1]) + "|")
elif name == "sprio":
    for job_id, factor in {{(job["id"], job["factor"]): None for job in named() if job["factor"] != "hidden"}}:
        print(f"{{job_id}}|{{100000 + int(factor)}}|{{factor}}|0|0|0|0|100000|0|0|")
    if os.path.exists(QUEUE + ".next"):
        os.rename(QUEUE + ".next", QUEUE)
elif words[:2] == ["show", "config"]:
    print("SchedulerParameters     = {{parameters}}")
elif words[0] == "update":
    open(LOG, "a").write(" ".join(words[1:]) + "\\n")
    found = re.fullmatch(r"jobid=(?:(\\d+)_\\[([\\d,-]+)\\]|([\\d,]+))", words[1])
    field, _, value = words[2].partition("=")
    rows = read()
    for job in rows:
        named = job["id"] in (found[3] or "").split(",")
        if found[1]:
            named = job["array"] == found[1] and int(job["task"]) in set(tasks(found[2]))
        if named and field == "TimeMin":
            job["least"] = "0:00"
        elif named and job["factor"] == "hidden":
            job["priority"] = "100000"
        elif named:
            job["factor"] = value
    open(QUEUE, "w").writelines("|".join(job.values()) + "\\n" for job in rows)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    status: int
    said: str


class SlurmOnPath:
    """A folder of programs, and the state folder that the script is to look into."""

    def __init__(self, folder: Path, *, parameters: str = "time_min_as_soft_limit") -> None:
        self.folder = folder
        self.state = folder / "state"
        self._bin = folder / "bin"
        self._queue, self._log = folder / "queue", folder / "log"
        self._bin.mkdir()
        self.state.mkdir()
        self._queue.touch()
        self._log.touch()
        for tool in _TOOLS:
            if found := shutil.which(tool):
                (self._bin / tool).symlink_to(found)
        text = _PROGRAM.replace("{{", "{").replace("}}", "}")
        text = text.replace("{queue!r}", repr(str(self._queue))).replace("{log!r}", repr(str(self._log)))
        for name in ("squeue", "sprio", "scontrol"):
            (self._bin / name).write_text(text.replace("{parameters}", parameters))
            (self._bin / name).chmod(0o755)

    def job(self, job_id: str, factor: int | str, **columns: str) -> None:
        """Queue a pending job; ``factor`` is its SiteFactor, or ``hidden``."""
        row = {"id": job_id, "array": job_id, "task": "N/A", "submitted": str(SUBMITTED), "user": "alice"}
        row |= {"partition": "gpu", "limit": "1:00:00", "least": "0:00", "priority": "100500", "restart": "0"}
        with self._queue.open("a") as file:
            file.write("|".join((row | {"factor": str(factor)} | columns).values()) + "\n")

    def meanwhile(self, old: str, new: str) -> None:
        """Have the queue's text changed right after it was read the next time."""
        self._queue.with_name("queue.next").write_text(self._queue.read_text().replace(old, new))

    def cut_squeue(self, lines: int) -> None:
        """Have squeue print its first lines only."""
        self._queue.with_name("queue.cut").write_text(str(lines))

    def wrote(self, *lines: str) -> None:
        """Put lines into ``jobs.undo``; ``@`` stands for the submission of all jobs here."""
        with (self.state / "jobs.undo").open("a") as file:
            file.writelines(line.replace(" ", "\t").replace("@", str(SUBMITTED)) + "\n" for line in lines)

    def release(self, *options: str) -> Ran:
        """Run the script."""
        done = subprocess.run(
            ["/bin/sh", str(SCRIPT), "--state", str(self.state), *options],
            check=False,
            env={"PATH": str(self._bin)},
            capture_output=True,
            text=True,
            cwd="/",
        )
        return Ran(status=done.returncode, said=done.stdout + done.stderr)

    @property
    def updates(self) -> list[str]:
        """What scontrol was told to update, in order."""
        return self._log.read_text().splitlines()

    def give_state_to(self, uid: int) -> None:
        """Make the state folder another user's, who can reach it."""
        os.chown(self.state, uid, uid)
        folder = self.folder
        while folder != folder.parent and folder.stat().st_uid == os.geteuid():
            folder.chmod(folder.stat().st_mode | 0o055)
            folder = folder.parent
