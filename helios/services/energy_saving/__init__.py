"""Cluster Energy Saving (CES).

The service powers down nodes that are not needed, and wakes them ahead of need.
"""

from helios.services.energy_saving.service import Ces, CesOptions

__all__ = ["Ces", "CesOptions"]
