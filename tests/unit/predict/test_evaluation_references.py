"""Published reference figures on real traces: neither a leak nor lost information gets past these."""

from functools import cache

import numpy as np
import pandas as pd
import pytest

from helios.ingest import open_trace
from helios.model import JOBS, in_submission_order
from helios.predict.evaluation import evaluate
from helios.predict.job_table import JobTable, causal_features
from helios.predict.scores import spearman
from tests.traces import TRACES, needs_traces

pytestmark = needs_traces
KTH, GRAHAM = "KTH-SP2-1996-2.1-cln.swf.gz", "sacct_graham_may-jun2021.txt.gz"


@cache
def jobs_of(name):
    batches = [batch.jobs for batch in open_trace(TRACES / name).read()]
    return in_submission_order(JOBS.conform(pd.concat(batches, ignore_index=True)))


def rank_of_the_users_last_job(jobs, *, gpu_only=False):
    """Over the whole log, of jobs whose user had an ended job."""
    table = JobTable.from_frame(jobs)
    matrix = causal_features(table)
    last = matrix.X[:, matrix.names.index("user_last_1")]
    judged = ~np.isnan(last) & np.isfinite(table.run_time_s) & ((table.gpus > 0) | (not gpu_only))
    return spearman(last[judged].astype(float), table.run_time_s[judged])


@pytest.mark.parametrize(
    ("name", "gpu_only", "reference"), [(KTH, False, 0.62), (GRAHAM, False, 0.44), (GRAHAM, True, 0.29)]
)
def test_the_users_last_ended_job_ranks_as_well_as_published(name, gpu_only, reference):
    assert rank_of_the_users_last_job(jobs_of(name), gpu_only=gpu_only) == pytest.approx(reference, abs=0.015)


def test_the_model_reaches_the_published_rank_on_kth():
    found = evaluate(jobs_of(KTH), cluster="kth", test_fraction=0.3)
    assert found.figures.spearman >= 0.79
    assert found.figures.spearman > found.controls["shrinkage"].spearman > found.controls["user_last"].spearman
