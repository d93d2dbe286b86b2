"""Settings from ``helios.toml`` and ``HELIOS_*`` as frozen, typed values.

Each value has its origin. Later sources have precedence over earlier ones: built-in default, files of the system, file
of the user, file in the current folder, environment, options of the command. A file that is named replaces all other
files.

A configuration names programs that Helios runs. So a file is used only if nobody else could have written it.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import re
import stat
import textwrap
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo, available_timezones

import platformdirs
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from helios.errors import ConfigurationInvalid
from helios.units import DAY_S

FILE_NAME = "helios.toml"
FILE_VARIABLE = "HELIOS_CONFIG"
TASK_VARIABLES = (
    "HELIOS_POOL",
    "HELIOS_TRIAL",
    "HELIOS_TRIAL_FOLDER",
    "HELIOS_PARAMETERS",
    "HELIOS_REPORT",
    "HELIOS_REQUESTS",
    "HELIOS_CHECKPOINTS",
    "HELIOS_DEVICE",
)
"""Variables that a training pool sets for its programs, which may run helios themselves."""
SYSTEM_FOLDER = Path("/etc/helios")
PARTS = "conf.d"
"""Folder in ``SYSTEM_FOLDER`` with more files, ``*.toml``, which are read in the order of their names."""
PASSWORD_VARIABLE = "HELIOS_SMTP_PASSWORD"
OTHER_VARIABLES = ("HELIOS_TRACES", "HELIOS_USE", "HELIOS_PYSLURM_ROOT", PASSWORD_VARIABLE, *TASK_VARIABLES)
"""Other variables with this prefix, which notices, tests, benchmarks, scripts and programs in pools read."""
SECRET_KEYS = frozenset({"notify.webhook", "notify.slack"})
"""Keys with URLs whose path is never shown."""
TEST_PREFIX = "HELIOS_TEST_"
"""Prefix of variables of tests, which are ignored."""
ROOT = 0

EVENTS = ("suspended", "protected", "drift", "nightly", "attention")

_USER_DEFAULTS = {
    "database.url": "postgresql://helios@db.example.org/helios",
    "control.state_folder": "/var/lib/helios",
    "report.folder": "/var/lib/helios/reports",
}
"""Examples for keys whose default depends on the user."""


def zone_name(name: str) -> str:
    """Return ``name`` if it is an IANA time zone.

    Raises ValueError with examples otherwise.
    """
    if name not in available_timezones():
        raise ValueError(f"{name!r} is not a time zone; write it as UTC, Europe/Berlin or Asia/Shanghai")
    return name


def absolute_folder(name: str) -> str:
    """Return ``name`` if it is empty or an absolute path.

    Raises ValueError otherwise, as a relative path would depend on the folder in which a command is typed.
    """
    if name and not Path(name).is_absolute():
        raise ValueError(f"{name!r} must be an absolute path, such as /opt/slurm/bin")
    return name


def addresses(text: str) -> str:
    """Return ``text`` if it is empty or mail addresses by commas."""
    for address in filter(None, (part.strip() for part in text.split(","))):
        if not re.fullmatch(r"[^@\s<>,;]+@[^@\s<>,;]+", address):
            raise ValueError(f"{address!r} is not a mail address; write it as hpc-admins@site.example")
    return text


def host_port(text: str) -> str:
    """Return ``text`` if it names a host and a port."""
    if not re.fullmatch(r"(?:\[[0-9A-Fa-f:.]+\]|[^:\[\]\s]+):\d{1,5}", text) or int(text.rpartition(":")[2]) > 65_535:
        raise ValueError(f"{text!r} is not HOST:PORT, such as smtp.site.example:587")
    return text


def web_address(text: str) -> str:
    """Return ``text`` if it is empty or an encrypted or local address."""
    if text and not re.match(r"https://[^/\s]|http://(?:localhost|127\.0\.0\.1|\[::1\])[:/]", text):
        raise ValueError("an address begins with https://, or with http:// on this machine")  # it is a secret
    return text


def web_origins(text: str) -> str:
    """Return ``text`` if it is origins of web sites by commas."""
    for origin in filter(None, (part.strip() for part in text.split(","))):
        if not re.fullmatch(r"https?://(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\])(?::\d{1,5})?", origin):
            raise ValueError(f"{origin!r} is no origin, such as https://ondemand.example.org")
    return text


def server_address(text: str) -> str:
    """Return ``text`` if it is empty or the address of a server, without a password."""
    if text and not re.fullmatch(r"https?://[^/\s@]+(?:/[^\s?#]*)?", text):
        raise ValueError(f"{text!r} is no address, such as http://prometheus.example.org:9090; no password is in it")
    return text.rstrip("/")


def event_names(text: str) -> str:
    """Return ``text`` if it is names of events by commas."""
    for name in filter(None, (part.strip() for part in text.split(","))):
        if name not in EVENTS:
            raise ValueError(f"{name!r} is no event; there are {', '.join(EVENTS)}")
    return text


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Database(_Section):
    """Location of the warehouse."""

    url: str = Field(default_factory=lambda: f"sqlite:///{platformdirs.user_data_path('helios') / 'helios.db'}")
    """SQLAlchemy URL of the warehouse: sqlite:///FILE or postgresql://USER@HOST/NAME. A password belongs in the
    environment or in PostgreSQL's own ~/.pgpass"""
    cluster: str = ""
    """Loaded cluster to use where a command names none; empty: the only one"""


