"""Gate for services that must show a gain before they act.

The gain is that of a what-if replay on the site's own history.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from helios.app.history import load_history
from helios.app.reports import known_nodes
from helios.app.service_replay import soft_limit_gain
from helios.app.whatif import WhatIfRequest
from helios.config import Settings
from helios.errors import UsageError
from helios.ports import Progress, Service, no_progress
from helios.services.registry import build
from helios.warehouse import Warehouse

LOOK_BACK = timedelta(weeks=4)


class NoGain(UsageError):
    """A service may not act because a what-if replay shows no gain."""


def refuse_without_gain(
    settings: Settings,
    cluster: str,
    name: str,
    service: Service,
    *,
    now: datetime | None = None,
    progress: Progress = no_progress,
) -> tuple[str, ...]:
    """Raise unless the last four weeks show the service's gain.

    Services that do not require a gain pass without a replay.

    Returns
    -------
    tuple of str
        The result of the replay as one sentence; empty where none was needed.

    Raises
    ------
    NoGain
        There is no gain, or no history to show one.
    """
    if getattr(service, "requires_gain", "") != "soft_limits":
        return ()
    with Warehouse.open(settings.database.url) as warehouse:
        nodes, gpus_per_node = known_nodes(warehouse, cluster)
    history = load_history(url=settings.database.url, cluster=cluster)
    until = now or datetime.now(UTC)
    request = WhatIfRequest(
        plans=(),
        since=until - LOOK_BACK,
        until=until,
        warm_up=timedelta(days=7),
        nodes=nodes,
        gpus_per_node=gpus_per_node or settings.whatif.gpus_per_node,
        resource=None,
        skip_oversized=True,
        default_time_limit_s=settings.whatif.default_time_limit_s,
        seed=settings.model.seed,
    )
    gain = soft_limit_gain(
        history,
        request,
        service,
        beside=_beside(settings, name),
        most_of_one_user=settings.control.most_of_one_user,
        progress=progress,
    )
    if not gain.is_clear:
        raise NoGain(
            f"{name} stays in shadow. {gain.sentence}",
            hint="Soft limits only help where backfill lacks good estimates. See docs/safety.md.",
        )
    return (gain.sentence,)


def _beside(settings: Settings, name: str) -> Mapping[str, Service]:
    return {other: build(other, options) for other, options in settings.services.items() if other != name}
