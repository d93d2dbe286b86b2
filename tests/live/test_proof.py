"""The proof: the same arrivals under plain Slurm and under Slurm with Helios, at the same time.

At night, since a machine with other work on it delays Helios' cycles more than the clusters.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.replayed import Stretch, helped, replay, waits
from tests.live.rig import Rig, roomy_folder, skip_without_slurm
from tests.traces import needs_traces

# benchmarks/live_chance.py: of 40 pairs of clusters, submitted to up to 4 s late, none had more than 0.41 of the mean,
# and the longest waits of two plain clusters differ by up to this, s, by chance alone.
LARGEST_RATIO, CHANCE_S = 0.6, 11.0


@pytest.fixture(scope="module")
def stretch() -> Stretch:
    return Stretch()


@pytest.fixture
def pair(stretch: Stretch) -> Iterator[tuple[Rig, Rig]]:
    """Two clusters alike, of their own: both are loaded for minutes."""
    skip_without_slurm()
    settings = {"USERS": " ".join(stretch.users)}
    rigs: list[Rig] = []
    try:
        for name in ("plain", "helped"):
            rigs.append(Rig(roomy_folder(), settings=settings | {"NAME": name}))
            rigs[-1].control("up")
        yield rigs[0], rigs[1]
    finally:
        for rig in rigs:
            rig.control("wipe")


@pytest.mark.nightly
@needs_traces
def test_helios_shortens_the_mean_wait_and_not_by_longer_longest_ones(
    pair: tuple[Rig, Rig], stretch: Stretch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, with_helios = pair
    (tmp_path / "helios").mkdir()
    with helped(with_helios, stretch, tmp_path / "helios"):
        replay(stretch, pair)
        assert not any(with_helios.site_factors().values())
    without, with_it = waits(plain, "plain Slurm"), waits(with_helios, "Slurm and Helios")
    with capsys.disabled():
        sys.stdout.write(f"\n{without.line()}\n{with_it.line()}\n")
    assert with_it.mean < LARGEST_RATIO * without.mean
    assert with_it.ten_longest <= without.ten_longest + CHANCE_S
    assert with_it.longest <= without.longest + CHANCE_S
