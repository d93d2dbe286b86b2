"""What is fuzzed: for each reader valid inputs to begin from, how to read one, and how to make its sums right again."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from hashlib import sha256
from pathlib import Path

from tests.waiting import TEST_TIMEOUT_S

LIMIT_MIN = 60
"""Of the job that is submitted."""
ROOT = Path(__file__).parents[2]
NOW = datetime(2026, 9, 1, 12, tzinfo=UTC)
RECORDED = ROOT / "tests" / "unit" / "ingest" / "recorded"


class Wrong(Exception):
    """An input was taken for something that it is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One reader.

    Attributes
    ----------
    seeds : callable
        Gives valid inputs; the folder is for files that are made on the way.
    read : callable
        Reads an input, in an empty folder.
    reseal : callable, optional
        Makes sums and sizes of a mutated input right again, as somebody who means harm would; for half of the inputs.
    cost : int
        How many inputs of the cheapest target one of this takes the time of.
    """

    seeds: Callable[[Path], Sequence[bytes]]
    read: Callable[[bytes, Path], object]
    reseal: Callable[[bytes], bytes] | None = None
    cost: int = 1


def _written(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def _trace(format_: str, name: str = "trace") -> Callable[[bytes, Path], object]:
    def read(data: bytes, folder: Path) -> object:
        from helios.ingest import TraceFormat, open_trace

        path = _written(folder, name, data)
        return sum(len(batch.jobs) for batch in open_trace(path, format=TraceFormat(format_), timezone="UTC").read())

    return read


def _pai(data: bytes, folder: Path) -> object:
    """Read one input as the tables of PAI, a NUL NUL between them."""
    from helios.ingest import TraceFormat, open_trace

    jobs, _, tasks = data.partition(b"\0\0")
    path = _written(folder, "pai_job_table.csv", jobs)
    _written(folder, "pai_task_table.csv", tasks)
    return sum(len(batch.jobs) for batch in open_trace(path, format=TraceFormat.PAI).read())


def _sniffed(data: bytes, folder: Path) -> object:
    from helios.ingest import open_trace

    return sum(len(batch.jobs) for batch in open_trace(_written(folder, "trace", data)).read())


def _dump(data: bytes, folder: Path) -> object:
    from helios.ingest import open_trace, read_map

    trace = open_trace(_written(folder, "dump.sql", data), columns=read_map("slurmdbd"))
    return sum(len(batch.jobs) for batch in trace.read(cluster="venus"))


def _dump_seeds(folder: Path) -> list[bytes]:
    from tests.unit.ingest.test_column_map import a_dump

    jobs = [{"id_job": number, "job_name": name} for number, name in enumerate(("fit", "it\\'s", "a\\nb"))]
    return [a_dump(folder, *jobs).read_bytes()]


def _map(data: bytes, folder: Path) -> object:
    """Read one input as a map and a table, a NUL NUL between them."""
    from helios.ingest import open_trace, read_map

    text, _, table = data.partition(b"\0\0")
    columns = read_map(str(_written(folder, "map.toml", text)))
    return sum(len(batch.jobs) for batch in open_trace(_written(folder, "table", table), columns=columns).read())


def _map_seeds(_: Path) -> list[bytes]:
    from tests.unit.ingest.test_mapped import HEADER, PLAIN, ROW

    records = [dict(zip(HEADER.split(","), ROW.split(","), strict=True))] * 3
    tables = ("\n".join([HEADER, ROW, ROW]), "\n".join(map(json.dumps, records)), json.dumps(records))
    return [f"{PLAIN}\0\0{table}\n".encode() for table in tables]


def _series(data: bytes, folder: Path) -> object:
    from helios.ingest.node_series import read_series, resample

    return resample(read_series(_written(folder, "nodes.csv", data), timezone="Europe/Berlin", total=None))


def _traces(folder: Path) -> dict[str, list[bytes]]:
    from tests.unit.ingest import builders as b

    def kept(path: Path) -> bytes:
        return path.read_bytes()

    helios = kept(b.a_helios_file(folder, *(b.a_helios_row(job_id=str(n)) for n in range(5))))
    seren = kept(b.a_helios_file(folder, *[b.a_seren_row()] * 3, header=b.SEREN_HEADER))
    kalos = kept(b.a_helios_file(folder, *[b.a_kalos_row()] * 3, header=b.KALOS_HEADER))
    swf = kept(b.an_swf_file(folder, *(b.an_swf_row(submit=n) for n in range(5))))
    philly = kept(b.a_philly_file(folder, *[b.a_philly_job(b.a_philly_attempt(m1=8, m2=2))] * 3))
    pai_folder = folder / "pai"
    pai_folder.mkdir()
    b.a_pai_file(pai_folder, b.a_pai_job(), tasks=[b.a_pai_task()])
    pai = b"\0\0".join((pai_folder / f"pai_{name}_table.csv").read_bytes() for name in ("job", "task"))
    recorded = json.loads((RECORDED / "sacct-22.05.json").read_text())
    few = json.dumps(recorded | {"jobs": recorded["jobs"][:3]}).encode()
    return {
        "sacct": [(RECORDED / "sacct-22.05.txt").read_bytes()],
        "sacct-json": [few],
        "helios": [helios],
        "acme": [seren, kalos],
        "swf": [swf],
        "philly": [philly],
        "pai": [pai],
        "parquet": [b.a_parquet_file(5)],
    }


def _seeds_of(name: str) -> Callable[[Path], Sequence[bytes]]:
    return lambda folder: _traces(folder)[name]


def _all_seeds(folder: Path) -> Sequence[bytes]:
    return [seed for seeds in _traces(folder).values() for seed in seeds]


def _series_seeds(_: Path) -> Sequence[bytes]:
    minutes = [f"2026-09-01 10:{n:02}:00,{n % 7},{10}" for n in range(30)]
    gpus = [f"2026-09-01 10:{n:02}:00,{n % 7},{80}" for n in range(30)]
    return [
        "\n".join(["time,active,total", *minutes, ""]).encode(),
        "\n".join(["time,running_gpu_num,total_gpu_num", *gpus, ""]).encode(),
    ]


# A model: the whole record's text, and the trees' text alone.


@cache
def _record() -> tuple[object, bytes]:
    from helios.predict.duration import train
    from helios.predict.model_record import to_record
    from tests.unit.predict.traces_of import a_campaign

    model = train(a_campaign(400), cluster="lab")
    few = replace(model, trees=replace(model.trees, text=_first_trees(model.trees.text)))
    record = to_record(few, trained_at=NOW)
    return record, record.artifact.encode()


def _first_trees(text: str, trees: int = 3) -> str:
    head, *blocks = re.split(r"(?=Tree=\d+\n)", text)
    return _sized(head, blocks[:trees])


def _sized(head: str, blocks: Sequence[str]) -> str:
    sizes = " ".join(str(len(block)) for block in blocks)
    return re.sub(r"^tree_sizes=.*$", f"tree_sizes={sizes}", head, flags=re.M) + "".join(blocks) + "end of trees\n"


def _model(data: bytes, _: Path) -> object:
    import numpy as np

    from helios.model import ModelRecord
    from helios.predict.model_record import from_record
    from tests.unit.predict.traces_of import a_campaign
    from tests.unit.predict.walks import walked

    record, _text = _record()
    assert isinstance(record, ModelRecord)
    model = from_record(replace(record, artifact=data.decode("utf-8", "replace")))
    found = walked(a_campaign(40), model=model).predicted
    if not np.isfinite(found).all():
        raise Wrong("a prediction is not finite")
    backtest = model.backtest_model()
    return found if backtest is None else walked(a_campaign(40), model=backtest).predicted


def _resealed_model(data: bytes) -> bytes:
    try:
        artifact = json.loads(data)
        artifact.pop("sha256", None)
        sealed = json.dumps(artifact, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return json.dumps(artifact | {"sha256": sha256(sealed.encode()).hexdigest()}).encode()
    except (ValueError, TypeError, AttributeError, RecursionError):
        return data


def _trees(data: bytes, _: Path) -> object:
    """Read trees, and hold the kernels against LightGBM's own parser and predictor."""
    import lightgbm
    import numpy as np

    from helios.predict.distribution import PAIR_FEATURES
    from helios.predict.trees import parse_trees, trees_alone
    from tests.forest import predict_trees

    text = data.decode("latin-1")
    try:
        forest = parse_trees((text,), features=PAIR_FEATURES)
    except ValueError:
        return None
    asked = np.random.default_rng(0).normal(3, 3, (20, len(PAIR_FEATURES))).astype(np.float32)
    asked[::3, ::2] = np.nan
    found = predict_trees(forest, asked)[:, 0]
    booster = lightgbm.Booster(model_str=trees_alone(text))
    if not np.allclose(found, booster.predict(asked, raw_score=True), equal_nan=False):
        raise Wrong("the trees predict otherwise than LightGBM's")
    if not np.isfinite(booster.predict(asked, pred_contrib=True)).all():
        raise Wrong("LightGBM's explanation is not finite")
    return found


