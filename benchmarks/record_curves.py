"""Train 40 small models of seven kinds and record the curves of their metrics.

    python -m benchmarks.record_curves FILE     # some minutes on one core; needs PyTorch and scikit-learn

Data are those that scikit-learn ships and the sources of Python's standard library. Some are noisy, stand still for
long, have steps of the learning rate, overfit or diverge. ``learning_curves.csv`` beside this file is what it wrote.
The 20 recipes as they are were for tuning. For judging, each was trained again with another seed, learning rate, batch
size, length and time of the steps of the rate (column ``half``).
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn import datasets, ensemble
from torch import nn
from torch.nn import functional

MODULES = ("ast", "inspect", "argparse", "typing", "subprocess", "tarfile", "datetime", "random")
"""Modules whose sources are the text, by the first half to learn from and the second to judge."""
MOST_CHARACTERS = 200_000

Curve = Iterator[tuple[int, float]]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One training.

    Attributes
    ----------
    milestones : tuple of int
        Reports at which the learning rate is divided by ten.
    label_noise : float
        Part of the training labels that are replaced.
    """

    name: str
    kind: str
    train: Callable[[Recipe], Curve]
    metric: str
    data: str = "digits"
    lr: float = 0.1
    reports: int = 100
    steps: int = 10
    batch: int = 32
    milestones: tuple[int, ...] = ()
    label_noise: float = 0.0
    judged: int = 500
    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict)


def main() -> None:
    """Write the curves of all recipes."""
    torch.set_num_threads(1)
    with Path(sys.argv[1]).open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["half", "kind", "task", "metric", "first_step", "values"])
        for half, recipes in (("tune", RECIPES), ("judge", [vary(recipe) for recipe in RECIPES])):
            for recipe in recipes:
                torch.manual_seed(recipe.seed)
                points = list(recipe.train(recipe))
                values = [f"{value:.4g}" for _, value in points]
                rows.writerow([half, recipe.kind, recipe.name, recipe.metric, points[0][0], " ".join(values)])
                print(half, recipe.kind, recipe.name, recipe.metric, *values[:: len(values) // 12])


def vary(recipe: Recipe) -> Recipe:
    """Return another training of the same kind."""
    draw = np.random.default_rng(RECIPES.index(recipe))
    longer = draw.uniform(0.6, 1.4)
    return replace(
        recipe,
        seed=recipe.seed + 100,
        lr=recipe.lr * float(np.exp(draw.normal(0, 0.5))),
        batch=max(2, round(recipe.batch * float(np.exp(draw.normal(0, 0.5))))),
        reports=round(recipe.reports * longer),
        milestones=tuple(round(at * longer * draw.uniform(0.7, 1.1)) for at in recipe.milestones),
        label_noise=recipe.label_noise * draw.uniform(0.5, 1.2),
    )


def table(recipe: Recipe) -> tuple[torch.Tensor, ...]:
    """Return inputs and targets to train and to judge."""
    inputs, target = getattr(datasets, f"load_{recipe.data}")(return_X_y=True)
    inputs = (inputs - inputs.mean(axis=0)) / (inputs.std(axis=0) + 1e-6)
    if recipe.data == "diabetes":
        target = (target - target.mean()) / target.std()
    order = np.random.default_rng(recipe.seed).permutation(len(target))
    inputs, target = inputs[order], target[order]
    n = max(len(target) // 2, len(target) - recipe.judged)
    noise = np.random.default_rng(recipe.seed + 1)
    if recipe.label_noise:
        wrong = noise.random(n) < recipe.label_noise
        target[:n][wrong] = noise.integers(0, target.max() + 1, wrong.sum())
    x = torch.tensor(inputs, dtype=torch.float32)
    y = torch.tensor(target, dtype=torch.float32 if recipe.data == "diabetes" else torch.long)
    return x[:n], y[:n], x[n:], y[n:]


def loop(recipe: Recipe, model: nn.Module, loss: Callable[[], torch.Tensor], judge: Callable[[], float]) -> Curve:
    """Train and report."""
    name = recipe.options.get("optimizer", "SGD")
    more = {} if name == "Adam" else {"momentum": recipe.options.get("momentum", 0.0)}
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=recipe.lr, **more)
    for report in range(1, recipe.reports + 1):
        if report in recipe.milestones:
            for group in optimizer.param_groups:
                group["lr"] /= 10
        for group in optimizer.param_groups:
            group["lr"] *= recipe.options.get("growth", 1.0)
        for _ in range(recipe.steps):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
        with torch.no_grad():
            yield report * recipe.steps, judge()


def classify(recipe: Recipe) -> Curve:
    """Train a classifier or, of diabetes, a regression."""
    x, y, judged_x, judged_y = table(recipe)
    width, classes = recipe.options.get("width", 64), 1 if recipe.data == "diabetes" else int(y.max()) + 1
    model: nn.Module
    if recipe.kind == "cnn":
        model = nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, classes),
        )  # fmt: skip
    elif recipe.kind == "mlp":
        layers: list[nn.Module] = [nn.Linear(x.shape[1], width), nn.Tanh()]
        for _ in range(recipe.options.get("deeper", 0)):
            layers += [nn.Linear(width, width), nn.Tanh()]
        model = nn.Sequential(*layers, nn.Linear(width, classes))
    else:
        model = nn.Linear(x.shape[1], classes)

    def error(inputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        output = model(inputs)
        return functional.mse_loss(output[:, 0], target) if classes == 1 else functional.cross_entropy(output, target)

    def loss() -> torch.Tensor:
        chosen = torch.randint(len(x), (recipe.batch,))
        return error(x[chosen], y[chosen])

    def judge() -> float:
        if recipe.metric == "val_loss":
            return float(error(judged_x, judged_y))
        return float((model(judged_x).argmax(1) == judged_y).float().mean())

    yield from loop(recipe, model, loss, judge)


def autoencode(recipe: Recipe) -> Curve:
    """Train an autoencoder."""
    x, _, judged_x, _ = table(recipe)
    act, narrow = recipe.options.get("activation", nn.ReLU), recipe.options.get("narrow", 8)
    sizes = (64, 48, narrow, 48)
    layers = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), act())]
    model = nn.Sequential(*layers, nn.Linear(48, 64))

    def loss() -> torch.Tensor:
        chosen = x[torch.randint(len(x), (recipe.batch,))]
        return functional.mse_loss(model(chosen), chosen)

    yield from loop(recipe, model, loss, lambda: float(functional.mse_loss(model(judged_x), judged_x)))


