"""Train one model on devices that come and go.

``python -m helios.training.elastic train.py`` starts a worker for each device, and others while they train. Parameters,
buffers, optimiser state and the place in the data are handed over in memory, so that a change of size takes no restart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from helios.training.elastic.adapters import fit_hugging_face, fit_lightning
    from helios.training.elastic.training import DataEpoch, Training

__all__ = ["DataEpoch", "Training", "fit_hugging_face", "fit_lightning"]


def __getattr__(name: str) -> Any:
    # When it is asked for, since the launcher has no use for PyTorch, and its workers should not wait for it.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from helios.training.elastic import adapters, training  # noqa: PLC0415 - as above
    except ModuleNotFoundError as reason:
        packages = {"torch": "'helios-slurm[elastic]'", "helios_task": "helios-task"}
        if reason.name not in packages:
            raise
        raise ImportError(f"helios.training.elastic needs it: pip install {packages[reason.name]}") from reason
    return getattr(adapters if name.startswith("fit_") else training, name)
