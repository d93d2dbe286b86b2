"""A running Slurm: read through commands or pyslurm, changed through two settings, read back."""
