"""The binding, talking to small workers of its protocol that misbehave in the ways a real one can."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import indent

import pytest

from helios.errors import AnswerNotUnderstood, ClusterRefused, ClusterUnavailable
from helios.slurm.backend import JobUpdate, NodeUpdate
from helios.slurm.pyslurm_backend import NOT_KNOWN, NOT_SENT, PyslurmBackend, Versions, WorkerLost
from tests.unit.slurm.slurm import a_raw_job, a_raw_node
from tests.waiting import TEST_TIMEOUT_S

GREETING = '{"protocol": 1, "python": "3.9.1"}'
VERSIONS = '{"pyslurm": "25.11.2", "library": "25.11", "controller": "25.11.4"}'

BRIEF_S = 3.0
"""Time for answers where one never comes: the others take milliseconds, and a second on a machine that is busy."""


def a_worker(*, on_call: str = "pass", greeting: str = GREETING, versions: str = VERSIONS) -> str:
    """Return the source of a worker that runs ``on_call`` for each request but that for versions, then answers it."""
    return f"""
import json, os, sys, time
def say(line):
    os.write(1, (line if isinstance(line, str) else json.dumps(line)).encode() + b"\\n")
def ask_pid():
    with open({str(PIDS)!r}, "a") as pids:
        pids.write(str(os.getpid()) + "\\n")
ask_pid()
say({greeting!r})
say({versions!r})
for line in sys.stdin.buffer:
    request = json.loads(line)
    call, args = request["call"], request["args"]
    result = {{"queue": [], "nodes": [], "configuration": {{}}, "change": ""}}.get(call)
    if call == "versions":
        result = json.loads({versions!r})
    else:
{indent(on_call, "        ")}
    say({{"id": request["id"], "ok": True, "result": result}})
"""


PIDS = Path()


@pytest.fixture(autouse=True)
def pids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file in which every started worker writes its process id."""
    monkeypatch.setattr(sys.modules[__name__], "PIDS", tmp_path / "pids")
    return tmp_path / "pids"


@pytest.fixture
def backend() -> Iterator[Callable[..., PyslurmBackend]]:
    """Return a maker of back ends, which are closed at the end."""
    made: list[PyslurmBackend] = []

    def make(source: str, *, clock: Callable[[], float] = lambda: 0.0) -> PyslurmBackend:
        made.append(PyslurmBackend(worker=source, timeout_s=TEST_TIMEOUT_S, clock=clock))
        return made[-1]

    yield make
    for each in made:
        each.close()


Make = Callable[..., PyslurmBackend]


def impatient(way: PyslurmBackend, *, timeout_s: float) -> PyslurmBackend:
    """Return the back end with its worker started, which takes a busy machine longer, and little time for answers."""
    way.versions()
    way.timeout_s = timeout_s
    return way


def changes(count: int) -> list[JobUpdate]:
    return [JobUpdate(job_id=str(number), site_factor=137) for number in range(1, count + 1)]


def started(pids: Path) -> list[int]:
    return [int(line) for line in pids.read_text().split()]


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_an_answer_is_what_the_worker_said(backend: Make) -> None:
    assert backend(a_worker(on_call='result = {"PriorityType": "priority/basic"}')).configuration() == {
        "PriorityType": "priority/basic"
    }


def test_the_worker_is_started_once_for_many_calls(backend: Make, pids: Path) -> None:
    way = backend(a_worker())
    for _ in range(5):
        way.queue()
        way.nodes()
    assert len(started(pids)) == 1


def test_nothing_starts_before_the_first_call(backend: Make, pids: Path) -> None:
    backend(a_worker())
    assert not pids.exists()


def test_changes_are_answered_one_by_one_in_their_order(backend: Make) -> None:
    way = backend(a_worker(on_call='result = "no job " + args["job_id"] if args["job_id"] == "2" else ""'))
    assert way.change(changes(3)) == ["", "no job 2", ""]


