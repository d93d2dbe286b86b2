"""Cluster Energy Saving (CES).

The service powers down nodes that are not needed, and wakes them ahead of need.
"""

from helios.services.energy_saving.service import LARGE, Ces, level_now, published_values, target_levels
from helios.services.energy_saving.sizing import LONGEST_S, CesOptions, Choice

__all__ = ["LARGE", "LONGEST_S", "Ces", "CesOptions", "Choice", "level_now", "published_values", "target_levels"]
