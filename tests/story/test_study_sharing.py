"""An administrator asks what sharing GPUs would bring."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from helios.model import GPU_USE, Batch
from helios.warehouse import Warehouse
from tests.builders import rejects_frame
from tests.story.shell import Helios, shell
from tests.unit.study.test_sharing import site


def site_with_use(folder: Path, **measured: float) -> Helios:
    """Return the shell of a site whose jobs and use are loaded."""
    loaded, use = site(**measured)
    with Warehouse.open(f"sqlite:///{folder / 'helios.db'}") as warehouse:
        batch = Batch(jobs=loaded.jobs, rejects=rejects_frame(), bytes_read=0)
        warehouse.load([batch], cluster="tiny", path="f", sha256="", format="helios", timezone="UTC")
        warehouse.add_job_use("tiny", use, GPU_USE.empty())
    return shell(folder)


def test_sharing_is_shown_beside_an_idle_timeout_and_trials(tmp_path: Path) -> None:
    helios = site_with_use(tmp_path)
    words = ("study", "sharing", "--from", "2020-03-06", "--nodes", 1, "--gpus-per-node", 8, "--draws", 0)
    found = helios(*words, "--json").json
    assert [case["change"].split()[0] for case in found["cases"]] == ["2", "4", "Idle", "Repeated"]
    assert found["cases"][0]["of_one_gpu"]["value"] == pytest.approx(0.5, abs=0.01)
    shown = helios(*words).out
    assert shown.startswith("0 % of the hours of one-GPU jobs were not measured")
    assert "gres/shard" in shown


def test_sharing_is_refused_without_memory(tmp_path: Path) -> None:
    helios = site_with_use(tmp_path, gpu_memory_peak_mib=np.nan, gpu_memory_total_mib=np.nan)
    answer = helios("study", "sharing", code=1)
    assert "nobody knows what fits" in answer.err
    assert "jobstats, Prometheus" in answer.err