def _resized_trees(data: bytes) -> bytes:
    head, *blocks = re.split(r"(?=Tree=\d+\n)", data.decode("latin-1"))
    if not blocks:
        return data
    blocks[-1] = blocks[-1].partition("end of trees")[0]
    return _sized(head, blocks).encode("latin-1")


# The hook's table, read by Helios and by the controller's script.


def _tables(_: Path) -> Sequence[bytes]:
    from helios.slurm.hook_table import HookRow, render

    rows = [
        HookRow(user="ann", partition="gpu", gpus=2, limit_min=60, site_factor=4037, time_min=17),
        HookRow(user="ann", partition="gpu", gpus=2, site_factor=-137),
        HookRow(user="b\u00e9", partition="a b", site_factor=37),
        HookRow(partition="gpu", gpus=2, site_factor=0, time_min=7),
    ]
    texts = [
        render(rows, generation=7, now=NOW, lasts=timedelta(days=40000)),
        render([], generation=1, now=NOW, lasts=timedelta(days=1)),
    ]
    return [text.encode() for text in texts]


def _resummed_table(data: bytes) -> bytes:
    from helios.slurm.hook_table import FORMAT, checksum

    lines = data.split(b"\n")
    body = b"".join(line + b"\n" for line in lines[1:-1] if not line.startswith(b"end "))
    facts = lines[0].split(b" ")[2:5] if len(lines[0].split(b" ")) > 4 else [b"7", b"1", b"9999999999"]
    count = body.count(b"\n")
    told = b" ".join([*facts, str(count).encode(), str(len(body)).encode()])
    total = (checksum(told) * 31 + checksum(body)) % (2**31 - 1)
    return FORMAT.encode() + b" " + told + b" %d\n" % total + body + b"end " + facts[0] + b" %d\n" % count


