"""Where the real traces lie, and the marker of tests that need them."""

import os
from pathlib import Path

import pytest

TRACES = Path(os.environ.get("HELIOS_TRACES", Path(__file__).parents[2] / "shared" / "traces"))

needs_traces = pytest.mark.skipif(
    not TRACES.is_dir(), reason=f"real traces are not at {TRACES}; set HELIOS_TRACES to their folder"
)
