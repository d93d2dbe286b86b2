"""Readers that turn trace files into columns of ``JOBS``.

Rows that cannot be understood are returned beside the jobs, each with its line and a reason. The package also writes
history in some layouts and makes synthetic traces.
"""

from helios.choices import TraceFormat
from helios.ingest.column_map import ColumnMap, read_map
from helios.ingest.helios_csv import write_helios_csv
from helios.ingest.job_rows import RecordedMachine
from helios.ingest.parquet import write_parquet
from helios.ingest.reader import TraceFile, open_trace
from helios.ingest.swf import write_swf
from helios.ingest.synthetic import synthetic_nodes, synthetic_trace

__all__ = [
    "ColumnMap",
    "RecordedMachine",
    "TraceFile",
    "TraceFormat",
    "open_trace",
    "read_map",
    "synthetic_nodes",
    "synthetic_trace",
    "write_helios_csv",
    "write_parquet",
    "write_swf",
]
