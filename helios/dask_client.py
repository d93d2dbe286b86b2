"""Connections to the scheduler of a Dask cluster.

Dask is optional, so ``distributed`` is imported at the first connection. Its errors are raised as Helios' own.

A client is always closed where it was opened, even if it never connected. Otherwise the garbage collector may finalise
it while the same thread holds the lock that closing takes, and the process hangs (``distributed`` 2026.8,
``LoopRunner``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from logging import CRITICAL, getLogger
from typing import TYPE_CHECKING, Any

from helios.errors import DaskMismatch, DaskUnavailable

if TYPE_CHECKING:
    from distributed import Client

ANSWER_S = 60.0
"""Longest wait for the workers to report their releases, s."""


def silence_logs() -> None:
    """Silence Dask's log of lost connections."""
    getLogger("distributed").setLevel(CRITICAL)


@contextmanager
def connect(address: str, *, connect_s: float, instead: str, default: bool = False) -> Iterator[Client]:
    """Connect to a scheduler for the time of a ``with`` block.

    Parameters
    ----------
    address : str
        Address of the scheduler, such as ``tcp://HOST:8786``.
    connect_s : float
        Longest wait for its answer, and for closing the connection, s.
    instead : str
        Alternative without a scheduler, as the end of an error's hint.
    default : bool
        Whether this client becomes the default of Dask's own collections.

    Raises
    ------
    DaskUnavailable
        No scheduler answers.
    """
    silence_logs()
    try:
        client = _closing_client()(address, timeout=connect_s, name="helios", set_as_default=default)
    except (OSError, TimeoutError, ValueError, RuntimeError) as reason:
        raise DaskUnavailable(
            f"No Dask scheduler answers at {address}: {reason}",
            hint=f"Give the address that the scheduler printed when it started, as tcp://HOST:8786, or {instead}",
        ) from reason
    try:
        yield client
    finally:
        client.close(timeout=connect_s)


@cache
def _closing_client() -> type[Client]:
    from distributed import Client  # noqa: PLC0415 - optional, and takes half a second

    class ClosingClient(Client):  # type: ignore[misc]  # because distributed is not followed: it is optional
        """Client that closes itself if it cannot connect.

        The caller could not close it, as the constructor raises.
        """

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            try:
                super().__init__(*args, **kwargs)
            except BaseException:
                self.close()
                raise

    return ClosingClient


def refuse_other_releases(
    client: Client, address: str, names: Sequence[str], *, hint: str, answer_s: float = ANSWER_S
) -> None:
    """Raise an error unless all workers run the releases of this machine.

    It compares the packages ``names``, or ``python``.

    Raises
    ------
    DaskMismatch
        A worker runs another release.
    DaskUnavailable
        A worker does not answer within ``answer_s``.
    """
    packages = [name for name in names if name != "python"]
    try:
        # Called in the client's own loop, so that the wait can be given up.
        versions = client.sync(lambda: client.get_versions(packages=packages), callback_timeout=answer_s)
    except TimeoutError as reason:
        raise DaskUnavailable(
            f"The workers of the Dask scheduler at {address} did not say what they run within {answer_s:,.0f} s.",
            hint="One of them may be stuck: see in Dask's dashboard which, and restart it.",
        ) from reason
    if differences := _release_differences(versions, names):
        raise DaskMismatch(
            "The Dask workers run other releases than this machine: " + "; ".join(differences[:3]) + ".", hint=hint
        )


def _release_differences(versions: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Return the releases of workers that differ from here, from ``Client.get_versions``."""
    local = versions["client"]["packages"]
    return [
        f"{worker} has {name} {worker_versions['packages'].get(name) or 'not installed'}, here it is {local.get(name)}"
        for worker, worker_versions in versions["workers"].items()
        for name in names
        if _release(name, worker_versions["packages"].get(name)) != _release(name, local.get(name))
    ]


def _release(name: str, version: str | None) -> str | None:
    """Return the part of a version that must agree.

    Python counts without the patch level, because 3.11.7 and 3.11.9 read each other's pickles.
    """
    return ".".join(version.split(".")[:2]) if version and name == "python" else version
