"""A user asks what to request otherwise: from the warehouse, from a file, with and without what jobs used."""

from __future__ import annotations

import getpass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from helios.warehouse import Warehouse
from helios.warehouse.revisions import LIVE_SOURCE
from tests.builders import a_batch, a_job
from tests.story.shell import Helios, shell

HEADER = "JobIDRaw|User|Partition|State|ElapsedRaw|AllocTRES|TotalCPU|NTasks|MaxRSS|JobName"
HAD = "billing=8,cpu=8,gres/gpu=1,mem=64G,node=1"


@pytest.fixture(scope="module")
def helios(tmp_path_factory: pytest.TempPathFactory) -> Helios:
    folder = tmp_path_factory.mktemp("advise")
    url = f"sqlite:///{folder}/helios.db"
    now = datetime.now(UTC)
    jobs = [
        a_job(
            user=user,
            submitted_at=now - timedelta(days=2, minutes=number),
            run_time_s=3_600.0,
            time_limit_s=86_400.0,
        )
        for user in (getpass.getuser(), "bob")
        for number in range(25)
    ]
    with Warehouse.open(url) as warehouse:
        warehouse.load([a_batch(*jobs)], cluster="venus", path="x", sha256="0", format="sacct", timezone="UTC")
        warehouse.add_coverage(
            "venus", source=LIVE_SOURCE, started_at=now - timedelta(days=9), ended_at=now, read_at=now
        )
    used = [
        f"{number}|bob|gpu|COMPLETED|3600|{HAD}|00:50:00|||train\n"
        f"{number}.batch|||COMPLETED|3600|{HAD}|00:50:00|1|3G|batch\n"
        for number in range(25)
    ]
    (folder / "used.txt").write_text(f"{HEADER}\n{''.join(used)}")
    return shell(folder, HELIOS_DATABASE_URL=url, PATH=str(folder))


def test_everybody_is_asked_about_the_own_jobs_only(helios: Helios) -> None:
    mine = helios("advise", "--json").json
    assert {one["user"] for one in mine["advice"]} == {getpass.getuser()}
    options = {one["kind"]: one["option"] for one in mine["advice"]}
    assert options == {"limit_too_long": "--time=01:15:00", "packing": "helios pool run sweep.toml"}
    assert any("What jobs used of CPUs and memory is not known here" in note for note in mine["notes"])
    text = helios("advise")
    assert "Evidence: 25 jobs, 25 GPU hours; the middle 8 of 10 ran: 1 h to 1 h." in text.out


def test_an_admin_names_users_and_gives_what_they_used(helios: Helios) -> None:
    found = helios("advise", "--user", "bob", "--usage", "used.txt", "--json").json
    kinds = {one["kind"]: one["option"] for one in found["advice"]}
    assert kinds == {
        "limit_too_long": "--time=01:15:00",
        "memory_too_large": "--mem=4G",
        "cpus_unused": "1 instead of 8 CPUs (--cpus-per-task)",
        "packing": "helios pool run sweep.toml",
    }
    assert found["jobs_measured"] == 25
    assert len({one["user"] for one in helios("advise", "--user", "all", "--json").json["advice"]}) == 2


def test_a_user_without_the_database_reads_a_file(helios: Helios, tmp_path: Path) -> None:
    lines = ["JobIDRaw|User|Partition|State|Submit|Start|End|ElapsedRaw|Timelimit|AllocTRES"]
    for number in range(30):
        times = "|".join(f"2026-11-{day:02d}T{hour:02d}:00:00" for day, hour in [(1 + number % 20, 1)] * 2)
        end = times.split("|")[0].replace("T01", "T02")
        lines.append(f"{number}|eve|gpu|COMPLETED|{times}|{end}|3600|1-00:00:00|billing=4,cpu=4,gres/gpu=1,node=1")
    (tmp_path / "mine.txt").write_text("\n".join(lines) + "\n")
    found = helios("advise", "--trace", tmp_path / "mine.txt", "--user", "eve", "--json").json
    assert [one["kind"] for one in found["advice"]] == ["limit_too_long"]
