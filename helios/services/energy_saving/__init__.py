"""Cluster Energy Saving (CES).

The service powers down nodes that are not needed, and wakes them ahead of need.
"""

from helios.services.energy_saving.options import CesOptions
from helios.services.energy_saving.service import LARGE, Ces, level_now, target_levels
from helios.services.energy_saving.tuning import Choice

__all__ = ["LARGE", "Ces", "CesOptions", "Choice", "level_now", "target_levels"]
