"""The services of a configuration, made, and sorted by what they act on."""

from __future__ import annotations

from typing import Any

from helios.config import Settings
from helios.ports import Office, Service
from helios.services.registry import build, find, installed, office_of, options_of


def services_of(settings: Settings, *, office: Office | None = None) -> dict[str, Service]:
    """Return the services of the configuration, in its order.

    Parameters
    ----------
    office : Office, optional
        Only those that act on this; None: all.

    Raises
    ------
    ServiceUnknown, ServiceInvalid
        One cannot be had as it is asked for.
    """
    made = {name: build(name, _completed(name, options, settings)) for name, options in settings.services.items()}
    return {name: service for name, service in made.items() if office in {None, office_of(service)}}


def offices_of(settings: Settings) -> frozenset[Office]:
    """Return what the services of the configuration act on; one that cannot be had acts on nothing."""
    offered = installed()
    return frozenset(offered[name].office for name in settings.services if name in offered)


def _completed(name: str, options: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """Add what the site says once for all services: by which mechanism nodes sleep."""
    declared = {option.name for option in options_of(find(name))}
    return ({"mechanism": settings.power.mechanism} if "mechanism" in declared else {}) | options
