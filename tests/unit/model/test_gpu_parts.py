"""Parts of a GPU, against the profiles of NVIDIA's guide and counts worked out by hand."""

import numpy as np
import pytest

from helios.model.gpu_parts import (
    NodeGpus,
    SiteGpus,
    gpus_asked,
    gpus_from_nodes,
    gpus_of_shares,
    part_of_gpu,
    places,
)

SITE = SiteGpus(
    source="slurm.conf",
    nodes={
        "g1": NodeGpus.of_node({"a100": 4}, cpus=64, shards=16, mps=800),
        "g2": NodeGpus.of_node({"": 2}, cpus=32, shards=4),
        "m1": NodeGpus.of_node({"1g.5gb": 7}, cpus=16),
        "c1": NodeGpus.of_node({}, cpus=128),
    },
    partitions={"big": ("g1",), "small": ("g2",), "cpu": ("c1",), "whole": ("g1", "g2")},
    exclusive=frozenset({"whole"}),
)


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        ("", 1),
        ("a100", 1),
        ("a100-80gb", 1),
        ("gh200_480gb", 1),
        ("nvidia_h100_80gb_hbm3", 1),
        ("1g.5gb", 1 / 7),
        ("1g.5gb+me", 1 / 7),
        ("a100_2g.10gb", 2 / 7),
        ("a100_3g.20gb", 3 / 7),
        ("4g.20gb", 4 / 7),
        ("7g.40gb", 1),
        ("nvidia_h100_80gb_hbm3_1g.10gb", 1 / 7),
        ("1g.12gb+me", 1 / 7),
        ("1g.24gb", 1 / 7),
        ("h200_3g.71gb", 3 / 7),
        ("1c.3g.20gb", 1 / 7),
        ("2c_4g.20gb", 2 / 7),
        ("1g.6gb", 1 / 4),
        ("2g.12gb+me", 1 / 2),
        ("a30_4g.24gb", 1),
        ("nvidia_rtx_pro_6000_1g.24gb", 1 / 4),
        ("2g.48gb", 1 / 2),
        ("5g.40gb", None),
        ("8g.80gb", None),
        ("4c.3g.20gb", None),
    ],
)
def test_a_type_of_gpu_is_its_part_of_one(kind: str, part: float | None) -> None:
    assert part_of_gpu(kind) == part


@pytest.mark.parametrize(
    ("kind", "shares", "nodes", "partition", "gpus"),
    [
        ("shards", 4, "g1", None, 1),
        ("shards", 1, "g2", None, 0.5),
        ("shards", 3, "g[1-2]", None, 3 * 6 / 20),
        ("shards", 3, None, "small", 1.5),
        ("shards", 20, "g2", None, 2),  # never more than its nodes have
        ("shards", 4, "unknown1", "big", 1),
        ("mps", 100, "g1", None, 0.5),
        ("mps", 50, "g2", None, 0.5),  # the usual 100
    ],
)
def test_shares_count_by_the_nodes_of_a_job(
    kind: str, shares: float, nodes: str | None, partition: str | None, gpus: float
) -> None:
    found, _ = gpus_of_shares(np.array([float(shares)]), kind, places(SITE, [nodes], [partition]))
    assert found == [pytest.approx(gpus)]


def test_shards_are_unknown_without_the_nodes_of_the_site() -> None:
    found, assumed = gpus_of_shares(np.array([4.0]), "shards", places(None, ["g1"], ["gpu"]))
    assert np.isnan(found).all() and not assumed.any()


def test_mps_without_the_nodes_of_the_site_is_per_cent() -> None:
    found, assumed = gpus_of_shares(np.array([25.0, 0.0]), "mps", places(None, ["g1", "g1"], [None, None]))
    assert found.tolist() == [0.25, 0] and assumed.tolist() == [True, False]


@pytest.mark.parametrize(
    ("nodes", "partition", "cpus", "asked", "gpus"),
    [
        ("c1", "cpu", 1, np.nan, 0),
        (None, "cpu", 1, np.nan, 0),
        ("g1", "big", 64, np.nan, 4),
        ("g[1-2]", "big", 96, np.nan, 6),
        ("g1", "whole", 1, np.nan, 4),
        ("m1", "mig", 16, np.nan, 1),
        ("g1", "big", 8, 2, 2),
        ("g2", "small", 8, 3, 2),
        ("g1", "big", 8, np.nan, np.nan),
        (None, "whole", 64, np.nan, np.nan),
        ("unknown1", "big", 64, np.nan, np.nan),
    ],
)
def test_untracked_gpus_follow_from_the_nodes(
    nodes: str | None, partition: str, cpus: float, asked: float, gpus: float
) -> None:
    found, _ = gpus_from_nodes(
        SITE,
        node_lists=[nodes],
        partitions=[partition],
        cpus=np.array([float(cpus)]),
        asked=np.array([float(asked)]),
    )
    assert found == pytest.approx([gpus], nan_ok=True)


@pytest.mark.parametrize(
    ("line", "gpus"),
    [
        ("sbatch --gres=gpu:2 job.sh", 4),
        ("sbatch --gres gpu:a100:2 job.sh", 4),
        ("sbatch --gres=gres:gpu:1,nvme:1 job.sh", 2),
        ("sbatch --gpus=4 job.sh", 4),
        ("sbatch -G 3 job.sh", 3),
        ("sbatch -Gh100:3 job.sh", 3),
        ("sbatch --gpus=a100:1,h100:2 job.sh", 3),
        ("sbatch --gpus-per-node=1 job.sh", 2),
        ("srun -N2 --gpus-per-task=1 hostname", 8),
        ("sbatch --gres=gpu:1g.5gb:7 job.sh", 2),
        ("sbatch job.sh", np.nan),
        ("sbatch --gres=nvme:1 job.sh", np.nan),
        ("srun python train.py --gpus=4", np.nan),
        ("srun --exclusive ./train --gpus 4", np.nan),
        ("sbatch --wrap=python train.py --gpus 4", np.nan),
    ],
)
def test_a_command_line_tells_the_gpus_it_asks_for(line: str, gpus: float) -> None:
    assert gpus_asked(line, nodes=2, tasks=8) == pytest.approx(gpus, nan_ok=True)
