"""Registry of installed services, which also builds them from options.

A package offers a service by an entry point of group ``helios.services``; the entry's name is the service's name in
configuration, audit and reports. An error in a package is reported with its name, and does not affect other services.
Services for pools of trials have the group ``helios.pool_services``. They have no domain, as no control cycle runs
them.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import EntryPoint, entry_points
from keyword import iskeyword
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_json

from helios.choices import Domain
from helios.errors import ServiceInvalid, ServiceUnknown
from helios.ports import Service

GROUP = "helios.services"
POOL_GROUP = "helios.pool_services"
"""Group of :class:`helios.training.ports.PoolService`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOption:
    """One declared option of a service.

    Attributes
    ----------
    name, type, default : str
        As declared. The default is in Python's notation.
    """

    name: str
    type: str
    default: str

    def __str__(self) -> str:
        return f"{self.name}: {self.type} = {self.default}"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledService:
    """Description of a service that an entry point offers.

    Attributes
    ----------
    name : str
        Its name in configuration, audit and reports.
    target : str
        ``module:Class``.
    package : str
        Name and version of its package; empty if unknown.
    summary : str
        First line of the class's docstring.
    options : tuple of ServiceOption
        In the declared order.
    domain : Domain or None
        The domain that it acts on. None for pools.
    requires_gain : str
        The gain that the site's own history must show before the service may act; empty for none.
    broken : str
        Why it cannot be used, for a person; empty where it can.
    """

    name: str
    target: str
    package: str
    summary: str = ""
    options: tuple[ServiceOption, ...] = ()
    domain: Domain | None = Domain.JOBS
    requires_gain: str = ""
    broken: str = ""


def installed(group: str = GROUP) -> dict[str, InstalledService]:
    """Return all installed services of a group by name, broken ones included."""
    return {name: _describe(name, entries, group) for name, entries in sorted(_entries(group).items())}


def build(name: str, options: Mapping[str, Any]) -> Service:
    """Return the service of that name with the given options, else their defaults.

    Parameters
    ----------
    options : mapping
        Text, numbers, booleans, lists and tables, as in a configuration file. They are not converted: ``"30"`` is not
        a number.

    Raises
    ------
    ServiceUnknown
        No installed package offers it. The message names the offered ones.
    ServiceInvalid
        It cannot be loaded, is not a service, or an option is unknown or has an invalid value. The message names what
        is allowed.
    """
    service_class = find(name)
    return make_service(service_class, checked_options(service_class, options, name=name), name=name)


def find(name: str, group: str = GROUP) -> type[Any]:
    """Return the class of the service of that name.

    Raises
    ------
    ServiceUnknown, ServiceInvalid
        As :func:`build`.
    """
    entries = _entries(group)
    if name not in entries:
        installed_names = ", ".join(sorted(entries)) or "none"
        raise ServiceUnknown(
            f"No service {name!r} is installed.",
            hint=f"Installed are: {installed_names}. Is the package that brings it installed?",
        )
    return _load_class(name, entries[name])


def checked_options(service_class: type[Any], options: Mapping[str, Any], *, name: str) -> Any:
    """Check ``options`` and return them as the service's own ``Options``.

    Raises
    ------
    ServiceInvalid
        A key is unknown, or a value is invalid. The message names what is allowed.
    """
    declared = service_class.Options
    options = {f"{name}_" if iskeyword(name) else name: value for name, value in options.items()}
    allowed = f"Options of {name}: {'; '.join(map(str, list_options(service_class))) or 'none'}."
    unknown = sorted(set(options) - {field.name for field in dataclasses.fields(declared) if field.init})
    if unknown:
        raise ServiceInvalid(f"Service {name} has no option {', '.join(map(repr, unknown))}.", hint=allowed)
    try:
        # As JSON, strictly: a list may become a tuple and text an enum, but text never a number.
        return TypeAdapter(declared).validate_json(to_json(dict(options), inf_nan_mode="constants"), strict=True)
    except ValidationError as reason:
        wrong = "; ".join(_validation_message(error) for error in reason.errors())
        raise ServiceInvalid(f"Service {name}: {wrong}.", hint=allowed) from reason
    except PydanticSerializationError as reason:
        raise ServiceInvalid(f"Service {name}: an option's value is of no kind: {reason}.", hint=allowed) from reason


def make_service(service_class: type[Any], options: Any, *, name: str) -> Service:
    """Return the service made with its own ``options``.

    Raises
    ------
    ServiceInvalid
        Its constructor raised, or the service has no positive time ``every``.
    """
    try:
        service = service_class(options)
    except (Exception, SystemExit) as reason:  # because a service is third-party code
        raise ServiceInvalid(f"Service {name} cannot be made: {type(reason).__name__}: {reason}.") from reason
    every = getattr(service, "every", None)
    if not isinstance(every, timedelta) or every <= timedelta(0):
        raise ServiceInvalid(
            f"Service {name} has every = {every!r}.",
            hint="Set self.every in __init__ to a positive datetime.timedelta: the time between two decisions.",
        )
    result: Service = service
    return result


