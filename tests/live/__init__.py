"""Tests on a real Slurm: munge, MariaDB, slurmdbd, slurmctld and slurmd, brought up by deploy/devcluster."""
