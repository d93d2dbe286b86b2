"""Commands that set up Helios and show its state.

``helios setup``, ``doctor``, ``why``, ``config``, ``daemon``, ``hook``, ``notify``, ``try`` and ``web``.
"""

from __future__ import annotations

import logging
import os
import secrets
import sys
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from pydantic import ValidationError
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from helios.choices import Domain
from helios.cli.options import AsJson, Cluster, configuration, select_cluster
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
from helios.config import FILE_NAME, FILE_VARIABLE, SYSTEM_FOLDER, example_file, load_configuration, user_file
from helios.errors import ConfigurationInvalid, HeliosError, UsageError
from helios.private_files import read_secret

if TYPE_CHECKING:
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
    answers at once. For hints and for the cluster itself, see helios doctor.

    Example: helios status
    """
    from helios.app.doctor import status  # noqa: PLC0415 - as in doctor

    found = status(configuration().settings, cluster=cluster, now=datetime.now(UTC))
    lines = [f"{it.check:<9} {' '.join(it.message.split())}" for it in found]
    print_result([_plain_finding(it) for it in found], *map(escape, lines), as_json=as_json)


def _plain_finding(finding: PreflightFinding) -> dict[str, str]:
    return {name: str(getattr(finding, name)) for name in ("check", "verdict", "message", "hint")}


# ``helios setup``: what the services need on a machine.


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
    """Lay down the units, programs and settings that the services need on this machine.

    Manual pages and shell completions are written too. Nothing is started, and Slurm is not touched. Files that
    somebody has changed are kept, and named. After an upgrade the same command replaces the others.

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


# ``helios why``: why a job waits, or what a node does.


def why_(
    job: Annotated[
        str,
        Argument(
            help="Job id, such as 123, 123_7 of an array, 123+0 of a heterogeneous job or 123@CLUSTER; or the name of "
            "a node."
        ),
    ],
    cluster: Cluster = None,
    as_json: AsJson = False,
) -> None:
    """Say why a job waits, and what Helios did to it.

    Shows when a pending job starts, by simulations of the queue, what would make it start earlier, its predicted run
    time, its place in the queue, and its place without Helios. Works for jobs that run or have ended, too, without a
    live cluster from the history alone. A job that was requeued is shown with all its runs and their sum. For a node it
    shows the state of the node, what Helios did to it, and why.

    Example: helios why 12345
    """
    settings = configuration().settings
    if job[:1].isdigit():
        if "@" in job and cluster is None:
            from helios.app.explain import split_federated  # noqa: PLC0415 - pandas and SQLAlchemy

            job, cluster = split_federated(settings.database.url, job)
        from helios.app.explain_socket import JobAnswer, ask_daemon  # noqa: PLC0415 - only for jobs

        answer = ask_daemon(settings, job, cluster=cluster)
        if isinstance(answer, JobAnswer):
            print_result(answer.values, *map(escape, answer.lines), as_json=as_json)
            return
        if answer:
            print_notes([f"{answer}; so it is worked out here, which takes longer"])
    from helios.app.operations import Operations  # noqa: PLC0415 - pandas and SQLAlchemy, which the help needs not

    operations = Operations(settings, cluster=cluster)
    if job[:1].isdigit():
        from helios.app.explain import explain, explain_recorded  # noqa: PLC0415 - as above

        try:
            found = explain(operations.cycles, job)
        except UsageError as misuse:
            if not isinstance(misuse, ConfigurationInvalid):  # raised where another cluster than the live one is named
                raise
            found = explain_recorded(settings, job, cluster=cluster, problem=misuse)
        except HeliosError as problem:
            found = explain_recorded(settings, job, cluster=cluster, problem=problem)
        print_result(found.to_json(), *found.parts(), as_json=as_json)
        return
    from helios.app.explain import explain_node  # noqa: PLC0415 - only for nodes

    node = explain_node(operations.node_cycles, job)
    print_result(node.to_json(), *node.parts(width=width()), as_json=as_json)


