"""Interface to a running Slurm cluster.

It is read through commands or pyslurm, changed through a few settings, and each change is read back.
"""
