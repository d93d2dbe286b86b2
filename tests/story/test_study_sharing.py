"""An administrator asks what sharing GPUs would bring."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from helios.model import GPU_USE, Batch
from helios.warehouse import Warehouse
from tests.builders import rejects_frame
from tests.story.shell import Helios, shell
from tests.story.test_study_commands import Told, answer_to, freed, unused
from tests.unit.study.test_sharing import site

ASKED = {"memory_peak_mib": 2_000.0, "memory_limit_mib": 8_000.0, "cpu_s": 1_234.0}


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
    words = ("study", "sharing", "--from", "2020-03-06", "--nodes", 1, "--gpus-per-node", 8)
    found = helios(*words, "--json").json
    assert [case["change"].split()[0] for case in found["cases"]] == ["2", "4", "Idle", "Repeated"]
    assert found["cases"][0]["of_one_gpu"]["value"] == pytest.approx(0.5, abs=0.01)
    shown = helios(*words).out
    assert shown.startswith("0 % of the hours of one-GPU jobs were not measured")
    assert "gres/shard" in shown


def test_statements_on_use_propose_a_command_with_their_number(tmp_path: Path) -> None:
    helios = site_with_use(tmp_path, is_interactive=1.0, longest_idle_s=3 * 3600.0, utilization=0.0, **ASKED)
    study = helios("study", "--from", "2020-03-06", "--json").json
    held, half, requests = study["statements"][20:23]
    assert held["value"] == pytest.approx(2 / 3, abs=0.01)
    assert held["parts"]["by_kind"]["interactive"] == {"of_hours": pytest.approx(2 / 3, abs=0.01), "unused": 1.0}
    assert "jobstats (busy: a kernel ran)" in held["sentence"]
    for statement in (held, half):
        assert statement["command"].startswith("helios study sharing")
        assert freed(Told(study, statement, answer_to(statement["command"], helios, as_json=True)))

    assert requests["command"].startswith("helios report use")
    assert unused(Told(study, requests, answer_to(requests["command"], helios, as_json=True)))


def test_sharing_is_refused_without_memory(tmp_path: Path) -> None:
    helios = site_with_use(tmp_path, gpu_memory_peak_mib=np.nan, gpu_memory_total_mib=np.nan)
    answer = helios("study", "sharing", code=1)
    assert "nobody knows what fits" in answer.err
    assert "helios trace use FILE" in answer.err
