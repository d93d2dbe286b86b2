"""Risk that jobs and users of an anonymous export are found again.

Somebody may know a published list of what each user used, a few jobs, or the site's own log. Each attack here claims
jobs for a user. Claims for a user count, with the jobs that they are right on, where they are right on more than half.

Source of the attacks: with the number of jobs of each user 50 of 110 users of an earlier export were found, with three
jobs of each 96. Size and second of the submission alone identified every job of three published "anonymous" copies of
one trace. Sizes are GPUs, CPUs and nodes together.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.model import SIZES, seconds_of
from helios.study.export.anonymous import LIMITS, WEEK_S, Anonymised
from helios.study.export.cohorts import FEWEST_USERS, MOST_OF_ONE, count_by_owner, number_rows, owners

KNOWN_JOBS = 3
DRAWS = 3
"""Draws of the known jobs, of which the one that gives most counts: one more or less can differ by a tenth."""
_SEEN = [*SIZES, "step"]
"""What somebody knows of a job who saw it in the queue."""
_REMEMBERED = [*SIZES, "run_time_s", "state"]
"""What somebody knows of a job who was told of it."""
_REQUEST = [*SIZES, *LIMITS, "partition", "qos", "gpu_type", "name"]
"""What jobs of one user have in common, besides the user."""
_SAMPLE = 2_000
"""Cells by which the shift of an export is found: a wrong shift matches a few of them, the right one all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What an attack finds.

    Attributes
    ----------
    jobs : float
        Share of the exported jobs.
    users : float
        Share of the exported users.
    """

    jobs: float
    users: float


NOTHING = Found(jobs=0.0, users=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Risk:
    """Risk that remains in an export.

    Attributes
    ----------
    jobs, users : int
        Exported.
    left_out : int
        Jobs that were left out to hide their users.
    unique_jobs : float
        Share of the jobs whose size and submission, as far as it is true, no other job has.
    traced : Found
        By size and submission, of jobs of which no other user has the same of both.
    by_usage_list : Found
        By a list of the jobs, GPU hours and CPU hours of each user, whichever gives most: a pseudonym is claimed for
        the user whose figure is nearest.
    by_known_jobs : Found
        By size, run time and state of three jobs of each user: if only one pseudonym has all three, its jobs are
        claimed; or the jobs with pseudonym and request of one of them that only one pseudonym has, whichever gives
        more.
    by_half_a_log : Found
        By the site's own log of the first half of the jobs: later ones are claimed for the user who had most of the
        same pseudonym and request before.
    shifts_tried : int
        Numbers of weeks by which the export and the site's own log overlap.
    shift_found : bool
        Whether the log shows by how many weeks the export was moved.
    by_size_and_submission, by_size_and_all_times : Found
        Exported jobs that then match exactly one job of the log, and no other of the export: by the submission alone,
        and by submission, wait and run time; and users who have such a job.
    """

    jobs: int
    users: int
    left_out: int
    unique_jobs: float
    traced: Found
    by_usage_list: Found
    by_known_jobs: Found
    by_half_a_log: Found
    shifts_tried: int
    shift_found: bool
    by_size_and_submission: Found
    by_size_and_all_times: Found

    @property
    def highest(self) -> float:
        """The largest share of jobs given to their user by an attack.

        All where so few users are exported that each knows whose the rest is.
        """
        if 0 < self.users < FEWEST_USERS:
            return 1.0
        claims = (self.traced, self.by_usage_list, self.by_known_jobs, self.by_half_a_log)
        return max(claim.jobs for claim in claims)

    def to_json(self) -> dict[str, Any]:
        """Return the figures as plain values."""
        return asdict(self)


def assess_risk(
    made: Anonymised, jobs: pd.DataFrame, log: pd.DataFrame, *, round_s: int, offset_s: int = 0, weeks: int
) -> Risk:
    """Measure the re-identification risk of an export.

    Parameters
    ----------
    made : Anonymised
        The anonymous jobs.
    jobs : DataFrame
        What was exported, columns of ``JOBS``: lists of use are made of them.
    log : DataFrame
        All jobs of the site as somebody would round and merge them who knows how the export was made.
    round_s : int
        Step to which submissions are true, s; it divides a week.
    offset_s : int
        How far the clock of these steps is ahead of UTC, s.
    weeks : int
        Number of weeks by which the export was really shifted.
    """
    exported, owner = made.jobs, made.owner
    given, known = (_known_attributes(frame, round_s=round_s, offset_s=offset_s) for frame in (exported, log))
    cells = number_rows(given[_SEEN])
    traced = _has_single_owner(cells, owner)
    tried, found = _find_shift(given, known, steps_per_week=WEEK_S // round_s)
    known["step"] += found * (WEEK_S // round_s)
    return Risk(
        jobs=len(exported),
        users=len(np.unique(owner[owner >= 0])),
        left_out=made.left_out,
        unique_jobs=float((np.bincount(cells)[cells] == 1).mean()),
        traced=Found(jobs=float(traced.mean()), users=_share_of_users(traced, owner)),
        by_usage_list=_by_usage_list(made, jobs),
        by_known_jobs=_by_known_jobs(made),
        by_half_a_log=_by_half_a_log(made),
        shifts_tried=tried,
        shift_found=found == weeks,
        by_size_and_submission=_linkage(given[_SEEN], known[_SEEN], owner),
        by_size_and_all_times=_linkage(given, known, owner),
    )


def _pseudonyms(jobs: pd.DataFrame) -> NDArray[np.int64]:
    return jobs["user"].cat.codes.to_numpy().astype(np.int64)


def _claim(rows: pd.DataFrame, owner: NDArray[np.int64]) -> Found:
    """Return what comes of claims.

    Columns are the number of a job in the export, the user that it is claimed for, and the group of claims that are
    made together.
    """
    right = owner[rows["job"]] == rows["claimed"]
    groups = right.groupby([rows["claimed"], rows["group"]]).agg(["sum", "mean"])
    groups = groups[groups["mean"] > MOST_OF_ONE]
    users, found = len(np.unique(owner[owner >= 0])), groups.index.get_level_values("claimed").nunique()
    return Found(jobs=float(groups["sum"].sum()) / len(owner), users=found / users if users else 0.0)


def _claim_groups(who: pd.Series[Any], groups: pd.Series[Any], owner: NDArray[np.int64]) -> Found:
    """Return how claims of groups for the users in ``who`` end."""
    rows = pd.DataFrame({"job": groups.index, "claimed": groups.map(who), "group": groups})
    return _claim(rows.dropna().astype(np.int64), owner)


def _by_usage_list(made: Anonymised, jobs: pd.DataFrame) -> Found:
    """Claim each pseudonym for the user whose figure is nearest."""
    claims, pseudonyms = [NOTHING], _pseudonyms(made.jobs)
    for name in ("jobs", "gpus", "cpus"):
        published, given = (
            _logs_of_use(frame, who, name) for frame, who in ((jobs, owners(jobs)), (made.jobs, pseudonyms))
        )
        if len(published):
            edges = (published.to_numpy()[1:] + published.to_numpy()[:-1]) / 2
            nearest = published.index.to_numpy()[np.searchsorted(edges, given.to_numpy())]
            claims.append(_claim_groups(pd.Series(nearest, index=given.index), pd.Series(pseudonyms), made.owner))
    return max(claims, key=lambda claim: claim.jobs)


def _logs_of_use(jobs: pd.DataFrame, who: NDArray[np.int64], name: str) -> pd.Series[Any]:
    """Return the logarithm of the use of each known one, the smallest first."""
    amounts = pd.Series(1.0, index=jobs.index) if name == "jobs" else jobs[name] * jobs["run_time_s"]
    use = amounts.astype(np.float64).groupby(who).sum()
    use = use[(use.index >= 0) & (use > 0)].sort_values()
    return pd.Series(np.log(use.to_numpy()), index=use.index)


def _by_known_jobs(made: Anonymised) -> Found:
    """Claim what three jobs of each user lead to."""
    owner, random = made.owner, np.random.default_rng(0)
    jobs = pd.DataFrame(
        {
            "job": np.arange(len(owner)),
            "group": _pseudonyms(made.jobs),
            "cell": number_rows(made.jobs[_REMEMBERED]),
            "request": number_rows(made.jobs[["user", *_REQUEST]]),
        }
    )
    cells = jobs[["cell", "group"]].drop_duplicates()
    claims = [NOTHING]
    for _ in range(DRAWS):
        order = random.permutation(np.flatnonzero(owner >= 0))
        known = pd.DataFrame({"claimed": owner[order], "job": order}).groupby("claimed").head(KNOWN_JOBS)
        known = known.merge(jobs[["job", "cell", "request"]], on="job")
        matches = known.merge(cells, on="cell")
        # The pseudonyms that have all jobs that are known of a user: where it is one, all its jobs are claimed.
        having = matches.groupby(["claimed", "group"])["job"].nunique().reset_index(name="known")
        having = having[having["known"] == having["claimed"].map(known["claimed"].value_counts())]
        having = having.drop_duplicates("claimed", keep=False)[["claimed", "group"]]
        claims.append(_claim(having.merge(jobs[["job", "group"]], on="group"), owner))
        # Or each job that only one pseudonym has leads to those with the same pseudonym and request.
        alike = matches.drop_duplicates(["claimed", "job"], keep=False)[["claimed", "request"]].drop_duplicates()
        claims.append(_claim(alike.merge(jobs[["job", "request"]], on="request").assign(group=0), owner))
    return max(claims, key=lambda claim: claim.jobs)


def _by_half_a_log(made: Anonymised) -> Found:
    """Claim later jobs for whoever had most such jobs before."""
    groups, half = number_rows(made.jobs[["user", *_REQUEST]]), len(made.owner) // 2
    before = count_by_owner(groups[:half], made.owner[:half]).drop_duplicates("kind")
    sure = before[(before["owner"] >= 0) & (before["jobs"] > MOST_OF_ONE * before["total"])]
    return _claim_groups(sure.set_index("kind")["owner"], pd.Series(groups)[half:], made.owner)


def _known_attributes(jobs: pd.DataFrame, *, round_s: int, offset_s: int) -> pd.DataFrame:
    """Return sizes, step of the submission, wait and run time."""
    submitted, started = (seconds_of(jobs[name]) for name in ("submitted_at", "started_at"))
    step = np.floor((submitted + offset_s) / round_s).astype(np.int64)
    return jobs[[*SIZES, "run_time_s"]].assign(step=step, wait_s=started - submitted)


def _find_shift(exported: pd.DataFrame, log: pd.DataFrame, *, steps_per_week: int) -> tuple[int, int]:
    """Return how many weekly shifts were tried, and the best.

    The best is the one under which most combinations of size and submission of the export are in the log.
    """
    both = pd.concat([exported[_SEEN], log[_SEEN]], ignore_index=True)
    size = number_rows(both[list(SIZES)])
    steps, log_steps = exported["step"].to_numpy(), log["step"].to_numpy()
    first, span = log_steps.min(), log_steps.max() - log_steps.min() + 1
    known = np.unique(size[len(exported) :] * span + log_steps - first)
    asked = np.unique(np.column_stack([size[: len(exported)], steps]), axis=0)
    asked = asked[:: -(-len(asked) // _SAMPLE)]
    weeks = np.arange(-((log_steps.max() - steps.min()) // steps_per_week), (steps.max() - first) // steps_per_week + 1)
    matches = np.zeros(len(weeks), dtype=np.int64)
    for number, week in enumerate(weeks):
        place = asked[:, 1] - week * steps_per_week - first
        within = (place >= 0) & (place < span)
        matches[number] = np.isin(asked[within, 0] * span + place[within], known).sum()
    return len(weeks), int(weeks[np.argmax(matches)]) if len(weeks) else 0


def _has_single_owner(cells: NDArray[np.int64], owners: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return the jobs alone in their cell, by owner."""
    grouped = pd.Series(owners).groupby(cells)
    return (grouped.transform("min") == grouped.transform("max")).to_numpy()


def _share_of_users(jobs: NDArray[np.bool_], owners: NDArray[np.int64]) -> float:
    users = np.unique(owners[owners >= 0])
    return len(np.unique(owners[jobs & (owners >= 0)])) / len(users) if len(users) else 0.0


def _linkage(exported: pd.DataFrame, log: pd.DataFrame, owners: NDArray[np.int64]) -> Found:
    cells = number_rows(pd.concat([exported, log], ignore_index=True))
    counts, log_counts = (np.bincount(part, minlength=cells.max() + 1) for part in np.split(cells, [len(exported)]))
    linked = ((counts == 1) & (log_counts == 1))[cells[: len(exported)]]
    return Found(jobs=float(linked.mean()), users=_share_of_users(linked, owners))
