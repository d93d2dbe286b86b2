from __future__ import annotations

from pathlib import Path

import pytest

from helios.app.gain_check import NoGain, refuse_without_gain
from helios.errors import NoSuchCluster
from helios.services.qssf import Qssf
from helios.services.soft_limits import SoftLimits
from tests.unit.app.sites import FakeSite


@pytest.fixture
def fake_site(tmp_path: Path) -> FakeSite:
    return FakeSite(tmp_path)


def test_a_service_that_needs_no_proof_passes(fake_site: FakeSite) -> None:
    assert refuse_without_gain(fake_site.settings, "dev", "qssf", Qssf(Qssf.Options())) == ()


def test_soft_limits_are_refused_on_a_history_that_shows_no_gain(fake_site: FakeSite) -> None:
    fake_site.learn(jobs=150)
    service = SoftLimits(SoftLimits.Options())
    with pytest.raises(NoGain, match=r"soft_limits stays in shadow\. No gain"):
        refuse_without_gain(fake_site.settings, "dev", "soft_limits", service, now=fake_site.cluster.now)


def test_soft_limits_are_refused_without_any_history(fake_site: FakeSite) -> None:
    with pytest.raises(NoSuchCluster):
        refuse_without_gain(fake_site.settings, "dev", "soft_limits", SoftLimits(SoftLimits.Options()))
