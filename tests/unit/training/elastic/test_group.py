"""A state is handed over by workers of one training only."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

WORKER = """
import sys
import torch
from helios.training.elastic import group
rank, key, store = int(sys.argv[1]), sys.argv[2], sys.argv[3]
group.form({"rank": rank, "size": 2, "backend": "gloo", "store": store, "settings": {"nodes": 1}})
state = {"weights": torch.arange(3.0), "steps": 7} if rank == 0 else None
try:
    got = group.hand_over(state, 0, receives=rank == 1, device=torch.device("cpu"), key=key)
    print(got and (got["weights"].tolist(), got["steps"]))
except RuntimeError as reason:
    print(reason)
"""


@pytest.mark.parametrize(
    ("key", "received"),
    [("secret", "([0.0, 1.0, 2.0], 7)"), ("guessed", "A state does not come from a worker of this training.")],
)
def test_a_state_is_received_from_who_has_the_key(key: str, received: str, tmp_path: Path) -> None:
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, rank, own, str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            text=True,
            env={"GLOO_SOCKET_IFNAME": "lo"},
        )
        for rank, own in (("0", key), ("1", "secret"))
    ]
    outputs = [worker.communicate(timeout=120)[0].strip() for worker in workers]
    assert outputs[1] == received
