"""QOS and fair shares of a site, read from printed tables.

The tables are those of ``sacctmgr show qos``, ``show assoc`` and ``sshare``, with ``|`` between columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from helios.errors import ConfigurationInvalid
from helios.model.slurm_site import QosRules, Share
from helios.slurm.site_conf import amount

_QOS_IDLE = frozenset({
    "name", "priority", "usagefactor", "maxtrespu", "maxtresperuser", "maxjobspu", "maxjobsperuser", "grptres",
    "description", "id", "gracetime", "preemptexempttime", "preemptmode", "flags", "usagethres", "usagethreshold",
    "maxsubmitpu", "maxsubmitjobsperuser", "maxsubmitpa", "grpsubmit", "grpsubmitjobs", "maxwall", "maxtresmins",
})  # fmt: skip
"""Columns without a note: those that are read, that limit submissions, or whose effect is in recorded run times."""
_ASSOC_IDLE = frozenset({
    "cluster", "account", "parentname", "par_name", "user", "share", "fairshare", "rawshares", "rawusage", "partition",
    "qos", "def_qos", "defaultqos", "id", "lft", "rgt", "normshares", "normusage", "effectvusage", "levelfs", "maxwall",
    "maxsubmit", "maxsubmitjobs", "grpsubmit", "maxtresmins", "tresrunmins", "comment", "lineage", "flags",
})  # fmt: skip
_MOST_TRES, _MOST_JOBS = ("maxtrespu", "maxtresperuser"), ("maxjobspu", "maxjobsperuser")
_NOTHING = frozenset({"", "0", "00:00:00", "cluster", "none", "n/a", "(null)"})


@dataclass(frozen=True, slots=True, kw_only=True)
class AssociationRow:
    """Row of a printed table, by normalised column heads.

    Heads are in lower case, with underscores for blanks.
    """

    number: int
    words: Mapping[str, str]

    def text(self, *keys: str) -> str:
        """Return the first existing column of ``keys``, without surrounding blanks."""
        return next((self.words[key].strip() for key in keys if key in self.words), "")

    def float_value(self, *keys: str, otherwise: float = 0.0) -> float:
        """Return a column as a number.

        Raises
        ------
        ConfigurationInvalid
            It is not a number.
        """
        value = self.text(*keys)
        try:
            return float(value) if value else otherwise
        except ValueError:
            raise self.error(f"{keys[0]} is {value!r}, which is not a number") from None

    def error(self, what: str) -> ConfigurationInvalid:
        """Return an error about this row."""
        return ConfigurationInvalid(f"line {self.number}: {what}", hint="Print it anew, with -P and with its heads.")


def table(text: str, *, needed: Sequence[str], made_by: str) -> list[AssociationRow]:
    """Read a table with ``|`` between its columns.

    Parameters
    ----------
    needed : sequence of str
        Required heads, in lower case and with underscores for blanks.
    made_by : str
        The command that prints such a table, for the hint.

    Raises
    ------
    ConfigurationInvalid
        It is not such a table.
    """
    printed = [(number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    if not printed:
        return []
    heads = [head.strip().lower().replace(" ", "_").rstrip("+") for head in printed[0][1].split("|")]
    if missing := [head for head in needed if head not in heads]:
        raise ConfigurationInvalid(
            f"line {printed[0][0]}: the table has no column {missing[0]!r}; it begins {printed[0][1].strip()[:60]!r}",
            hint=f"Make it with: {made_by}",
        )
    return [
        AssociationRow(number=number, words=dict(zip(heads, line.split("|"), strict=False)))
        for number, line in printed[1:]
    ]


def read_qos(text: str, notes: list[str]) -> tuple[QosRules, ...]:
    """Read the output of ``sacctmgr show qos -P``.

    Limits that are not simulated are added to ``notes``.

    Raises
    ------
    ConfigurationInvalid
        The text is not such a table, or a value not understood.
    """
    rows = table(text, needed=("name",), made_by="sacctmgr show qos -P")
    for row in rows:
        _note_limits(row, f"QOS {row.text('name')}", _QOS_IDLE, notes)
        _note_other_tres(row, _MOST_TRES, f"QOS {row.text('name')}", notes)
        _note_other_tres(row, ("grptres",), f"QOS {row.text('name')}", notes)
    return tuple(
        QosRules(
            name=row.text("name"),
            priority=int(row.float_value("priority")),
            usage_factor=row.float_value("usagefactor", otherwise=1.0),
            max_gpus_per_user=_gpus(row, *_MOST_TRES),
            max_gpus=_gpus(row, "grptres"),
            max_jobs_per_user=int(row.float_value(*_MOST_JOBS)) if row.text(*_MOST_JOBS) else None,
        )
        for row in rows
    )


def read_shares(text: str, notes: list[str], *, cluster: str = "") -> tuple[Share, ...]:
    """Read fair shares from ``sacctmgr`` or ``sshare``.

    The commands are ``sacctmgr show assoc tree -P`` and ``sshare -a -l -P``. The latter also has the past usage. What
    is not simulated is added to ``notes``.

    Parameters
    ----------
    cluster : str
        The cluster whose rows count where the table has several. Not needed where the table has one.

    Raises
    ------
    ConfigurationInvalid
        The text is not such a table, a value is not understood, or clusters are mixed.
    """
    rows = _of_cluster(table(text, needed=("account",), made_by="sacctmgr show assoc tree -P"), cluster)
    found: dict[tuple[str, str], Share] = {}
    for row, parent in _with_parents(rows, notes):
        share = _share(row, parent)
        if row.text("partition"):
            notes.append(f"Shares of {share.user or share.account} for one partition only are not simulated.")
            continue
        found[share.account, share.user] = share
        _note_limits(row, f"association {share.account}/{share.user}".rstrip("/"), _ASSOC_IDLE, notes)
    return tuple(found.values())


def _of_cluster(rows: list[AssociationRow], cluster: str) -> list[AssociationRow]:
    names = {row.text("cluster") for row in rows}
    if len(names) < 2:
        return rows
    if cluster not in names:
        raise ConfigurationInvalid(
            f"the associations are those of several clusters: {', '.join(sorted(names))}",
            hint="Print those of one: sacctmgr show assoc tree -P cluster=NAME",
        )
    return [row for row in rows if row.text("cluster") == cluster]


def _with_parents(rows: Sequence[AssociationRow], notes: list[str]) -> Iterator[tuple[AssociationRow, str]]:
    """Yield each row with the name of its parent account.

    It comes from the row's own column, otherwise from the indentation of its account.
    """
    named = any(row.text("parentname", "par_name") for row in rows)
    above: dict[int, str] = {}
    flat = not named and not any(row.words["account"].startswith(" ") for row in rows)
    if flat and len(rows) > 1:
        notes.append("Who is above whom is not said in the associations: print them with: sacctmgr show assoc tree -P")
    for row in rows:
        account = row.words["account"]
        depth = len(account) - len(account.lstrip())
        if row.text("user"):
            yield row, account.strip()
            continue
        above[depth] = account.strip()
        indented = next((above[d] for d in range(depth - 1, -1, -1) if d in above), "")
        parent = row.text("parentname", "par_name")
        yield row, parent or indented or ("root" if flat and account != "root" else "")


def _share(row: AssociationRow, parent: str) -> Share:
    columns = ("share", "fairshare", "rawshares")
    follows_parent = row.text(*columns).lower() == "parent"
    account, user = row.text("account"), row.text("user")
    return Share(
        account=account,
        parent="" if user or account == "root" else parent,
        user=user,
        shares=None if follows_parent else int(row.float_value(*columns, otherwise=1.0)),
        usage_s=row.float_value("rawusage"),
    )


def _gpus(row: AssociationRow, *keys: str) -> int | None:
    for word in row.text(*keys).split(","):
        name, _, value = word.partition("=")
        if name.strip().lower() == "gres/gpu":
            try:
                return amount(value)
            except ValueError:
                raise row.error(f"{keys[0]} has {word!r}, which is not gres/gpu=N") from None
    return None


def _note_other_tres(row: AssociationRow, keys: tuple[str, ...], where: str, notes: list[str]) -> None:
    other = [word for word in row.text(*keys).split(",") if word and not word.lower().startswith("gres/gpu=")]
    if other:
        notes.append(f"Of {where}, {keys[0]} is simulated for gres/gpu only: {', '.join(other)} is left out.")


def _note_limits(row: AssociationRow, where: str, known: frozenset[str], notes: list[str]) -> None:
    limits = [
        f"{key}={value.strip()}"
        for key, value in row.words.items()
        if key not in known and value.strip().lower() not in _NOTHING
    ]
    if limits:
        notes.append(f"Of {where}, not simulated: {', '.join(limits)}.")