# ``helios config``: the settings in force.

config_commands = typer.Typer(no_args_is_help=True, help="Show, check and write settings.")


@config_commands.command("show", epilog="Example: HELIOS_DATABASE_URL=sqlite:///site.db helios config show")
def show_settings(as_json: AsJson = False) -> None:
    """Print every setting, its value and its origin.

    The origin is the default, a file or the environment. A later one of these wins: default,
    /etc/helios/helios.toml, /etc/helios/conf.d/*.toml, ~/.config/helios/helios.toml, helios.toml in the current folder,
    environment. A file that --config or HELIOS_CONFIG names is read instead of all others.
    """
    found = configuration()
    listing = found.listing()
    print_message(f"Read, a later one wins: {', '.join(['defaults', *found.files, 'environment'])}.")
    table = Table("Key", "Value", "From", "Meaning", box=None, pad_edge=False)
    for setting in listing:
        table.add_row(setting.key, str(setting.value), setting.origin, setting.doc)
    print_result([asdict(setting) for setting in listing], table, as_json=as_json)


@config_commands.command("init", epilog="Example: helios config init --out helios.toml")
def init(
    out: Annotated[
        Path | None,
        Option(
            help="File to write; - for standard output. Default: /etc/helios/helios.toml for root, else "
            "~/.config/helios/helios.toml."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a configuration file with every setting, its meaning and its default.

    Every setting is commented out, so that the file changes nothing before you edit it. A file that is there already is
    left as it is.
    """
    text = example_file()
    if out == Path("-"):
        print_result({"file": None, "text": text}, Text(text.rstrip("\n")), as_json=as_json)
        return
    path = out or (SYSTEM_FOLDER / FILE_NAME if os.geteuid() == 0 else user_file(os.environ))
    if path is None:
        raise UsageError("There is no home folder to write to.", hint="Name the file: --out helios.toml")
    try:
        if out is None:
            path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            os.fchmod(file.fileno(), 0o644)  # the umask may let a group write, and then Helios would not use it
            file.write(text)
    except FileExistsError as reason:
        raise UsageError(
            f"{path} is there already, and was not touched.", hint="Compare with: helios config init --out -"
        ) from reason
    except OSError as reason:
        raise UsageError(f"{path} cannot be written: {reason}", hint="Choose another place: --out FILE") from reason
    print_result({"file": str(path), "text": text}, f"Written: {path}", as_json=as_json)
    if out is not None:
        print_message(f"Use it: helios --config {path} COMMAND, or HELIOS_CONFIG={path.resolve()}")


@config_commands.command("check", epilog="Example: helios config check /etc/helios/helios.toml")
def check(
    file: Annotated[
        Path | None, Argument(help="File to check, as if it were the only one. Default: all that are read here.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check the settings, and the folders and files that they name.

    Nothing is changed, and no cluster is asked. The exit status is 1 if something is wrong.
    """
    environment = dict(os.environ) | ({} if file is None else {FILE_VARIABLE: str(file)})
    found = load_configuration(environment=environment, folder=Path.cwd())
    from helios.app.doctor import check_settings  # noqa: PLC0415 - pandas and SQLAlchemy; config show needs neither

    problems = check_settings(found.settings)
    plain = {
        "files": list(found.files),
        "warnings": list(found.notes),
        "problems": [{"message": problem.message, "hint": problem.hint} for problem in problems],
    }
    changed = len(found.origins)
    lines = [
        f"Files: {', '.join(found.files) or 'none, so defaults and the environment hold'}.",
        f"{changed} {'setting is' if changed == 1 else 'settings are'} not the default's: {', '.join(found.origins)}."
        if changed
        else "Every setting is the default.",
        *(f"warning: {note}" for note in found.notes),
        *(f"wrong: {problem.message} {problem.hint}".rstrip() for problem in problems),
    ]
    print_result(plain, *map(escape, lines), *([] if problems else ["Nothing is wrong."]), as_json=as_json)
    if problems:
        raise typer.Exit(1)


# ``helios daemon``: the process that runs cycles at regular intervals.


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


# ``helios hook``: the table of the priority hook.

hook_commands = typer.Typer(no_args_is_help=True, help="Publish the table of the priority hook, job_submit.lua.")


@hook_commands.command("publish", epilog="Example: helios hook publish")
def publish(cluster: Cluster = None, as_json: AsJson = False) -> None:
    """Publish the table that job_submit.lua looks jobs up in.

    The old table is replaced in one step. The daemon publishes it, too. It holds only the changes of active
    services, and of canaries by partition. The setting hook.publish must be true.
    """
    settings = configuration().settings
    if not settings.hook.publish:
        raise UsageError(
            "The hook is not switched on.", hint="Set publish = true in the section [hook] of helios.toml. See docs."
        )
    from helios.app.operations import Operations  # noqa: PLC0415 - as in doctor

    message = Operations(settings, cluster=cluster).publish_hook()
    print_result({"done": message}, message, as_json=as_json)


@hook_commands.command("retract", epilog="Example: helios hook retract")
def retract_(as_json: AsJson = False) -> None:
    """Remove the table of the hook.

    New jobs are then submitted unchanged.
    """
    from helios.app.operations import Operations  # noqa: PLC0415 - as in doctor
    from helios.slurm.hook_table import TABLE, retract  # noqa: PLC0415 - as in doctor

    table = Operations(configuration().settings).state_folder / TABLE
    removed = retract(table)
    message = f"{table} was removed." if removed else f"There is no table at {table}."
    print_result({"table": str(table), "removed": removed}, message, as_json=as_json)


@hook_commands.command("show", epilog="Example: helios hook show --json")
def show_table(as_json: AsJson = False) -> None:
    """Show the table as the hook reads it.

    A damaged or expired table is an error. The hook ignores such a table.
    """
    from helios.app.operations import Operations  # noqa: PLC0415 - as in doctor
    from helios.slurm.hook_table import TABLE, read_table  # noqa: PLC0415 - as in doctor

    table = read_table(Operations(configuration().settings).state_folder / TABLE, datetime.now(UTC))
    names = ("user", "partition", "gpus", "limit_min", "site_factor", "time_min")
    rows = [{name: getattr(row, name) for name in names} for row in table.rows.values()]
    if as_json:
        show_json({"published_at": table.published_at, "expires_at": table.expires_at, "rows": rows})
        return
    print_message(f"{len(rows):,} rows, published {table.published_at}, good until {table.expires_at}")
    for row in rows:
        show(" ".join(f"{name}={'*' if value is None else value}" for name, value in row.items()))


# ``helios try``: all of Helios once, on a synthetic month.


def try_(
    folder: Annotated[Path, Option(help="Folder for everything that is written.")] = Path("helios-try"),
    profile: Annotated[
        Literal["venus", "earth", "saturn", "uranus"],
        Option(help="Cluster whose published figures the month resembles."),
    ] = "venus",
    days: Annotated[int, Option(min=2, max=366, help="Number of days to generate.")] = 30,
    seed: Annotated[int, Option(min=0, help="Random seed. The same seed gives the same month.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Try Helios on a synthetic month of a GPU cluster.

    It generates the jobs, trains a model, replays the queue and writes a report. Nothing outside the folder is touched.

    Example: helios try --days 10 --folder /tmp/helios-try
    """
    from helios.app.demo import run_demo  # noqa: PLC0415 - it imports everything that trains, replays and draws
    from helios.report.tables import evaluation_table, whatif_table  # noqa: PLC0415 - as above

    with progress_bars() as progress:
        trial = run_demo(folder, profile=profile, days=days, seed=seed, made_at=datetime.now(UTC), progress=progress)
    from helios.report.html import render_whatif  # noqa: PLC0415 - drawing takes a second to import

    page = (folder / "report.html").resolve()
    result, evaluation = trial.result, trial.evaluation.to_json()
    write_page(page, render_whatif(result, description=trial.description, evaluation=evaluation, next_steps=NEXT_STEPS))
    if as_json:
        show_json({**result.to_json(), "report": str(page), "evaluation": evaluation})
        return
    print_notes(result.notes)
    show(evaluation_table(evaluation), "", whatif_table(result, width=width()), "")
    print_message("Next, with your own history (nothing touches the cluster):", *(f"  {step}" for step in NEXT_STEPS))


notify_commands = typer.Typer(
    no_args_is_help=True, help="Show what people were told by mail and webhook, and send a test."
)


@notify_commands.command("test", epilog="Example: helios notify test")
def send_test_message(cluster: Cluster = None, as_json: AsJson = False) -> None:
    """Send a test message by every mail and webhook of the settings.

    The exit status is 1 if one was not taken.
    """
    from helios.app.notify import send_test  # noqa: PLC0415 - no other command here needs a mail server

    found = send_test(configuration().settings, cluster=select_cluster(cluster) or "this machine")
    print_result(found, *(escape(f"{name}: {what}") for name, what in found.items()), as_json=as_json)
    if set(found.values()) != {"sent"}:
        raise typer.Exit(1)


@notify_commands.command("list", epilog="Example: helios notify list --json")
def list_causes(as_json: AsJson = False) -> None:
    """List the causes that last, since when, and by which channels they were told.

    A cause that is told by none is told again and again until it is taken, or ends.
    """
    from helios.app.notify import channels, read_causes  # noqa: PLC0415 - as above

    settings = configuration().settings
    paths = sorted(Path(settings.control.state_folder).glob("notices-*.json"))
    causes = [{"cause": cause, **entry} for path in paths for cause, entry in read_causes(path).items()]
    table = Table("Since (UTC)", "Told by", "What", box=None, pad_edge=False)
    for entry in causes:
        table.add_row(str(entry["began_at"])[:16], ", ".join(entry["sent"]) or "-", escape(entry["subject"]))
    names = ", ".join(channels(settings.notify)) or "none"
    plain = {"channels": list(channels(settings.notify)), "causes": causes}
    print_result(
        plain,
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
    token_file: Annotated[
        Path | None,
        Option(
            help="File with the token that readers need, of this user alone. Default: web.token_file, else a new one."
        ),
    ] = None,
    host: Annotated[
        list[str] | None,
        Option(help="Further name under which browsers reach this server. Default: setting web.hosts."),
    ] = None,
    user_header: Annotated[
        str | None,
        Option(
            help="Header in which a proxy names the user. Users see their own jobs alone. Default: setting "
            "web.user_header."
        ),
    ] = None,
    admin: Annotated[
        list[str] | None, Option(help="User of --user-header who sees everything. Default: setting web.admins.")
    ] = None,
    cluster: Cluster = None,
) -> None:
    """Serve a read-only web page of the queue, decisions, use and reports.

    It prints an address with a token; nobody without the token sees anything. Each page is JSON too, for
    "Accept: application/json". Nothing is ever changed, and no other site is asked.

    Example: helios web --listen 127.0.0.1:9850
    """
    given = {
        "listen": listen,
        "token_file": token_file and str(token_file.absolute()),
        "hosts": host and ",".join(host),
        "user_header": user_header,
        "admins": admin and ",".join(admin),
    }
    settings = configuration().settings
    changed = {name: value for name, value in given.items() if value is not None}
    try:
        web = type(settings.web).model_validate(settings.web.model_dump() | changed)
    except ValidationError as reason:
        first = reason.errors()[0]
        option = "--" + str(first["loc"][0]).replace("_", "-")
        raise UsageError(
            f"{option}: {first['msg'].removeprefix('Value error, ')}", hint="See helios web --help"
        ) from reason
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
