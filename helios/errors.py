"""Errors that Helios raises on purpose.

All derive from :class:`HeliosError`, are named for what happened, and carry a hint on what to try next.
"""

from __future__ import annotations


class HeliosError(Exception):
    """Root of all errors Helios raises on purpose.

    Parameters
    ----------
    message : str
        What happened, in one sentence for a person.
    hint : str, optional
        What to try next; printed below the message.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class UsageError(HeliosError):
    """The command or call cannot be carried out as it was asked."""

    exit_code = 2


class ConfigurationInvalid(UsageError):
    """A configuration key is unknown or its value has another type."""


class FrameInvalid(HeliosError):
    """A frame lacks a declared column or has another type there."""


class HostlistInvalid(UsageError):
    """A text that should name nodes does not."""


class FormatUnknown(UsageError):
    """A file's format is not one that Helios reads.

    It could not be recognised, or its name is unknown.
    """


class NothingUnderstood(HeliosError):
    """A file was read whole, and no row could be understood."""


class FileUnreadable(HeliosError):
    """A file could not be opened, decompressed or read."""


class FileUnwritable(HeliosError):
    """A file or its folder could not be written."""


class RiskTooHigh(HeliosError):
    """An anonymous export would give too many jobs back."""


class WarehouseUnavailable(HeliosError):
    """The database could not be opened, or refused a statement."""


class SchemaOutdated(HeliosError):
    """The database's schema is not the one this version of Helios expects."""


class NotEnoughHistory(HeliosError):
    """There is too little history for what was asked."""


class NoSuchCluster(UsageError):
    """The named cluster is not in the warehouse, or is ambiguous."""


class JobLargerThanPartition(HeliosError):
    """Jobs ask for more than their whole partition has."""


class PartitionUnknown(UsageError):
    """Jobs name a partition that the described cluster does not have."""


class ModelUnreadable(HeliosError):
    """A stored model is damaged or does not fit this version.

    For example a version of Helios with other features wrote it.
    """


class WorkloadInvalid(HeliosError):
    """The jobs or the cluster of a replay are invalid.

    They are out of order, of the wrong type, or make no sense.
    """


class ClusterUnavailable(HeliosError):
    """The cluster cannot be reached, or did not answer in time."""


class ClusterRefused(HeliosError):
    """The cluster answered with a refusal.

    Privileges are missing, or its release lacks an option.
    """


class AnswerNotUnderstood(HeliosError):
    """Slurm answered in a form this version of Helios does not read."""


class StrangersLeft(HeliosError):
    """Only values with Helios' mark that no record proves are left.

    A user or an admin wrote them. So a stop has done all that it may do.
    """

    exit_code = 3


class LeaseLost(HeliosError):
    """Another Helios writes to this cluster."""


class ServiceUnknown(UsageError):
    """No service of that name is installed."""


class ServiceInvalid(UsageError):
    """A service, or its options, cannot be used as given."""


class HookTableInvalid(HeliosError):
    """The priority hook's table is missing, stale or damaged."""


class MemoryDamaged(HeliosError):
    """The state that control stored after its last cycle cannot be read."""
