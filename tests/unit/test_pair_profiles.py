"""Published speeds of pairs are read, and what is something else is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.pair_profiles import ProfilesInvalid, read_pair_profiles


def test_published_speeds_are_read(tmp_path: Path) -> None:
    file = tmp_path / "speeds.csv"
    file.write_text(
        "gpu,model,gpus,other_model,other_gpus,steps_per_s,other_steps_per_s\n"
        "v100,A,1,,,10,\nv100,B,1,,,4,\nv100,A,1,B,1,8,1\nv100,A,1,A,1,0,0\nv100,B,1,B,1,2,2\nk80,A,1,,,3,\n"
    )
    found = read_pair_profiles(file, gpu="v100")
    assert found.families == ("A", "B")
    assert found.alone.tolist() == [10.0, 4.0]
    np.testing.assert_allclose(found.beside, [[np.nan, 0.8], [0.25, 0.5]])
    with pytest.raises(ProfilesInvalid, match="no speeds of 'h100'"):
        read_pair_profiles(file, gpu="h100")
    file.write_text("a,b\n1,2\n")
    with pytest.raises(ProfilesInvalid, match="cannot be read"):
        read_pair_profiles(file, gpu="v100")
