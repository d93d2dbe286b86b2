"""Read the site factor of every job that has one to read: only ``sprio`` shows it.

``sprio`` lists pending jobs that are eligible: not held, no begin time ahead, no dependency left. A job whose priority
was set directly (``Priority=``) is listed with that priority and all factors 0, whatever they are (seen on 22.05.8):
that is how a direct priority is recognised, and what its site factor is nobody can read.
"""

from __future__ import annotations

from dataclasses import dataclass

from helios.errors import AnswerNotUnderstood, ClusterRefused
from helios.slurm.shell import Shell, failure, lines

_FIELDS = "%i|%Y|%S|%A|%B|%F|%J|%P|%Q|%N|%T"
"""Job, priority, site factor; then age, association, fair share, job size, partition, QOS, nice, TRES."""
_ROUNDING = 10
"""A priority up to here may be the sum of factors that are each printed as 0; a larger one cannot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteFactor:
    """What ``sprio`` says of one job.

    Attributes
    ----------
    value : int
        The site factor; of a job with a direct priority 0, which means nothing.
    direct : bool
        Whether its priority was set directly.
    """

    value: int
    direct: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sprio:
    """Ask ``sprio`` through a shell."""

    shell: Shell

    def __call__(self) -> dict[str, SiteFactor]:
        """Return what it says, by job id (of a pending array, the master's); jobs that are not eligible are missing.

        Raises
        ------
        ClusterUnavailable
            The controller does not answer.
        ClusterRefused
            The cluster does not order jobs by several factors: there is no site factor.
        """
        answer = self.shell.answer("sprio", "--noheader", f"--format={_FIELDS}")
        if "priority/multifactor" in answer.complaint or "priority type" in answer.complaint.lower():
            raise ClusterRefused(
                "This cluster does not order its jobs by priority factors: PriorityType is not priority/multifactor.",
                remedy="Set PriorityType=priority/multifactor in slurm.conf; Helios can order jobs only with it.",
            )
        if answer.status != 0:
            raise failure("sprio", answer.complaint)
        return dict(_parsed(line) for line in lines(answer.output) if line and not line.startswith("Unable to find"))


def _parsed(line: str) -> tuple[str, SiteFactor]:
    job_id, priority, site, *factors = (part.strip() for part in line.split("|"))
    try:
        value, weight = int(site), int(priority)
    except ValueError as reason:
        raise AnswerNotUnderstood(f"sprio printed a line that makes no sense: {line!r}") from reason
    nothing = value == 0 and all(factor in {"", "0"} for factor in factors)
    return job_id, SiteFactor(value=value, direct=nothing and weight > _ROUNDING)