def domain_of(service: object) -> Domain:
    """Return the domain of a service, or of a class of services.

    The default is jobs.
    """
    return Domain(getattr(service, "domain", Domain.JOBS))


def find_flaws(service_class: Any) -> list[str]:
    """Return what prevents a class from being a service.

    It is empty for a valid service.
    """
    if not inspect.isclass(service_class):
        return [f"{service_class!r} is not a class; let the entry point name the service's class"]
    flaws = []
    if not callable(getattr(service_class, "decide", None)):
        flaws.append("it has no method decide(self, snapshot); add one that returns actions")
    domain = getattr(service_class, "domain", Domain.JOBS)
    if domain not in set(Domain):
        flaws.append(f"its domain is {domain!r}; let it be Domain.JOBS or Domain.NODES of helios.ports")
    options = getattr(service_class, "Options", None)
    if not (inspect.isclass(options) and dataclasses.is_dataclass(options)):
        flaws.append("it has no dataclass Options; nest one: @dataclass(frozen=True, kw_only=True) class Options")
    else:
        flaws += _option_flaws(options)
    return flaws


def list_options(service_class: type[Any]) -> tuple[ServiceOption, ...]:
    """Return the options of a service class, in the declared order.

    A name that is a word of Python, such as ``for``, has an underscore behind it in the class alone.
    """
    hints = get_type_hints(service_class.Options, include_extras=False)
    return tuple(
        ServiceOption(name=field.name.removesuffix("_"), type=_type_name(hints[field.name]), default=_default(field))
        for field in dataclasses.fields(service_class.Options)
        if field.init
    )


def _option_flaws(options: Any) -> list[str]:
    flaws = []
    if not options.__dataclass_params__.frozen:
        flaws.append("its Options can be changed after they were checked; write @dataclass(frozen=True)")
    required = [field.name for field in dataclasses.fields(options) if field.init and _default(field) == ""]
    if required:
        flaws.append(f"its options {', '.join(required)} have no default; give them one, so that it runs unconfigured")
    try:
        get_type_hints(options)
        TypeAdapter(options)
    except Exception as reason:  # because third-party types are resolved here
        flaws.append(f"the types of its Options cannot be checked ({reason}); use types a module-level name stands for")
    return flaws


def _entries(group: str) -> dict[str, list[EntryPoint]]:
    entries: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group=group):
        entries_of_name = entries.setdefault(entry.name, [])
        if all(entry.value != other.value for other in entries_of_name):  # an editable install may be listed twice
            entries_of_name.append(entry)
    return entries


def _load_class(name: str, entries: list[EntryPoint]) -> type[Any]:
    if len(entries) > 1:
        raise ServiceInvalid(
            f"Several packages offer a service {name}: {', '.join(map(_package, entries))}.",
            hint="Uninstall all but one of them.",
        )
    (entry,) = entries
    try:
        service_class = entry.load()
    except (Exception, SystemExit) as reason:  # because a service is third-party code
        raise ServiceInvalid(
            f"Service {name} ({entry.value}) cannot be loaded: {type(reason).__name__}: {reason}.",
            hint=f"Repair or uninstall {_package(entry) or 'the package that brings it'}.",
        ) from reason
    flaws = find_flaws(service_class)
    if flaws:
        raise ServiceInvalid(f"{entry.value} cannot be used as service {name}: {'; '.join(flaws)}.")
    return service_class  # type: ignore[no-any-return]  # because an entry point loads anything; it was just checked


def _describe(name: str, entries: list[EntryPoint], group: str) -> InstalledService:
    domain = None if group == POOL_GROUP else Domain.JOBS
    packages = ", ".join(filter(None, map(_package, entries)))
    description = InstalledService(name=name, target=entries[0].value, package=packages, domain=domain)
    try:
        service_class = _load_class(name, entries)
    except ServiceInvalid as reason:
        return dataclasses.replace(description, broken=str(reason))
    return dataclasses.replace(
        description,
        summary=(inspect.getdoc(service_class) or "").partition("\n")[0],
        options=list_options(service_class),
        domain=None if group == POOL_GROUP else domain_of(service_class),
        requires_gain=getattr(service_class, "requires_gain", ""),
    )


def _package(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else ""


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return repr(field.default)
    return repr(field.default_factory()) if field.default_factory is not dataclasses.MISSING else ""


def _type_name(declared: Any) -> str:
    return declared.__name__ if inspect.isclass(declared) else str(declared).replace("typing.", "")


def _validation_message(error: Mapping[str, Any]) -> str:
    where = ".".join(map(str, error["loc"])).removesuffix("_")
    message = str(error["msg"]).removeprefix("Value error, ")
    return f"{where} = {error['input']!r}: {message}" if where else message
