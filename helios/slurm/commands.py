"""Backend that uses Slurm's own commands.

It asks for explicit formats, which read the same from 22.05 on. ``squeue --json`` changed its shape with every release;
``squeue --Format`` did not, and takes any separator behind a field of width 0 (seen on 22.05.8). A job's name may hold
any byte, so it is the last field, and each record ends with a random word that nobody can know beforehand.
"""

from __future__ import annotations

import re
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache

from helios.errors import AnswerNotUnderstood, ClusterRefused, ClusterUnavailable
from helios.slurm import parse
from helios.slurm.backend import Backend, JobUpdate, NodeUpdate, RawJob, RawNode, check_records, write_in_batches
from helios.slurm.pyslurm_worker import BASE_STATE, gpus_held
from helios.slurm.shell import Shell, lines, quoted, settings

_FIELDS = (
    "JobID", "ArrayJobID", "ArrayTaskID", "HetJobID", "HetJobOffset", "RestartCnt", "UserName", "GroupName",
    "Account", "QOS", "Partition", "State", "Reason", "SubmitTime", "EligibleTime", "StartTime", "TimeLimit",
    "MinTime", "NumNodes", "NumCPUs", "NumTasks", "tres-alloc", "tres-per-job", "tres-per-node", "tres-per-socket",
    "tres-per-task", "NodeList", "PriorityLong", "Reservation", "Nice", "Name",
)  # fmt: skip
"""Fields of ``squeue --Format``. The name comes last, because it may hold any character."""
_BETWEEN = "\x1f"
_JOB, _TASKS, _STATE = (_FIELDS.index(name) for name in ("JobID", "ArrayTaskID", "State"))

_LANES = 4
"""Number of ``scontrol`` processes that write at once. One waits about 3 ms for each change, even idle (22.05.8)."""
_MARK = "helios-"
_CRON = re.compile(r"^JobId=(\d+) (?:.*?[ ]CronJob=(Yes))?", re.MULTILINE)
_NODE_FIELD = re.compile(r"(?:^| )(\w+)=(.*?)(?= \w+=|$)", re.DOTALL)
_FREE_TEXT = re.compile(r" (?:Comment|Extra|Reason|OS)=.*?(?= [A-Z]\w+=|$)", re.DOTALL)

UNANSWERED = "scontrol ended before it came to this change: not known whether it was made"

_SPRIO_FIELDS = "%i|%Y|%S|%A|%B|%F|%J|%P|%Q|%N|%T"
"""Job, priority and site factor, then age, association, fair share, job size, partition, QOS, nice and TRES."""
_ROUNDING = 10
"""Largest priority that may be the sum of factors that are each printed as 0."""


