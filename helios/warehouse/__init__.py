"""The database of Helios, and the only package that uses SQL."""

from helios.warehouse.deletion import Horizon
from helios.warehouse.engine import check_folder, sqlite_file
from helios.warehouse.job_store import JobFilter
from helios.warehouse.loads import LoadReport
from helios.warehouse.old_readings import OldRows
from helios.warehouse.requeues import ColumnChange
from helios.warehouse.store import Warehouse

__all__ = ["ColumnChange", "Horizon", "JobFilter", "LoadReport", "OldRows", "Warehouse", "check_folder", "sqlite_file"]