def test_a_change_arrives_with_zeros_and_blanks_told_apart(backend: Make) -> None:
    way = backend(a_worker(on_call="result = json.dumps(args, sort_keys=True)"))
    assert way.change([JobUpdate(job_id="7", site_factor=0), JobUpdate(job_id="8", time_min=0)]) == [
        '{"job_id": "7", "site_factor": 0, "time_min": null}',
        '{"job_id": "8", "site_factor": null, "time_min": 0}',
    ]


def test_nodes_that_are_written_the_same_are_one_request(backend: Make) -> None:
    way = backend(a_worker(on_call="result = json.dumps(args, sort_keys=True)"))
    changes = [NodeUpdate(node=node, state="POWER_DOWN") for node in ("n1", "n2")] + [NodeUpdate(node="n3", weight=0)]
    one, two, three = way.change_nodes(changes)
    assert one == two == '{"nodes": "n[1-2]", "state": "POWER_DOWN", "weight": null}'
    assert three == '{"nodes": "n3", "state": "", "weight": 0}'


def test_a_change_of_nodes_that_kills_the_worker_is_not_known(backend: Make) -> None:
    way = backend(a_worker(on_call='if args["nodes"] == "n1": os.abort()\nresult = ""'))
    answers = way.change_nodes([NodeUpdate(node="n1", weight=1), NodeUpdate(node="n2", weight=2)])
    assert answers[0].startswith(NOT_KNOWN)
    assert answers[1] == ""


def test_garbage_after_a_change_of_nodes_leaves_it_not_known(backend: Make) -> None:
    way = backend(a_worker(on_call='say("rubbish")'))
    (answer,) = way.change_nodes([NodeUpdate(node="n1", weight=1)])
    assert answer.startswith(NOT_KNOWN)


def test_no_change_asks_nobody(backend: Make, pids: Path) -> None:
    assert backend(a_worker()).change([]) == []
    assert not pids.exists()


def test_what_is_not_utf8_comes_through_as_surrogates(backend: Make) -> None:
    way = backend(a_worker(on_call='result = {"Name": b"x\\xff".decode("utf-8", "surrogateescape")}'))
    assert way.configuration()["Name"].encode("utf-8", "surrogateescape") == b"x\xff"


def test_an_answer_larger_than_a_pipe_comes_through_whole(backend: Make) -> None:
    way = backend(a_worker(on_call='result = {"Long": "x" * 5_000_000}'))
    assert len(way.configuration()["Long"]) == 5_000_000


def test_versions_agree_only_within_one_release() -> None:
    def versions(pyslurm: str, library: str | None, controller: str | None) -> bool:
        return Versions(python="3.9", pyslurm=pyslurm, library=library, controller=controller).agree

    assert versions("25.11.2", "25.11", "25.11.4")
    assert versions("25.11.2", None, "25.11.4")
    assert not versions("25.11.2", "26.05", "25.11.4")
    assert not versions("25.11.2", "25.11", "26.05.1")
    assert not versions("25.11.2", "25.11", None)


def test_the_handshake_tells_the_versions(backend: Make) -> None:
    assert backend(a_worker()).versions() == Versions(
        python="3.9.1", pyslurm="25.11.2", library="25.11", controller="25.11.4"
    )


def test_a_worker_of_another_protocol_is_refused(backend: Make) -> None:
    with pytest.raises(ClusterRefused, match="protocol 2"):
        backend(a_worker(greeting='{"protocol": 2}')).queue()


def test_a_python_without_pyslurm_is_refused_with_a_hint(backend: Make) -> None:
    way = backend(a_worker(versions='{"error": {"kind": "missing", "message": "No module named pyslurm"}}'))
    with pytest.raises(ClusterRefused, match="No module named pyslurm") as caught:
        way.queue()
    assert "[slurm] python" in caught.value.hint


