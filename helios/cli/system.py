"""Commands that set up Helios and show its state.

``helios setup``, ``doctor``, ``why``, ``daemon``, ``notify``, ``try`` and ``web``.
"""

from __future__ import annotations

import logging
import os
import secrets
import shlex
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import ValidationError
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from helios.choices import Backfill, Domain, Policy, RunTimes
from helios.cli.options import (
    POLICY,
    AsJson,
    Cluster,
    HistoryOptions,
    Machine,
    Out,
    configuration,
    described,
    expand,
    select_cluster,
)
from helios.cli.output import (
    print_message,
    print_notes,
    print_result,
    progress_bars,
    show,
    show_json,
    width,
    write_page,
)
from helios.errors import HeliosError, UsageError
from helios.private_files import read_secret

if TYPE_CHECKING:
    from helios.report.job import JobExplanation
    from helios.slurm.preflight import PreflightFinding

COMPLETIONS = {
    "bash": "usr/share/bash-completion/completions/helios",
    "zsh": "usr/share/zsh/vendor-completions/_helios",
    "fish": "usr/share/fish/vendor_completions.d/helios.fish",
}
"""Where each shell looks for completions, below the root."""

NEXT_STEPS = (
    "TZ=UTC sacct --allusers --duplicates --allocations --parsable "
    '--delimiter="$(cat /proc/sys/kernel/random/uuid)" -S 2026-09-01 -E 2026-10-01 '
    "--format=JobIDRaw,Cluster,User,Account,QOS,Partition,State,Submit,Eligible,Start,End,ElapsedRaw,Timelimit,"
    "NNodes,ReqCPUS,ReqTRES,AllocTRES,NodeList,JobName > september.txt",
    "helios trace load september.txt",
    "helios model evaluate",
    "helios whatif --nodes PARTITION=N --gpus-per-node 8 --report whatif.html",
)


def doctor_(cluster: Cluster = None, as_json: AsJson = False) -> None:
    """Check the cluster and the state of Helios.

    Each finding says what to do about it. No job is touched. The exit status is 1 if a check fails.

    Example: helios doctor
    """
    from helios.app.doctor import diagnose  # noqa: PLC0415 - all that reads a cluster; the settings need none of it
    from helios.slurm.preflight import FindingLevel  # noqa: PLC0415 - as above

    colours = {FindingLevel.OK: "green", FindingLevel.WARN: "yellow", FindingLevel.FAIL: "bold red"}
    found = diagnose(configuration().settings, cluster=cluster, now=datetime.now(UTC))
    table = Table("", "Check", "Finding", box=None, pad_edge=False)
    for it in found:
        message = Text(it.message)
        if it.hint:
            message.append(f"\n-> {it.hint}", style="italic")
        table.add_row(Text(it.verdict.value, style=colours[it.verdict]), it.check, message)
    print_result([_plain_finding(it) for it in found], table, as_json=as_json)
    if any(finding.verdict is FindingLevel.FAIL for finding in found):
        raise typer.Exit(1)


def status_(cluster: Cluster = None, as_json: AsJson = False) -> None:
    """Show in five lines what Helios does.

    They are on the daemon, the services, the last cycle, the history and the model. Slurm is not asked, so that it
    answers at once. Of a history without a live Slurm they are on the history and the model. For hints and for the
    cluster itself, see helios doctor.

    Example: helios status
    """
    from helios.app.status import status  # noqa: PLC0415 - pandas and SQLAlchemy, which the help needs not

    found = status(configuration().settings, cluster=cluster, now=datetime.now(UTC))
    lines = [f"{it.check:<9} {' '.join(it.message.split())}" for it in found]
    print_result([_plain_finding(it) for it in found], *map(escape, lines), as_json=as_json)


def _plain_finding(finding: PreflightFinding) -> dict[str, str]:
    return {name: str(getattr(finding, name)) for name in ("check", "verdict", "message", "hint")}


