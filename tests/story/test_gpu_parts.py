"""GPUs of jobs that hold parts of one, or whose site does not account for GPUs, as a person reads and loads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.story.shell import Helios

SLURM_CONF = """ClusterName=venus
NodeName=g[1-2] CPUs=64 Gres=gpu:a100:4,shard:16,mps:800
NodeName=l1 CPUs=32 Gres=gpu:l40:2,shard:4
NodeName=m1 CPUs=16 Gres=gpu:1g.5gb:7
NodeName=c1 CPUs=128
PartitionName=gpu Nodes=g[1-2],l1,m1
PartitionName=whole Nodes=g[1-2] OverSubscribe=EXCLUSIVE
PartitionName=cpu Nodes=c1
"""
NODES_CSV = 'name,gpus,cpus,shards,mps\n"g[1-2]",4,64,16,800\nl1,2,32,4,\nm1,1,16,,\nc1,0,128,,\n'
HEADER = "JobIDRaw|User|Partition|State|Submit|Start|End|ElapsedRaw|NNodes|AllocCPUS|NodeList|{}"
ROW = "{}|u1|{}|COMPLETED|2024-03-01T08:00:00|2024-03-01T08:10:00|2024-03-01T12:10:00|14400|{}|{}|{}|{}"
NAN = float("nan")


def a_row(
    lists: str, *, job: str = "1", nodes: str = "g1", partition: str = "gpu", cpus: int = 8, count: int = 1
) -> str:
    return ROW.format(job, partition, count, cpus, nodes, lists)


def write(folder: Path, *rows: str, lists: str = "AllocTRES") -> Path:
    file = folder / "site.txt"
    file.write_text("\n".join([HEADER.format(lists), *rows]) + "\n")
    return file


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    file = tmp_path / "slurm.conf"
    file.write_text(SLURM_CONF)
    return file


def name_nodes(folder: Path, source: Path) -> None:
    """Have the settings of a folder name the file with the nodes."""
    (folder / "helios.toml").write_text(f'[ingest]\ngpus_from = "{source}"\n')


def gpus(helios: Helios, tmp_path: Path, *options: Any, nodes: Path | None = None) -> list[float]:
    """Return the GPUs of the jobs of ``--trace FILE`` or of the loaded cluster."""
    if nodes is not None:
        name_nodes(tmp_path, nodes)
    helios("trace", "export", *options, "--layout", "parquet", "--out", tmp_path / "out")
    return list(pd.read_parquet(tmp_path / "out" / "jobs.parquet")["gpus"])


@pytest.mark.parametrize(
    ("lists", "where", "expected"),
    [
        ("cpu=8,gres/shard=4,gres/shard:a100=4,node=1", {}, 1),
        ("cpu=8,gres/shard=2,node=1", {"nodes": "l1"}, 1),
        ("cpu=8,gres/shard=6,node=2", {"nodes": "g[1-2]", "count": 2}, 1.5),
        ("cpu=8,gres/shard=9,node=1", {"nodes": "l1"}, 2),
        ("cpu=8,gres/mps=50,node=1", {}, 0.25),
        ("cpu=8,gres/mps=50,node=1", {"nodes": "l1"}, 0.5),
        ("cpu=8,gres/gpu=2,gres/shard=8,node=1", {}, 2),
        ("cpu=8,gres/gpu:a100=2,gres/gpu=2,node=1", {}, 2),
        ("cpu=8,gres/gpu:1g.5gb=3,gres/gpu=3,node=1", {"nodes": "m1"}, 3 / 7),
        ("cpu=8,gres/gpu=3,node=1", {"nodes": "m1"}, 3 / 7),
        ("gres/gpu:a100_3g.20gb=1,gres/gpu:a100=1,gres/gpu=2,node=1", {}, 1 + 3 / 7),
        ("gres/gpu:a30_2g.12gb=1,node=1", {}, 0.5),
        ("gres/gpu:5g.40gb=2,gres/gpu=2,node=1", {}, 2),
    ],
)
def test_parts_are_counted_by_the_nodes(
    helios: Helios, conf: Path, lists: str, where: dict[str, Any], expected: float
) -> None:
    tmp_path = conf.parent
    file = write(tmp_path, a_row(lists, **where))
    assert gpus(helios, tmp_path, "--trace", file, nodes=conf) == [pytest.approx(expected)]


@pytest.mark.parametrize(
    ("lists", "expected", "note"),
    [
        ("cpu=8,gres/shard:l40=4,node=1", NAN, "the shards of a GPU are not known"),
        ("cpu=8,gres/mps=50,node=1", 0.5, "100 shares of a GPU are assumed"),
        ("gres/gpu:1g.5gb=2,gres/gpu=2,node=1", 2 / 7, "MIG slices, each counted by its compute slices"),
        ("gres/gpu:nvidia_h100_80gb_hbm3_1g.10gb+me=1,node=1", 1 / 7, "MIG slices"),
        ("gres/gpu:8g.80gb=1,node=1", 1, "of an unknown profile, each counted as a whole GPU"),
        ("cpu=8,node=1", NAN, "1 job has no record of its GPUs, as no row names gres/gpu, such as '1'"),
    ],
)
def test_without_nodes_the_note_says_what_is_known(
    helios: Helios, tmp_path: Path, lists: str, expected: float, note: str
) -> None:
    file = write(tmp_path, a_row(lists))
    assert gpus(helios, tmp_path, "--trace", file) == pytest.approx([expected], nan_ok=True)
    assert note in helios("trace", "describe", "--trace", file).err


@pytest.mark.parametrize(
    ("lists", "name", "expected"),
    [
        ("gpu:2(S:0-1)", "ReqGRES", 4),
        ("gres:gpu:2(S:0-1)", "ReqGRES", 4),
        ("gres/gpu:2", "ReqGRES", 4),
        ("PER_NODE:gpu:a100:2", "ReqGRES", 4),
        ("PER_NODE:gres:gpu:2,craynetwork:1", "ReqGRES", 4),
        ("PER_JOB:gpu:3", "ReqGRES", 3),
        ("PER_JOB:gpu:3,PER_NODE:gpu:2", "ReqGRES", 3),
        ("PER_TASK:gpu:1", "ReqGRES", NAN),
        ("gpu:a100:2(IDX:0-1),gpu:a100:1(IDX:3)", "AllocGRES", 3),
        ("shard:8", "AllocGRES", 2),
        ("PER_NODE:shard:4", "ReqGRES", 2),
        ("gpu:1g.5gb:2", "ReqGRES", 4 / 7),
    ],
)
def test_lists_of_old_sites_are_for_each_node_or_job(
    helios: Helios, conf: Path, lists: str, name: str, expected: float
) -> None:
    tmp_path = conf.parent
    file = write(tmp_path, a_row(lists, nodes="g[1-2]", count=2), lists=name)
    found = gpus(helios, tmp_path, "--trace", file, nodes=conf)
    assert found == pytest.approx([expected], nan_ok=True)


UNTRACKED = {
    "nodes without": ({"nodes": "c1", "partition": "cpu"}, 0, "ran on nodes without GPUs and held none"),
    "all CPUs": ({"cpus": 64}, 4, "held all CPUs of their nodes"),
    "all CPUs of two": ({"cpus": 128, "nodes": "g[1-2]", "count": 2}, 8, "held all CPUs"),
    "exclusive": ({"partition": "whole"}, 4, "of exclusive partitions held all GPUs"),
    "a part": ({}, NAN, "may hold some of their nodes' GPUs, which is not recorded"),
}


SOURCES = [
    *(("slurm.conf", case) for case in UNTRACKED),
    *(("nodes.csv", case) for case in UNTRACKED if case != "exclusive"),
]


@pytest.mark.parametrize(("source", "case"), SOURCES)
def test_gpus_that_no_row_names_follow_from_the_nodes(helios: Helios, tmp_path: Path, source: str, case: str) -> None:
    where, expected, note = UNTRACKED[case]
    (tmp_path / source).write_text(SLURM_CONF if source == "slurm.conf" else NODES_CSV)
    file = write(tmp_path, a_row("node=1", **where))
    found = gpus(helios, tmp_path, "--trace", file, nodes=tmp_path / source)
    assert found == pytest.approx([expected], nan_ok=True)
    said = helios("trace", "describe", "--trace", file).err.replace("its node", "their node")
    assert note in said and "no GPU, such as '1'" in said


def test_a_submit_line_tells_what_was_asked(helios: Helios, tmp_path: Path, conf: Path) -> None:
    file = write(tmp_path, a_row("cpu=8,node=1|sbatch --gres=gpu:a100:2 job.sh"), lists="AllocTRES|SubmitLine")
    assert np.isnan(gpus(helios, tmp_path, "--trace", file)).all()
    assert gpus(helios, tmp_path, "--trace", file, nodes=conf) == [2]


def test_a_row_without_gpus_beside_one_with_gpus_holds_none(helios: Helios, tmp_path: Path) -> None:
    file = write(tmp_path, a_row("cpu=8,node=1"), a_row("cpu=8,gres/gpu=2,node=1", job="2"))
    assert gpus(helios, tmp_path, "--trace", file) == [0, 2]


def test_csv_and_json_count_as_text_does(helios: Helios, tmp_path: Path, conf: Path) -> None:
    text = write(tmp_path, a_row("cpu=8,gres/shard=4,node=1"))
    table = tmp_path / "site.csv"
    table.write_text(
        "\n".join(",".join(f'"{word}"' for word in line.split("|")) for line in text.read_text().splitlines())
    )
    job = {
        "job_id": 1,
        "partition": "gpu",
        "nodes": "g1",
        "state": {"current": ["COMPLETED"]},
        "time": {"submission": 1_709_280_000, "start": 1_709_280_600, "end": 1_709_295_000, "elapsed": 14_400},
        "tres": {"allocated": [{"type": "gres", "name": "shard", "count": 4}], "requested": []},
    }
    answer = tmp_path / "site.json"
    answer.write_text(json.dumps({"jobs": [job]}))
    for file in (text, table, answer):
        assert gpus(helios, tmp_path, "--trace", file, nodes=conf) == [1]


def test_a_format_without_gpus_records_none(helios: Helios, tmp_path: Path) -> None:
    file = tmp_path / "site.swf"
    file.write_text("; UnixStartTime: 0\n1 0 10 60 4 -1 -1 4 3600 -1 1 1 1 1 1 -1 -1 -1\n")
    assert np.isnan(gpus(helios, tmp_path, "--trace", file)).all()


def loaded(helios: Helios, tmp_path: Path, *rows: str, name: str, options: tuple[Any, ...] = ()) -> list[float]:
    """Load rows into the cluster ``site``, and return the GPUs of all of its jobs."""
    folder = tmp_path / name
    folder.mkdir()
    helios("trace", "load", write(folder, *rows), "--cluster", "site", *options)
    return gpus(helios, tmp_path, "--cluster", "site")


CPU_ONLY, ON_A_GPU, IN_SHARDS = (
    a_row("cpu=8,node=1"),
    a_row("cpu=8,gres/gpu=2,node=1", job="2"),
    "cpu=8,gres/shard=4,node=1",
)


@pytest.mark.parametrize("order", [(CPU_ONLY, ON_A_GPU), (ON_A_GPU, CPU_ONLY)])
def test_a_file_without_gpus_beside_one_with_gpus_holds_none(
    helios: Helios, tmp_path: Path, order: tuple[str, str]
) -> None:
    first = loaded(helios, tmp_path, order[0], name="first")
    assert first == pytest.approx([NAN if order[0] == CPU_ONLY else 2], nan_ok=True)
    assert loaded(helios, tmp_path, order[1], name="second") == [0, 2]


def test_unknown_shards_stay_unknown_until_the_nodes_are_given(helios: Helios, tmp_path: Path, conf: Path) -> None:
    rows = (a_row(IN_SHARDS), ON_A_GPU)
    assert loaded(helios, tmp_path, *rows, name="first") == pytest.approx([NAN, 2], nan_ok=True)
    assert loaded(helios, tmp_path, *rows, name="again", options=("--gpus-from", conf)) == [1, 2]
    assert "jobs have no record" not in helios("trace", "describe", "--cluster", "site").err


def test_gpus_found_from_nodes_stay_when_later_rows_name_some(helios: Helios, tmp_path: Path, conf: Path) -> None:
    rows = (a_row("cpu=64,node=1", cpus=64), a_row("cpu=8,node=1", job="3"))
    loaded(helios, tmp_path, *rows, name="first", options=("--gpus-from", conf))
    found = loaded(helios, tmp_path, ON_A_GPU, name="second")
    assert found == pytest.approx([4, 2, NAN], nan_ok=True)


def test_the_setting_names_the_nodes_of_every_load(helios: Helios, tmp_path: Path, conf: Path) -> None:
    name_nodes(tmp_path, conf)
    assert loaded(helios, tmp_path, a_row(IN_SHARDS), name="first") == [1]


def test_a_replay_of_slurm_takes_the_nodes_of_its_configuration(helios: Helios, tmp_path: Path, conf: Path) -> None:
    rows = [a_row("cpu=64,node=1", job=str(number), cpus=64) for number in range(1, 4)]
    said = helios("whatif", "slurm", "--slurm-conf", conf, "--trace", write(tmp_path, *rows)).err
    assert "3 jobs held all CPUs of their nodes, and count with all GPUs of these" in said


def test_a_map_counts_parts_and_zeros_as_sacct_does(helios: Helios, tmp_path: Path, conf: Path) -> None:
    columns = tmp_path / "map.toml"
    columns.write_text(
        'timezone = "UTC"\n[columns]\njob_id = "id"\nnode_list = "nodes"\n'
        'gpus = { column = "tres", tres = "gres/gpu" }\n'
        'submitted_at = { column = "at", unit = "epoch s" }\n'
    )
    table = tmp_path / "jobs.csv"
    rows = ('1,1709280000,g1,"cpu=8,gres/shard=2"', '2,1709280000,g1,"cpu=8,gres/gpu:a100=3"', "3,1709280000,g1,cpu=8")
    table.write_text("\n".join(("id,at,nodes,tres", *rows)) + "\n")
    helios("trace", "load", table, "--cluster", "site", "--columns", columns, "--gpus-from", conf)
    assert gpus(helios, tmp_path, "--cluster", "site") == [0.5, 3, 0]
