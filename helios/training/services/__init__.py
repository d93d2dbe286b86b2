"""Services that decide what a pool's trials do next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from helios.errors import UsageError
from helios.services.registry import POOL_GROUP, checked_options, find, make_service
from helios.training.model import ServiceChoice
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


def choose_service(
    choice: ServiceChoice | None, name: str | None, options: Mapping[str, Any], *, default: str | None = None
) -> ServiceChoice | None:
    """Return the service of a sweep file, changed as a command says.

    Options of the file hold for its service alone.

    Raises
    ------
    UsageError
        There are options, and no service is named.
    """
    name = name or (choice.name if choice else default)
    if name is None:
        if options:
            raise UsageError("Options are given, and no service that has them.", hint="Add --service packing.")
        return None
    kept = choice.options if choice is not None and choice.name == name else {}
    return ServiceChoice(name=name, options={**kept, **options})


def choose_common_service(
    given: Iterable[ServiceChoice | None], name: str | None, options: Mapping[str, Any], *, default: str | None = None
) -> ServiceChoice | None:
    """Return the service of a pool's sweep files, with a command's options.

    Raises
    ------
    UsageError
        They name different ones.
    """
    choices = [choose_service(choice, name, options, default=default) for choice in given]
    if any(choice != choices[0] for choice in choices):
        raise UsageError(
            "The sweep files do not name the same service with the same options, and a pool has one.",
            hint="Write the same [service] in each.",
        )
    return choices[0]
