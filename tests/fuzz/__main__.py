"""Fuzz one target, or ``all``: prints and keeps what is found; exits with 1 if anything is."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.fuzz.runner import fuzzed
from tests.fuzz.targets import TARGETS, available

KEPT_OF_A_KIND = 2


def main() -> int:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", choices=[*TARGETS, "all"])
    parser.add_argument("--inputs", type=int, default=1000, help="of all targets together; dearer ones get fewer")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    names = [name for name in TARGETS if asked.target in (name, "all")]
    shares = {name: 1 / TARGETS[name].cost for name in names if available(name)}
    bad = False
    for name in names:
        if name not in shares:
            print(f"{name}: cannot run here", flush=True)
            continue
        inputs, began, kinds = (
            round(asked.inputs * shares[name] / sum(shares.values())),
            time.monotonic(),
            Counter[str](),
        )
        for finding in fuzzed(name, inputs=inputs, seed=asked.seed):
            bad = True
            kind = finding.what.rpartition("(")[2] if "(" in finding.what else finding.what[:40]
            kinds[kind] += 1
            if kinds[kind] <= KEPT_OF_A_KIND:
                print(f"{name}: {finding.what}\n  {finding.keep()}", flush=True)
        print(f"{name}: {inputs} inputs, {sum(kinds.values())} findings, {time.monotonic() - began:.0f} s", flush=True)
    return bad


if __name__ == "__main__":
    sys.exit(main())