class Ingest(_Section):
    """Reading of history files."""

    timezone: Annotated[str, AfterValidator(zone_name)] = "UTC"
    """Time zone assumed for times that carry none"""
    gpus_from: str = ""
    """slurm.conf or table of nodes whose GPUs count parts, and GPUs that no row names; empty: none"""


class ModelSection(_Section):
    """Training and evaluation of the duration predictor."""

    seed: int = Field(default=0, ge=0)
    """Seed of the training; the same seed gives the same model"""
    test_fraction: float = Field(default=0.3, gt=0, lt=1)
    """Last part of the history, by submission, on which a model is judged"""
    judged_days: float = Field(default=7, ge=0.5)
    """Last days on which a night's model is judged before it takes charge"""
    kept: int = Field(default=30, ge=1)
    """Newest models that are kept; the active one and the one before it always are"""


class WhatIfSettings(_Section):
    """Replay of history."""

    gpus_per_node: int = Field(default=8, ge=1)
    """GPUs of a node, where the command does not say"""
    default_time_limit_s: int = Field(default=7 * DAY_S, ge=1)
    """Time limit assumed for jobs that have none, s"""


class SlurmSettings(_Section):
    """Connection to the cluster."""

    backend: Literal["auto", "pyslurm", "commands"] = "auto"
    """auto: pyslurm where it fits the controller's release, else Slurm's commands"""
    python: str = ""
    """Python that has pyslurm, for the worker process, with what must stand before it (chroot /srv/slurm python3);
    empty: the one that runs Helios"""
    commands: Annotated[str, AfterValidator(absolute_folder)] = ""
    """Folder of Slurm's commands; empty: found on PATH"""
    timeout_s: float = Field(default=30, gt=0)
    """Longest wait for one answer of the cluster, s"""
    site_factor_most: int = Field(default=10_000, ge=137, le=1_000_000_000)
    """Bound of the SiteFactor that Helios writes, either way; compare with your PriorityWeight*"""
    writes_per_cycle: int = Field(default=500, ge=1)
    """Most jobs changed in one cycle; the rest wait for the next"""