def test_an_import_that_ends_the_process_is_named(backend: Make) -> None:
    way = backend(
        f"import os, sys\nos.write(1, b'{GREETING}\\n')\nprint('fatal: no slurm.conf', file=sys.stderr)\nsys.exit(1)"
    )
    with pytest.raises(ClusterUnavailable, match=r"status 1.*fatal: no slurm\.conf.*importing pyslurm"):
        way.queue()


def test_a_python_that_is_not_there_is_named() -> None:
    with pytest.raises(ClusterUnavailable, match="/nowhere/python"):
        PyslurmBackend(python="/nowhere/python").queue()


def test_the_python_may_have_a_prefix(pids: Path) -> None:
    with PyslurmBackend(
        python=f"env HELIOS_TOLD=yes '{sys.executable}'",
        worker=a_worker(on_call='result = {"told": os.environ["HELIOS_TOLD"]}'),
    ) as way:
        assert way.configuration() == {"told": "yes"}


def test_a_worker_that_hangs_is_killed_in_time(backend: Make, pids: Path) -> None:
    way = impatient(backend(a_worker(on_call="time.sleep(3600)")), timeout_s=0.5)
    with pytest.raises(ClusterUnavailable, match=r"within 0\.5 s"):
        way.queue()
    assert [gone(pid) for pid in started(pids)] == [True]


def test_a_worker_killed_between_calls_is_replaced_without_a_word(backend: Make, pids: Path) -> None:
    way = backend(a_worker())
    way.queue()
    os.kill(started(pids)[0], signal.SIGKILL)
    assert way.queue() == []
    assert len(started(pids)) == 2


def test_a_look_survives_one_death_in_its_middle(backend: Make, pids: Path, tmp_path: Path) -> None:
    once = (
        f"flag = {str(tmp_path / 'once')!r}\nif not os.path.exists(flag):\n    open(flag, 'w').close()\n"
        "    os.kill(os.getpid(), 9)"
    )
    assert backend(a_worker(on_call=once)).queue() == []
    assert len(started(pids)) == 2


def test_a_look_does_not_survive_two_deaths(backend: Make) -> None:
    with pytest.raises(ClusterUnavailable, match="signal 9"):
        backend(a_worker(on_call="os.kill(os.getpid(), 9)")).queue()


def test_a_change_that_kills_the_worker_has_no_known_result(backend: Make, tmp_path: Path) -> None:
    written = tmp_path / "written"
    deadly = f'if args["job_id"] == "2": os.kill(os.getpid(), 9)\nopen({str(written)!r}, "a").write(args["job_id"])'
    answers = backend(a_worker(on_call=deadly)).change(changes(4))
    assert [answers[0], answers[2], answers[3]] == ["", "", ""]
    assert answers[1].startswith(NOT_KNOWN) and "signal 9" in answers[1]
    assert written.read_text() == "134"


def test_a_change_that_hangs_stops_the_rest(backend: Make, tmp_path: Path) -> None:
    slow = f'open({str(tmp_path / "asked")!r}, "a").write(args["job_id"])\nif args["job_id"] == "2": time.sleep(3600)'
    answers = impatient(backend(a_worker(on_call=slow)), timeout_s=BRIEF_S).change(changes(4))
    assert answers[0] == ""
    assert answers[1].startswith(NOT_KNOWN)
    assert all(answer.startswith(NOT_SENT) for answer in answers[2:])
    assert (tmp_path / "asked").read_text() == "12"


def test_all_changes_of_a_call_share_one_time_bound(backend: Make) -> None:
    answers = impatient(backend(a_worker(on_call="time.sleep(1)")), timeout_s=BRIEF_S).change(changes(50))
    assert len(answers) == 50 and answers[0] == ""
    assert sum(answer.startswith(NOT_SENT) for answer in answers) >= 46, "three take 3 s, and one more begins"


def test_changes_that_always_kill_the_worker_end(backend: Make) -> None:
    answers = backend(a_worker(on_call="os.kill(os.getpid(), 9)")).change(changes(9))
    assert len(answers) == 9 and answers[0].startswith(NOT_KNOWN) and answers[-1].startswith(NOT_SENT)


