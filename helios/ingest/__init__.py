"""Outside history becomes records: trace files in, columns of ``JOBS`` out, and what made no sense beside them."""

from helios.ingest.formats import TraceFormat
from helios.ingest.helios_csv import write_helios_csv
from helios.ingest.synthetic import synthetic_nodes, synthetic_trace
from helios.ingest.trace_file import TraceFile, open_trace

__all__ = ["TraceFile", "TraceFormat", "open_trace", "synthetic_nodes", "synthetic_trace", "write_helios_csv"]
