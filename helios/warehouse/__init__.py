"""The memory of Helios: the one room that speaks SQL."""

from helios.warehouse.engine import sqlite_file
from helios.warehouse.loading import LoadReport
from helios.warehouse.store import Warehouse

__all__ = ["LoadReport", "Warehouse", "sqlite_file"]
