"""Readers, pages and routes of the web site."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from helios.errors import UsageError
from helios.model import Snapshot
from helios.report.html import PageSection
from helios.web.chart import Chart
from helios.web.table import PageTable

if TYPE_CHECKING:
    from helios.web.site import Site


class Role(StrEnum):
    """What a reader may see.

    An admin sees everything, a manager sums over all users and the own jobs, a user the own jobs.
    """

    ADMIN = "admin"
    MANAGER = "manager"
    USER = "user"

    def covers(self, least: Role) -> bool:
        """Return whether it sees all that the role ``least`` does."""
        order = list(Role)
        return order.index(self) <= order.index(least)


class MenuPlace(StrEnum):
    """Part of the site, as its menu names them."""

    NOW = "Now"
    HISTORY = "History"
    HELIOS = "Helios"
    STUDY = "Study"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Person who requests a page.

    Attributes
    ----------
    user : str
        Account name. Empty where it is not known.
    role : Role
        Whoever is no admin sees only what no other user's job changes, but for the sums that a manager sees.
    """

    user: str = ""
    role: Role = Role.USER

    @property
    def is_admin(self) -> bool:
        """Whether all jobs may be shown."""
        return self.role is Role.ADMIN

    @property
    def sees_sums(self) -> bool:
        """Whether sums over all users' jobs may be shown."""
        return self.role is not Role.USER

    def may_see(self, user: str) -> bool:
        """Return whether jobs of ``user`` may be shown."""
        return self.is_admin or (bool(self.user) and self.user == user)

    def visible_part(self, queue: Snapshot) -> Snapshot:
        """Return a queue with only the jobs that may be shown."""
        if self.is_admin:
            return queue
        pending, running = (
            jobs[jobs["user"].eq(self.user).to_numpy(dtype=bool, na_value=False)]
            for jobs in (queue.pending, queue.running)
        )
        return replace(queue, pending=pending, running=running)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section(PageSection):
    """A part of a page with charts or a long table.

    Attributes
    ----------
    charts : sequence of Chart
    data : PageTable, optional
        At most one section of a page has one.
    id : str
        Its anchor, for links within a page.
    more : tuple of str, optional
        Name and path of the page that says more.
    is_half : bool
        Whether it stands beside another one on a wide screen.
    is_folded : bool
        Whether only its title is seen until a reader opens it.
    """

    charts: Sequence[Chart] = ()
    data: PageTable | None = None
    id: str = ""
    more: tuple[str, str] | None = None
    is_half: bool = False
    is_folded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page.

    Attributes
    ----------
    title, subtitle : str
    sections : sequence of PageSection or Section
    values : mapping
        The content as plain values, for JSON. Charts are added to it by their names.
    form_fields : sequence of str
        Query parameters in the form on the page.
    follows : bool
        Whether the page is asked for again every few seconds, without a reload.
    is_dense : bool
        Whether it is to fit one wide screen.
    is_card : bool
        Whether it is a part of another page, without the menu. Pages of ``web.framed_by`` may frame it.
    """

    title: str
    subtitle: str = ""
    sections: Sequence[PageSection] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
    form_fields: Sequence[str] = ()
    follows: bool = False
    is_dense: bool = False
    is_card: bool = False

    @property
    def charts(self) -> list[Chart]:
        """The charts of all sections."""
        return [chart for section in self.sections if isinstance(section, Section) for chart in section.charts]

    @property
    def data(self) -> PageTable | None:
        """The table that is sorted, paged and filtered."""
        found = (section.data for section in self.sections if isinstance(section, Section))
        return next((data for data in found if data is not None), None)

    def to_json(self, given: Mapping[str, str]) -> dict[str, Any]:
        """Return the content as plain values.

        ``given`` has the controls of its table, which choose rows.
        """
        charts = {chart.name: chart.to_json() for chart in self.charts}
        chosen = {} if self.data is None else self.data.to_json(self.values, given)
        return {**self.values, **chosen, **({"charts": charts} if charts else {})}


class PageMissing(UsageError):
    """There is no such page, or not for this reader."""


@dataclass(frozen=True, slots=True)
class Route:
    """A path of the site.

    Attributes
    ----------
    path : str
        Path with parameters in braces.
    summary : str
        Description for the list of pages and OpenAPI.
    make : callable
        Makes the page from the site, the reader and all parameters.
    query : tuple of str
        Names of the query parameters.
    place : MenuPlace
        Where in the menu it is.
    menu_name : str
        Its name in the menu. Empty where it is not in the menu.
    readers : Role
        The least role that may request it.
    parent : str
        Path of the page above it, for the way back.
    is_cached : bool
        Whether it is made at most once a minute for a reader. Pages of the queue are not: the queue itself is kept.
    needs_slurm : bool
        Whether a history without a live Slurm has nothing to show there, so that its menu leaves it out.
    """

    path: str
    summary: str
    make: Callable[[Site, Reader, Mapping[str, str]], Page]
    query: tuple[str, ...] = ()
    place: MenuPlace = MenuPlace.NOW
    menu_name: str = ""
    readers: Role = Role.ADMIN
    parent: str = ""
    is_cached: bool = True
    needs_slurm: bool = False

    def is_for(self, reader: Reader) -> bool:
        """Return whether a reader may request it."""
        return reader.role.covers(self.readers)