class Control(_Section):
    """Limits of services, and conditions under which nothing is done."""

    state_folder: str = Field(default_factory=lambda: str(platformdirs.user_state_path("helios")))
    """Where the pause file, the hook's table and the daemon's health lie"""
    lease_s: int = Field(default=180, ge=10)
    """How long the one writer's lease lasts without renewal, s"""
    oldest_history_s: int = Field(default=3600, ge=60)
    """No writes when the history was read longer ago than this, s"""
    oldest_model_s: int = Field(default=14 * DAY_S, ge=3600)
    """No writes when the model is older than this, s"""
    clock_skew_s: float = Field(default=30, gt=0)
    """No writes when the controller's clock differs by more, s"""
    most_of_one_user: float = Field(default=0.5, gt=0, le=1)
    """Largest share of the jobs put ahead of others' in a partition that one user may have"""
    mismatches_to_open: int = Field(default=5, ge=1)
    """Cycles with failures or mismatches in a row that open the breaker"""
    breaker_s: int = Field(default=900, ge=1)
    """How long an open breaker suspends Helios, s"""
    failures_to_suspend: int = Field(default=3, ge=1)
    """Cycles in a row in which a service fails before it is suspended"""
    yield_least_run_s: int = Field(default=1800, ge=1)
    """Least time that a job has run since its last start before it may be asked to yield, s"""
    yield_checkpoint_s: int = Field(default=600, ge=1)
    """How long a job that was asked to yield has to confirm a checkpoint, s; then it is left alone for an hour"""
    yield_most_per_hour: int = Field(default=2, ge=0)
    """Most jobs of the cluster that are asked to yield in an hour"""
    yield_most_per_job: int = Field(default=2, ge=0)
    """Most times that one job is requeued to yield"""


class HistorySettings(_Section):
    """Reading of the cluster's own history."""

    start: str = ""
    """Where the first reading begins (2026-09-01); empty: 30 days ago"""
    window_s: int = Field(default=DAY_S, ge=60)
    """Longest stretch asked of the accounting at once, s"""
    overlap_s: int = Field(default=3600, ge=0)
    """How far before the watermark every reading begins again, s"""
    jobs_for_predictions: int = Field(default=100_000, ge=1_000)
    """Last jobs that predictions of the pending ones look back on"""
    job_use: str = Field(default="", pattern=r"^((jobstats|sacct)(, ?(jobstats|sacct))*)?$")
    """Sources of what jobs used: jobstats (AdminComment), sacct (memory of steps) or both, by a comma; empty: none"""


class DaemonSettings(_Section):
    """Times of the daemon's tasks, its address and its logs."""

    cycle_s: int = Field(default=60, ge=1)
    """Time between cycles of the services, s"""
    ingest_s: int = Field(default=300, ge=30)
    """Time between readings of the accounting, s"""
    nightly: str = Field(default="02:30", pattern=r"^([01]\d|2[0-3]):[0-5]\d$")
    """Local time of the nightly analysis"""
    listen: str = "127.0.0.1:9842"
    """HOST:PORT of /metrics and /healthz; empty: not served"""
    release_on_stop: bool = True
    """Revert everything that Helios set when the daemon stops"""
    logs: Literal["text", "json"] = "text"
    """Form of the log lines"""


class Hook(_Section):
    """The table for job_submit.lua."""

    publish: bool = False
    """Publish the table whenever the model or the history changes"""
    lasts_s: int = Field(default=7200, ge=60)
    """Age at which the hook no longer believes the table, s"""
    most_rows: int = Field(default=20_000, ge=1, le=200_000)
    """Most rows of the table"""


class ReportSettings(_Section):
    """The nightly report."""

    folder: str = Field(default_factory=lambda: str(platformdirs.user_data_path("helios") / "reports"))
    """Where the nightly pages and mails are put"""
    keep: int = Field(default=60, ge=1)
    """Nightly reports kept"""


class AdviceSettings(_Section):
    """Advice on GPUs that jobs held and did not use."""

    exempt_users: str = ""
    """Users of whose GPUs nothing is said, by commas"""
    exempt_accounts: str = ""
    """Accounts of whose GPUs nothing is said, by commas"""
    exempt_partitions: str = ""
    """Partitions of whose GPUs nothing is said, by commas"""
    mail_domain: str = Field(default="", pattern=r"^([A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*)?$")
    """Every night, mail users such advice at USER@ this domain, each at most once a week; empty: nobody"""

    @property
    def exempt(self) -> dict[str, list[str]]:
        """Names of which nothing is said, by column of the jobs."""
        texts = {"user": self.exempt_users, "account": self.exempt_accounts, "partition": self.exempt_partitions}
        return {kind: [part.strip() for part in text.split(",") if part.strip()] for kind, text in texts.items()}