class CommandsBackend(Backend):
    """``Backend`` over ``squeue`` and ``scontrol``.

    Parameters
    ----------
    commands_folder : str
        Folder of the commands; empty to find them on ``PATH``.
    timeout_s : float
        Longest wait for one answer, s.
    environment : mapping, optional
        The process environment; None for that of this process.
    """

    name = "commands"

    def __init__(
        self, *, commands_folder: str = "", timeout_s: float = 30.0, environment: Mapping[str, str] | None = None
    ) -> None:
        given = {} if environment is None else {"environment": environment}
        self.shell = Shell(folder=commands_folder, timeout_s=timeout_s, **given)
        self._scrontab: bool | None = None
        self._cron: frozenset[str] = frozenset()
        self._has_array_unique = True

    def queue(self, job_ids: Sequence[str] = ()) -> list[RawJob]:
        """Return the records that ``squeue`` lists.

        On a cluster with scrontab, ``scontrol`` is asked which of them are scrontab's, unless only a few are read.
        """
        end = f"\x1e{secrets.token_hex(8)}"
        fields = [f"{name}:{_BETWEEN}" for name in _FIELDS[:-1]] + [f"{_FIELDS[-1]}:{end}"]
        words = ["--all", "--noheader", f"--Format={','.join(fields)}"]
        if job_ids:
            # squeue fails where one job alone is named and is gone, and not where several are (22.05.8).
            words.append(f"--jobs={','.join([*job_ids, job_ids[0]])}")
        printed = self._squeue(*words)
        records = _records(printed, end)
        if not self._has_array_unique and any(
            BASE_STATE.get(record[_STATE], record[_STATE]) == "PENDING" and parse.tasks(record[_TASKS]) > 1
            for record in records
        ):
            # One line for each task, with the number of the record that the task is part of.
            at_once = {record[_JOB]: "%".join(["", *record[_TASKS].split("%")[1:]]) for record in records}
            records = _merge_records(_records(self.shell.run("squeue", "--array", *words), end), at_once)
        if not job_ids:
            self._cron = self._cron_jobs([record[_JOB] for record in records])
        try:
            jobs = [_job(record, self._cron) for record in records]
        except (ValueError, ArithmeticError) as reason:
            raise AnswerNotUnderstood(f"squeue printed a job that makes no sense: {reason}") from reason
        return check_records(jobs, by="job_id", source="squeue")

    def _squeue(self, *words: str) -> bytes:
        # Without this option one line stands for all pending tasks of an array, even if an admin changed one of them
        # (22.05.8). squeue of 25.11 and 26.05.5 no longer has the option.
        if self._has_array_unique:
            try:
                return self.shell.run("squeue", "--array-unique", *words)
            except AnswerNotUnderstood as reason:
                if "array-unique" not in reason.message:
                    raise
                self._has_array_unique = False
        return self.shell.run("squeue", *words)

    def nodes(self) -> list[RawNode]:
        """Return the nodes that ``scontrol show node`` lists."""
        text = show(self.shell, "node")
        try:
            nodes = [
                _node(record) for record in re.split(r"^(?=NodeName=)", text, flags=re.MULTILINE) if record.strip()
            ]
        except (KeyError, ValueError, ArithmeticError) as reason:
            raise AnswerNotUnderstood(f"scontrol printed a node that makes no sense: {reason!r}") from reason
        return check_records(nodes, by="name", source="scontrol show node")

    def configuration(self) -> dict[str, str]:
        """Return the output of ``scontrol show config``.

        ``NOW`` has the controller's clock, s since the epoch.
        """
        found = show_config(self.shell)
        self._scrontab = "enable" in found.get("ScronParameters", "")
        return found

    def change(self, changes: Sequence[JobUpdate]) -> list[str]:
        """Write the changes through a few ``scontrol`` processes.

        Each process reads many commands.
        """
        if not changes:
            return []
        answers = [""] * len(changes)

        def write_lane(first: int) -> None:
            answers[first::_LANES] = self._answers([_command(change) for change in changes[first::_LANES]])

        with ThreadPoolExecutor(max_workers=_LANES) as pool:
            list(pool.map(write_lane, range(min(_LANES, len(changes)))))
        return answers

    def change_nodes(self, changes: Sequence[NodeUpdate]) -> list[str]:
        """Write the changes through one ``scontrol`` process.

        Nodes with the same change share one command.
        """
        return write_in_batches(changes, lambda batches: self._answers([_node_command(batch) for batch in batches]))

    def close(self) -> None:
        """Do nothing, because no process outlives its call."""

    def _answers(self, commands: Sequence[str]) -> list[str]:
        """Return the answers to commands.

        They are separated by words between the commands that scontrol reports as invalid.
        """
        if not commands:
            return []
        script = "".join(f"{command}\n{_MARK}{number}\n" for number, command in enumerate(commands))
        try:
            complaint = self.shell.answer("scontrol", stdin=script.encode("utf-8", "surrogateescape")).error_output
        except ClusterUnavailable as reason:
            complaint = reason.message
        parts = re.split(rf"^.*\b{_MARK}(\d+)\b.*\n?", complaint, flags=re.MULTILINE)
        texts = {int(number): text for text, number in zip(parts[0::2], parts[1::2], strict=False)}
        answers = (texts.get(number, UNANSWERED) for number in range(len(commands)))
        return [quoted(text) if text.strip() else "" for text in answers]

    def _cron_jobs(self, queue: Sequence[str]) -> frozenset[str]:
        if self._scrontab is None:
            self.configuration()
        return cron_jobs(show(self.shell, "job"), queue) if self._scrontab and queue else frozenset()


