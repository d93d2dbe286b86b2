"""The database of Helios, and the only package that uses SQL."""

from helios.warehouse.engine import check_folder, sqlite_file
from helios.warehouse.jobs import Horizon, LoadReport
from helios.warehouse.old_readings import OldRows
from helios.warehouse.requeues import ColumnChange
from helios.warehouse.store import Warehouse

__all__ = ["ColumnChange", "Horizon", "LoadReport", "OldRows", "Warehouse", "check_folder", "sqlite_file"]