class Notify(_Section):
    """Mails and webhooks about what needs a person."""

    mail_to: Annotated[str, AfterValidator(addresses)] = ""
    """Recipients of mails, by commas; empty: no mail"""
    mail_from: Annotated[str, AfterValidator(addresses)] = ""
    """Sender of mails; empty: helios@ and this machine's name"""
    smtp: Annotated[str, AfterValidator(host_port)] = "localhost:25"
    """HOST:PORT of the mail server"""
    tls: Literal["starttls", "tls", "none"] = "starttls"
    """starttls (port 587), tls from the first byte (port 465), or none (a relay on this machine). The server's
    certificate is checked"""
    ca_file: Annotated[str, AfterValidator(absolute_folder)] = ""
    """PEM file of the authority behind the server's certificate; empty: the system's"""
    user: str = ""
    """Name to log in with; empty: no login. The password: HELIOS_SMTP_PASSWORD, or password_file"""
    password_file: Annotated[str, AfterValidator(absolute_folder)] = ""
    """File with the password, which only the user that runs Helios may read"""
    webhook: Annotated[str, AfterValidator(web_address)] = ""
    """Address to which notices are posted as JSON; empty: none. It is a secret: better in the environment"""
    slack: Annotated[str, AfterValidator(web_address)] = ""
    """Address of an incoming webhook of Slack, Mattermost or Rocket.Chat; empty: none. It is a secret as well"""
    events: Annotated[str, AfterValidator(event_names)] = "suspended, protected, drift, nightly"
    """What is told, by commas; attention in place of nightly: only nightly reports that need a person"""
    settle_s: int = Field(default=300, ge=0)
    """A suspension or protected mode is told when it has lasted so long, and has ended when gone for as long, s"""
    timeout_s: float = Field(default=10, gt=0, le=60)
    """Longest wait for one answer of a server, s"""


class WebSettings(_Section):
    """The web page of helios web. Needs the extra web."""

    listen: Annotated[str, AfterValidator(host_port)] = "127.0.0.1:9850"
    """HOST:PORT of the page"""
    token_file: Annotated[str, AfterValidator(absolute_folder)] = ""
    """File with the token that readers need, which only the user that runs Helios may read"""
    user_header: str = ""
    """Header in which a proxy names the user; empty: whoever has the token sees all"""
    admins: str = ""
    """Users of that header who see everything, by commas"""
    managers: str = ""
    """Users of that header who see sums over all users' jobs, by commas"""
    hosts: str = ""
    """Further names under which browsers reach the page, by commas"""
    framed_by: Annotated[str, AfterValidator(web_origins)] = ""
    """Sites whose pages may show the card of own jobs (/card) in a frame, by commas: https://ondemand.example.org"""


class PrometheusSettings(_Section):
    """Prometheus, which measures what jobs use."""

    url: Annotated[str, AfterValidator(server_address)] = ""
    """Address of the server, such as http://prometheus.example.org:9090; empty: none"""
    dialect: Literal["auto", "jobstats", "jobstats-joined", "slurm-job-exporter", "dcgm"] = "auto"
    """Exporter whose metrics of GPUs are read; auto: found by itself. jobstats-joined: jobstats' without label jobid"""
    match: str = ""
    """Labels of this cluster's series where the server has several clusters: cluster="venus"; empty: all are its"""
    step_s: int = Field(default=0, ge=0, le=3600)
    """Time between two samples, s; 0: found by itself"""
    token_file: Annotated[str, AfterValidator(absolute_folder)] = ""
    """File with the bearer token that the server wants, which only the user that runs Helios may read; empty: none"""
    timeout_s: float = Field(default=60, gt=0, le=600)
    """Longest wait for one answer, s"""


class Retention(_Section):
    """Retention of data in the database that grows every day.

    Jobs, nodes and applied changes are kept for ever.
    """

    audit_days: int = Field(default=400, ge=60)
    """Days of decisions kept in the audit"""
    shadow_days: int = Field(default=60, ge=7)
    """Days of decisions kept that services in shadow only would have made"""
    cycles_days: int = Field(default=400, ge=7)
    """Days of cycles kept, a row each"""
    predictions_days: int = Field(default=400, ge=60)
    """Days after a job's submission for which its predictions are kept"""
    readings_days: int = Field(default=60, ge=7)
    """Days for which notes about readings of the accounting are kept, with their rejects"""


