"""``helios daemon``: the process that keeps time."""

from __future__ import annotations

import logging
import os
import sys
from typing import Annotated

import typer

from helios.cli.options import Cluster, configuration
from helios.ports import Office


def daemon_(
    cluster: Cluster = None,
    nightly: Annotated[
        bool,
        typer.Option("--nightly/--no-nightly", help="Also do the nightly analysis; no: a timer does (helios nightly)."),
    ] = True,
    office: Annotated[
        list[Office] | None,
        typer.Option("--office", help="Act on jobs, or on nodes, only; else on whatever the services act on."),
    ] = None,
    ingest: Annotated[
        bool, typer.Option("--ingest/--no-ingest", help="Also read the accounting; no: another daemon does.")
    ] = True,
) -> None:
    """Read, decide and act in a rhythm, until SIGTERM: then take back what was set, verify it, and exit 0.

    Log lines go to standard error. Example: HELIOS_DAEMON_LOGS=json helios daemon --no-nightly
    """
    from helios.app.chores import chores  # noqa: PLC0415 - it knows every room, and takes its time to import
    from helios.daemon import run, start_logs  # noqa: PLC0415 - APScheduler is not needed by any other command

    settings = configuration()
    start_logs(settings.settings.daemon.logs, stream=sys.stderr)
    work = chores(settings, cluster=cluster, offices=frozenset(office or Office), ingest=ingest)
    ending = run(work, settings=settings.settings, nightly=nightly, environment=os.environ)
    if ending.stuck:
        _leave_at_once(ending.code)
    raise typer.Exit(ending.code)


def _leave_at_once(code: int) -> None:
    """End without waiting for a thread that does not end; the interpreter would wait for ever."""
    logging.shutdown()
    sys.stderr.flush()
    os._exit(code)
