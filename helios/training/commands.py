"""Commands ``helios pool ...``."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from typer import Argument, Option

from helios.cli.options import AsJson, Gain, Report, configuration, expand, low_high, parse_service_options
from helios.cli.output import print_message, print_notes, print_result, progress_bars, width, write_page
from helios.errors import ConfigurationInvalid, UsageError
from helios.units import count_in_words, length

if TYPE_CHECKING:
    from helios.training.pool.coordinator import Coordinator
    from helios.training.status import PoolStatus

commands = typer.Typer(help="Run many training trials in one allocation.", no_args_is_help=True)
Folder = Annotated[
    Path | None, Option(help="Where results, logs and checkpoints are. Default: sweep.pool beside sweep.toml.")
]
DryRun = Annotated[bool, Option("--dry-run", help="Check all, print what would be done, and do nothing.")]
Chosen = Annotated[
    list[str] | None, Argument(metavar="[NUMBER]... [POOL]", help="Numbers of trials, and the pool as in pool status.")
]
Sweeps = Annotated[
    list[Path], Argument(metavar="SWEEP...", help="Sweep files: a command, its parameters, and how they are searched.")
]
Slots = Annotated[
    int | None, Option(help="Most trials at the same time on a device. Default: the cores, or 1 on a GPU.")
]
Memory = Annotated[
    str | None, Option(help="Memory of each device that trials may share, as 24G. Default: what is free now.")
]
Pool = Annotated[
    Path | None, Argument(help="Folder of the pool, or its sweep file. Default: the only pool in this folder.")
]
Warm = Annotated[
    list[str] | None, Option(help="Module to import once for all trials of a Python program, as torch. Repeatable.")
]
Target = Annotated[
    str | None, Option(help="Target of all these sweeps, as 'val_acc>=0.90,0.95', in place of that of the sweep file.")
]
Mps = Annotated[bool, Option("--mps", help="Run NVIDIA's MPS while the pool runs, for trials that share a GPU.")]
_REFRESH_S = 0.25
_LINE_S = 30.0
"""How often a line is printed where there is no terminal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """Options that say which service decides, and how."""

    service: Annotated[
        str | None,
        Option(
            help="Service that decides what is started where. Default: that of the sweep file, else fixed slots "
            "(whatif: packing or targets)."
        ),
    ] = None
    settings: Annotated[
        list[str] | None,
        Option("--set", help="Set an option of a service: NAME.OPTION=VALUE, such as packing.together=4. Repeatable."),
    ] = None
    aim: Annotated[
        Literal["makespan", "results"] | None,
        Option("--for", help="What packing aims at: an early end of the sweep, or early results."),
    ] = None

    def arguments(self) -> dict[str, Any]:
        """Return the service and its options as ``run_pool`` takes them.

        Raises
        ------
        UsageError
            An option is of another service.
        """
        given = parse_service_options(self.settings or [])
        service = self.service or next(iter(given), None)
        if others := [name for name in given if name != service]:
            raise UsageError(
                f"--set names {others[0]}, and the service is {service}.",
                hint="A pool has one service, with --service.",
            )
        options = given.get(service or "", {}) | ({} if self.aim is None else {"for": self.aim})
        return {"service": service, "options": options}


@dataclass(frozen=True, slots=True, kw_only=True)
class SizesOptions:
    """Options of simulating trials that change their size."""

    elastic: Annotated[
        bool, Option("--elastic", help="Ask what changing sizes bring, beside fixed ones. See docs/elastic.md.")
    ] = False
    gpus_per_node: Annotated[
        int | None, Option(min=1, help="GPUs of a node, for --elastic. Default: all are of one.")
    ] = None
    profiles: Annotated[
        Path | None,
        Option(
            help="Folder with a measured profile for each sweep's name, for --elastic. Default: as earlier runs tell."
        ),
    ] = None
    report: Report = None

    def simulate(self, sweeps: Sequence[Path], *, as_json: bool, **arguments: Any) -> None:
        """Simulate sweeps with changing and fixed sizes, and print the result."""
        from helios.training.whatif_elastic import elastic_whatif  # noqa: PLC0415 - no help needs it
        from helios.training.whatif_elastic_report import elastic_whatif_table  # noqa: PLC0415 - as above

        with progress_bars() as progress:
            found = elastic_whatif(
                *sweeps, gpus_per_node=self.gpus_per_node, profiles=self.profiles, progress=progress, **arguments
            )
        if self.report is not None:
            from helios.training.whatif_elastic_page import render_elastic  # noqa: PLC0415 - imports matplotlib

            write_page(self.report, render_elastic(found))
        print_notes(found.notes)
        print_result(found.to_json(), elastic_whatif_table(found), as_json=as_json)