class Power(_Section):
    """Limits for putting nodes to sleep, which no service can change."""

    mechanism: Literal["sleep", "keep_awake"] = "sleep"
    """sleep: Helios puts nodes to sleep; keep_awake: Slurm's idle timer does, and Helios says which nodes it must
    leave awake (SuspendExcNodes; Slurm 23.02 or newer)"""
    never: str = ""
    """Nodes never put to sleep, beside Slurm's own exclusions: login1, gpu[01-04]"""
    most_in_transition: float = Field(default=0.1, gt=0, le=1)
    """Largest share of the nodes falling asleep or waking at once, at least one; wakes ahead of need go beyond it"""
    most_asleep: float = Field(default=0.8, gt=0, le=1)
    """Largest share of the nodes of a partition that Helios may have asleep"""
    cycles_per_day: int = Field(default=4, ge=1)
    """Most times in 24 hours that one node is put to sleep by Helios"""
    idle_s: int = Field(default=300, ge=0)
    """A node is put to sleep only when it has been idle for so long, s"""
    payback_s: int = Field(default=3600, ge=0)
    """A node that somebody wakes sooner after Helios put it to sleep stays awake for a day, s"""
    failures_to_protect: int = Field(default=3, ge=1)
    """Failed wakes in 24 hours, of all nodes, after which nothing is put to sleep"""
    wake_on_stop: bool = True
    """Wake what Helios put to sleep when its daemon stops; else it stays asleep until needed"""
    racks: str = ""
    """Racks where Slurm's topology does not tell: r1=gpu[01-08]; r2=gpu[09-16]"""


class Energy(_Section):
    """Power draw of a node, and its cost.

    Replace the defaults by your own measurements.
    """

    node_idle_w: float = Field(default=800, ge=0)
    """A node that is awake, without load, W"""
    gpu_busy_w: float = Field(default=250, ge=0)
    """What each GPU that a job holds adds, W"""
    cpu_busy_w: float = Field(default=0, ge=0)
    """What each CPU that a job holds adds, W"""
    node_sleep_w: float = Field(default=15, ge=0)
    """A node asleep (its management controller), W"""
    boot_w: float = Field(default=1000, ge=0)
    """A node while it wakes or falls asleep, W"""
    boot_s: float = Field(default=300, ge=0)
    """Time to wake, s, where it has not been measured"""
    shutdown_s: float = Field(default=120, ge=0)
    """Time to fall asleep, s, where it has not been measured"""
    cooling_factor: float = Field(default=1.3, ge=1)
    """Energy of the building for each of the nodes (PUE)"""
    price_per_kwh: float = Field(default=0.2, ge=0)
    """Price of a kWh"""
    currency: str = Field(default="EUR", min_length=1)
    """Of that price"""
    co2_g_per_kwh: float = Field(default=350, ge=0)
    """Carbon dioxide of a kWh, g"""
    hourly: str = ""
    """CSV file of hourly price and carbon: time,price_per_kwh,co2_g_per_kwh; empty: constant"""


