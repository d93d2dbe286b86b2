"""What holds for every test: examples are not timed, and CI judges each change by the same ones."""

import os

from hypothesis import Phase, settings

settings.register_profile("here", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
# A mutant needs one example that it fails, not the smallest.
settings.register_profile("mutants", deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate])
settings.load_profile("ci" if os.environ.get("CI") else "here")
