"""The one room that touches a running Slurm: looks through commands or pyslurm, acts through two settings, reads back."""