class Settings(_Section):
    """All settings of Helios, by section."""

    database: Database = Field(default_factory=Database)
    ingest: Ingest = Field(default_factory=Ingest)
    model: ModelSection = Field(default_factory=ModelSection)
    whatif: WhatIfSettings = Field(default_factory=WhatIfSettings)
    slurm: SlurmSettings = Field(default_factory=SlurmSettings)
    control: Control = Field(default_factory=Control)
    history: HistorySettings = Field(default_factory=HistorySettings)
    daemon: DaemonSettings = Field(default_factory=DaemonSettings)
    hook: Hook = Field(default_factory=Hook)
    report: ReportSettings = Field(default_factory=ReportSettings)
    advice: AdviceSettings = Field(default_factory=AdviceSettings)
    notify: Notify = Field(default_factory=Notify)
    web: WebSettings = Field(default_factory=WebSettings)
    prometheus: PrometheusSettings = Field(default_factory=PrometheusSettings)
    retention: Retention = Field(default_factory=Retention)
    power: Power = Field(default_factory=Power)
    energy: Energy = Field(default_factory=Energy)
    services: dict[str, dict[str, Any]] = Field(
        default_factory=lambda: dict[str, dict[str, Any]](qssf={}),
        description="Services that run, a table [services.NAME] of options each; qssf if none is named",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigValue:
    """One key with its value and origin.

    Attributes
    ----------
    key : str
        Section and name, such as ``database.url``.
    value : object
        The current value. A password in a URL is masked.
    origin : str
        ``default``, the path of the file, or ``environment NAME``.
    variable : str
        The environment variable that sets it.
    doc : str
        Its meaning.
    """

    key: str
    value: Any
    origin: str
    variable: str
    doc: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedSettings:
    """The current settings and the origin of each.

    Attributes
    ----------
    files : tuple of str
        The files that were read, the last one with the highest precedence.
    notes : tuple of str
        Messages about the files, for a person: why one was not used, or who else can write it.
    """

    settings: Settings
    origins: Mapping[str, str]
    files: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def listing(self) -> list[ConfigValue]:
        """Return every key with value, origin and meaning, in the declared order."""
        return [
            ConfigValue(
                key=key,
                value=_without_secrets(key, getattr(getattr(self.settings, section), name)),
                origin=self.origins.get(key, "default"),
                variable=_variable(section, name),
                doc=doc,
            )
            for section, name, key, doc in _keys()
        ]


def load_configuration(*, environment: Mapping[str, str], folder: Path) -> LoadedSettings:
    """Read the current settings.

    Parameters
    ----------
    environment : mapping
        The process environment. ``HELIOS_CONFIG`` names the only file to read; ``HELIOS_<SECTION>_<NAME>`` sets a key.
    folder : Path
        The current folder. Without ``HELIOS_CONFIG`` these files are read, as far as they exist:
        ``/etc/helios/helios.toml``, ``/etc/helios/conf.d/*.toml``, ``helios/helios.toml`` in the user's configuration
        folder, and ``helios.toml`` in the current folder. The last two are not used where another user could have
        written them.

    Raises
    ------
    ConfigurationInvalid
        A file cannot be read, one of the system can be written by others, or a key or variable is unknown or of the
        wrong type. The message names the nearest keys.
    """
    values: dict[str, dict[str, Any]] = {}
    origins: dict[str, str] = {}
    files: list[str] = []
    notes: list[str] = []
    for path, source in _files(environment, folder):
        if (content := _read_file(path, source, notes)) is None:
            continue
        document = _parse_document(path, content)
        files.append(str(path))
        _store(_from_file(path, document), values, origins)
    _store(_from_environment(environment), values, origins)
    try:
        settings = Settings.model_validate(values)
    except ValidationError as reason:
        raise _invalid(reason, origins) from reason
    return LoadedSettings(settings=settings, origins=origins, files=tuple(files), notes=tuple(notes))


def _store(
    entries: Iterable[tuple[str, str, Any, str]], values: dict[str, dict[str, Any]], origins: dict[str, str]
) -> None:
    for section, name, value, origin in entries:
        values.setdefault(section, {})[name] = value
        origins[f"{section}.{name}"] = origin


def user_file(environment: Mapping[str, str]) -> Path | None:
    """Return the user's own configuration file, or None if no home is set."""
    home = environment.get("HOME", "")
    base = environment.get("XDG_CONFIG_HOME", "") or (home and f"{home}/.config")
    return Path(base) / "helios" / FILE_NAME if base.startswith("/") else None


def example_file() -> str:
    """Return a configuration file with every key at its default, commented out."""
    lines = [
        "# Settings of Helios. A line that begins with # and a key shows the default; remove the # to change it.",
        "# Which files are read, which of them wins, and is this file right: helios config",
    ]
    for section, declared in Settings.model_fields.items():
        if section == "services":
            continue
        model = _section(declared.annotation)
        lines += ["", *_comment(" ".join((model.__doc__ or "").split())), f"[{section}]"]
        for name, field in model.model_fields.items():
            value = _USER_DEFAULTS.get(f"{section}.{name}", field.default)
            lines += [*_comment(" ".join((field.description or "").split())), f"#{name} = {json.dumps(value)}"]
    lines += ["", *_comment(f"{Settings.model_fields['services'].description}. What there is: helios mode")]
    return "\n".join([*lines, "#[services.qssf]", ""])


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, width=98)]