def show(shell: Shell, what: str) -> str:
    """Return what ``scontrol --oneliner show`` prints of all nodes, jobs or partitions.

    Raises
    ------
    ClusterUnavailable, ClusterRefused, AnswerNotUnderstood
        It failed, or its answer does not begin and end as it should.
    """
    text = shell.run("scontrol", "--all", "--oneliner", "show", what).decode("utf-8", "surrogateescape")
    if not re.match(rf"{what}(?:Id|Name)=", text, re.IGNORECASE) or not text.endswith("\n"):
        raise AnswerNotUnderstood(
            f"scontrol show {what} begins or ends in the middle: {text[:40]!r} to {text[-40:]!r}",
            hint=f"Run: scontrol --all --oneliner show {what}",
        )
    return text


def show_config(shell: Shell) -> dict[str, str]:
    """Return the output of ``scontrol show config``.

    ``NOW`` has the controller's clock, s since the epoch.

    Raises
    ------
    ClusterUnavailable, ClusterRefused, AnswerNotUnderstood
        It failed, or its answer does not begin and end as it should.
    """
    shown = lines(shell.run("scontrol", "show", "config"))
    now, last = re.match(r"Configuration data as of (\d+)", shown[0]), shown[-2:]
    # The last line tells of the controllers (22.05 to 26.05).
    if not now or not last[0].startswith("Slurmctld(") or last[-1]:
        raise AnswerNotUnderstood(
            f"scontrol show config begins or ends in the middle: {shown[0][:40]!r} to {last[0][-40:]!r}",
            hint="Run: scontrol show config",
        )
    return settings(shown) | {"NOW": now[1]}


def cron_jobs(shown: str, queue: Iterable[str]) -> frozenset[str]:
    """Return the jobs of the queue that may be scrontab's.

    Parameters
    ----------
    shown : str
        Output of ``scontrol --oneliner show job``. A job's name may hold line breaks and look like a record. So the
        mark counts only if every record of a number has it.
    queue : iterable of str
        Jobs that were there before. One that is not shown has ended, or the answer was cut: it counts as scrontab's.
    """
    records, marked = Counter[str](), Counter[str]()
    for job_id, yes in _CRON.findall(shown):
        records[job_id] += 1
        marked[job_id] += bool(yes)
    return frozenset(job_id for job_id in queue if marked[job_id] == records[job_id])


def _records(printed: bytes, end: str) -> list[list[str]]:
    records = [
        record.split(_BETWEEN, len(_FIELDS) - 1)
        for record in printed.decode("utf-8", "surrogateescape").split(f"{end}\n")
    ]
    if records.pop() != [""]:
        raise AnswerNotUnderstood("squeue's answer ends in the middle of a job.", hint="Run: squeue --version")
    for parts in records:
        if len(parts) != len(_FIELDS):
            raise AnswerNotUnderstood(f"squeue printed a job of {len(parts)} fields instead of {len(_FIELDS)}.")
    return records


def _merge_records(records: list[list[str]], at_once: Mapping[str, str]) -> list[list[str]]:
    """Return one record for each job number, with all its tasks.

    Parameters
    ----------
    at_once : mapping
        Bound on the tasks of an array that run at once, such as ``%2``, where it is known.
    """
    of_job: dict[str, list[list[str]]] = {}
    for record in records:
        of_job.setdefault(record[_JOB], []).append(record)
    for job, (first, *others) in of_job.items():
        if others:
            tasks = {record[_TASKS] for record in (first, *others)}
            if len(tasks) <= len(others) or not all(task.isascii() and task.isdigit() for task in tasks):
                raise AnswerNotUnderstood(f"squeue printed a task of job {job} twice, or one without a number.")
            first[_TASKS] = parse.join_words(map(int, tasks)) + at_once.get(job, "")
    return [first for first, *_ in of_job.values()]


def _command(change: JobUpdate) -> str:
    words = [f"update JobId={change.job_id}" + (f"_[{change.tasks}]" if change.tasks else "")]
    if change.site_factor is not None:
        words.append(f"SiteFactor={change.site_factor}")
    if change.time_min is not None:
        words.append(f"TimeMin={change.time_min}")
    return " ".join(words)


