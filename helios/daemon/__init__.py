"""The daemon: when things happen, the signals, the health.

What happens is the business of ``helios.app``. This package is handed a
:class:`~helios.app.cycle_summary.DaemonOperations` and calls it, keeps it from overlapping with itself, survives
whatever it raises, and tells systemd, the log, Prometheus and a health file how it goes.
"""

from helios.daemon.daemon import Ending, run
from helios.daemon.logs import start_logs

__all__ = ["Ending", "run", "start_logs"]
