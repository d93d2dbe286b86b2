"""Cluster Energy Saving: sleep the nodes that nobody needs, wake them ahead of need."""

from helios.services.energy_saving.options import CesOptions
from helios.services.energy_saving.service import Ces, level_now, levels_of, published_options

__all__ = ["Ces", "CesOptions", "level_now", "levels_of", "published_options"]