def _node_command(change: NodeUpdate) -> str:
    wanted = f"State={change.state}" if change.state else f"Weight={change.weight}"
    return f"update NodeName={change.node} {wanted}"


def _job(record: list[str], cron: frozenset[str]) -> RawJob:
    field = dict(zip(_FIELDS, record, strict=True))
    state = BASE_STATE.get(field["State"], field["State"])
    pending = state == "PENDING"
    array_tasks = parse.text(field["ArrayTaskID"])
    het_job_id = parse.text(field["HetJobID"]) if field["HetJobID"] != "0" else None
    start = parse.time_s(field["StartTime"])
    held = parse.tres(field["tres-alloc"])
    gpus, shards, mps = (_job_gres(field, name) for name in ("gpu", "shard", "mps"))
    return {
        "job_id": field["JobID"],
        "restart": parse.whole(field["RestartCnt"]) or 0,
        "array_job_id": field["ArrayJobID"] if array_tasks else None,
        "array_tasks": array_tasks,
        "tasks": parse.tasks(array_tasks) if array_tasks and pending else 1,
        "het_job_id": het_job_id,
        "het_job_offset": parse.whole(field["HetJobOffset"]) if het_job_id else None,
        "name": field["Name"],
        "user": parse.text(field["UserName"]),
        "group": parse.text(field["GroupName"]),
        "account": parse.text(field["Account"]),
        "qos": parse.text(field["QOS"]),
        "partition": parse.text(field["Partition"]),
        "state": state,
        "reason": parse.text(field["Reason"]),
        "submitted": parse.time_s(field["SubmitTime"]) or 0,
        "eligible": parse.time_s(field["EligibleTime"]),
        "started": None if pending else start,
        "planned_start": start if pending else None,
        "time_limit_s": parse.length_s(field["TimeLimit"]),
        "time_min_s": parse.length_s(field["MinTime"]),
        "nodes": parse.whole(held.get("node") or field["NumNodes"]),
        "cpus": parse.whole(held.get("cpu") or field["NumCPUs"]),
        "gpus": gpus.count,
        "gpu_type": gpus.type,
        "shards": shards.count,
        "mps": mps.count,
        "memory_mib": parse.memory_mib(held.get("mem", "")),
        "node_list": None if pending else parse.text(field["NodeList"]),
        "priority": parse.whole(field["PriorityLong"]),
        "reservation": parse.text(field["Reservation"]),
        "cron": field["JobID"] in cron,
        "nice": int(field["Nice"]) if re.fullmatch(r"-?\d+", field["Nice"]) else 0,
    }


def _job_gres(field: Mapping[str, str], name: str) -> parse.Gpus:
    """Return a job's GPUs, shards or MPS shares.

    The request counts where the site does not account for them as TRES.
    """
    nodes, tasks = parse.whole(field["NumNodes"]) or 1, parse.whole(field["NumTasks"]) or 1
    asked = ((field["tres-per-job"], 1), (field["tres-per-node"], nodes), (field["tres-per-task"], tasks))
    return _count_gres(field["tres-alloc"], tuple(pair for pair in asked if name in pair[0]), name)


@lru_cache(maxsize=20_000)
def _count_gres(counted_text: str, asked: tuple[tuple[str, int], ...], name: str) -> parse.Gpus:
    counted = parse.gpus(counted_text, name)
    found = [(parse.gpus(text, name), times) for text, times in asked]
    total = max((gpus.count * times for gpus, times in found), default=0)
    kinds = {gpus.type for gpus in (counted, *(gpus for gpus, _ in found))} - {None}
    return parse.Gpus(count=counted.count or total, type=kinds.pop() if len(kinds) == 1 else None)