def test_a_silent_controller_writes_nothing_and_says_so(backend: Make) -> None:
    with pytest.raises(ClusterUnavailable, match="connect failure"):
        backend(a_worker(on_call=an_error("unavailable", "connect failure", sent=False))).change(changes(2))


def test_a_controller_that_falls_silent_stops_the_changes(backend: Make) -> None:
    falls = 'if args["job_id"] != "1":\n' + indent(an_error("unavailable", "connect failure", sent=False), "    ")
    answers = backend(a_worker(on_call=falls)).change(changes(3))
    assert answers[0] == ""
    assert all(answer.startswith(NOT_SENT) and "connect failure" in answer for answer in answers[1:])


def test_a_change_to_a_silent_controller_has_no_known_result(backend: Make) -> None:
    answers = backend(a_worker(on_call=an_error("unavailable", "read timeout", sent=True))).change(changes(2))
    assert answers[0].startswith(NOT_KNOWN) and answers[1].startswith(NOT_SENT)


@pytest.mark.parametrize(
    ("kind", "error"),
    [("unavailable", ClusterUnavailable), ("refused", ClusterRefused), ("failed", AnswerNotUnderstood)],
)
def test_errors_of_a_look_are_helios_own(backend: Make, kind: str, error: type[Exception]) -> None:
    with pytest.raises(error, match="so it is"):
        backend(a_worker(on_call=an_error(kind, "so it is", sent=True))).queue()


@pytest.mark.parametrize("said", ["garbage", "[1]", '{"id": 99, "ok": true, "result": []}', '{"ok": true}', "\\xff"])
def test_garbage_is_not_taken_for_an_answer_and_ends_the_worker(backend: Make, pids: Path, said: str) -> None:
    way = backend(a_worker(on_call=f"say({said!r}); continue"))
    with pytest.raises(AnswerNotUnderstood):
        way.queue()
    assert [gone(pid) for pid in started(pids)] == [True]


def test_garbage_after_a_change_leaves_it_not_known(backend: Make) -> None:
    assert backend(a_worker(on_call="say('?'); continue")).change(changes(1))[0].startswith(NOT_KNOWN)


def test_a_late_answer_is_never_taken_for_the_next(backend: Make, tmp_path: Path) -> None:
    late = (
        f"flag = {str(tmp_path / 'late')!r}\nif not os.path.exists(flag):\n    open(flag, 'w').close()\n"
        "    time.sleep(1)\n    result = {'late': '1'}"
    )
    way = impatient(backend(a_worker(on_call=late)), timeout_s=0.5)
    with pytest.raises(ClusterUnavailable):
        way.configuration()
    way.timeout_s = TEST_TIMEOUT_S
    assert way.configuration() == {}


def test_records_without_their_keys_are_not_understood(backend: Make) -> None:
    with pytest.raises(AnswerNotUnderstood, match="RawJob"):
        backend(a_worker(on_call='result = [{"job_id": "1"}]')).queue()


def test_records_with_their_keys_are_passed_on(backend: Make) -> None:
    job = a_raw_job("7", time_limit_s="UNLIMITED", memory_mib=100)
    assert backend(a_worker(on_call=f"result = [{job!r}]")).queue() == [job]


@pytest.mark.parametrize(
    ("call", "result"),
    [
        ("queue", [a_raw_job("7"), a_raw_job("7")]),
        ("queue", [a_raw_job("7", tasks="4")]),
        ("queue", [a_raw_job("x7")]),
        ("queue", [a_raw_job("7", submitted=10**12)]),
        ("queue", {"7": a_raw_job("7")}),
        ("nodes", [a_raw_node("n1"), a_raw_node("n1", weight=2)]),
        ("nodes", [a_raw_node("n1", cpus=None)]),
        ("nodes", [a_raw_node("")]),
        ("configuration", ["SLURM_VERSION"]),
        ("configuration", {"SLURM_VERSION": 25}),
    ],
)
def test_what_is_doubled_or_of_another_type_is_not_understood(backend: Make, call: str, result: object) -> None:
    way = backend(a_worker(on_call=f"result = {result!r}"))
    with pytest.raises(AnswerNotUnderstood):
        getattr(way, call)()


