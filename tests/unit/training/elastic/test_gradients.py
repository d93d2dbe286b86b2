"""The noise of gradients is what a known distribution has."""

from __future__ import annotations

import pytest
import torch

from helios.training.elastic.gradients import Noise


def test_noise_of_uneven_parts_is_that_of_the_distribution() -> None:
    generator = torch.Generator().manual_seed(0)
    mean, spread, noise = torch.full((200,), 0.1), 0.5, Noise()
    squares, variances = [], []
    for _ in range(3000):
        samples = mean + spread * torch.randn(12, 200, generator=generator)
        parts = samples.split([3, 4, 5])
        noise = Noise()
        noise.add(
            parts=3,
            squares=sum(float(part.mean(0).square().sum()) for part in parts),
            inverses=1 / 3 + 1 / 4 + 1 / 5,
            whole=float(samples.mean(0).square().sum()),
            batch=12,
        )
        squares.append(noise.square)
        variances.append(noise.variance)
    assert sum(squares) / 3000 == pytest.approx(200 * 0.1**2, rel=0.02)
    assert sum(variances) / 3000 == pytest.approx(200 * spread**2, rel=0.02)


def test_one_part_shows_no_noise() -> None:
    noise = Noise()
    noise.add(1, 2.0, 0.5, 2.0, 2)
    assert noise.of(8) is None
    assert noise.gain(64, 8) == 1.0


@pytest.mark.parametrize(("square", "variance", "gain"), [(0.0, 1.0, 4.0), (1.0, 0.0, 1.0), (1.0, 32.0, 2.0)])
def test_a_step_gains_what_noise_allows(square: float, variance: float, gain: float) -> None:
    assert Noise(square, variance, weight=1.0).gain(32, 8) == pytest.approx(gain if variance != 32.0 else 5 / 2)
