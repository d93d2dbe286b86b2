"""What systemd is told: the notification protocol of sd_notify(3), without its library."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping

_log = logging.getLogger("helios.daemon.systemd")


class Notifier:
    """Speaks to the service manager, if there is one that listens.

    Parameters
    ----------
    environment : mapping
        The process environment; ``NOTIFY_SOCKET`` names the socket (``@``: an abstract one), ``WATCHDOG_USEC`` and
        ``WATCHDOG_PID`` whether and how often it wants to hear that Helios lives.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        self._said_silence = False
        meant = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        usec = environment.get("WATCHDOG_USEC", "")
        self.watchdog_s = int(usec) / 1e6 if meant and usec.isdecimal() else None

    def ready(self) -> None:
        """Say that the daemon has started."""
        self._tell("READY=1")

    def alive(self) -> None:
        """Feed the watchdog."""
        self._tell("WATCHDOG=1")

    def stopping(self) -> None:
        """Say that the daemon has begun to stop."""
        self._tell("STOPPING=1")

    def status(self, line: str) -> None:
        """Show a line in ``systemctl status``."""
        self._tell("STATUS=" + " ".join(line.split()))

    def _tell(self, message: str) -> None:
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as door:
                door.settimeout(1)
                door.sendto(message.encode(errors="replace"), address)
        except OSError as error:
            self._say_silence(error)

    def _say_silence(self, error: OSError) -> None:
        if not self._said_silence:
            _log.warning("the service manager does not listen at NOTIFY_SOCKET=%s: %s", self._address, error)
        self._said_silence = True
