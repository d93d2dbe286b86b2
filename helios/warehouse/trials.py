"""Trials of training pools in the warehouse."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import fields
from itertools import chain, repeat

import sqlalchemy as sa

from helios.model.trial_runs import CurvePoint, MeasuredSpeed, TrialRun
from helios.warehouse import schema
from helios.warehouse.bulk import Bulk
from helios.warehouse.engine import reading, writing
from helios.warehouse.schema import SECOND_US

MOST_RUNS_READ = 20_000
"""Most runs of a program that are read, the last ones. A model needs no more, and reading them takes a second."""
MOST_CURVES_READ = 1_000
"""Most of them that are read with their curves, the last ones, at some 0.3 ms each."""
SHORT_POOL = 12
"""Letters of a pool's name that nobody else's has. It is random and has 32."""
_NOT_AS_IT_IS = {"started_s", "parameters", "speeds", "sizes", "metrics", "placement", "metric", "direction", "curve"}
_TRIAL_COLUMNS = tuple(field.name for field in fields(TrialRun) if field.name not in _NOT_AS_IT_IS)
"""Fields of ``TrialRun`` that are stored as they are."""


class TrialStore:
    """Methods of ``Warehouse`` that concern trials.

    A pool may run anywhere, so its trials belong to a user and not to a cluster.
    """

    _engine: sa.Engine
    _bulk: Bulk

    def add_trial_runs(self, runs: Iterable[TrialRun], *, user: str) -> int:
        """Store runs of trials, and return how many were new.

        A stored run stays as it is.
        """
        rows = {(run.pool, run.number, run.attempt): _trial_row(run, user) for run in runs}
        table = schema.trial_runs
        with writing(self._engine) as connection:
            keys = sa.select(table.c.pool, table.c.number, table.c.attempt)
            for pool in {pool for pool, _, _ in rows}:
                for row in connection.execute(keys.where(table.c.pool == pool)).all():
                    rows.pop((row.pool, row.number, row.attempt), None)
            if rows:
                # Another pool of a shared folder may store the same ones just now.
                connection.execute(self._bulk.insert_into(table).on_conflict_do_nothing(), list(rows.values()))
        return len(rows)

    def trial_runs(
        self, *, user: str | None = None, program: str | None = None, pool: str | None = None
    ) -> list[TrialRun]:
        """Return the last 20,000 runs of trials, oldest first.

        They are those of a user, a program and a pool, where these are given. The last 1,000 have their curves. Of the
        name of a pool the first ``SHORT_POOL`` letters are enough.
        """
        table = schema.trial_runs
        chosen = [] if user is None else [table.c.user == user]
        chosen += [] if program is None else [table.c.program == program]
        chosen += [] if pool is None else [sa.func.substr(table.c.pool, 1, max(SHORT_POOL, len(pool))) == pool]
        order = [column.desc() for column in (table.c.started_at, table.c.pool, table.c.number, table.c.attempt)]
        columns = [column for column in table.c if column.name != "curve"]
        runs = sa.select(*columns).where(*chosen).order_by(*order).limit(MOST_RUNS_READ)
        curves = sa.select(table.c.curve).where(*chosen).order_by(*order).limit(MOST_CURVES_READ)
        with reading(self._engine) as connection:
            texts = chain(connection.execute(curves).scalars().all(), repeat(None))
            return [_trial_run(row, curve) for row, curve in zip(connection.execute(runs), texts, strict=False)][::-1]


def _trial_row(run: TrialRun, user: str) -> dict[str, object]:
    speeds = [[list(speed.beside), speed.steps_per_s, speed.seconds] for speed in run.speeds]
    return {name: getattr(run, name) for name in _TRIAL_COLUMNS} | {
        "user": user,
        "started_at": round(run.started_s * SECOND_US),
        "parameters": json.dumps(dict(run.parameters), default=str),
        "speeds": json.dumps({"speeds": speeds, "sizes": run.sizes} if run.sizes else speeds),
        "metrics": json.dumps(dict(run.metrics)),
        "placement": json.dumps(run.placement),
        "metric": run.metric,
        "direction": run.direction,
        "curve": json.dumps(run.curve, separators=(",", ":")),
    }


def _trial_run(row: sa.Row[tuple[object, ...]], curve: str | None) -> TrialRun:
    values = row._mapping
    speeds = json.loads(values["speeds"])
    sizes = speeds if isinstance(speeds, dict) else {"speeds": speeds, "sizes": {}}
    return TrialRun(
        **{name: values[name] for name in _TRIAL_COLUMNS},
        metric=values["metric"] or "",
        direction=values["direction"] or "",
        started_s=values["started_at"] / SECOND_US,
        parameters=json.loads(values["parameters"]),
        speeds=tuple(
            MeasuredSpeed(beside=tuple(beside), steps_per_s=steps, seconds=seconds)
            for beside, steps, seconds in sizes["speeds"]
        ),
        sizes=sizes["sizes"],
        metrics=json.loads(values["metrics"]),
        placement=tuple(json.loads(values["placement"] or "[1]")),
        curve=tuple(CurvePoint._make(point) for point in json.loads(curve or "[]")),
    )
