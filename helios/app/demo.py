"""Demonstration of Helios on a synthetic month, without a cluster."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from helios.app.history import ingest, load_history
from helios.app.model_registry import judge, learn
from helios.app.order_check import check_order
from helios.app.scenarios import default_scenarios
from helios.app.whatif import WhatIfRequest, whatif
from helios.errors import WarehouseUnavailable
from helios.ingest import synthetic_nodes, synthetic_trace, write_helios_csv
from helios.ports import Progress, no_progress
from helios.predict.evaluation import Evaluation
from helios.report.history import Description, describe
from helios.report.whatif import WhatIf

PROFILE, SEED = "venus", 0
"""Cluster to whose published figures the month is calibrated, and what it is drawn with."""
FIRST_DAY = datetime(2020, 9, 1, tzinfo=UTC)
TRAINING_SHARE = 0.7
"""Share of the month on which the model is trained. The rest is replayed."""
WARM_UP = timedelta(days=2)
GPUS_PER_NODE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """Description of the history, prediction accuracy and replays of a demonstration."""

    description: Description
    evaluation: Evaluation
    result: WhatIf


def run_demo(folder: Path, *, days: int, made_at: datetime, progress: Progress = no_progress) -> Demo:
    """Run the demonstration on a synthetic month.

    A trace is generated and loaded. A model is trained on the first 70 %, and the rest is replayed under every default
    policy.

    Parameters
    ----------
    folder : Path
        It is created if missing. The trace and warehouse of an earlier run in it are replaced.

    Raises
    ------
    HeliosError
        The folder cannot be written, or the month is too short to learn from.
    """
    step = f"Making {days} days of a cluster like {PROFILE.capitalize()}"
    progress(step, 0.0)
    trace, warehouse = folder / f"{PROFILE}.csv.gz", folder / "helios.db"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        warehouse.unlink(missing_ok=True)
        write_helios_csv(synthetic_trace(profile=PROFILE, start=FIRST_DAY, days=days, seed=SEED), trace)
    except OSError as reason:
        raise WarehouseUnavailable(
            f"{folder} cannot be written: {reason}", hint="Choose another: --out FOLDER"
        ) from reason
    progress(step, 1.0)
    url = f"sqlite:///{warehouse}"
    ingest(trace, url=url, timezone="UTC", cluster=PROFILE, progress=progress)
    history = load_history(url=url, cluster=PROFILE)
    split = FIRST_DAY + TRAINING_SHARE * timedelta(days=days)
    learn(history, url=url, until=split, seed=SEED, made_at=made_at, progress=progress)
    request = WhatIfRequest(
        scenarios=default_scenarios(),
        since=split,
        warm_up=WARM_UP,
        nodes=synthetic_nodes(PROFILE),
        gpus_per_node=GPUS_PER_NODE,
        seed=SEED,
    )
    result = whatif(history, request, progress=progress)
    # The month is made up, and its recorded waits say nothing of a queue.
    verdict = check_order(history, request, compares_recorded=False, progress=progress)
    return Demo(
        description=describe(history.jobs, cluster=PROFILE, timezone=history.timezone),
        evaluation=judge(history, train_until=split, test_fraction=1 - TRAINING_SHARE, seed=SEED, progress=progress),
        result=replace(result, verdict=verdict),
    )
