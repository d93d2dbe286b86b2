"""Profiles of models for tests: a step takes .1 s and .01 s a sample, and .1 s more on several GPUs."""

from __future__ import annotations

from pathlib import Path

from helios.training.elastic_sim.profiles import ModelProfile, read_profile

SHAPES = ("1", "2", "3", "4", "44", "444", "4444")


def write_model(folder: Path, *, epochs: int = 2, noise: float = 0.0, epoch_steps: float = 100.0) -> Path:
    """Write a profile whose batches are 10 to 640, of 10 to 40 samples a GPU."""
    folder.mkdir(parents=True, exist_ok=True)

    def times(gpus: int, local: int) -> str:
        sync_s = 0.1 if gpus > 1 else 0.0
        return f"{local},{0.1 + 0.01 * local + sync_s},{sync_s}"

    rows = [f"{shape},{times(sum(map(int, shape)), local)}" for shape in SHAPES for local in (10, 20, 40)]
    (folder / "placements.csv").write_text("\n".join(["placement,local_bsz,step_time,sync_time", *rows]))
    wide = [f"{nodes},{4 * nodes},{times(8, local)}" for nodes in (8, 16) for local in (10, 40)]
    (folder / "scalability.csv").write_text("\n".join(["num_nodes,num_replicas,local_bsz,step_time,sync_time", *wide]))
    for batch in (10, 40, 640):
        ends = [f"{epoch_steps * epoch},{50 * epoch},0.5,1.0,{noise}" for epoch in range(1, epochs + 1)]
        (folder / f"validation-{batch}.csv").write_text(
            "\n".join(["progress,iteration,metric,grad_sqr,grad_var", *ends])
        )
    return folder


def model(folder: Path, *, epochs: int = 2, noise: float = 0.0, epoch_steps: float = 100.0) -> ModelProfile:
    """Return such a profile."""
    return read_profile(write_model(folder, epochs=epochs, noise=noise, epoch_steps=epoch_steps), epochs=epochs)