def test_a_worker_that_keeps_failing_is_tried_later_and_later(backend: Make, pids: Path) -> None:
    now = [100.0]
    way = backend("raise SystemExit(3)", clock=lambda: now[0])
    for wait in (0.0, 0.0, 1.0, 2.0, 4.0, 8.0):
        now[0] += max(wait - 0.1, 0)
        if wait:
            with pytest.raises(ClusterUnavailable, match="Next try in"):
                way.change(changes(1))
        now[0] += 0.1
        with pytest.raises(ClusterUnavailable, match=r"^The pyslurm worker ended with status 3"):
            way.change(changes(1))


def test_the_pause_between_tries_has_a_bound(backend: Make) -> None:
    now = [0.0]
    way = backend("raise SystemExit(3)", clock=lambda: now[0])
    for _ in range(12):
        now[0] += 60.0
        with pytest.raises(ClusterUnavailable, match=r"^The pyslurm worker ended with status 3"):
            way.change(changes(1))


def test_a_good_answer_ends_the_pauses(backend: Make, pids: Path) -> None:
    way = backend(a_worker())
    for _ in range(6):
        way.queue()
        os.kill(started(pids)[-1], signal.SIGKILL)
    assert way.queue() == []
    assert len(started(pids)) == 7


def test_what_the_worker_writes_to_standard_error_is_drained_and_quoted(backend: Make) -> None:
    noisy = 'os.write(2, b"noise " * 50_000 + b"segfault in libslurm\\n")\nos.kill(os.getpid(), 11)'
    with pytest.raises(ClusterUnavailable, match=r"signal 11; it said: .*segfault in libslurm") as caught:
        backend(a_worker(on_call=noisy)).queue()
    assert len(caught.value.message) < 1000


def test_of_much_noise_an_error_quotes_only_the_end(backend: Make) -> None:
    noisy = 'os.write(2, b"noise " * 50_000 + b"waiting for slurm.conf\\n")\ntime.sleep(3600)'
    with pytest.raises(ClusterUnavailable, match=r"it said: .*waiting for slurm\.conf") as caught:
        impatient(backend(a_worker(on_call=noisy)), timeout_s=BRIEF_S).queue()
    assert len(caught.value.message) < 1000


def test_closing_ends_the_worker_and_may_be_repeated(backend: Make, pids: Path) -> None:
    way = backend(a_worker())
    way.queue()
    way.close()
    way.close()
    assert gone(started(pids)[0])
    assert way.queue() == []


def test_closing_ends_even_a_worker_that_will_not(pids: Path) -> None:
    with PyslurmBackend(worker=a_worker() + "\ntime.sleep(3600)") as way:
        way.queue()
    assert gone(started(pids)[0])


def test_a_worker_that_was_killed_with_its_children_leaves_none(backend: Make, pids: Path) -> None:
    parent = "if not os.fork():\n    ask_pid()\n    time.sleep(3600)\ntime.sleep(3600)"
    with pytest.raises(WorkerLost):
        impatient(backend(a_worker(on_call=parent)), timeout_s=BRIEF_S).queue()
    limit = time.monotonic() + TEST_TIMEOUT_S
    while not all(gone(pid) or zombie(pid) for pid in started(pids)) and time.monotonic() < limit:
        time.sleep(0.01)
    assert len(started(pids)) == 2
    assert all(gone(pid) or zombie(pid) for pid in started(pids))


def zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def an_error(kind: str, message: str, *, sent: bool) -> str:
    error = {"kind": kind, "message": message, "sent": sent}
    return f'say({{"id": request["id"], "ok": False, "error": {error!r}}})\ncontinue'
