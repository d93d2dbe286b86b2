"""Program that the tests train: a small model, whose state each worker prints after each step."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from helios.training import elastic

PACE_S = 0.03
"""Between two parts: else workers train as fast as they can while a test waits for another to start."""

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--batch", type=int, default=24)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--samples", type=int, default=240)
parser.add_argument("--plain", action="store_true", help="without buffers and dropout")
parser.add_argument("--width-file", type=Path, help="holds how wide the model is")
given = parser.parse_args()
width = int(given.width_file.read_text()) if given.width_file else 16


def obey() -> None:
    """Do what a file orders the worker in this place to."""
    order = given.out / f"order-{os.environ.get('RANK', '0')}"
    if order.exists():
        text = order.read_text()
        order.unlink()
        if text == "end":
            sys.exit(0)
        time.sleep(100_000)


def digest(training: elastic.Training) -> str:
    """Return a hash of all that should be the same for all workers."""
    parts = hashlib.sha256()
    for tensor in model.state_dict().values():
        parts.update(tensor.numpy().tobytes())
    for part in optimizer.state_dict()["state"].values():
        for name in sorted(part):
            parts.update(part[name].numpy().tobytes())
    parts.update(json.dumps([schedule.state_dict()["last_epoch"], optimizer.param_groups[0]["lr"]]).encode())
    return parts.hexdigest()


torch.__version__ = os.environ.get("TORCH", torch.__version__)
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
torch.manual_seed(os.getpid())  # workers that are not told begin differently
inputs = torch.randn(given.samples, 8, generator=torch.Generator().manual_seed(1))
target = (inputs[:, :2].sum(1) > 0).long()
middle = [] if given.plain else [nn.BatchNorm1d(width), nn.Dropout(0.1)]
if given.plain:
    torch.manual_seed(3)
model = nn.Sequential(nn.Linear(8, width), *middle, nn.Tanh(), nn.Linear(width, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
training = elastic.Training(
    model,
    optimizer,
    TensorDataset(inputs, target),
    batch=given.batch,
    epochs=given.epochs,
    state=[schedule],
    warm_up=10,
)
seen = lost = 0.0
log = (given.out / f"{os.getpid()}.jsonl").open("a", buffering=1)
for epoch in training:
    for x, y in epoch:
        time.sleep(PACE_S)
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        obey()
        seen, lost = seen + len(x), lost + loss.item() * len(x)
        if training.step():
            schedule.step()
            now = {
                "step": training.updates,
                "rank": int(os.environ.get("RANK", "0")),
                "workers": training.workers,
                "epoch": epoch.number,
                "digest": digest(training),
            }
            log.write(json.dumps({**now, "samples": seen, "loss": lost}) + "\n")
            seen = lost = 0.0