def _table(data: bytes, folder: Path) -> object:
    from helios.slurm.hook_table import read_table

    table = read_table(_written(folder, "table", data), NOW)
    return table.row_for(user="ann", partition="gpu", gpus=2, limit_min=LIMIT_MIN)


def _hook_in_lua(data: bytes, folder: Path) -> object:
    """Submit a job through the controller's script: what it writes has the mark, and is what Helios reads there."""
    from helios.errors import HookTableInvalid
    from helios.slurm.hook_table import read_table
    from tests.fuzz.lua import submitted

    path = _written(folder, "table", data)
    site, minutes = submitted(path, now_s=int(NOW.timestamp()))
    if (site is not None and abs(site) % 100 != 37) or (minutes is not None and minutes % 10 != 7):
        raise Wrong(f"the hook wrote {site} and {minutes}")
    try:
        row = read_table(path, NOW).row_for(user="ann", partition="gpu", gpus=2, limit_min=LIMIT_MIN)
    except HookTableInvalid:
        if (site, minutes) != (None, None):
            raise Wrong(f"the hook wrote {site} and {minutes} by a table that Helios refuses") from None
        return None
    # A soft limit above the job's own limit is left out: the job would be refused.
    fits = row is not None and 0 < row.time_min < LIMIT_MIN
    expected = (None, None) if row is None else (row.site_factor or None, row.time_min if fits else None)
    if (site, minutes) != expected:
        raise Wrong(f"the hook wrote {(site, minutes)}, Helios reads {expected}")
    return site


# What would have to be reverted.


def _undo_seeds(_: Path) -> Sequence[bytes]:
    return [b"asleep\tn1\nasleep\tgpu-02\nweight\tn1\t100\nkeep_awake\tn[1-3],m7:2\n", b"keep_awake\t(null)\n", b""]


def _undo(data: bytes, folder: Path) -> object:
    from helios.slurm.undo_file import read_undo, write_undo

    found = read_undo(_written(folder, "nodes.undo", data))
    write_undo(folder / "again", asleep=found.asleep, weights=found.weights, keep_awake=found.keep_awake)
    if read_undo(folder / "again") != found:
        raise Wrong("what was read is not what is written from it")
    return found


_SCONTROL = """#!/bin/sh
case "$*" in
'-a -o show node') for n in n1 n2 gpu-02; do echo "NodeName=$n State=IDLE+POWERED_DOWN Weight=7"; done ;;
'show config') echo 'SuspendTimeout = 1'; echo 'SuspendExcNodes = (null)' ;;
*) printf '%s\\n' "$*" >>"$CALLS" ;;
esac
"""
_CALL = re.compile(
    r"update (nodename=[A-Za-z0-9_.,-]+ (weight=[0-9]+|state=power_up)|SuspendExcNodes=[A-Za-z0-9_.,:\[\]-]*)", re.ASCII
)


