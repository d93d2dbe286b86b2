"""Outside history becomes records: trace files in, columns of ``JOBS`` out, and what made no sense beside them."""

from helios.ingest.helios_csv import write_helios_csv
from helios.ingest.reader import TraceFile, TraceFormat, open_trace
from helios.ingest.synthetic import synthetic_nodes, synthetic_trace

__all__ = ["TraceFile", "TraceFormat", "open_trace", "synthetic_nodes", "synthetic_trace", "write_helios_csv"]
