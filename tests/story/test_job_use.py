"""What jobs used, loaded from files as a person would."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from helios.warehouse import Warehouse
from tests.story.shell import Helios
from tests.use_files import USE, comment, needs_use, of_node, summary

JOBS = "JobIDRaw|User|State|Submit|Start|End|AllocTRES|JobName\n"
MEASURED = comment(summary(of_node()))


def job(job_id: object, day: int) -> str:
    return f"{job_id}|ann|COMPLETED|2026-03-0{day}T07:00:00|2026-03-0{day}T08:00:00|2026-03-0{day}T09:00:00|cpu=4|x\n"


@pytest.fixture
def site(helios: Helios, tmp_path: Path) -> Path:
    """A cluster of four jobs, of which two have the same id."""
    (tmp_path / "jobs.txt").write_text(JOBS + job(1, 1) + job(2, 2) + job(7, 3) + job(7, 5))
    helios("trace", "load", "jobs.txt", "--cluster", "venus")
    return tmp_path


def use(folder: Path) -> dict[str, float]:
    with Warehouse.open(f"sqlite:///{folder / 'helios.db'}") as warehouse:
        found = warehouse.job_use("venus")
    return dict(zip(found["job_id"], found["utilization"], strict=True))


def test_comments_are_stored_with_their_jobs_once(helios: Helios, site: Path) -> None:
    rows = f"1|{MEASURED}\n2|JS1:Short\n3|{MEASURED}\n7|{MEASURED}\n1|\n"
    (site / "use.txt").write_text(f"JobIDRaw|AdminComment\n{rows}")
    first = helios("trace", "use", "use.txt", "--json").json
    assert {
        "cluster": "venus",
        "read": 4,
        "stored": 2,
        "gpus": 1,
        "quality": {"ok": 1, "short": 1},
    }.items() <= first.items()
    assert (first["not_matched"], first["used_again"]) == (1, 1)
    assert first["examples"] == {"not_matched": ["3"], "used_again": ["7"]}
    assert helios("trace", "use", "use.txt", "--json").json == first
    assert use(site)["1"] == 40.0
    said = helios("trace", "use", "use.txt").out
    assert "2 of 4 records stored" in said and "such as 7" in said


def test_a_dump_of_jobstats_is_read_for_one_cluster(helios: Helios, site: Path) -> None:
    names = ("id", "cluster", "jobid", "admin_comment")
    columns = ",\n".join(f"  `{name}` text" for name in names)
    create = f"CREATE TABLE `job_summary` (\n{columns}\n);\n"
    rows = f"(1,'venus',1,'{MEASURED}'),(2,'mars',2,'{MEASURED}'),(3,'venus',2,'JS1:None')"
    (site / "jobstats.sql").write_text(f"-- MariaDB dump\n{create}INSERT INTO `job_summary` VALUES {rows};\n")
    assert helios("trace", "use", "jobstats.sql", "--json").json["quality"] == {"ok": 1, "none": 1}
    (site / "other.sql").write_text(
        f"-- MariaDB dump\n{create}INSERT INTO `job_summary` VALUES (2,'mars',2,'JS1:None');\n"
    )
    assert "Its clusters are: mars" in helios("trace", "use", "other.sql", code=2).err


MAP = """timezone = "UTC"
[columns]
job_id = "job"
started_at = "begin"
node = "host"
gpu = "card"
utilization = { column = "busy", unit = "share" }
gpu_memory_peak_mib = { column = "held", unit = "GiB" }
gpu_memory_total_mib = { template = "80", unit = "GiB" }
busy_means = { template = "an SM was active" }
"""
TABLE = """job,begin,host,card,busy,held
7,2026-03-05 08:00:00,g1,0,0.9,10
7,2026-03-05 08:00:00,g1,1,0.1,20
1,2026-03-01 08:00:00,g1,0,,90
2,2026-03-02 08:00:00,g1,0,much,1
2,2026-03-02 08:00:00,g2,0,-0.5,1
"""


def test_a_table_of_gpus_is_read_by_a_map(helios: Helios, site: Path) -> None:
    (site / "use.csv").write_text(TABLE)
    (site / "map.toml").write_text(MAP)
    found = helios("trace", "use", "use.csv", "--columns", "map.toml", "--json").json
    assert {"stored": 3, "gpus": 4, "quality": {"ok": 1, "broken": 2}, "refused": 1}.items() <= found.items()
    with Warehouse.open(f"sqlite:///{site / 'helios.db'}") as warehouse:
        stored = warehouse.job_use("venus").set_index("job_id")
        gpus = warehouse.job_use("venus", by_gpu=True)
    seven = stored.loc["7"]
    assert (seven["utilization"], seven["gpu_memory_peak_mib"], seven["gpus_measured"]) == (50.0, 20 * 1024.0, 2)
    assert (seven["busy_means"], seven["source"]) == ("an SM was active", "file")
    assert gpus.loc[gpus["job_id"] == "7", "utilization"].tolist() == [90.0, 10.0]
    assert stored["utilization"].isna()["1"]


def test_a_column_that_is_none_of_use_is_named(helios: Helios, site: Path) -> None:
    (site / "map.toml").write_text(MAP.replace("utilization =", "utilisation ="))
    (site / "use.csv").write_text(TABLE)
    said = helios("trace", "use", "use.csv", "--columns", "map.toml", code=2).err
    assert "Did you mean 'utilization'?" in said


VIOLET = """timezone = "UTC"
[columns]
job_id = { template = "{pod_name} {start} {finish}" }
started_at = "start"
"""


@needs_use
def test_gpus_of_a_real_cluster_are_stored(helios: Helios, tmp_path: Path) -> None:
    table = USE / "violet" / "violet_gpu_pods_nov-dec2023.csv.gz"
    jobs = 'submitted_at = "start"\nended_at = "finish"\nuser = "user_team"\npartition = "pod_type"\n'
    gpus = 'node = "node"\ngpu = "gpu_number"\nutilization = "gpu_utilization"\n'
    kind = 'is_interactive = { column = "pod_type", values = { instance = "1", task = "0" } }\n'
    (tmp_path / "jobs.toml").write_text(VIOLET + jobs)
    (tmp_path / "use.toml").write_text(VIOLET + gpus + kind)
    helios("trace", "load", table, "--columns", "jobs.toml", "--cluster", "violet")
    found = helios("trace", "use", table, "--columns", "use.toml", "--json").json
    assert (found["stored"], found["gpus"], found["quality"]) == (850, 1023, {"ok": 850})


@needs_use
def test_samples_of_a_real_cluster_are_stored_as_jobs(helios: Helios, tmp_path: Path) -> None:
    samples = pd.read_csv(next((USE / "supercloud").glob("*.csv.gz")), parse_dates=["time"])
    jobs = samples.groupby("id_job").agg(
        begin=("time", "min"),
        end=("time", "max"),
        busy=("utilization_gpu_pct_mean", "mean"),
        samples=("time", "size"),
        held=("memory_used_MiB_max", "max"),
        power=("power_draw_W_mean", "mean"),
    )
    jobs.reset_index().to_parquet(tmp_path / "use.parquet")
    key = 'timezone = "UTC"\n[columns]\njob_id = "id_job"\n'
    (tmp_path / "jobs.toml").write_text(f'{key}submitted_at = "begin"\nstarted_at = "begin"\nended_at = "end"\n')
    (tmp_path / "use.toml").write_text(
        f'{key}utilization = "busy"\nsamples = "samples"\npower_w = {{ column = "power", unit = "W" }}\n'
        'gpu_memory_peak_mib = { column = "held", unit = "MiB" }\n'
        'gpu_memory_total_mib = { template = "32", unit = "GiB" }\n'
    )
    helios("trace", "load", "use.parquet", "--columns", "jobs.toml", "--cluster", "venus")
    found = helios("trace", "use", "use.parquet", "--columns", "use.toml", "--json").json
    assert (found["stored"], found["quality"]) == (75, {"ok": 75})
    stored = use(tmp_path)
    assert stored == pytest.approx({str(name): busy for name, busy in jobs["busy"].items()})
