"""Train many models of one sweep in one program.

Models of a sweep have the same operators with the same shapes. Trained as one stack they share the cost of starting
each operator, and each is mathematically what it is alone. After HFTA (arXiv 2102.02344), on ``torch.func``.
"""

try:
    import torch  # noqa: F401  # because only a missing PyTorch is explained here
except ImportError as reason:
    raise ImportError("helios.training.fused needs PyTorch: pip install 'helios-slurm[fused]'") from reason

from helios.training.fused.configurations import epoch_order, make_optimizer
from helios.training.fused.lightning import from_lightning
from helios.training.fused.loaders import epoch_batches
from helios.training.fused.memory import models_that_fit, peak_bytes
from helios.training.fused.trainer import Epoch, Finished, FusedTrainer

__all__ = [
    "Epoch",
    "Finished",
    "FusedTrainer",
    "epoch_batches",
    "epoch_order",
    "from_lightning",
    "make_optimizer",
    "models_that_fit",
    "peak_bytes",
]
