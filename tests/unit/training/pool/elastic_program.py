"""Program that speaks the protocol of elastic training without training: ``python elastic_program.py HOW``.

It makes a step every twentieth of a second until ``go`` is there, and notes what it was given in ``seen``. ``HOW`` is
``takes`` or ``refuses`` for its answer to a resize, ``deaf`` for none, or ``plain`` for a program without the agent.
``slow`` takes when ``answer`` is there, ``large`` takes 250 MiB with its first change, and keeps them.
``late`` takes a growth two seconds too late, and ``mute`` takes without an answer. ``takes`` loses a worker when
``lose`` is there. ``kills`` kills what started it on a node that is not the first. ``lies`` takes, and tells again and
again what cannot be. On a full disk it trains on, as programs with the agent do.
"""

import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

how = sys.argv[1]
given = json.loads(os.environ.get("HELIOS_ELASTIC", '{"devices": [{}]}'))
requests = Path(os.environ["HELIOS_REQUESTS"])
checkpoint = Path(os.environ["HELIOS_CHECKPOINTS"]) / "step"
step = int(checkpoint.read_text()) if checkpoint.exists() else 0
devices = given["devices"]
answered, checkpointed, taken = None, False, b""


def report(**values):
    with suppress(OSError), Path(os.environ["HELIOS_REPORT"]).open("a") as file:
        file.write(json.dumps({**values, "time_s": time.time()}) + "\n")


def note(**values):
    with Path("seen").open("a") as file:
        file.write(json.dumps({"pid": os.getpid(), "step": step, **values}) + "\n")


def save():
    partial = checkpoint.with_name(f".{os.getpid()}")
    with suppress(OSError):
        partial.write_text(str(step))
        partial.rename(checkpoint)


note(given=given, device=os.environ["HELIOS_DEVICE"])
while given.get("node") and not Path("go").exists():  # one of several nodes, which tells nothing
    if how == "kills":
        os.kill(os.getppid(), signal.SIGKILL)
    if requests.exists() and json.loads(requests.read_text())["request"] != "resize":
        sys.exit(0)
    time.sleep(0.05)
if given.get("node"):
    sys.exit(0)
while not Path("go").exists():
    step += 1
    save()
    elastic = {"devices": len(devices), "nodes": 1, "local": 32, "accumulation": 0, "step_s": 0.05 / len(devices)}
    elastic |= {"sync_s": 0.01, "square": 2.0, "variance": 6.0, "epoch": step // 10, "progress": float(step)}
    report(
        step=step, progress=min(0.99, step / 1000), loss=1.0 / step, **({} if how == "plain" else {"elastic": elastic})
    )
    try:
        request = json.loads(requests.read_text())
    except (OSError, ValueError):
        request = {"request": None}
    if request["request"] in ("pause", "stop"):
        report(answer=request["request"])
        sys.exit(0)
    if request["request"] == "checkpoint" and not checkpointed:
        checkpointed = True
        report(answer="checkpoint", checkpoint="step", step=step)
    is_slow = how == "slow" and not Path("answer").exists()
    if (
        request["request"] == "resize"
        and request["number"] != answered
        and how not in ("deaf", "plain")
        and not is_slow
    ):
        answered = request["number"]
        note(request=request)
        while how == "late" and time.time() < request["by_s"] + 2 and len(request["devices"]) > 1:
            time.sleep(0.05)
        if how == "refuses":
            report(answer="resize", elastic={"number": answered, "refused": "its batch does not fit"})
        else:
            devices = request["devices"]
            pause_s = float("nan") if how == "lies" else 0.25
            taken = b"x" * (250 * 2**20) if how == "large" else b""
            if how != "mute":
                report(answer="resize", elastic={"number": answered, "devices": len(devices), "pause_s": pause_s})
    if how == "lies" and answered:
        for lie in ({"number": answered, "devices": 1}, {"number": 10**400, "pause_s": 10**400, "devices": 10**400}):
            report(elastic=lie)
        for count in (-1, 10**400, True):
            report(elastic={"devices": count, "lost": "\x1b[2J" * 1000, "kept": [10**400, -1]})
    if Path("lose").exists() and len(devices) > 1:
        Path("lose").unlink()
        devices = devices[:1] + devices[2:]
        lost = {"devices": len(devices), "kept": [0, *range(2, len(devices) + 1)], "lost": "worker 1 ended with -9"}
        report(elastic=lost)
    time.sleep(0.05)
report(step=step + 1, progress=1.0, loss=0.0)
