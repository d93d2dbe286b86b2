"""Cluster Energy Saving (CES).

The service powers down nodes that are not needed, and wakes them ahead of need.
"""

from helios.services.energy_saving.options import CesOptions
from helios.services.energy_saving.service import Ces, level_now, published_options, target_levels

__all__ = ["Ces", "CesOptions", "level_now", "published_options", "target_levels"]