def without_password(value: Any) -> Any:
    """Return ``value``, with any password masked if it is a URL.

    Examples: ``user:***@host``, ``?password=***``.
    """
    if not isinstance(value, str) or "://" not in value:
        return value
    masked = re.sub(r"(://[^/@:]*):.*@", r"\1:***@", value, count=1)
    return re.sub(r"([?&][^=&]*password[^=&]*=)[^&]*", r"\1***", masked, flags=re.IGNORECASE)


def _without_secrets(key: str, value: Any) -> Any:
    """Return a value without its secrets."""
    masked = without_password(value)
    return re.sub(r"(://[^/]*/).+", r"\1***", masked) if key in SECRET_KEYS else masked


def zone(name: str) -> ZoneInfo:
    """Return the time zone of that name.

    Raises
    ------
    ConfigurationInvalid
        There is no such zone.
    """
    try:
        return ZoneInfo(zone_name(name))
    except ValueError as reason:
        raise ConfigurationInvalid(str(reason)) from reason


def _keys() -> Iterator[tuple[str, str, str, str]]:
    for section, declared in Settings.model_fields.items():
        if section == "services":
            continue  # each service declares its own options
        for name, field in _section(declared.annotation).model_fields.items():
            yield section, name, f"{section}.{name}", " ".join((field.description or "").split())


def _section(annotation: Any) -> type[_Section]:
    assert isinstance(annotation, type) and issubclass(annotation, _Section)
    return annotation


def _variable(section: str, name: str) -> str:
    return f"HELIOS_{section}_{name}".upper()


class _Source(Enum):
    """Kind of a configuration file, which decides who may write it."""

    NAMED = "named"
    SYSTEM = "of the system"
    OWN = "of the user or in the current folder"


def _files(environment: Mapping[str, str], folder: Path) -> Iterator[tuple[Path, _Source]]:
    """Yield the files to read, the last with the highest precedence."""
    if FILE_VARIABLE in environment:
        yield Path(environment[FILE_VARIABLE]), _Source.NAMED
        return
    yield SYSTEM_FOLDER / FILE_NAME, _Source.SYSTEM
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        parts = [path for path in (SYSTEM_FOLDER / PARTS).iterdir() if path.suffix == ".toml"]
        for path in sorted(path for path in parts if not path.name.startswith(".")):
            yield path, _Source.SYSTEM
    of_user, local_file = user_file(environment), folder / FILE_NAME
    if of_user is not None:
        yield of_user, _Source.OWN
    if local_file != of_user and local_file.parent not in {SYSTEM_FOLDER, SYSTEM_FOLDER / PARTS}:
        yield local_file, _Source.OWN


def _read_file(path: Path, source: _Source, notes: list[str]) -> str | None:
    """Read a configuration file, or return None if it is not used.

    A file of the user or in the current folder is used only if neither it nor its folder belongs to another user or can
    be written by others. A system file that others can write is an error, as limits would be missing without it. A
    named file is used in any case.
    """
    is_named = source is _Source.NAMED
    try:
        # Without O_NONBLOCK a named pipe would block every command that is run in its folder.
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (0 if is_named else os.O_NONBLOCK))
        with os.fdopen(handle, "rb") as file:
            distrust = _untrusted_reason(path, path.lstat(), os.fstat(handle), with_folder=not is_named)
            text = "" if distrust and not is_named else file.read().decode()
    except (FileNotFoundError, NotADirectoryError) as reason:
        if is_named:
            raise ConfigurationInvalid(f"{path} cannot be read as TOML: {reason}") from reason
        return None
    except (OSError, UnicodeDecodeError) as reason:
        closed = isinstance(reason, PermissionError)
        if closed and source is _Source.SYSTEM:
            notes.append(f"{path} is not used, since you may not read it")
            return None
        if is_named or not closed or not (distrust := _untrusted_reason(path, *_stat_existing(path), with_folder=True)):
            raise ConfigurationInvalid(f"{path} cannot be read as TOML: {reason}") from reason
        text = ""
    if not distrust:
        return text
    if source is _Source.SYSTEM:
        raise ConfigurationInvalid(
            f"{distrust}, who could have Helios run any program.",
            hint=f"Close it: chown root {path.parent} {path}; chmod go-w {path.parent} {path}",
        )
    if not is_named:
        notes.append(f"{distrust}, so that it is not used. If you trust it, name it: helios --config {path}")
        return None
    if text:
        notes.append(
            f"{distrust}, who could have Helios run any program. Close it: chown root {path}; chmod go-w {path}"
        )
    return text


