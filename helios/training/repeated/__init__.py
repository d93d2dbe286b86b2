"""Report of repeated jobs, which may share GPUs."""
