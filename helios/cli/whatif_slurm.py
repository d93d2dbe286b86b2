"""Command ``helios whatif slurm``, which replays jobs under the rules of Slurm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from helios.cli.options import (
    AsJson,
    HistoryOptions,
    Report,
    WindowOptions,
    configuration,
    expand,
    refuse_misplaced,
    rename_services,
)
from helios.cli.output import progress_bars, say, say_notes, show, show_json, width, write_page
from helios.errors import FileUnreadable, HeliosError, UsageError
from helios.model import SlurmSite


@expand
def slurm(
    *,
    context: typer.Context,
    slurm_conf: Annotated[
        Path, typer.Option("--slurm-conf", help="File with slurm.conf, or with the output of scontrol show config.")
    ],
    qos: Annotated[Path | None, typer.Option("--qos", help="File with the output of sacctmgr show qos -P.")] = None,
    assoc: Annotated[
        Path | None,
        typer.Option(
            "--assoc",
            help="File with the output of sacctmgr show assoc tree -P, or of sshare -a -l -P for past usage, too.",
        ),
    ] = None,
    sinfo: Annotated[
        Path | None,
        typer.Option(
            "--sinfo",
            help="File with the output of scontrol show node; scontrol show partition, "
            "or of sinfo -N -o '%N|%P|%c|%m|%G|%w|%f'.",
        ),
    ] = None,
    source: HistoryOptions,
    window: WindowOptions,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Also replay with this line of slurm.conf, such as PriorityWeightFairshare=0. May be repeated.",
        ),
    ] = None,
    service: Annotated[
        list[str] | None,
        typer.Option(
            "--service",
            callback=rename_services,
            help="Also replay with this service acting, as it is configured. May be repeated.",
        ),
    ] = None,
    report: Report = None,
    as_json: AsJson = False,
) -> None:
    """Replay a site's jobs under the rules of its own Slurm.

    It replays Slurm as it is set up, ordered by Helios, and with other settings. The rules are multifactor priority and
    fair share, main and backfill passes, partitions that share nodes, and limits. If the history has start times, the
    replay is compared with them. A replay that does not repeat the past says little about other settings. Nothing
    touches a cluster, and no Slurm is needed here.

    Example: helios whatif slurm --slurm-conf slurm.conf --qos qos.txt --assoc assoc.txt --trace sacct.txt
    """
    from helios.app.slurm_whatif import SlurmWhatIfRequest, slurm_whatif  # noqa: PLC0415 - only this command needs it
    from helios.cli.replay_services import services_asked_for  # noqa: PLC0415 - as above
    from helios.report.fidelity import fidelity_table  # noqa: PLC0415 - as above
    from helios.report.tables import whatif_table  # noqa: PLC0415 - as above
    from helios.slurm.site import read_site  # noqa: PLC0415 - as above

    refuse_misplaced(context, write="helios whatif slurm --slurm-conf FILE --trace FILE")
    texts = {"sacctmgr_qos": _text(qos), "sacctmgr_assoc": _text(assoc), "sinfo": _text(sinfo)}
    conf, changes = _text(slurm_conf) or "", [_setting(text) for text in settings or []]
    chosen = configuration().settings
    services = services_asked_for(chosen, names=service, options=[]) if service else None
    site = read_site(conf, **texts)
    otherwise = _changed(lambda: read_site("\n".join([conf, *changes]), **texts), changes) if changes else None
    with progress_bars() as progress:
        history = source.read(progress)
        request = SlurmWhatIfRequest(
            site=site,
            otherwise=otherwise,
            changed=", ".join(changes),
            **window.of(history),
            site_factor_most=chosen.slurm.site_factor_most,
            most_of_one_user=chosen.control.most_of_one_user,
            default_time_limit_s=chosen.whatif.default_time_limit_s,
            seed=chosen.model.seed,
        )
        answer = slurm_whatif(history, request, services=services, progress=progress)
    say_notes(answer.whatif.notes)
    if report is not None:
        from helios.report.history import describe  # noqa: PLC0415 - drawing takes a second to import
        from helios.report.html import render_whatif  # noqa: PLC0415 - as above

        description = describe(history.jobs, cluster=history.cluster, timezone=history.timezone)
        write_page(report, render_whatif(answer.whatif, description=description))
    if as_json:
        show_json(answer.to_json())
        return
    show(whatif_table(answer.whatif, width=width()))
    if answer.fidelity:
        show("", fidelity_table(answer.fidelity))
    else:
        say("The history has no starts that this replay could be held against.")


def add_to(commands: typer.Typer) -> None:
    """Add ``slurm`` to ``commands``, those of ``helios whatif``."""
    commands.command("slurm")(slurm)


def _text(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as reason:
        raise FileUnreadable(f"{path}: {reason.strerror}", hint="Give the path of a text file.") from reason


def _changed(read: Callable[[], SlurmSite], changes: Sequence[str]) -> SlurmSite:
    """Read a site with ``changes``.

    Without them it could be read, so an error names them.
    """
    try:
        return read()
    except HeliosError as reason:
        _, _, message = reason.message.rpartition(": ")
        raise UsageError(f"--set {' --set '.join(changes)}: {message}", hint=reason.hint) from reason


def _setting(text: str) -> str:
    key, _, value = text.partition("=")
    if not key.strip() or not value.strip():
        raise UsageError(
            f"--set {text!r} is not KEY=VALUE.", hint="Write a line of slurm.conf: PriorityWeightFairshare=0"
        )
    return text