def setup_(
    check: Annotated[
        bool, Option("--check", help="Only say what is missing or outdated; exit status 1 if any is.")
    ] = False,
    remove: Annotated[
        bool, Option("--remove", help="Remove what was laid down. Settings and changed files stay.")
    ] = False,
    hook: Annotated[Path | None, Option(help="Folder of slurm.conf: lay down the priority hook there.")] = None,
    power: Annotated[Path | None, Option(help="Folder for the programs that switch nodes on and off.")] = None,
    root: Annotated[Path, Option(help="Write below this folder instead, for a package or an image.")] = Path("/"),
    prefix: Annotated[
        Path | None, Option(help="Where the environment of Helios will be. Default: the one that runs this.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Lay down the files that the services need on this machine.

    These are units, programs, settings, manual pages and shell completions. Nothing is started, and Slurm is not
    touched. Files that somebody has changed are kept, and named. After an upgrade the same command replaces the others.

    Example: sudo /opt/helios/bin/helios setup --hook /etc/slurm
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]  # noqa: PLC0415 - only here

    from helios.app import setup  # noqa: PLC0415 - as above
    from helios.cli.manual import manual_pages  # noqa: PLC0415 - as above

    if check and remove:
        raise UsageError("--check and --remove exclude each other.")
    is_machine, where = root.resolve() == Path("/"), prefix or setup.environment_prefix()
    for name, folder in (("--hook", hook), ("--power", power), ("--prefix", where)):
        if folder is not None and not folder.is_absolute():
            raise UsageError(f"{name} {folder} is not an absolute path.", hint=f"Write {name} /{folder}")
    scripts = {
        path: get_completion_script(prog_name="helios", complete_var="_HELIOS_COMPLETE", shell=shell)
        for shell, path in COMPLETIONS.items()
    }
    files = tuple(setup.setup_files(prefix=where, hook=hook, power=power, texts=scripts | manual_pages()))
    if is_machine and where == setup.PACKAGE_PREFIX:
        # The others are the package manager's, which checks, replaces and removes them.
        files = tuple(file for file in files if Path("/", file.path).parent in (hook, power))
    if remove:
        found = setup.remove_files(root=root, is_machine=is_machine)
    elif check:
        found = setup.check_files(files, root=root)
    else:
        if is_machine:
            setup.refuse_prefix_of_others(where)
        found = setup.install_files(files, root=root, is_machine=is_machine)
        found = replace(found, next_steps=setup.next_steps(hook=hook, power=power) if is_machine else ())
    table = Table("File", "State", box=None, pad_edge=False)
    for path, state in found.files:
        table.add_row(path, state.value)
    print_result(found.to_json(), table, *found.steps, as_json=as_json)
    if not as_json:
        settings = {f"/{file.path}" for file in files if file.is_configuration}
        print_notes(
            f"{path} was changed on this machine and is kept; what this release has is in {setup.deploy_folder()}"
            for path, state in found.files
            if state is setup.FileState.KEPT and path not in settings
        )
        if found.next_steps:
            print_message("Next:", *(f"  {number}. {step}" for number, step in enumerate(found.next_steps, start=1)))
    if check and not found.is_complete:
        raise typer.Exit(1)


@expand
def why_(
    *,
    job: Annotated[
        str,
        Argument(
            help="Job id, such as 123, 123_7 of an array, 123+0 of a heterogeneous job or 123@CLUSTER; or the name of "
            "a node."
        ),
    ],
    source: HistoryOptions,
    policy: Annotated[Policy | None, Option("--policy", help=POLICY)] = None,
    machine: Machine,
    prediction: Annotated[
        bool, Option("--prediction", help="Also show step by step what its predicted run time rests on.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Say why a job waits or waited, and what Helios did to it.

    Shows when a pending job starts, by simulations of the queue, what would make it start earlier, its predicted run
    time, its place in the queue, and its place without Helios. Works for jobs that run or have ended, too, without a
    live cluster from the history alone. A job that was requeued is shown with all its runs and their sum. For a node it
    shows the state of the node, what Helios did to it, and why. With --policy, the history is also replayed in that
    order, which says what held the job.

    Example: helios why 12345
    """
    settings, cluster = configuration().settings, source.cluster
    deep = source.trace is not None or policy is not None or prediction
    if not job[:1].isdigit() and not deep:
        from helios.app.explain import explain_node  # noqa: PLC0415 - only for nodes
        from helios.app.operations import Operations  # noqa: PLC0415 - as above

        node = explain_node(Operations(settings, cluster=cluster).node_cycles, job)
        print_result(node.to_json(), *node.parts(width=width()), as_json=as_json)
        return
    if "@" in job and cluster is None and source.trace is None:
        from helios.app.explain_past import split_federated  # noqa: PLC0415 - pandas and SQLAlchemy

        job, cluster = split_federated(settings.database.url, job)
        source = replace(source, cluster=cluster)
    if deep:
        found = _explain_deeply(job, source, machine, policy=policy, prediction=prediction)
        print_result(found.to_json(), *found.parts(), as_json=as_json)
        return
    from helios.app.explain_socket import JobAnswer, ask_daemon  # noqa: PLC0415 - only for jobs

    answer = ask_daemon(settings, job, cluster=cluster)
    if isinstance(answer, JobAnswer):
        print_result(answer.values, *map(escape, answer.lines), as_json=as_json)
        return
    if answer:
        print_notes([f"{answer}; so it is worked out here, which takes longer"])
    from helios.app.explain_past import explain_job  # noqa: PLC0415 - pandas and SQLAlchemy, which the help needs not

    def live() -> JobExplanation:
        from helios.app.explain import explain  # noqa: PLC0415 - the live cluster, which a history has not
        from helios.app.operations import Operations  # noqa: PLC0415 - as above

        return explain(Operations(settings, cluster=cluster).cycles, job)

    found = explain_job(settings, job, cluster=cluster, live=live, now=datetime.now(UTC))
    print_result(found.to_json(), *found.parts(), as_json=as_json)


def _explain_deeply(
    job: str, source: HistoryOptions, machine: Machine, *, policy: Policy | None, prediction: bool
) -> JobExplanation:
    """Explain a job with a replay and the steps of its prediction."""
    from helios.app import explain_past as past  # noqa: PLC0415 - pandas and SQLAlchemy, which the help needs not

    settings = configuration().settings
    with progress_bars() as progress:
        history = source.read(progress)
        if source.trace is not None:
            found = past.explain_read(history, job)
            choose = past.newly_trained_model(history, seed=settings.model.seed, progress=progress)
        else:
            url = settings.database.url
            found = past.explain_past(url, history.cluster, job, now=datetime.now(UTC))
            choose = past.stored_model(history, url=url)
        if prediction:
            found = found.with_steps(past.explain_prediction(history, job, choose=choose))
        if policy is None:
            return found
        from helios.app.explain_wait import explain_wait  # noqa: PLC0415 - it compiles
        from helios.app.scenarios import scenarios  # noqa: PLC0415 - as above
        from helios.app.whatif import WhatIfRequest  # noqa: PLC0415 - as above

        described_history = described(history, settings=settings, machine=machine)
        since, until = described_history.window
        request = WhatIfRequest(
            scenarios=scenarios(policies=[policy], backfills=[Backfill.EASY], estimates=[RunTimes.LIMIT]),
            since=since,
            until=until,
            skip_oversized=True,
            seed=settings.model.seed,
            **machine.request_fields(settings, described_history.capacity),
        )
        waited = explain_wait(described_history, request, job, progress=progress)
    return replace(found, replay=waited.replay, remarks=(*found.remarks, *waited.remarks))


def daemon_(
    cluster: Cluster = None,
    nightly: Annotated[
        bool,
        Option(
            "--nightly/--no-nightly",
            help="Also run the nightly analysis. Use --no-nightly if a timer runs helios nightly.",
        ),
    ] = True,
    domain: Annotated[
        list[Domain] | None, Option(help="Act only on jobs, or only on nodes. Default: on what the services act on.")
    ] = None,
    ingest: Annotated[
        bool, Option("--ingest/--no-ingest", help="Also read the accounting. Use --no-ingest if another daemon does.")
    ] = True,
) -> None:
    """Run control cycles at regular intervals until SIGTERM.

    It also reads new accounting records and runs the nightly analysis. On SIGTERM it reverts what it set, verifies the
    revert and exits with status 0; with 1 if something of it may be left; with 3 if only values are left that carry
    Helios' mark and are in none of its records. Log lines go to standard error.

    Example: HELIOS_DAEMON_LOGS=json helios daemon --no-nightly
    """
    from helios.app.operations import operations_for  # noqa: PLC0415 - it imports nearly everything
    from helios.daemon import run, start_logs  # noqa: PLC0415 - APScheduler is not needed by any other command

    settings = configuration()
    start_logs(settings.settings.daemon.logs, stream=sys.stderr)
    work = operations_for(settings, cluster=cluster, domains=frozenset(domain or Domain), ingest=ingest)
    ending = run(work, settings=settings.settings, nightly=nightly, environment=os.environ)
    if ending.stuck:  # the interpreter would wait for ever for a thread that does not end
        logging.shutdown()
        sys.stderr.flush()
        os._exit(ending.code)
    raise typer.Exit(ending.code)


def try_(
    out: Out = Path("helios-try"),
    days: Annotated[int, Option(min=2, max=366, help="Number of days to generate.")] = 30,
    as_json: AsJson = False,
) -> None:
    """Try Helios on a synthetic month of a GPU cluster.

    It generates jobs that resemble the published figures of Venus, a cluster of SenseTime, trains a model, replays the
    queue and writes a report. Nothing outside the folder is touched.

    Example: helios try --days 10 --out /tmp/helios-try
    """
    from helios.app.demo import PROFILE, run_demo  # noqa: PLC0415 - it imports everything that trains, replays and draws
    from helios.report.tables import evaluation_table  # noqa: PLC0415 - as above
    from helios.report.whatif_tables import whatif_table  # noqa: PLC0415 - as above

    with progress_bars() as progress:
        trial = run_demo(out, days=days, made_at=datetime.now(UTC), progress=progress)
    from helios.report.html import render_whatif  # noqa: PLC0415 - drawing takes a second to import

    page = (out / "report.html").resolve()
    result, evaluation = trial.result, trial.evaluation.to_json()
    write_page(page, render_whatif(result, description=trial.description, evaluation=evaluation, next_steps=NEXT_STEPS))
    if as_json:
        show_json({**result.to_json(), "report": str(page), "evaluation": evaluation})
        return
    print_notes(result.notes)
    show(evaluation_table(evaluation), "", whatif_table(result, width=width()), "")
    url = f"sqlite:///{(out / 'helios.db').resolve()}"
    command = f"HELIOS_DATABASE_URL={shlex.quote(url)} helios web --cluster {PROFILE}"
    print_message("To look at this month in a browser:", f"  {command}")
    print_message("Next, with your own history (nothing touches the cluster):", *(f"  {step}" for step in NEXT_STEPS))


def notify_(
    test: Annotated[
        bool,
        Option("--test", help="Send a test message by every mail and webhook; exit status 1 if one was not taken."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what people were told by mail and webhook, or send a test.

    It lists the causes that last, since when, and by which channels they were told. A cause that is told by none is
    told again and again until it is taken, or ends.

    Example: helios notify --test
    """
    from helios.app.notify import channels, read_causes, send_test  # noqa: PLC0415 - no other command needs mail

    settings = configuration().settings
    if test:
        found = send_test(settings, cluster=select_cluster(None) or "this machine")
        print_result(found, *(escape(f"{name}: {what}") for name, what in found.items()), as_json=as_json)
        if set(found.values()) != {"sent"}:
            raise typer.Exit(1)
        return
    paths = sorted(Path(settings.control.state_folder).glob("notices-*.json"))
    causes = [{"cause": cause, **entry} for path in paths for cause, entry in read_causes(path).items()]
    table = Table("Since (UTC)", "Told by", "What", box=None, pad_edge=False)
    for entry in causes:
        table.add_row(str(entry["began_at"])[:16], ", ".join(entry["sent"]) or "-", escape(entry["subject"]))
    names = ", ".join(channels(settings.notify)) or "none"
    print_result(
        {"channels": list(channels(settings.notify)), "causes": causes},
        f"Channels: {names}.",
        *([table] if causes else ["Nothing lasts that was or is to be told."]),
        as_json=as_json,
    )


class WebUnavailable(HeliosError):
    """The web page cannot be served."""


def web_(
    listen: Annotated[
        str | None, Option(help="Address to listen on, HOST:PORT. Port 0: a free one. Default: setting web.listen.")
    ] = None,
    cluster: Cluster = None,
) -> None:
    """Serve a read-only web page of the queue, decisions, use and reports.

    It prints an address with a token; nobody without the token sees anything. Each page is JSON too, for
    "Accept: application/json". Nothing is ever changed, and no other site is asked. Who may read what is said in the
    section [web] of the settings.

    Example: helios web --listen 127.0.0.1:9850
    """
    settings = configuration().settings
    web = settings.web
    if listen is not None:
        try:
            web = type(web).model_validate(web.model_dump() | {"listen": listen})
        except ValidationError as reason:
            problem = str(reason.errors()[0]["msg"]).removeprefix("Value error, ")
            raise UsageError(f"--listen: {problem}", hint="See helios web --help") from reason
    token = read_secret(Path(web.token_file)) if web.token_file else secrets.token_urlsafe(24)
    try:
        from helios.web.server import open_server  # noqa: PLC0415 - of the extra [web]
    except ModuleNotFoundError as reason:
        raise WebUnavailable(
            f"{reason.name} is not installed.", hint="Install the extra: pip install 'helios-slurm[web]'"
        ) from reason
    server = open_server(settings.model_copy(update={"web": web}), token=token, cluster=cluster)
    print_message(f"Listens on {server.address}" if web.token_file else f"Open {server.address}?token={token}")
    server.run()
