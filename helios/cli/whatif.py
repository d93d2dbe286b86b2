"""Commands ``helios whatif``, which replay a history."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from helios.choices import Policy
from helios.cli.energy import energy
from helios.cli.options import (
    ACTING,
    POLICY,
    SLURM_CONF,
    AsJson,
    Draws,
    HistoryOptions,
    Machine,
    ReplayOptions,
    Report,
    WindowOptions,
    configuration,
    described,
    expand,
    refuse_misplaced,
)
from helios.cli.output import print_message, print_notes, progress_bars, show, show_json, width
from helios.errors import FileUnreadable, HeliosError, UsageError

if TYPE_CHECKING:
    from helios.model import SlurmSite

commands = typer.Typer()  # its help is the callback's, with the example: a help given here would hide that

commands.command(
    "energy", epilog="Example: helios whatif energy --series nodes.csv.gz --from 2017-11-15 --to 2017-12-01 --json"
)(energy)


@commands.callback(invoke_without_command=True)
@expand
def whatif_(
    *,
    context: typer.Context,
    source: HistoryOptions,
    machine: Machine,
    window: WindowOptions,
    policy: Annotated[list[str] | None, Option("--policy", help=POLICY)] = None,
    service: Annotated[
        list[str] | None,
        Option(help=ACTING),
    ] = None,
    option: Annotated[
        list[str] | None,
        Option(
            "--set",
            help="Set an option of a service that acts, or else of a policy: NAME.OPTION=VALUE, such as "
            "qssf.wait_share=0.25. Repeatable.",
        ),
    ] = None,
    replay: ReplayOptions,
    draws: Draws = 5,
    report: Report = None,
    as_json: AsJson = False,
) -> None:
    """Replay a cluster's jobs under other queue policies, and compare the waits.

    First it says, over --draws draws of the window, which order Helios should run live, and what that costs: its
    default (qssf), size, or the site's own. Then one replay says who would wait shorter and who longer. --policy
    takes several by commas. Without it a default set is replayed: plain FIFO with EASY backfill by time limits, strict
    FIFO, fewest GPUs first, QSSF (shortest predicted GPU seconds first, aged), the paper's rule, and oracles that know
    the true run times. With --service it also runs the code of services that act live, by default beside plain FIFO +
    EASY and fewest GPUs first. Nothing touches a cluster. For the meaning of the options see docs/whatif.md.

    Example: helios whatif --trace sacct.txt --nodes gpu=16 --gpus-per-node 8 --from 2020-09-01 --report whatif.html
    """
    if context.invoked_subcommand is not None:
        return
    from helios.app.order_check import refuse_few  # noqa: PLC0415 - see cli.replays
    from helios.app.scenarios import CONTROLS, scenarios, with_options  # noqa: PLC0415 - as above
    from helios.app.whatif import WhatIfRequest  # noqa: PLC0415 - as above
    from helios.cli import replays  # noqa: PLC0415 - as above

    if draws:
        refuse_few(draws)
    settings = configuration().settings
    acting, options_left = replays.requested_services(settings, names=service or [], options=option or [])
    chosen = scenarios(policies=replays.choices(policy, Policy, "--policy"))
    chosen = with_options(list(CONTROLS) if acting and not policy else chosen, options_left)
    with progress_bars() as progress:
        history = source.read(progress)
        history = described(history, settings=settings, window=window, machine=machine, resource=replay.resource)
        request = WhatIfRequest(
            scenarios=chosen,
            **window.request_fields(history),
            **machine.request_fields(settings, history.capacity),
            **replay.request_fields(settings),
        )
        found = replays.replay_and_compare(history, request, settings, acting, draws=draws, progress=progress)
    print_notes(found.whatif.notes)
    if report is not None:
        replays.write_whatif(report, history, found.whatif)
    replays.show_whatif(found, as_json=as_json, has_page=report is not None)


@commands.command("slurm")
@expand
def slurm(
    *,
    context: typer.Context,
    slurm_conf: Annotated[Path, Option(help=SLURM_CONF)],
    qos: Annotated[Path | None, Option(help="File with the output of sacctmgr show qos -P.")] = None,
    assoc: Annotated[
        Path | None,
        Option(help="File with the output of sacctmgr show assoc tree -P, or of sshare -a -l -P for past usage, too."),
    ] = None,
    sinfo: Annotated[
        Path | None,
        Option(
            help="File with the output of scontrol show node; scontrol show partition, "
            "or of sinfo -N -o '%N|%P|%c|%m|%G|%w|%f'."
        ),
    ] = None,
    source: HistoryOptions,
    window: WindowOptions,
    settings: Annotated[
        list[str] | None,
        Option(
            "--set",
            help="Also replay with this line of slurm.conf, such as PriorityWeightFairshare=0. May be repeated.",
        ),
    ] = None,
    service: Annotated[
        list[str] | None,
        Option(help=ACTING),
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
    from helios.app.slurm_whatif import slurm_whatif  # noqa: PLC0415 - see helios.cli.replays
    from helios.app.whatif import WhatIfRequest  # noqa: PLC0415 - as above
    from helios.cli.replays import requested_services, write_whatif  # noqa: PLC0415 - as above
    from helios.report.tables import fidelity_table  # noqa: PLC0415 - as above
    from helios.report.whatif_tables import whatif_table  # noqa: PLC0415 - as above
    from helios.slurm.gpu_nodes import site_gpus  # noqa: PLC0415 - as above
    from helios.slurm.site import read_site  # noqa: PLC0415 - as above

    refuse_misplaced(context, write="helios whatif slurm --slurm-conf FILE --trace FILE")
    texts = {"sacctmgr_qos": _text(qos), "sacctmgr_assoc": _text(assoc), "sinfo": _text(sinfo)}
    conf, changes = _text(slurm_conf) or "", [_setting(text) for text in settings or []]
    chosen = configuration().settings
    services = requested_services(chosen, names=service, options=[])[0] if service else None
    site = read_site(conf, **texts)
    otherwise = _changed(lambda: read_site("\n".join([conf, *changes]), **texts), changes) if changes else None
    with progress_bars() as progress:
        nodes = site_gpus(site.nodes, site.partitions, source=slurm_conf.name)
        history = described(source.read(progress, site=nodes), settings=chosen, window=window)
        request = WhatIfRequest(
            **window.request_fields(history),
            default_time_limit_s=chosen.whatif.default_time_limit_s,
            seed=chosen.model.seed,
        )
        found = slurm_whatif(
            history,
            request,
            site,
            otherwise=otherwise,
            changed=", ".join(changes),
            services=services,
            site_factor_most=chosen.slurm.site_factor_most,
            most_of_one_user=chosen.control.most_of_one_user,
            progress=progress,
        )
    print_notes(found.whatif.notes)
    if report is not None:
        write_whatif(report, history, found.whatif)
    if as_json:
        show_json(found.to_json())
        return
    show(whatif_table(found.whatif, width=width()))
    if found.fidelity:
        show("", fidelity_table(found.fidelity))
    else:
        print_message("The history has too few recorded starts to compare this replay with.")


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
