"""Train a small network on scikit-learn's digits, with checkpoints: ``python train.py --lr 0.01``.

An ordinary program that runs by hand as well. What a pool adds is in the lines that name ``helios_task``.
"""

from __future__ import annotations

import argparse

import helios_task
import torch
from sklearn.datasets import load_digits  # type: ignore[import-untyped]  # because it ships no types
from sklearn.model_selection import train_test_split  # type: ignore[import-untyped]  # as above
from torch import nn


def main() -> None:
    """Train, and print the accuracy on a quarter of the images."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--optimizer", choices=["sgd", "adam"], default="sgd")
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    images, digits = load_digits(return_X_y=True)
    split = train_test_split(images / 16.0, digits, test_size=0.25, random_state=0, stratify=digits)
    inputs, test_inputs = (torch.tensor(part, dtype=torch.float32, device=device) for part in split[:2])
    labels, test_labels = (torch.tensor(part, device=device) for part in split[2:])

    torch.manual_seed(options.seed)
    model = nn.Sequential(
        nn.Linear(64, options.width),
        nn.ReLU(),
        nn.Dropout(options.dropout),
        nn.Linear(options.width, options.width),
        nn.ReLU(),
        nn.Dropout(options.dropout),
        nn.Linear(options.width, 10),
    ).to(device)
    optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)
    if options.optimizer == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=options.momentum)
    first = 0
    if (latest := helios_task.latest_checkpoint()) is not None:
        state = torch.load(latest, map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"] + 1

    accuracy = 0.0
    for epoch in range(first, options.epochs):
        torch.manual_seed(options.seed * 10_000 + epoch)  # an epoch is the same after a restart
        model.train()
        for batch in torch.randperm(len(inputs)).to(device).split(32):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs[batch]), labels[batch])
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            accuracy = (model(test_inputs).argmax(dim=1) == test_labels).float().mean().item()
        helios_task.report(step=epoch, progress=(epoch + 1) / options.epochs, accuracy=accuracy, loss=loss)

        request = helios_task.requested()
        if request == "stop":
            return
        if request is not None or epoch % 10 == 9:
            with helios_task.save_checkpoint("model.pt", step=epoch) as path:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
                torch.save(state, path)
        if request == "pause":
            return
    print(f"{accuracy:.4f}")


if __name__ == "__main__":
    main()
