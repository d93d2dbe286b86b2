"""The database of Helios, and the only package that uses SQL."""

from helios.warehouse.engine import check_folder, sqlite_file
from helios.warehouse.jobs import LoadReport
from helios.warehouse.retention import Horizon
from helios.warehouse.store import Warehouse

__all__ = ["Horizon", "LoadReport", "Warehouse", "check_folder", "sqlite_file"]
