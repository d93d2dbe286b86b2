"""Cluster Energy Saving.

It puts to sleep the nodes that nobody needs, and wakes them ahead of need.
"""

from helios.services.energy_saving.options import CesOptions
from helios.services.energy_saving.service import Ces, level_now, published_options, target_levels

__all__ = ["Ces", "CesOptions", "level_now", "published_options", "target_levels"]
