"""Daemon with its schedule, signals, health and metrics.

The tasks themselves are in ``helios.app``. This package receives a
:class:`~helios.app.controller_state.DaemonOperations` and calls it. It prevents overlapping runs, handles every
exception, and reports the state to systemd, the log, Prometheus and a health file.
"""

from helios.daemon.daemon import Ending, run, start_logs

__all__ = ["Ending", "run", "start_logs"]