@commands.command("run", epilog="Example: helios pool run sweep.toml --slots 2 --report sweep.html")
@expand
def run_(
    *,
    sweeps: Sweeps,
    folder: Folder = None,
    slots: Slots = None,
    device: Annotated[
        Literal["gpu", "cpu"] | None, Option(help="What trials run on. Default: GPUs where there are any.")
    ] = None,
    memory: Memory = None,
    time_limit: Annotated[
        str | None, Option(help="When to end, as 2h. Default: with the Slurm job, if this is in one.")
    ] = None,
    service: ServiceOptions,
    target: Target = None,
    warm: Warm = None,
    mps: Mps = False,
    shared: Annotated[
        bool, Option("--shared", help="Let other pools work on the same folder at the same time; all must say it.")
    ] = False,
    events: Annotated[
        bool, Option("--events", help="Print each event as a line of JSON, and the result last.")
    ] = False,
    report: Report = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Run the trials of sweeps on this machine, or go on.

    Needs no Slurm, GPU, daemon or configuration. A trial that has ended is never run again: the same command goes on
    where it was, whatever ended it. Exit status: 0 all trials ended well, 1 some failed or are left, 130 after Ctrl-C.
    See docs/pools.md.
    """
    if events and as_json:
        raise UsageError("--events and --json exclude each other.", hint="The last line of --events is the result.")
    from helios.training.plan import plan_pools  # noqa: PLC0415 - no help needs it
    from helios.training.report import PoolResults  # noqa: PLC0415 - as above
    from helios.training.run import run_pools  # noqa: PLC0415 - as above

    given: dict[str, Any] = {
        "folder": folder,
        "slots": slots,
        "kind": device,
        "memory_mib": None if memory is None else _mib(memory),
        **service.arguments(),
        "warm": warm or (),
        "shared": shared,
        "mps": mps,
        "target": target,
    }
    time_limit_s = None if time_limit is None else length(time_limit).total_seconds()
    if dry_run:
        plans = plan_pools(sweeps, **given)
        lines = [line for plan in plans for line in plan.lines()]
        print_result({"pools": [asdict(plan) for plan in plans]}, *map(escape, lines), as_json=as_json)
        return
    screen: _Lines | _Screen = _Lines(events=events)
    if sys.stdout.isatty() and not as_json and not events:
        screen = _Screen()
    with screen:
        found = run_pools(sweeps, **given, time_limit_s=time_limit_s, watcher=screen, database=_database())
    result = PoolResults(results=found)
    print_notes(result.notes)
    if report is not None:
        from helios.training.page import render_pool  # noqa: PLC0415 - draws figures, which takes a second to import

        write_page(report, render_pool(result.results))
    if events:
        print(json.dumps({"event": "result", **result.to_json()}, allow_nan=False, default=str), flush=True)
    else:
        print_result(result.to_json(), result.table(width=width()), as_json=as_json)
    if result.reason:
        command = f"helios pool run {' '.join(map(str, sweeps))}"
        print_message(f"Stopped, since {result.reason}. The same command goes on: {command}")
    if result.exit_code:
        raise typer.Exit(result.exit_code)


@commands.command("submit", epilog="Example: helios pool submit sweep.toml --gpus 4 --time 8:00:00 --chain 3")
@expand
def submit_(
    *,
    sweeps: Sweeps,
    folder: Folder = None,
    slots: Slots = None,
    service: ServiceOptions,
    target: Target = None,
    warm: Warm = None,
    mps: Mps = False,
    partition: Annotated[str | None, Option(help="Partition of Slurm.")] = None,
    account: Annotated[str | None, Option(help="Account of Slurm.")] = None,
    pools: Annotated[
        int, Option(min=1, max=100, help="How many such jobs share the trials, each an allocation of its own.")
    ] = 1,
    nodes: Annotated[int, Option(min=1, help="Nodes of one allocation.")] = 1,
    gpus: Annotated[int | None, Option(min=1, help="GPUs of each node.")] = None,
    shards: Annotated[
        int | None, Option(min=1, help="Shards of GPUs on each node instead of whole ones, where the site has them.")
    ] = None,
    cpus: Annotated[int | None, Option(min=1, help="Cores of each node.")] = None,
    memory: Annotated[str | None, Option(help="Memory of each node, as sbatch takes it.")] = None,
    time: Annotated[str | None, Option(help="Time limit of the allocation, as sbatch takes it.")] = None,
    signal: Annotated[
        int, Option(min=10, help="Seconds before the time limit at which trials are asked for a checkpoint.")
    ] = 120,
    sbatch: Annotated[list[str] | None, Option(help="Another option of sbatch, as --qos=long. Repeatable.")] = None,
    chain: Annotated[
        int,
        Option(min=1, max=100, help="Allocations at most, one after the other, each going on where the last ended."),
    ] = 1,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Submit a Slurm job that runs the trials of sweeps.

    It does what helios pool run does. The sweep is checked first. Of the jobs of one folder, one runs at a time, or as
    many as --pools says. See docs/pools.md.
    """
    if gpus is not None and shards is not None:
        raise UsageError("--gpus and --shards exclude each other.", hint="A job has whole GPUs or shards of them.")
    from helios.training.submit import Allocation, job_script, submit_pool  # noqa: PLC0415 - no help needs it

    allocation = Allocation(
        partition=partition,
        account=account,
        gpus=gpus,
        cpus=cpus,
        memory=memory,
        time_limit=time,
        signal_s=signal,
        more=tuple(sbatch or ()),
        nodes=nodes,
        shards=shards,
    )
    members = [None] if pools == 1 else [*range(1, pools + 1)]
    asked: dict[str, Any] = {"folder": folder, "slots": slots, "warm": warm or (), "mps": mps, "target": target}
    asked |= service.arguments()
    scripts = [job_script(sweeps, allocation, **asked, pool=member) for member in members]
    found = {"script": scripts[0], "scripts": scripts}  # the first one alone is what there was before --pools
    if dry_run:
        print_result(found | {"jobs": []}, escape("\n".join(scripts).rstrip()), as_json=as_json)
        if len(scripts) > 1 or chain > 1:
            print_message(f"{count_in_words(len(scripts), 'script')}, each submitted {count_in_words(chain, 'time')}.")
        return
    jobs = submit_pool(scripts, folder=(folder or sweeps[0].with_suffix(".pool")).absolute(), chain=chain)
    print_result(found | {"jobs": jobs}, f"Submitted: {', '.join(jobs)}", as_json=as_json)


@commands.command("status", epilog="Example: helios pool status sweep.pool")
def status_(pool: Pool = None, as_json: AsJson = False) -> None:
    """Show whether a pool runs, how far it is, and what failed.

    It reads the pool's folder and changes nothing, whether the pool runs, has ended or was killed. The time left is
    told from trials that ended, and is unknown before three have.
    """
    from helios.training.status_report import status_lines  # noqa: PLC0415 - no help needs it

    status = _status(pool)
    print_result(status.to_json(), *status_lines(status, width=width()), as_json=as_json)


@commands.command("best", epilog="Example: helios pool best sweep.pool --count 3 --json")
def best_(
    pool: Pool = None,
    count: Annotated[
        int | None, Option("-n", "--count", min=1, help="How many trials. Default: those that no other one beats.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the best trials so far, and what runs each again.

    With parameters, metrics, the folder of checkpoints, the command, the commit and the versions of packages.
    """
    from helios.training.status_report import best_lines  # noqa: PLC0415 - no help needs it

    status = _status(pool)
    trials = status.best(count)
    found = {"metrics": [*status.objectives], "trials": [status.result_json(trial) for trial in trials]}
    found |= {"target": status.target_json()}
    print_result(found, *best_lines(status, trials), as_json=as_json)


@commands.command("show", epilog="Example: helios pool show 12 sweep.pool")
def show_(
    number: Annotated[int, Argument(min=0, help="Number of the trial.")], pool: Pool = None, as_json: AsJson = False
) -> None:
    """Show all that is known of a trial.

    That is each attempt with its device, time, memory, why it was started and how it ended, the last lines of its log,
    and what ran: commit, packages, seed.
    """
    from helios.training.status_report import show_lines  # noqa: PLC0415 - no help needs it

    status = _status(pool, history_of=number)
    trial = status.trial(number)
    attempts, log = status.attempts(trial), status.log_end(trial)
    found = {**status.result_json(trial), "runs": attempts, "log_end": log, "target": status.target_json()}
    print_result(found, *show_lines(status, number, log, attempts), as_json=as_json)


@commands.command("stop", epilog="Example: helios pool stop 12 13 sweep.pool")
def stop_(chosen: Chosen = None, as_json: AsJson = False) -> None:
    """Stop a pool, or end some of its trials for good.

    A pool that stops does what it does after Ctrl-C: trials are asked for a checkpoint, and the same command goes on
    later. All pools that share the folder stop. Trials with these numbers are asked to stop and end as pruned; one that
    does not look and ends by itself has finished.
    """
    from helios.training.pool.orders import STOP  # noqa: PLC0415 - no help needs it

    _order(STOP, chosen or [], as_json=as_json)


@commands.command("retry", epilog="Example: helios pool retry 12 sweep.pool")
def retry_(chosen: Chosen = None, as_json: AsJson = False) -> None:
    """Run failed trials again, in place.

    Without numbers all that have failed. A trial that diverged is run again where its number is given, and begins anew;
    a failed one goes on from its checkpoints. Each may fail as often as the sweep file says. It is done at once by a
    pool that runs, else by the next run.
    """
    from helios.training.pool.orders import RETRY  # noqa: PLC0415 - no help needs it

    _order(RETRY, chosen or [], as_json=as_json)


def _status(pool: Path | None, *, history_of: int | None = None) -> PoolStatus:
    from helios.training.status import find_pool, read_status  # noqa: PLC0415 - no help needs it

    return read_status(find_pool(pool), history_of=history_of)


def _order(what: str, chosen: Sequence[str], *, as_json: bool) -> None:
    from helios.training.ordering import order_pool  # noqa: PLC0415 - no help needs it
    from helios.training.status import find_pool  # noqa: PLC0415 - as above

    numbers = [int(word) for word in chosen if word.isdecimal()]
    places = [Path(word) for word in chosen if not word.isdecimal()]
    if len(places) > 1:
        raise UsageError(f"{places[1]} is neither a number nor the only pool.", hint="Name trials, then one pool.")
    with progress_bars(shows_compiling=False) as progress:
        given = order_pool(find_pool(places[0] if places else None), what, numbers, progress=progress)
    print_result(given.to_json(), escape(given.in_words), as_json=as_json)


@commands.command("load", epilog="Example: helios pool load sweep.pool")
def load_(
    folders: Annotated[list[Path], Argument(metavar="FOLDER...", help="Folders of pools, as sweep.pool.")],
    as_json: AsJson = False,
) -> None:
    """Keep in the warehouse what the trials of pools used.

    The next pools that run the same program learn from them what to expect. Where there is a warehouse (setting
    database.url), helios pool run keeps its trials by itself; this makes one, and is for pools that ran elsewhere. What
    is stored already stays as it is.
    """
    from helios.training.past_runs import keep_runs  # noqa: PLC0415 - no help needs it

    new = keep_runs(configuration().settings.database.url, folders)
    lines = [
        f"{folder}: {count_in_words(count, 'new run')} of trials" for folder, count in zip(folders, new, strict=True)
    ]
    pools = [{"folder": str(folder), "new_runs": count} for folder, count in zip(folders, new, strict=True)]
    print_result({"pools": pools}, *map(escape, lines), as_json=as_json)


@commands.command(
    "whatif", epilog="Example: helios pool whatif sweep.toml --gpus 4 --memory 16G --run-time 20min --watts 60,300"
)
@expand
def whatif_(
    *,
    sweeps: Sweeps,
    gpus: Annotated[int | None, Option(min=1, max=256, help="GPUs of the pool. Default: those visible here.")] = None,
    memory: Memory = None,
    run_time: Annotated[
        str | None, Option(help="Time of a trial alone on a GPU, as 20min. Default: as earlier runs tell.")
    ] = None,
    gain: Gain = None,
    watts: Annotated[
        str | None, Option(help="Power of an idle and of a busy GPU, as 60,300. Default: as earlier runs measured it.")
    ] = None,
    pool: Annotated[
        list[Path] | None,
        Option(help="Folder of an earlier pool that ran the same program. Repeatable. Default: sweep.pool, if there."),
    ] = None,
    service: ServiceOptions,
    targets: Annotated[
        bool, Option("--targets", help="Ask when each sweep reaches its targets. So do --target and --curves.")
    ] = False,
    target: Target = None,
    curves: Annotated[
        Path | None,
        Option(
            help="CSV with task (a sweep's name), step, value and perhaps seconds. Default: curves of earlier runs."
        ),
    ] = None,
    sizes: SizesOptions,
    as_json: AsJson = False,
) -> None:
    """Simulate sweeps in one pool under several rules of sharing GPUs.

    The rules are one trial on a GPU, fixed sharing of 2, 4 and 8, the service with the options that helios pool run
    would use, and an oracle that knows all speeds. With --targets they are equal share, first come first served, the
    shortest need first, growth efficiency, the service and an oracle. It runs nothing. What trials need is known from
    earlier pools, else from the sweep files and the options. See docs/packing.md and docs/targets.md.
    """
    if sizes.elastic:
        typed: dict[str, Any] = {"memory": memory, "run-time": run_time, "gain": gain, "watts": watts}
        typed |= {"target": target, "curves": curves, "targets": targets or None}
        if wrong := [name for name, value in typed.items() if value is not None]:
            raise UsageError(f"--{wrong[0]} means nothing for --elastic.", hint=f"Leave --{wrong[0]} out.")
        given = {"folders": pool or (), "database": _database(), **service.arguments()}
        sizes.simulate(sweeps, gpus=gpus, **given, as_json=as_json)
        return
    if sizes != SizesOptions():
        raise UsageError("--gpus-per-node, --profiles and --report are for elastic trials.", hint="Add --elastic.")
    from helios.training.whatif import pool_whatif  # noqa: PLC0415 - no help needs it
    from helios.training.whatif_report import pool_whatif_table  # noqa: PLC0415 - as above

    with progress_bars() as progress:
        found = pool_whatif(
            *sweeps,
            gpus=gpus,
            memory_mib=None if memory is None else _mib(memory),
            run_time_s=None if run_time is None else length(run_time).total_seconds(),
            gains=None if gain is None else low_high("--gain", gain, example="1.0,1.87"),
            watts=None if watts is None else low_high("--watts", watts, example="60,300"),
            folders=pool or (),
            **service.arguments(),
            targets=targets,
            target=target,
            curves=curves,
            database=_database(),
            progress=progress,
        )
    print_notes(found.notes)
    print_result(found.to_json(), pool_whatif_table(found), as_json=as_json)


def _database() -> str | None:
    """Return the URL of the warehouse.

    None where the configuration is wrong, since a pool needs none.
    """
    try:
        return configuration().settings.database.url
    except ConfigurationInvalid as reason:
        print_notes([f"Earlier trials are not known: {reason.message}"])
        return None


def _mib(text: str) -> float:
    from helios.training.pool.sweep import parse_memory  # noqa: PLC0415 - no help needs it

    if (mib := parse_memory(text)) is None:
        raise UsageError(f"{text!r} is not an amount of memory.", hint="Write 800M or 24G; 1G is 1,024M.")
    return mib


class _Lines:
    """Progress of a pool as lines of text.

    Lines appear on standard error now and then, or for every event on standard output.
    """

    def __init__(self, *, events: bool = False) -> None:
        self._events = events
        self._line_at_s = monotonic() + _LINE_S

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def event(self, event: Mapping[str, Any]) -> None:
        if self._events:
            print(json.dumps(event, allow_nan=False, default=str), flush=True)
        elif event.get("state") == "failed":
            print_message(f"Trial {event['number']} of {event['sweep']} failed: {event['reason']}")

    def refresh(self, pool: Coordinator) -> None:
        if not self._events and monotonic() >= self._line_at_s:
            self._line_at_s = monotonic() + _LINE_S
            ended = sum(record.ended for trials in pool.sweeps for record in trials.state.trials.values())
            total = sum(trials.total for trials in pool.sweeps)
            print_message(f"{ended:,} of {total:,} trials have ended ...")


class _Screen:
    """The pool in a terminal, while it runs."""

    def __init__(self) -> None:
        self._live = Live(console=Console(highlight=False), auto_refresh=False, transient=True)
        self._began_s = monotonic()
        self._shown_at_s = 0.0
        self._notes: list[str] = []

    def __enter__(self) -> None:
        self._live.start()

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def event(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "note":
            self._notes.append(str(event["note"]))
        elif event["event"] == "stopping":
            self._notes.append(f"stopping, since {event['reason']}; once more to stop at once")

    def refresh(self, pool: Coordinator) -> None:
        from helios.training.report import SweepView, pool_view  # noqa: PLC0415 - see run_

        if monotonic() < self._shown_at_s:
            return
        self._shown_at_s = monotonic() + _REFRESH_S
        sweeps = [
            SweepView(
                name=trials.source.name,
                counts=Counter(str(record.state) for record in trials.state.trials.values()),
                finished=trials.finished,
                total=trials.total,
                objectives=trials.sweep.objectives,
            )
            for trials in pool.sweeps
        ]
        self._live.update(
            pool_view(
                pool.snapshot(),
                sweeps,
                seconds=monotonic() - self._began_s,
                notes=self._notes,
                width=self._live.console.width,
            ),
            refresh=True,
        )
