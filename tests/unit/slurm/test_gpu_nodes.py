"""Files that tell the GPUs of nodes, as administrators have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from helios.errors import ConfigurationInvalid, FileUnreadable
from helios.model.gpu_parts import NodeGpus, SiteGpus
from helios.slurm.gpu_nodes import read_site_gpus

CONF = """ClusterName=venus
GresTypes=gpu,shard,mps
NodeName=DEFAULT CPUs=64 Gres=gpu:a100:4,shard:a100:16
NodeName=g[1-2]
NodeName=g3 CPUs=32 CoreSpecCount=2 Gres=gpu:2(S:0-1),mps:400 State=DOWN
NodeName=c1 Gres=(null)
PartitionName=gpu Nodes=g[1-3] OverSubscribe=EXCLUSIVE
PartitionName=cpu Nodes=c1
"""
SHOWN = """NodeName=g1 Arch=x86_64 CPUAlloc=0 CPUEfctv=60 CPUTot=64 Gres=gpu:a100:4,shard:a100:16
   State=IDLE Partitions=gpu Reason=x

PartitionName=gpu
   AllowGroups=ALL OverSubscribe=EXCLUSIVE
   Nodes=g1
"""
TABLE = """# made by hand
name,gpus,cpus,shards,mps
"g[1-2]",4,64,16,
g[3,5],2,32,,400
c1,0,64,,
"""


def site(tmp_path: Path, text: str) -> SiteGpus:
    file = tmp_path / "nodes"
    file.write_text(text)
    return read_site_gpus(file)


@pytest.mark.parametrize(("text", "third"), [(CONF, 30), (TABLE, 32)])
def test_nodes_have_their_gpus_and_shares(tmp_path: Path, text: str, third: int) -> None:
    nodes = site(tmp_path, text).nodes
    assert nodes["g1"] == nodes["g2"] == NodeGpus.of_node({"a100": 4}, cpus=64, shards=16)
    assert nodes["g3"] == NodeGpus.of_node({"": 2}, cpus=third, mps=400)
    assert nodes["c1"].gpus == 0


def test_slurm_conf_tells_exclusive_partitions(tmp_path: Path) -> None:
    assert site(tmp_path, CONF).exclusive == {"gpu"}


def test_what_scontrol_shows_is_read(tmp_path: Path) -> None:
    found = site(tmp_path, SHOWN)
    assert found.nodes == {"g1": NodeGpus.of_node({"a100": 4}, cpus=60, shards=16)}
    assert found.exclusive == {"gpu"}


def test_included_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "nodes.conf").write_text(CONF)
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=venus\nInclude nodes.conf\n")
    assert read_site_gpus(conf).nodes["g1"].gpus == 4


def test_an_included_file_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileUnreadable, match=r"gone\.conf cannot be read"):
        site(tmp_path, "NodeName=g1 Gres=gpu:4\nInclude gone.conf\n")


def test_an_error_names_the_included_file_and_its_line(tmp_path: Path) -> None:
    (tmp_path / "more.conf").write_text("\nNodeName=g1 Gres=gpu:many\n")
    with pytest.raises(ConfigurationInvalid, match=r"more\.conf, line 2"):
        site(tmp_path, "ClusterName=venus\nInclude more.conf\n")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ClusterName=venus\n", "describes no node"),
        ("NodeName=g1 Gres=gpu:many\n", "line 1"),
        ("host,gpus\ng1,4\n", "line 1"),
        ("name,gpus\ng1,four\n", "line 2"),
        ("name,gpus\ng1,-4\n", "line 2"),
        ("name,gpus\ng1,4,5\n", "line 2"),
        ("name,gpus\ng[1-,4\n", "line 2"),
        ("Include nodes\n", "without an end"),
    ],
)
def test_a_file_that_is_not_understood_names_its_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigurationInvalid, match=words) as caught:
        site(tmp_path, text)
    assert caught.value.hint


def test_a_missing_file_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(FileUnreadable, match="cannot be read") as caught:
        read_site_gpus(tmp_path / "none")
    assert "slurm.conf" in caught.value.hint
