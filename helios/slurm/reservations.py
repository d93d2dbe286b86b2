"""Reservations of a running Slurm."""

from __future__ import annotations

import re

import pandas as pd

from helios.errors import AnswerNotUnderstood
from helios.model import RESERVATIONS
from helios.slurm import parse
from helios.slurm.shell import Shell, lines

NONE = "No reservations in the system"
_FIELD = re.compile(r"(?:^| )(\w+)=(.*?)(?= \w+=|$)")


def read_reservations(shell: Shell) -> pd.DataFrame:
    """Return all reservations as a ``RESERVATIONS`` frame, the first to begin first.

    Raises
    ------
    ClusterUnavailable, ClusterRefused, AnswerNotUnderstood
        The command failed, or its answer is not understood.
    """
    shown = [line for line in lines(shell.run("scontrol", "--all", "--oneliner", "show", "reservation")) if line]
    if shown == [NONE]:
        return RESERVATIONS.empty()
    rows = []
    for line in shown:
        fields: dict[str, str] = {}
        for name, value in _FIELD.findall(line):
            fields.setdefault(name, value)  # a comment, which comes last, may hold anything
        begins_s, ends_s = (parse.time_s(fields.get(name, "")) for name in ("StartTime", "EndTime"))
        if begins_s is None or ends_s is None or "ReservationName" not in fields:
            raise AnswerNotUnderstood(
                f"A reservation without name, begin or end: {line[:80]!r}", hint="Run: scontrol show reservation"
            )
        texts = {
            "name": "ReservationName",
            "state": "State",
            "partition": "PartitionName",
            "node_list": "Nodes",
            "users": "Users",
            "accounts": "Accounts",
            "flags": "Flags",
        }
        rows.append(
            {
                **{column: parse.text(fields.get(name, "")) for column, name in texts.items()},
                "nodes": parse.whole(fields.get("NodeCnt", "")),
                "begins_at": pd.Timestamp(begins_s, unit="s", tz="UTC"),
                "ends_at": pd.Timestamp(ends_s, unit="s", tz="UTC"),
            }
        )
    return RESERVATIONS.conform(pd.DataFrame(rows)).sort_values("begins_at", kind="stable", ignore_index=True)
