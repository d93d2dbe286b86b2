"""Storage of trained models and of the decisions which one predicts."""

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
from helios.warehouse.bulk import Bulk, cluster_id_for_loading, find_cluster_id, frame_of, stored_time
from helios.warehouse.engine import reading, writing
from helios.warehouse.jobs import select_columns

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

    The incumbent of a cluster is the model promoted last. Where nothing was ever decided, it is the model trained last.
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
        """Return the model of a cluster with that id.

        With ``model_id`` None it is the incumbent.

        Raises
        ------
        NotEnoughHistory
            There is no such model, or no incumbent, so that shrinkage predicts.
        """
        with reading(self._engine) as connection:
            cluster_id = find_cluster_id(connection, cluster)
            promoted, confirmed_at = _promoted(connection, cluster_id)
            wanted = promoted if model_id is None else model_id
            row = connection.execute(_select_model(cluster_id, wanted)).one_or_none() if wanted else None
            if row is None:
                raise _no_such_model(cluster, model_id, decided=confirmed_at is not None)
            return _record(row, cluster=cluster, confirmed_at=confirmed_at if wanted == promoted else None)

    def models(self, cluster: str) -> pd.DataFrame:
        """Return a table of a cluster's models, newest first.

        Columns: ``model_id``, ``trained_at``, ``trained_until``, ``jobs``, ``scores`` and ``manifest`` (dicts, empty
        where none was written), ``promoted``. The models themselves are not read.
        """
        with reading(self._engine) as connection:
            cluster_id = find_cluster_id(connection, cluster)
            query = select_columns(schema.models, cluster_id, MODELS)
            found = frame_of(self._bulk.select(connection, _newest_first(query)), MODELS)
            promoted, _ = _promoted(connection, cluster_id)
        texts: dict[str, Any] = {name: [_parse(text, {}) for text in found[name]] for name in ("scores", "manifest")}
        is_promoted = (found["model_id"] == (promoted or "")).to_numpy(dtype=bool)
        return found.assign(scores=texts["scores"], manifest=texts["manifest"], promoted=is_promoted)

    def forget_models(self, cluster: str, *, keep: int) -> int:
        """Delete old models of a cluster.

        The ``keep`` models trained last are kept, and so are the incumbent and the one before it.

        Returns
        -------
        int
            How many models were deleted.
        """
        models = schema.models
        with writing(self._engine) as connection:
            cluster_id = find_cluster_id(connection, cluster)
            of_cluster = select_columns(models, cluster_id, ["model_id"])
            stacked = previous_model(self._promotions(connection, cluster_id))
            needed = {_promoted(connection, cluster_id)[0], *stacked[:1]}
            kept = {*connection.execute(_newest_first(of_cluster).limit(keep)).scalars(), *filter(None, needed)}
            chosen = (models.c.cluster_id == cluster_id) & models.c.model_id.not_in(kept)
            return connection.execute(sa.delete(models).where(chosen)).rowcount

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
            The model that was evaluated, which need not be stored. It was not the incumbent before, even if no decision
            was made yet and it is the newest.

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
                "previous": _promoted(connection, cluster_id, besides=candidate)[0],
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
    return _promoted(connection, cluster_id)[0] or ""


def previous_model(promotions: pd.DataFrame) -> Sequence[str | None]:
    """Return the earlier incumbents, the latest first.

    This is the order in which they are rolled back to. A model that was rolled back from is not among them. None means
    shrinkage.

    Parameters
    ----------
    promotions : DataFrame
        A ``PROMOTIONS`` frame, oldest first.
    """
    stack: list[str | None] = []
    for row in promotions.itertuples():
        previous, chosen = _none_if_empty(row.previous), _none_if_empty(row.model_id)
        if not stack or stack[-1] != previous:
            stack.append(previous)
        if str(row.step) == AuditStep.ROLLED_BACK and chosen in stack:
            while stack[-1] != chosen:
                stack.pop()
        elif chosen != stack[-1]:
            stack.append(chosen)
    return stack[-2::-1] if stack else []


def _none_if_empty(text: Any) -> str | None:
    return text if isinstance(text, str) else None


def _promoted(
    connection: sa.Connection, cluster_id: int, *, besides: str | None = None
) -> tuple[str | None, datetime | None]:
    """Return the incumbent and the time of the last decision.

    The incumbent is None where shrinkage predicts. Where nothing was ever decided, the time is None and the incumbent
    is the newest model but ``besides``.
    """
    decisions, models = schema.promotions, schema.models
    decided = select_columns(decisions, cluster_id, ["model_id", "promoted_at"])
    row = connection.execute(decided.order_by(decisions.c.promotion_id.desc()).limit(1)).one_or_none()
    if row is not None:
        return row.model_id, _EPOCH + timedelta(microseconds=row.promoted_at)
    newest = select_columns(models, cluster_id, ["model_id"])
    if besides is not None:
        newest = newest.where(models.c.model_id != besides)
    return connection.execute(_newest_first(newest).limit(1)).scalar_one_or_none(), None


def _newest_first(query: sa.Select[Any]) -> sa.Select[Any]:
    return query.order_by(schema.models.c.trained_at.desc(), schema.models.c.model_id.desc())


def _select_model(cluster_id: int, model_id: str) -> sa.Select[Any]:
    return sa.select(schema.models).filter_by(cluster_id=cluster_id, model_id=model_id)


def _no_such_model(cluster: str, model_id: str | None, *, decided: bool) -> NotEnoughHistory:
    if model_id is None and decided:
        message = f"No model of cluster {cluster!r} is active: shrinkage predicts, as was decided."
        return NotEnoughHistory(message, hint=f"See why, and what there is: helios model list --cluster {cluster}")
    wanted = "no model" if model_id is None else f"no model {model_id!r}"
    hint = f"See what there is: helios model list --cluster {cluster}. Train one: helios model train"
    return NotEnoughHistory(f"There is {wanted} for cluster {cluster!r}.", hint=hint)


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


def _parse(text: str | None, nothing: T) -> T:
    """Return the value of a JSON text.

    ``nothing`` is returned where the text is broken or holds a value of another type. These texts are only copies of
    what the model's artifact holds, so a broken one is no reason to fail.
    """
    try:
        found = json.loads(text or "null")
    except (ValueError, RecursionError):
        return nothing
    return found if isinstance(found, type(nothing)) else nothing