def read_characters(recipe: Recipe) -> Curve:
    """Train a recurrent model of characters."""
    folder = Path(csv.__file__).parent
    texts = [(folder / f"{name}.py").read_bytes()[:MOST_CHARACTERS] for name in MODULES]
    half = len(texts) // 2
    parts = [torch.tensor([byte % 128 for byte in b"".join(part)]) for part in (texts[:half], texts[half:])]
    length, width = 32, recipe.options.get("width", 48)

    class Characters(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(128, 24)
            self.cell = getattr(nn, recipe.options.get("cell", "GRU"))(24, width, batch_first=True)
            self.out = nn.Linear(width, 128)

        def forward(self, text: torch.Tensor) -> torch.Tensor:
            return self.out(self.cell(self.embed(text))[0])

    model = Characters()
    judged_at = torch.randint(len(parts[1]) - length - 1, (64,))

    def error(text: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        rows = text[at[:, None] + torch.arange(length + 1)]
        return functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())

    yield from loop(
        recipe,
        model,
        lambda: error(parts[0], torch.randint(len(parts[0]) - length - 1, (recipe.batch,))),
        lambda: float(error(parts[1], judged_at)),
    )


def name_module(recipe: Recipe) -> Curve:
    """Train a bag of words to say from which module a line of source is."""
    folder = Path(csv.__file__).parent
    lines = [
        (line.split(), number)
        for number, name in enumerate(MODULES)
        for line in (folder / f"{name}.py").read_text().splitlines()
        if len(line.split()) > 2
    ]
    order = np.random.default_rng(recipe.seed).permutation(len(lines))
    words = torch.zeros((len(lines), 512))
    for row, place in enumerate(order):
        for word in lines[place][0]:
            words[row, sum(word.encode()) * 31 % 512] += 1
    target = torch.tensor([lines[place][1] for place in order])
    n = len(lines) - 800
    model = nn.Sequential(nn.Linear(512, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, len(MODULES)))

    def loss() -> torch.Tensor:
        model.train()
        chosen = torch.randint(n, (recipe.batch,))
        return functional.cross_entropy(model(words[chosen]), target[chosen])

    def judge() -> float:
        model.eval()
        return float((model(words[n:]).argmax(1) == target[n:]).float().mean())

    yield from loop(recipe, model, loss, judge)


def boost(recipe: Recipe) -> Curve:
    """Boost trees, one a step."""
    x, y, judged_x, judged_y = (part.numpy() for part in table(recipe))
    is_regression = recipe.data == "diabetes"
    kind = ensemble.GradientBoostingRegressor if is_regression else ensemble.GradientBoostingClassifier
    model = kind(n_estimators=recipe.reports, learning_rate=recipe.lr, subsample=0.5, max_depth=2, random_state=0)
    for step, output in enumerate(model.fit(x, y).staged_predict(judged_x), start=1):
        yield step, float(((output - judged_y) ** 2).mean() if is_regression else (output == judged_y).mean())


ADAM = {"optimizer": "Adam"}
RECIPES = (
    Recipe(name="plain", kind="mlp", train=classify, metric="val_acc", lr=0.01, reports=120),
    Recipe(
        name="steps of the rate", kind="mlp", train=classify, metric="val_acc", lr=0.6, batch=4,
        judged=900, reports=150, steps=5, milestones=(75, 110), options={"deeper": 2, "width": 32},
    ),
    Recipe(
        name="few to judge, noisy", kind="mlp", train=classify, metric="val_acc", lr=0.005, batch=8,
        judged=100, reports=200, seed=3,
    ),
    Recipe(
        name="wine", kind="mlp", train=classify, metric="val_loss", data="wine", lr=0.01, batch=8,
        reports=100, steps=4,
    ),
    Recipe(
        name="diverges", kind="mlp", train=classify, metric="val_loss", data="diabetes", lr=0.0002,
        batch=16, reports=90, steps=5, options={"growth": 1.12, "momentum": 0.9}, seed=5,
    ),
    Recipe(name="adam", kind="cnn", train=classify, metric="val_acc", lr=0.001, reports=120, options=ADAM),
    Recipe(
        name="wrong labels", kind="cnn", train=classify, metric="val_loss", lr=0.05, reports=150,
        label_noise=0.3, options={"momentum": 0.9},
    ),
    Recipe(
        name="steps of the rate", kind="cnn", train=classify, metric="val_acc", lr=0.3, batch=8, reports=150,
        steps=5, milestones=(80, 120),
    ),
    Recipe(
        name="adam", kind="characters", train=read_characters, metric="val_loss", lr=0.003, reports=120,
        steps=10, options=ADAM,
    ),
    Recipe(
        name="steps of the rate", kind="characters", train=read_characters, metric="val_loss", lr=0.03,
        reports=120, steps=10, milestones=(60, 95), options={"cell": "LSTM", **ADAM},
    ),
    Recipe(
        name="plain", kind="characters", train=read_characters, metric="val_loss", lr=0.5, reports=150,
        steps=8, options={"cell": "RNN"},
    ),
    Recipe(
        name="diverges", kind="characters", train=read_characters, metric="val_loss", lr=0.3, reports=80,
        steps=8, options={"cell": "RNN", **ADAM},
    ),
    Recipe(
        name="stands still at first", kind="autoencoder", train=autoencode, metric="val_loss", lr=0.05,
        reports=300, steps=20, options={"activation": nn.Sigmoid, "momentum": 0.9},
    ),
    Recipe(
        name="adam", kind="autoencoder", train=autoencode, metric="val_loss", lr=0.002, reports=150,
        steps=10, options={"narrow": 16, **ADAM},
    ),
    Recipe(
        name="tanh", kind="autoencoder", train=autoencode, metric="val_loss", lr=0.3, reports=120, steps=10,
        options={"activation": nn.Tanh},
    ),
    Recipe(
        name="breast cancer", kind="linear", train=classify, metric="val_loss", data="breast_cancer",
        lr=0.005, batch=16, reports=120, steps=3,
    ),
    Recipe(
        name="diabetes", kind="linear", train=classify, metric="val_loss", data="diabetes", lr=0.003,
        batch=16, reports=100, steps=5,
    ),
    Recipe(
        name="bag of words", kind="text", train=name_module, metric="val_acc", lr=0.1, reports=150,
        steps=20,
    ),
    Recipe(
        name="digits", kind="boosting", train=boost, metric="val_acc", lr=0.1, reports=100,
    ),
    Recipe(
        name="diabetes", kind="boosting", train=boost, metric="val_loss", data="diabetes", lr=0.02,
        reports=200, judged=200,
    ),
)  # fmt: skip


if __name__ == "__main__":
    main()
