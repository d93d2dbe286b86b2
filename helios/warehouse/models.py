"""Storage of trained models, and of decisions which one is used."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import pandas as pd
import sqlalchemy as sa

from helios.errors import NotEnoughHistory
from helios.model import PROMOTIONS, TIME, AuditStep, ModelRecord
from helios.warehouse import schema
from helios.warehouse.bulk import Bulk
from helios.warehouse.clusters import cluster_id_for_loading, find_cluster_id
from helios.warehouse.columns import frame_of, stored_time
from helios.warehouse.engine import reading, writing
from helios.warehouse.rows import select_columns

MODELS = {
    "model_id": "str",
    "trained_at": TIME,
    "trained_until": TIME,
    "jobs": "int64",
    "scores": "object",
    "manifest": "object",
}
T = TypeVar("T")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ModelStore:
    """Methods of ``Warehouse`` that concern models.

    The incumbent of a cluster is the model of the last decision. Without any decision, it is the model trained last.
    """

    _engine: sa.Engine
    _bulk: Bulk

    def add_model(self, record: ModelRecord) -> None:
        """Store a trained model under its cluster.

        A model with the same id is replaced. Storing a model does not promote it.
        """
        row = {
            "model_id": record.model_id,
            "trained_at": stored_time(record.trained_at),
            "trained_until": stored_time(record.trained_until),
            "jobs": record.jobs,
            "features": json.dumps(record.features),
            "scores": json.dumps(record.scores),
            "manifest": json.dumps(record.manifest),
            "artifact": record.artifact,
        }
        with writing(self._engine) as connection:
            cluster_id = cluster_id_for_loading(connection, name=record.cluster)
            connection.execute(sa.delete(schema.models).filter_by(cluster_id=cluster_id, model_id=record.model_id))
            connection.execute(sa.insert(schema.models).values(cluster_id=cluster_id, **row))

    def model(self, cluster: str, model_id: str | None = None) -> ModelRecord:
        """Return the model of a cluster with an id, or the incumbent.

        Raises
        ------
        NotEnoughHistory
            There is no such model, or no incumbent.
        """
        with reading(self._engine) as connection:
            cluster_id = find_cluster_id(connection, cluster)
            incumbent, decided_at = _incumbent(connection, cluster_id)
            chosen = incumbent if model_id is None else model_id
            row = connection.execute(_select_model(cluster_id, chosen)).one_or_none() if chosen else None
            if row is None:
                raise _no_such_model(cluster, model_id, decided=decided_at is not None)
            return _record(row, cluster=cluster, confirmed_at=decided_at if chosen == incumbent else None)

    def models(self, cluster: str) -> pd.DataFrame:
        """Return a table of a cluster's models, newest first.

        Columns: ``model_id``, ``trained_at``, ``trained_until``, ``jobs``, ``scores`` and ``manifest`` (dicts, empty
        where none was written), ``promoted`` (whether it is the incumbent). The models themselves are not read.
        """
        with reading(self._engine) as connection:
            cluster_id = find_cluster_id(connection, cluster)
            query = select_columns(schema.models, cluster_id, MODELS)
            models = frame_of(self._bulk.select(connection, _newest_first(query)), MODELS)
            incumbent, _ = _incumbent(connection, cluster_id)
        parsed: dict[str, Any] = {name: [_parse(text, {}) for text in models[name]] for name in ("scores", "manifest")}
        is_incumbent = (models["model_id"] == (incumbent or "")).to_numpy(dtype=bool)
        return models.assign(scores=parsed["scores"], manifest=parsed["manifest"], promoted=is_incumbent)

    def forget_models(self, cluster: str, *, keep: int) -> int:
        """Delete old models of a cluster, and return their number.

        The ``keep`` models trained last are kept, and so are the incumbent and the one before it.
        """
        models = schema.models
        with writing(self._engine) as connection:
            cluster_id = find_cluster_id(connection, cluster)
            newest = _newest_first(select_columns(models, cluster_id, ["model_id"])).limit(keep)
            previous = previous_incumbents(self._promotions(connection, cluster_id))[:1]
            in_use = {_incumbent(connection, cluster_id)[0], *previous}
            kept = {*connection.execute(newest).scalars(), *filter(None, in_use)}
            is_old = (models.c.cluster_id == cluster_id) & models.c.model_id.not_in(kept)
            return connection.execute(sa.delete(models).where(is_old)).rowcount

    def decide(
        self,
        cluster: str,
        *,
        step: AuditStep,
        model_id: str | None,
        by: str,
        why: str,
        at: datetime,
        candidate: str | None = None,
    ) -> None:
        """Append a decision about the incumbent model.

        Stored decisions are never changed.

        Parameters
        ----------
        cluster : str
            Name of the cluster; made if it is new.
        step : AuditStep
            What was decided.
        model_id : str, optional
            The incumbent from now on; None means shrinkage.
        by, why : str
            Who decided, and the reason.
        at : datetime
            When it was decided.
        candidate : str, optional
            The model that was evaluated, which need not be stored. It does not count as the previous incumbent, even if
            it is the newest model and nothing was decided yet.

        Raises
        ------
        NotEnoughHistory
            There is no such model.
        """
        with writing(self._engine) as connection:
            cluster_id = cluster_id_for_loading(connection, name=cluster)
            if model_id is not None and connection.execute(_select_model(cluster_id, model_id)).first() is None:
                raise _no_such_model(cluster, model_id, decided=False)
            row = {
                "cluster_id": cluster_id,
                "promoted_at": stored_time(at),
                "step": step.value,
                "model_id": model_id,
                "previous": _incumbent(connection, cluster_id, ignored=candidate)[0],
                "candidate": candidate,
                "promoted_by": by,
                "why": why,
            }
            connection.execute(sa.insert(schema.promotions).values(row))

    def promotions(self, cluster: str) -> pd.DataFrame:
        """Return every decision about the incumbent, oldest first, as a ``PROMOTIONS`` frame."""
        with reading(self._engine) as connection:
            return self._promotions(connection, find_cluster_id(connection, cluster))

    def _promotions(self, connection: sa.Connection, cluster_id: int) -> pd.DataFrame:
        table = schema.promotions
        query = select_columns(table, cluster_id, PROMOTIONS.names).order_by(table.c.promotion_id)
        return frame_of(self._bulk.select(connection, query), PROMOTIONS)


def incumbent_id(connection: sa.Connection, cluster_id: int) -> str:
    """Return the id of the incumbent model, empty if there is none."""
    return _incumbent(connection, cluster_id)[0] or ""


def previous_incumbents(promotions: pd.DataFrame) -> Sequence[str | None]:
    """Return the incumbents to which rollbacks would return, in this order.

    They are the earlier ones, the latest first, without those that a rollback has replaced. None means shrinkage.

    Parameters
    ----------
    promotions : DataFrame
        A ``PROMOTIONS`` frame, oldest first.
    """
    stack: list[str | None] = []
    for row in promotions.itertuples():
        # A missing text is NaN in the frame.
        previous, incumbent = (text if isinstance(text, str) else None for text in (row.previous, row.model_id))
        if not stack or stack[-1] != previous:
            stack.append(previous)
        if str(row.step) == AuditStep.ROLLED_BACK and incumbent in stack:
            while stack[-1] != incumbent:
                stack.pop()
        elif incumbent != stack[-1]:
            stack.append(incumbent)
    return stack[-2::-1] if stack else []


def _incumbent(
    connection: sa.Connection, cluster_id: int, *, ignored: str | None = None
) -> tuple[str | None, datetime | None]:
    """Return the incumbent and the time of the last decision.

    The incumbent is None for shrinkage. Without any decision, the time is None and the incumbent is the newest model
    other than ``ignored``.
    """
    decisions, models = schema.promotions, schema.models
    query = select_columns(decisions, cluster_id, ["model_id", "promoted_at"])
    row = connection.execute(query.order_by(decisions.c.promotion_id.desc()).limit(1)).one_or_none()
    if row is not None:
        return row.model_id, _EPOCH + timedelta(microseconds=row.promoted_at)
    query = select_columns(models, cluster_id, ["model_id"])
    if ignored is not None:
        query = query.where(models.c.model_id != ignored)
    return connection.execute(_newest_first(query).limit(1)).scalar_one_or_none(), None


def _newest_first(query: sa.Select[Any]) -> sa.Select[Any]:
    return query.order_by(schema.models.c.trained_at.desc(), schema.models.c.model_id.desc())


def _select_model(cluster_id: int, model_id: str) -> sa.Select[Any]:
    return sa.select(schema.models).filter_by(cluster_id=cluster_id, model_id=model_id)


def _no_such_model(cluster: str, model_id: str | None, *, decided: bool) -> NotEnoughHistory:
    if model_id is None and decided:
        message = f"No model of cluster {cluster!r} is active: shrinkage predicts, as was decided."
        return NotEnoughHistory(message, hint=f"See why, and what there is: helios model list --cluster {cluster}")
    missing = "no model" if model_id is None else f"no model {model_id!r}"
    hint = f"See what there is: helios model list --cluster {cluster}. Train one: helios model train"
    return NotEnoughHistory(f"There is {missing} for cluster {cluster!r}.", hint=hint)


def _record(row: sa.Row[Any], *, cluster: str, confirmed_at: datetime | None) -> ModelRecord:
    return ModelRecord(
        model_id=row.model_id,
        cluster=cluster,
        trained_at=_EPOCH + timedelta(microseconds=row.trained_at),
        trained_until=_EPOCH + timedelta(microseconds=row.trained_until),
        jobs=row.jobs,
        features=tuple(map(str, _parse(row.features, []))),
        scores=_parse(row.scores, {}),
        manifest=_parse(row.manifest, {}),
        artifact=row.artifact,
        confirmed_at=confirmed_at,
    )


def _parse(text: str | None, default: T) -> T:
    """Return the value of a JSON text, ``default`` if it cannot be used.

    That is where it is invalid or has a value of another type. These texts are only copies of parts of the model's
    artifact, so an invalid one is no reason to fail.
    """
    try:
        value = json.loads(text or "null")
    except (ValueError, RecursionError):
        return default
    return value if isinstance(value, type(default)) else default
