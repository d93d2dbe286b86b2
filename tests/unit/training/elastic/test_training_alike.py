"""With the batch kept, training is what it is on one device, whatever happens to its size."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from helios.training.elastic.samples import SampleOrder
from tests.unit.training.elastic.runs import Run


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A run that grows, refuses sizes, pauses, and goes on with other devices."""
    folder = tmp_path_factory.mktemp("resumed")
    with Run(folder, 1, "--epochs", "100000", "--plain") as run:
        run.wait_for_steps()
        assert run.resize(3)["devices"] == 3, run.log
        run.wait_for_steps()
        for devices, batch in ((25, None), (2, 65), (0, None)):
            assert "refused" in run.resize(devices, batch=batch), run.log
        run.wait_for_steps()
        assert run.end("pause") == 0, run.log
    (folder / "answers").write_text(json.dumps(run.reports()))
    with Run(folder, 2, "--epochs", "100000", "--plain") as run:
        run.wait_for_steps()
        assert run.end("stop") == 0, run.log
        yield run


def plain_losses(steps: int) -> list[float]:
    """Return the losses of the same model in an ordinary loop."""
    torch.set_num_threads(1)
    inputs = torch.randn(240, 8, generator=torch.Generator().manual_seed(1))
    target = (inputs[:, :2].sum(1) > 0).long()
    with torch.random.fork_rng([]):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
    order, losses = SampleOrder(list(range(240)), seed=0), []
    for step in range(steps):
        batch = order.order(step // 10)[step % 10 * 24 :][:24]
        loss = functional.cross_entropy(model(inputs[batch]), target[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


def test_losses_are_those_of_an_ordinary_loop(resumed: Run) -> None:
    steps = resumed.steps()
    whole = {step: workers for step, workers in steps.items() if sum(each["samples"] for each in workers) == 24}
    losses = {step: sum(each["loss"] for each in workers) / 24 for step, workers in whole.items()}
    expected = plain_losses(max(steps))
    assert losses == pytest.approx({step: expected[step - 1] for step in losses}, abs=1e-4)


def test_a_step_has_all_samples_of_its_batch(resumed: Run) -> None:
    whole = [workers for workers in resumed.steps().values() if len(workers) == workers[0]["workers"]]
    assert {sum(each["samples"] for each in workers) for workers in whole} == {24}


def test_a_start_with_other_devices_goes_on_where_it_paused(resumed: Run) -> None:
    assert sorted(resumed.steps()) == list(range(1, resumed.last() + 1))
    assert {workers[0]["workers"] for workers in resumed.steps().values()} == {1, 2, 3}


@pytest.mark.parametrize(
    "reason",
    [
        "a batch of 24 on 25 devices gives one of them less than 1",
        "a batch of 65 is not between 8 and 64",
        "a batch of 24 on 0 devices gives one of them less than 1",
    ],
)
def test_a_size_that_does_not_fit_is_refused(resumed: Run, reason: str) -> None:
    assert reason in {report.get("elastic", {}).get("refused") for report in resumed.reports()}


def test_a_model_that_was_edited_meanwhile_is_refused(tmp_path: Path) -> None:
    width = tmp_path / "width"
    width.write_text("16")
    with Run(tmp_path, 1, "--epochs", "100000", "--width-file", str(width)) as run:
        run.wait_for_steps()
        width.write_text("32")
        refused = run.resize(2)["refused"]
        run.wait_for_steps()
    assert refused == "worker 1 differs, 0.bias is (32,) torch.float32 and not (16,) torch.float32"
