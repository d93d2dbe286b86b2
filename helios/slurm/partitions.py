"""The partitions of a running cluster, by name."""

from __future__ import annotations

import re

from helios.slurm.shell import Shell

_NAME = re.compile(r"^PartitionName=(\S+)", re.MULTILINE)


def partition_names(shell: Shell) -> tuple[str, ...]:
    """Return the names of all partitions, hidden ones too, in the order of the configuration.

    Raises
    ------
    ClusterUnavailable
        Slurm's commands are not installed here, or the controller does not answer.
    ClusterRefused, AnswerNotUnderstood
        It says something else.
    """
    shown = shell.run("scontrol", "--all", "--oneliner", "show", "partition")
    return tuple(_NAME.findall(shown.decode("utf-8", "replace")))