def _release_script(data: bytes, folder: Path) -> object:
    """Run the kill switch on an undo file: it ends, and tells Slurm only what an undo file can say."""
    _written(folder, "nodes.undo", data)
    programs = folder / "bin"
    programs.mkdir()
    _written(programs, "scontrol", _SCONTROL.encode()).chmod(0o755)
    calls = folder / "calls"
    ran = subprocess.run(
        [
            "/bin/sh",
            str(ROOT / "deploy/slurm/helios-release.sh"),
            "--nodes-only",
            "--wait",
            "0",
            "--state",
            str(folder),
        ],
        env={"PATH": f"{programs}:/usr/bin:/bin", "CALLS": str(calls), "TMPDIR": str(folder)},
        capture_output=True,
        check=False,
        timeout=TEST_TIMEOUT_S,
    )
    if ran.returncode not in (0, 1):
        raise Wrong(f"the script ended with {ran.returncode}: {ran.stderr[-200:]!r}")
    told = calls.read_text("latin-1").split("\n")[:-1] if calls.exists() else []
    if odd := [line for line in told if not _CALL.fullmatch(line)]:
        raise Wrong(f"Slurm was told {odd[0]!r:.200}")
    return told


# What control remembers.


def _memory_seeds(_: Path) -> Sequence[bytes]:
    from helios.control import ControllerState

    memory = ControllerState(
        asked_at={"qssf": NOW}, controller="c1", pending=3, nodes=4, suspended=("x",), said={"qssf": frozenset({"a"})}
    )
    return [memory.to_json().encode()]


def _memory(data: bytes, _: Path) -> object:
    from helios.control import ControllerState

    return ControllerState.from_json(data.decode("utf-8", "replace")).to_json()


def _node_memory_seeds(folder: Path) -> Sequence[bytes]:
    from helios.control import ControllerState, NodeControllerState

    cycle = ControllerState.from_json(_memory_seeds(folder)[0].decode())
    memory = NodeControllerState(
        cycle=cycle, looked_at=NOW, idle={"n1": NOW}, slept={"n1": (NOW,)}, protected_at=NOW, keep_off={"n1": NOW}
    )
    return [memory.to_json().encode()]


def _node_memory(data: bytes, _: Path) -> object:
    from helios.control import NodeControllerState

    return NodeControllerState.from_json(data.decode("utf-8", "replace")).to_json()


TARGETS: dict[str, Target] = {
    **{
        name: Target(
            seeds=_seeds_of(name), read=_trace(name, "trace.json" if name == "sacct-json" else "trace"), cost=10
        )
        for name in ("sacct", "sacct-json", "helios", "acme", "swf", "philly", "parquet")
    },
    "pai": Target(seeds=_seeds_of("pai"), read=_pai, cost=20),
    "dump": Target(seeds=_dump_seeds, read=_dump, cost=20),
    "map": Target(seeds=_map_seeds, read=_map, cost=20),
    "sniffed": Target(seeds=_all_seeds, read=_sniffed, cost=10),
    "series": Target(seeds=_series_seeds, read=_series, cost=10),
    "model": Target(seeds=lambda _: [_record()[1]], read=_model, reseal=_resealed_model, cost=10),
    "trees": Target(
        seeds=lambda _: [json.loads(_record()[1])[part]["text"].encode() for part in ("trees", "backtest")],
        read=_trees,
        reseal=_resized_trees,
        cost=10,
    ),
    "hook": Target(seeds=_tables, read=_table, reseal=_resummed_table),
    "hook-lua": Target(seeds=_tables, read=_hook_in_lua, reseal=_resummed_table),
    "undo": Target(seeds=_undo_seeds, read=_undo),
    "release-script": Target(seeds=_undo_seeds, read=_release_script, cost=100),
    "memory": Target(seeds=_memory_seeds, read=_memory),
    "node-memory": Target(seeds=_node_memory_seeds, read=_node_memory),
}


def available(name: str) -> bool:
    """Say whether a target can run here: the hook's script needs a Lua library, as Slurm does."""
    if name != "hook-lua":
        return True
    from tests.fuzz.lua import library

    return library() is not None and sys.platform == "linux" and os.name == "posix"