def _node(record: str) -> RawNode:
    field = dict(_node_fields(record))
    state, *flags = field["State"].replace("*", "+NOT_RESPONDING").split("+")
    held, gres = parse.tres(field.get("AllocTRES", "")), field.get("Gres", "")
    has, has_held = parse.gpus(gres), ",".join(f"{name}={count}" for name, count in held.items())
    return {
        "name": field["NodeName"],
        "partitions": field.get("Partitions", ""),
        "state": state,
        "flags": "+".join(dict.fromkeys(flags)) or None,
        "cpus": int(field["CPUTot"]),
        "cpus_held": int(field["CPUAlloc"]),
        "gpus": has.count,
        "gpus_held": gpus_held(
            has.count,
            {
                name: (parse.gpus(has_held, name).count, parse.gpus(gres, name).count)
                for name in ("gpu", "shard", "mps")
            },
        ),
        "gres": parse.text(gres),
        "gpu_type": has.type,
        "memory_mib": parse.memory_mib(field.get("RealMemory", "")),
        "weight": parse.whole(field.get("Weight", "")),
        "features": parse.text(field.get("ActiveFeatures", "")),
        "idle_since": parse.time_s(field.get("LastBusyTime", "")) if state == "IDLE" else None,
        "reason": parse.text(field.get("Reason", "")),
    }


def _node_fields(record: str) -> Iterator[tuple[str, str]]:
    """Yield a node's fields, with free text last.

    An admin may have written the free text, so it must not replace another field.
    """
    free = "".join(_FREE_TEXT.findall(record))
    for key, value in reversed(_NODE_FIELD.findall(_FREE_TEXT.sub("", record).strip())):
        yield key, value.strip()
    if reason := re.search(r" Reason=(.*)", free, re.DOTALL):
        yield "Reason", reason[1].strip()


# Site factors are read from ``sprio``, the only command that shows them.
#
# ``sprio`` lists pending jobs that are eligible: not held, no begin time ahead, no dependency left. A job whose
# priority was set directly (``Priority=``) is listed with that priority and all factors 0, whatever they are (seen on
# 22.05.8). A direct priority is recognised by that, and the site factor of such a job cannot be read.
@dataclass(frozen=True, slots=True, kw_only=True)
class SiteFactor:
    """Site factor of one job, as ``sprio`` prints it.

    Attributes
    ----------
    value : int
        The site factor. With a direct priority it is 0 and has no meaning.
    direct : bool
        Whether its priority was set directly.
    """

    value: int
    direct: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sprio:
    """Reader of ``sprio`` through a shell."""

    shell: Shell

    def __call__(self, job_ids: Sequence[str] = ()) -> dict[str, SiteFactor]:
        """Return the site factors by job id.

        Of ``job_ids`` alone where it names any. A pending array has its master's id. Jobs that are not eligible are
        missing.

        Raises
        ------
        ClusterUnavailable
            The controller does not answer.
        ClusterRefused
            The cluster does not order jobs by several factors: there is no site factor.
        """
        only = [f"--jobs={','.join(job_ids)}"] if job_ids else []
        answer = self.shell.answer("sprio", "--noheader", f"--format={_SPRIO_FIELDS}", *only)
        if "priority/multifactor" in answer.error_output or "priority type" in answer.error_output.lower():
            raise ClusterRefused(
                "This cluster does not order its jobs by priority factors: PriorityType is not priority/multifactor.",
                hint="Set PriorityType=priority/multifactor in slurm.conf; Helios can order jobs only with it.",
            )
        answer.check("sprio")
        *shown, rest = lines(answer.output)
        if rest:
            raise AnswerNotUnderstood("sprio's answer ends in the middle of a job.", hint="Run: sprio --long")
        factors: dict[str, SiteFactor] = {}
        for line in shown:
            if line and not line.startswith("Unable to find"):
                job_id, factor = _parse_line(line)
                if factors.setdefault(job_id, factor).value != factor.value:  # a line for each of a job's partitions
                    raise AnswerNotUnderstood(
                        f"sprio printed two site factors of job {job_id}.", hint="Run: sprio --long"
                    )
                factors[job_id] = factor
        return factors


def _parse_line(line: str) -> tuple[str, SiteFactor]:
    job_id, *words = (part.strip() for part in line.split("|"))
    try:
        if len(words) != _SPRIO_FIELDS.count("|"):
            raise ValueError(f"{len(words)} fields")
        int(job_id)
        priority, value = map(int, words[:2])
    except ValueError as reason:
        raise AnswerNotUnderstood(f"sprio printed a line that makes no sense: {line!r}") from reason
    nothing = value == 0 and set(words[2:]) <= {"", "0"}
    return job_id, SiteFactor(value=value, direct=nothing and priority > _ROUNDING)
