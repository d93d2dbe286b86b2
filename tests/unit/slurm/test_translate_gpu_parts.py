"""Parts of a GPU in the queue and on the nodes of a running cluster."""

from __future__ import annotations

import pytest

from helios.slurm import translate
from helios.slurm.backend import RawJob, RawNode
from helios.slurm.commands import _job_gres, _node
from helios.slurm.pyslurm_worker import gpus_held
from tests.unit.slurm.slurm import a_raw_job, a_raw_node

SHARDS = a_raw_node("n1", gpus=4, gres="gpu:a100:4,shard:a100:16,mps:800")
PLAIN = a_raw_node("n2", gpus=2, gres="gpu:a100:2,shard:4", partitions="small")
SLICES = a_raw_node("m1", gpus=7, gpu_type="1g.5gb", gres="gpu:1g.5gb:7", partitions="mig")
MIXED = a_raw_node("m2", gpus=3, gpu_type=None, gres="gpu:3g.20gb:1,gpu:2g.10gb:2", partitions="mix", gpus_held=1)
NODES = [SHARDS, PLAIN, SLICES, MIXED]


@pytest.mark.parametrize(
    ("overrides", "gpus"),
    [
        ({"gpus": 2}, 2),
        ({"gpus": 0}, 0),
        ({"gpus": 0, "shards": 4}, 1),
        ({"gpus": 0, "shards": 1, "partition": "small"}, 0.5),
        ({"gpus": 0, "mps": 100}, 0.5),
        ({"gpus": 0, "mps": 50, "partition": "small"}, 0.5),
        ({"gpus": 2, "gpu_type": "1g.5gb", "partition": "mig"}, 2 / 7),
        ({"gpus": 1, "partition": "mig"}, 1 / 7),
        ({"gpus": 1, "gpu_type": "3g.20gb", "partition": "mix"}, 3 / 7),
    ],
)
def test_a_waiting_job_has_its_part_of_a_gpu(overrides: dict[str, object], gpus: float) -> None:
    queue = translate.pending([a_raw_job("7", **overrides)], {}, most=10_000, release=(22, 5), nodes=NODES)
    assert queue["gpus"].tolist() == [pytest.approx(gpus)]


def test_a_running_job_has_the_part_of_its_own_node() -> None:
    job: RawJob = a_raw_job("7", state="RUNNING", gpus=0, shards=1, partition="all", node_list="n2")
    assert translate.running([job], release=(22, 5), nodes=NODES)["gpus"].tolist() == [0.5]


def test_nodes_of_slices_count_their_gpus() -> None:
    states = translate.node_states([SLICES, MIXED, SHARDS]).set_index("name")
    assert states["gpus"].to_dict() == {"m1": 1, "m2": 1, "n1": 4}
    assert states["gpus_held"].to_dict() == {"m1": 0, "m2": pytest.approx(1 / 3), "n1": 0}


def test_shards_in_use_are_gpus_in_use() -> None:
    node: RawNode = _node(
        "NodeName=n1 CPUAlloc=4 CPUTot=64 Gres=gpu:a100:2,shard:a100:8 State=MIXED "
        "AllocTRES=cpu=4,gres/gpu=1,gres/shard=2"
    )
    assert node["gpus_held"] == 1.5
    assert gpus_held(2, {"gpu": (1, 2), "shard": (2, 8), "mps": (0, 0)}) == 1.5


@pytest.mark.parametrize(
    ("tres", "per_node", "shards"),
    [
        ("cpu=2,node=2,gres/shard=4", "gres:shard:2", 4),
        ("cpu=2,node=2", "gres:shard:a100:2", 4),
        ("cpu=2,node=2,gres/shard:a100=4,gres/shard=4", "N/A", 4),
        ("cpu=2,node=2,gres/gpu=4", "gres:gpu:2", 0),
    ],
)
def test_squeue_tells_the_shards_of_a_job(tres: str, per_node: str, shards: int) -> None:
    field = {"NumNodes": "2", "NumTasks": "1", "tres-alloc": tres, "tres-per-node": per_node}
    field |= {"tres-per-job": "N/A", "tres-per-task": "N/A"}
    assert _job_gres(field, "shard").count == shards
