"""What holds for every test: examples are not timed, CI judges each change by the same ones, and nothing is left."""

import os

import pytest
from hypothesis import Phase, settings

from tests.reaper import REAPER

settings.register_profile("here", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
# A mutant needs one example that it fails, not the smallest.
settings.register_profile("mutants", deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate])
settings.load_profile("ci" if os.environ.get("CI") else "here")


def pytest_configure(config: pytest.Config) -> None:
    """Have whatever the tests start end with them, also when they are interrupted or killed."""
    REAPER.start()
