"""Reader of AcmeTrace job logs.

They have the columns of the Helios layout and a workload type. Their times carry a UTC offset. The file of the Kalos
cluster also gives the memory of each pod.

Source: github.com/InternLM/AcmeTrace, ``trace_seren.csv`` and ``trace_kalos.csv``; Hu et al., *Characterization of
Large Language Model Development in the Datacenter*, NSDI 2024. 880,740 jobs, March to August 2023.

``duration`` is not read: in Seren it is end minus start, in Kalos end minus *submission*, whatever its README says
(its own example: submitted 11:00:58, started 11:01:08, ended 11:01:16, duration 18).
"""

from __future__ import annotations

from collections.abc import Iterator

from helios.ingest import helios_csv
from helios.ingest.helios_csv import Wording
from helios.ingest.job_rows import FileReading, JobRows, Layout
from helios.ingest.parse import tells_zone

# Shanghai AI Lab. Seren's times say +08:00 and Kalos' +00:00; the days of both are those of Shanghai.
ZONE = "Asia/Shanghai"
WORDING = Wording(
    layout="acme",
    required=("job_id", "submit_time", "type", "gpu_time"),
    fields=(
        *("job_id", "user", "node_num", "gpu_num", "cpu_num", "mem_per_pod_gb", "type", "state"),
        *("submit_time", "start_time", "end_time", "duration", "queue", "gpu_time"),
    ),
    name=("type",),
    duration_is_run_time=False,
    gib_each_node="mem_per_pod_gb",
)


def fits(start: bytes) -> bool:
    """Return whether a file's first line has the columns of AcmeTrace.

    The columns asked for include two that the Helios layout does not have: ``type`` and ``gpu_time``.
    """
    return set(WORDING.required) <= set(helios_csv.column_names(start))


def drafts(reading: FileReading) -> Iterator[JobRows]:
    """Yield an AcmeTrace job log as translated rows.

    Raises
    ------
    FormatUnknown
        The first line does not name the columns ``job_id``, ``submit_time``, ``type`` and ``gpu_time``.
    """
    return helios_csv.translate(reading, WORDING)


LAYOUT = Layout(fits=fits, drafts=drafts, local_times=lambda start: not tells_zone(start), zone=ZONE)