def _stat_existing(path: Path) -> list[os.stat_result]:
    with contextlib.suppress(OSError):
        return [path.lstat()]
    return []  # its folder is closed, too


def _untrusted_reason(path: Path, *stats: os.stat_result, with_folder: bool) -> str:
    """Return who else could have written or replaced a file, or empty text."""
    if with_folder and (why := _writer(path.parent.stat())):
        return f"{path} lies in a folder that {why}"
    if why := _writer(*stats):
        return f"{path} {why}"
    return ""


def _writer(*stats: os.stat_result) -> str:
    if owners := {status.st_uid for status in stats} - {os.geteuid(), ROOT}:
        return f"belongs to another user ({_user(min(owners))})"
    if any(not stat.S_ISLNK(status.st_mode) and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) for status in stats):
        return "can be written by others"
    return ""


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _parse_document(path: Path, text: str) -> dict[str, dict[str, Any]]:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as reason:
        raise ConfigurationInvalid(f"{path} cannot be read as TOML: {reason}") from reason
    if loose := [name for name, keys in document.items() if not isinstance(keys, dict)]:
        raise ConfigurationInvalid(f"{path}: {loose[0]!r} is outside a [section]", hint=_allowed())
    return document


def _from_file(path: Path, document: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str, Any, str]]:
    for section, keys in document.items():
        for name, value in keys.items():
            yield section, name, value, str(path)


def _from_environment(environment: Mapping[str, str]) -> Iterator[tuple[str, str, Any, str]]:
    known = {FILE_VARIABLE, *OTHER_VARIABLES, *(_variable(section, name) for section, name, _, _ in _keys())}
    helios_names = (name for name in environment if name.startswith("HELIOS_") and not name.startswith(TEST_PREFIX))
    for unknown in sorted(name for name in helios_names if name not in known):
        near = get_close_matches(unknown, known, n=1)
        raise ConfigurationInvalid(
            f"The environment variable {unknown} is none of Helios.",
            hint=f"Did you mean {near[0]}? Else: unset {unknown}" if near else f"Remove it: unset {unknown}",
        )
    for section, name, _, _ in _keys():
        variable = _variable(section, name)
        if variable in environment:
            yield section, name, environment[variable], f"environment {variable}"


def _invalid(reason: ValidationError, origins: Mapping[str, str]) -> ConfigurationInvalid:
    """Return the error that names each wrong key.

    Its hint has the meanings of the keys with wrong values, or all keys if one is unknown.
    """
    meanings = {key: meaning for _, _, key, meaning in _keys()}
    lines, wrong, near = [], set(), list[str]()
    for error in reason.errors():
        key = ".".join(str(part) for part in error["loc"])
        problem = "is not a key of Helios" if error["type"] == "extra_forbidden" else error["msg"]
        origin = origins.get(key) or next(
            (source for name, source in origins.items() if name.startswith(f"{key}.")), ""
        )
        lines.append(f"{key} ({origin or 'configuration'}): {problem}")
        wrong.add(key)
        if error["type"] == "extra_forbidden":
            near += get_close_matches(key, meanings if "." in key else Settings.model_fields, n=1)
    meanings_of_wrong = [f"{key}: {meaning}" for key, meaning in meanings.items() if key in wrong]
    hint = " ".join(meanings_of_wrong) if len(meanings_of_wrong) == len(wrong) else _allowed()
    if near:
        hint = f"Did you mean {' and '.join(near)}? {hint}"
    return ConfigurationInvalid("The configuration is not valid: " + "; ".join(lines), hint=hint)


def _allowed() -> str:
    return "The keys are: " + ", ".join(key for _, _, key, _ in _keys()) + ". See docs/reference/configuration.md"
