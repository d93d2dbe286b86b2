"""A site upgrades a warehouse in which an older Helios read rows wrongly."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.contract.test_migrations import move
from tests.story.shell import Helios, shell

HEADER = "JobIDRaw|User|State|Submit|Start|End|Timelimit|AllocTRES\n"
TIMES = "2024-03-01T01:00:00|2024-03-01T01:30:00|2024-03-01T02:30:00|4:00:00|cpu=4,gres/gpu=2,node=1\n"
TRACE = HEADER + "7|ann|REQUEUED|" + TIMES + "8|ann|COMPLETED|" + TIMES.replace("03-01", "03-09")


@pytest.fixture
def helios(tmp_path: Path) -> Helios:
    """Return a shell of a site with a loaded file, whose requeued run has lost its end, as before 0013."""
    (tmp_path / "west.txt").write_text(TRACE)
    helios = shell(tmp_path, PATH="/nowhere")
    helios("trace", "load", "west.txt", "--timezone", "UTC")
    with closing(sqlite3.connect(tmp_path / "helios.db")) as database, database:
        database.execute("UPDATE jobs SET ended_at = NULL, run_time_s = NULL WHERE job_id = '7'")
    move(f"sqlite:///{tmp_path / 'helios.db'}", "down", "0012")
    return helios


MISREAD = "1 job has ended without an end, such as 7"
COMMAND = "helios trace load west.txt --cluster west --timezone UTC"


def test_an_upgrade_names_what_an_older_helios_read_wrongly(helios: Helios) -> None:
    said = " ".join(helios("db", "upgrade").err.split())
    assert MISREAD in said and COMMAND in said


def test_doctor_repeats_it_until_the_file_is_loaded_again(helios: Helios) -> None:
    helios("db", "upgrade")
    found = {it["check"]: it for it in json.loads(helios("doctor", "--json", code=1).out)}
    assert MISREAD in found["old rows"]["message"] and COMMAND in found["old rows"]["hint"]
    again = helios(*COMMAND.split()[1:])
    assert "ended_at of 1 changed, such as '7' (unknown -> 2024-03-01 02:30:00)" in " ".join(again.err.split())
    assert "old rows" not in {it["check"] for it in json.loads(helios("doctor", "--json", code=1).out)}
