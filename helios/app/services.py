"""Services of the configuration, which commands ask without a cluster."""

from __future__ import annotations

from typing import Any

from helios.choices import Domain
from helios.config import Settings
from helios.ports import Service
from helios.services.registry import build, domain_of, find, installed, list_options


def configured_services(settings: Settings, *, domain: Domain | None = None) -> dict[str, Service]:
    """Return the services of the configuration, in its order.

    Parameters
    ----------
    domain : Domain, optional
        Only those that act on this. None for all.

    Raises
    ------
    ServiceUnknown, ServiceInvalid
        A service does not exist or cannot be made with these options.
    """
    made = {
        name: build(name, _add_site_options(name, options, settings)) for name, options in settings.services.items()
    }
    return {name: service for name, service in made.items() if domain in {None, domain_of(service)}}


def configured_domains(settings: Settings) -> frozenset[Domain]:
    """Return the domains that the configured services act on.

    A service that is not installed is ignored.
    """
    offered = installed()
    domains = (offered[name].domain for name in settings.services if name in offered)
    return frozenset(domain for domain in domains if domain is not None)


def _add_site_options(name: str, options: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """Add the options that a site sets once for all services.

    At present this is the mechanism by which nodes sleep.
    """
    declared = {option.name for option in list_options(find(name))}
    return ({"mechanism": settings.power.mechanism} if "mechanism" in declared else {}) | options
