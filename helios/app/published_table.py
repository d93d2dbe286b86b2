"""The scheduling table that the SC'21 artifact published, and the jobs and nodes that it was computed on.

Source: S-Lab-System-Group/HeliosArtifact (MIT, Copyright (c) 2021-present NTU S-Lab): the tables ``jct_avg`` and
``que_avg`` that ``framework/QSSF Service/plot/result_plot.ipynb`` shows, ``data/philly_vc.csv`` for the nodes, and
``simulator.py`` for the window. Means over the jobs of a virtual cluster, s, cut to whole seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTable:
    """Mean JCT and mean queue, s, of each policy on each virtual cluster, and ``all`` for all jobs.

    Attributes
    ----------
    name : str
        What it is called here.
    opens : str
        Local date from which jobs are taken.
    lasts : timedelta
        How long after the *first job* the last is taken, both ends included: the artifact counts from that job.
    nodes : mapping
        Nodes of each virtual cluster, of 8 GPUs each; jobs of others are left out.
    jct_s, queue_s : mapping of mapping
        By policy, then by virtual cluster.
    """

    name: str
    opens: str
    lasts: timedelta
    nodes: Mapping[str, int]
    jct_s: Mapping[str, Mapping[str, int]]
    queue_s: Mapping[str, Mapping[str, int]]

    @property
    def run_time_s(self) -> int:
        """Mean run time of its jobs, s: under FIFO, JCT less queue."""
        return self.jct_s["fifo"][ALL] - self.queue_s["fifo"][ALL]


_POLICIES = ("fifo", "sjf", "srtf", "qssf")
_PHILLY = {  # nodes; mean JCT and mean queue under each of _POLICIES
    "6214e9": (64, (97_501, 23_337, 19_532, 26_022), (78_659, 4_494, 685, 7_179)),
    "7f04ca": (32, (133_826, 133_271, 132_980, 133_941), (1_412, 857, 565, 1_527)),
    "11cb48": (16, (82_540, 14_444, 9_057, 21_051), (74_040, 5_944, 554, 12_550)),
    "b436b2": (64, (28_732, 28_610, 28_291, 28_642), (544, 421, 100, 454)),
    "ee9e8c": (64, (243_144, 130_493, 122_609, 132_367), (127_270, 14_619, 6_720, 16_493)),
    "e13805": (16, (87_265, 85_949, 85_314, 85_886), (2_331, 1_015, 378, 953)),
    "6c71a0": (32, (31_088, 31_030, 31_020, 31_019), (220, 162, 150, 151)),
    "2869ce": (16, (70_215, 56_388, 53_128, 58_088), (21_171, 7_344, 4_071, 9_044)),
    "ed69ec": (8, (28_345, 28_346, 28_346, 28_346), (28, 28, 27, 28)),
    "103959": (8, (24_743, 23_283, 22_735, 23_219), (2_391, 932, 380, 867)),
    "0e4a51": (32, (233_539, 168_747, 146_023, 196_886), (101_473, 36_682, 13_953, 64_820)),
    ALL: (0, (86_072, 34_272, 30_683, 37_324), (56_531, 4_731, 1_138, 7_783)),
}

PHILLY = PublishedTable(
    name="Philly, October and November 2017",
    opens="2017-10-01",
    lasts=timedelta(days=61) - timedelta(minutes=1),
    nodes={name: row[0] for name, row in _PHILLY.items() if name != ALL},
    jct_s={policy: {name: row[1][i] for name, row in _PHILLY.items()} for i, policy in enumerate(_POLICIES)},
    queue_s={policy: {name: row[2][i] for name, row in _PHILLY.items()} for i, policy in enumerate(_POLICIES)},
)
