"""Reading of what jobs used from a live cluster's accounting, window by window."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from helios.app.sync import UseReading, missing, read_periods
from helios.job_use.accounting import SOURCES, read_sacct
from helios.job_use.records import UseCounts, store_records
from helios.model import UseSource
from helios.warehouse import Warehouse


def read_windows(reading: UseReading) -> list[str]:
    """Store what the jobs of all windows used that were not read before.

    A window is recorded as read only after it is stored. What was read before with other sources is read anew.

    Returns
    -------
    list of str
        What was read, as lines of text.

    Raises
    ------
    ClusterUnavailable, WarehouseUnavailable
        The windows read so far are kept.
    """
    sources = [name for name in SOURCES if name in reading.sources]
    read_use = reading.accounting.use
    if not sources or read_use is None:
        return []
    counts, name = UseCounts(), f"job_use {' '.join(sources)}"
    with Warehouse.open(reading.url) as warehouse, TemporaryDirectory(prefix="helios-") as folder:
        covered = [] if reading.again else read_periods(warehouse.coverage(reading.cluster), name)
        windows = list(
            missing(covered, begin=reading.begin, now=reading.now, window=reading.window, overlap=reading.overlap)
        )
        for number, (first, last) in enumerate(windows):
            reading.progress("Reading what jobs used", number / len(windows))
            path = Path(folder) / "use.txt"
            read_use(first, last, path, UseSource.ACCOUNTING in sources)
            for records in read_sacct(path, counts=counts, sources=sources):
                store_records(warehouse, reading.cluster, records, counts)
            warehouse.add_coverage(reading.cluster, source=name, started_at=first, ended_at=last, read_at=reading.now)
        reading.progress("Reading what jobs used", 1.0)
    return [f"what jobs used: {line}" for line in counts.lines()] if counts.read or counts.other_text else []
