"""Program that the tests train: a small model, whose state each worker prints after each step."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from helios.training import elastic

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--batch", type=int, default=24)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--samples", type=int, default=240)
parser.add_argument("--pace-s", type=float, default=0.0)
parser.add_argument("--plain", action="store_true", help="without buffers and dropout")
parser.add_argument("--width", type=int, default=16)
parser.add_argument("--hold", type=Path, help="wait at each step while this file is there")
given = parser.parse_args()


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


torch.manual_seed(os.getpid())  # workers that are not told begin differently
inputs = torch.randn(given.samples, 8, generator=torch.Generator().manual_seed(1))
target = (inputs[:, :2].sum(1) > 0).long()
middle = [] if given.plain else [nn.BatchNorm1d(given.width), nn.Dropout(0.1)]
if given.plain:
    torch.manual_seed(3)
model = nn.Sequential(nn.Linear(8, given.width), *middle, nn.Tanh(), nn.Linear(given.width, 2))
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
log = (given.out / f"{os.getpid()}.jsonl").open("a", buffering=1)
for epoch in training:
    for x, y in epoch:
        while given.hold is not None and given.hold.exists():
            time.sleep(0.01)
        time.sleep(given.pace_s)
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        if training.step():
            schedule.step()
            now = {
                "step": training.updates,
                "rank": int(os.environ.get("RANK", "0")),
                "workers": training.workers,
                "epoch": epoch.number,
                "digest": digest(training),
            }
            log.write(json.dumps({**now, "samples": len(x), "loss": loss.item()}) + "\n")
with torch.no_grad():
    model.eval()
    if training.first:
        loss = functional.cross_entropy(model(inputs), target).item()
        (given.out / "loss").write_text(repr(loss))
sys.exit(0)
