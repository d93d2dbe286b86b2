"""Services that decide what a pool's trials do next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from helios.services.registry import POOL_GROUP, checked_options, find, make_service
from helios.training.ports import PoolService


def build_for_pool(name: str, options: Mapping[str, Any]) -> PoolService:
    """Return a pool service by name.

    Raises
    ------
    ServiceUnknown, ServiceInvalid
        As :func:`helios.services.registry.build`.
    """
    service_class = find(name, POOL_GROUP)
    service: Any = make_service(service_class, checked_options(service_class, options, name=name), name=name)
    result: PoolService = service
    return result
