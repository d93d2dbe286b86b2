"""What-if under a site's own Slurm, with Helios' order and other settings.

Recorded jobs are the workload of a simulated Slurm. It gets Helios' order as a SiteFactor from the prediction at
submission, as the hook sets it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helios.app.history import LoadedHistory
from helios.app.slurm_whatif_jobs import capacity, slurm_jobs
from helios.app.slurm_whatif_pool import (
    TEXTBOOK_NAME,
    job_pools,
    pooled_easy,
    site_nodes,
)
from helios.app.slurm_whatif_services import InWorkloadOrder, simulate_services_on_slurm
from helios.app.whatif import STARTS_EMPTY, WhatIfRequest, choose_window, describe_sources, measured_run
from helios.errors import NotEnoughHistory
from helios.model import seconds_of
from helios.model.slurm_site import SlurmSite
from helios.ownership import site_factor
from helios.ports import HORIZON_S, JobwiseService, Progress, Service, no_progress
from helios.report.tables import FEWEST_JOBS, Fidelity, fidelity
from helios.report.whatif import Run, WhatIf
from helios.services.qssf import Qssf
from helios.simulate.gpu_units import replay_sizes
from helios.simulate.slurm import SlurmReplay, replay_slurm
from helios.units import best_unit

_SUBMITTED = datetime(2000, 1, 1, tzinfo=UTC)
"""An arbitrary moment, at which a service is called for jobs that have not waited yet."""
AT_ONCE = "Everybody at once, in order of submission"
TODAY, WITH_QSSF, OTHERWISE, TEXTBOOK = "slurm", "qssf", "slurm_otherwise", "fifo"


def _predicted(
    predictor: InWorkloadOrder, submitted_s: NDArray[np.float64], ended_s: NDArray[np.float64], progress: Progress
) -> NDArray[np.float64]:
    """Return each job's predicted median at its submission, s.

    Submissions and ends are replayed in the order of time.
    """
    second, last = np.floor(submitted_s).astype(np.int64), np.ceil(ended_s).astype(np.int64)
    by_submission, by_end = (np.lexsort((predictor.place, at_s)) for at_s in (second, last))
    p50_s, n_reported = np.empty(len(second)), 0
    groups = np.split(by_submission, np.flatnonzero(np.diff(second[by_submission])) + 1)
    for number, jobs in enumerate(groups):
        now_s = int(second[jobs[0]])
        upto = int(np.searchsorted(last[by_end], now_s, side="left"))
        if upto > n_reported:
            predictor.ended(by_end[n_reported:upto], last[by_end[n_reported:upto]])
            n_reported = upto
        p50_s[jobs] = predictor.submitted(jobs, now_s)[:, 1]
        if number % 1_000 == 0:
            progress("Predicting each job at its submission", number / len(groups))
    progress("Predicting each job at its submission", 1.0)
    return p50_s


def _requested(
    service: JobwiseService, p50_s: NDArray[np.float64], gpus: NDArray[np.float64], node: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the urgency that the service requests for each job at submission.

    0 where it names none.
    """
    now = np.datetime64(_SUBMITTED.replace(tzinfo=None), "us")
    columns: dict[str, NDArray[Any]] = {
        "eligible_at": np.full(len(p50_s), now),
        "p50_s": p50_s,
        "p10_s": p50_s,
        "p90_s": p50_s,
        "truncated_mean_s": np.minimum(p50_s, HORIZON_S),
        "submitted_at": np.full(len(p50_s), now),
        "gpus": gpus,
        "node_gpus": node,
        "urgency": np.zeros(len(p50_s)),
        "excluded_reason": np.full(len(p50_s), np.nan, dtype=object),
        "longest_own_wait_s": np.full(len(p50_s), np.nan),
        "size_orders": np.zeros(len(p50_s), dtype=np.bool_),
    }
    return np.nan_to_num(service.changes(columns.__getitem__, _SUBMITTED).urgency, nan=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmWhatIfResult:
    """The replays, and how faithful they are where starts were recorded.

    Attributes
    ----------
    whatif : WhatIf
    fidelity : tuple of Fidelity
        The replay of today's setup first, then controls; empty where too few starts were recorded.
    """

    whatif: WhatIf
    fidelity: tuple[Fidelity, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the answer as plain values."""
        return self.whatif.to_json() | {"fidelity": [row.to_json() for row in self.fidelity]}


def slurm_whatif(
    history: LoadedHistory,
    request: WhatIfRequest,
    site: SlurmSite,
    *,
    otherwise: SlurmSite | None = None,
    changed: str = "",
    services: Mapping[str, Service] | None = None,
    site_factor_most: int = 10_000,
    most_of_one_user: float = 1.0,
    progress: Progress = no_progress,
) -> SlurmWhatIfResult:
    """Replay a window of history under the site's own Slurm.

    It is replayed as the site is set up, with Helios' order, with the services, with other settings, and under the
    textbook control. Waits are counted from the time a job could start (its begin time, or when its dependencies were
    met).

    Parameters
    ----------
    request : WhatIfRequest
        The window.
    site : SlurmSite
        As it is set up today.
    otherwise : SlurmSite, optional
        With other settings. None where it was not requested.
    changed : str
        The other settings, for a person.
    services : mapping of str to Service, optional
        Services by name that act together in a replay of their own, in cycles as they would live. None where there is
        none.
    site_factor_most : int
        Bound of the SiteFactor that Helios sets (``slurm.site_factor_most``).
    most_of_one_user : float
        Largest share of the jobs put ahead of others' that one user may have (``control.most_of_one_user``); 1: no cap.

    Raises
    ------
    NotEnoughHistory
        No job in the window can be replayed.
    JobLargerThanPartition
        A job does not fit the site as described.
    """
    window = choose_window(history, request.since, request.until, warm_up=request.warm_up)
    before = replace(history, jobs=window.before)
    jobs = slurm_jobs(window.jobs, site)
    workload, eligible_s = jobs.workload, jobs.workload.column("eligible_s")
    resource = "gpus" if bool((workload.column("gpus") > 0).any()) else "cpus"
    counted = (jobs.jobs["submitted_at"] >= window.since).to_numpy() & (workload.column(resource) > 0)
    if not counted.any():
        raise NotEnoughHistory("Every job between --from and --to was left out.", hint="\n".join(jobs.notes))
    users = jobs.jobs["user"].cat.codes.to_numpy().astype(np.int64)[counted]
    node = site_nodes(jobs, site, resource)[counted]

    def replayed(name: str, site: SlurmSite, *, site_factor: NDArray[np.int64] | None = None) -> SlurmReplay:
        progress(f"Replaying {name}", 0.0)
        result = replay_slurm(workload, site, site_factor=site_factor)
        progress(f"Replaying {name}", 1.0)
        return result

    def measured(
        started_s: NDArray[np.float64],
        ended_s: NDArray[np.float64],
        *,
        site: SlurmSite = site,
        backfill: str = "none",
        **about: Any,
    ) -> Run:
        """Measure the counted jobs of a replay, in whole seconds."""
        submitted, started, ended = (
            np.rint(times[counted]).astype(np.int64) for times in (eligible_s, started_s, ended_s)
        )
        return measured_run(
            submitted_s=submitted,
            started_s=started,
            ended_s=ended,
            run_time_s=ended - started,
            gpus=replay_sizes(workload.column(resource)[counted]),
            users=users,
            total_gpus=capacity(site, resource),
            node=node,
            backfill=backfill,
            unit=best_unit(resource),
            **about,
        )

    today = replayed("Slurm as it is set up", site)
    predictor = InWorkloadOrder(jobs.jobs, history=before, seed=request.seed, progress=progress)
    p50_s = _predicted(predictor, workload.submitted_s, today.ended_s, progress)
    urgency = _requested(Qssf(Qssf.Options()), p50_s, workload.column("gpus"), site_nodes(jobs, site, "gpus"))
    factors = np.array([site_factor(change, most=site_factor_most) for change in urgency], dtype=np.int64)
    said = [
        f"SiteFactors are those of each job's submission, {factors.min():,} to {factors.max():,}: no job is promoted "
        "while it waits.",
        *describe_sources(predictor.online),
    ]
    ordered = replayed("Slurm, ordered by QSSF", site, site_factor=factors)
    textbook_s = pooled_easy(jobs, site, resource=resource, default_time_limit_s=request.default_time_limit_s)
    runs = [
        measured(today.started_s, today.ended_s, policy=TODAY),
        measured(ordered.started_s, ordered.ended_s, policy=WITH_QSSF, run_times="predicted"),
    ]
    if services:
        acted = simulate_services_on_slurm(
            jobs,
            site,
            services,
            history=before,
            most=site_factor_most,
            most_of_one_user=most_of_one_user,
            seed=request.seed,
            progress=progress,
        )
        title = f"{' + '.join(services)}, in cycles"
        runs.append(measured(acted.replay.started_s, acted.replay.ended_s, policy=title))
        said += acted.notes
    if otherwise is not None:
        other = replayed("other settings", otherwise)
        runs.append(measured(other.started_s, other.ended_s, site=otherwise, policy=OTHERWISE))
    textbook_ended_s = textbook_s + workload.run_time_s
    runs.append(measured(textbook_s, textbook_ended_s, policy=TEXTBOOK, estimates="limit", backfill="easy"))
    pool, submitted = job_pools(site, resource), jobs.jobs["submitted_at"][counted]
    n_nodes, each = int(pool.nodes[0]), int(pool.gpus_per_node[0])
    notes = [
        *history.notes,
        *(f"The site's files: {note}" for note in site.notes),
        *jobs.notes,
        *said,
        f"{TEXTBOOK_NAME}: {n_nodes} nodes of {each}, whatever the partition.",
        *([f"Other settings: {changed}."] if changed else []),
        *([] if request.warm_up else [STARTS_EMPTY]),
    ]
    whatif = WhatIf(
        cluster=history.cluster,
        capacity=history.capacity,
        partitions={", ".join(partition.name for partition in site.partitions): n_nodes},
        gpus_per_node=each,
        resource=resource,
        window=(submitted.min().to_pydatetime(), submitted.max().to_pydatetime()),
        runs=tuple(runs),
        notes=tuple(dict.fromkeys(notes)),
    )
    recorded_s = seconds_of(jobs.jobs["started_at"])
    known = counted & ~np.isnan(recorded_s)
    replays = {"Slurm as it is set up": today.started_s, TEXTBOOK_NAME: textbook_s, AT_ONCE: eligible_s}
    scores = (
        fidelity(name, eligible_s=eligible_s[known], recorded_s=recorded_s[known], replayed_s=replayed_s[known])
        for name, replayed_s in replays.items()
    )
    return SlurmWhatIfResult(whatif=whatif, fidelity=tuple(scores) if known.sum() >= FEWEST_JOBS else ())


# Services on a site's own Slurm, simulated with the same objects, cycles and predictions as on a live cluster.
