"""Replay of a workload on a simulated cluster under a queue policy.

The simulation goes event by event and is compiled. The same jobs, cluster and options give the same result, to the
second. Its rules:

Cluster
    Every partition has its own queue and its own nodes, all alike. Time is in whole seconds.
One moment
    First all ends at that time, then all arrivals, then one scheduling pass for each partition where something
    ended or arrived. A job of length 0 ends at the time it starts, which makes another round at that time.
Queue order
    By the key of the order, then submit time, then position in the workload, which is the order of job ids.
Placement
    A job of up to a node's GPUs goes to a node that has enough free. A larger one takes as many wholly free nodes as it
    fills, and one more for the rest. Among the nodes that fit the lowest weight goes first. Among equal weights
    ``packed`` (the default) takes the node with the fewest free GPUs, ``spread`` the one with the most, ``weighted``
    the first, and ``random`` any, drawn from the seed, the job and the number of the choice alone. The lowest node wins
    ties. Enough free GPUs may be scattered so that placement fails; then the job does not fit.
Nodes that sleep
    An idle node falls asleep when it is powered down, or when it has been idle for as long as the idle timer says. That
    takes ``shutdown_s``, in which no job can use it and it cannot be called back; then it can be used again. A job
    takes awake nodes before waking ones before sleeping ones, whatever their weights. The sleeping ones wake, which
    takes ``boot_s``, and the job starts when the last is up. In one moment nodes are up or asleep before jobs end and
    arrive, and the idle timer comes after the passes; a pass is also due where a node has fallen asleep. For EASY a
    node that is falling asleep is an expected end, and a job that the awake nodes alone cannot hold needs ``boot_s``
    more when it has to end by the shadow time. Waking never fails.
Rules for nodes awake
    A partition may have a rule (:class:`helios.metrics.spare_nodes.AwakeRule`) that is checked at whole multiples of
    its ``every_s`` after the passes and the idle timer, as long as anything else is left to happen. In use are the
    nodes that hold a job, waking ones included; the peak is the most of them at once since the checks of ``memory_s``
    ago. First nodes wake in all partitions, the lowest weight first. Then idle nodes fall asleep, those that were idle
    longest first, of equals the last.
Backfill ``none``
    Strict: jobs start in order until the head does not fit.
Backfill ``skip``
    Every pending job is tried in order; those that fit start.
Backfill ``easy``
    Strict until the head does not fit. Then expected ends (start + estimate) of running jobs, in order of
    time, release GPUs until the head's number is free, *by count*. That is the shadow time. What is free beyond the
    head at that time, all expected ends of that second included, is extra. At least one expected end has to pass,
    even where the count suffices already: such a head waits for a node to be cleared, which no job does
    before it ends, and a shadow time of now would close the window to every job that ends. The queue is gone
    through once, in order: a job that fits starts if it is expected to end by the shadow time, or else if it needs
    no more than the extra GPUs, which it uses up. The reservation is made anew in every pass.
    A running job past its estimate is given 0.3 x its estimate more (rounded down, at least 1 s), again and
    again until its expected end lies ahead.
Backfill ``nodes``
    Strict until the head does not fit. Then expected ends of running jobs are gone through in order of time on the
    nodes, all of one second together, until the head can really be placed by the rules of placement. The nodes that it
    takes then are reserved, whole, and that second is the shadow time. A running job past its estimate is expected to
    last 0.3 x as long again as it has run (rounded down, at least 1 s) from now on. The queue is gone through once, in
    order: a job that is expected to end by the shadow time starts if it fits; any other, if it fits on nodes that are
    not reserved, where it is placed. The reservation is made anew in every pass. A node that is falling asleep sleeps,
    in this plan, from when it has fallen asleep; boot times count as for EASY. ``closed``: where the wait bound has
    promoted the head, no other job is placed on its nodes, even to end in time. ``idle_gpus``: of a head that was not
    promoted the first nodes stay reserved, in the order in which it takes them, that together have no more free GPUs
    than that now.
Preemptive (SRTF)
    Order by remaining true run time. A pending job that does not fit stops running jobs that have strictly
    more left, the longest first (later positions first in ties), only as many as it takes, and none if all would
    not do. A stopped job keeps its work, costs nothing to stop or resume, and goes back to the queue, in the
    same pass. With ``none`` the pass ends at the first job that cannot be placed; with ``skip`` it goes on.
Predictions in the timeline
    Before each second in which jobs are submitted, the predictor is given all jobs that ended earlier and is asked for
    these jobs; answers hold for the rest of the replay. With ``predict_again_s`` it is asked again about the pending
    jobs, before the first moment at least so long after the last time, or after the first submission. Those jobs are
    queued anew by the new answers, and a pass is due in their partitions.
Wait bound
    At the beginning of every pass, jobs that have waited longer than the bound then in force go to the front of the
    queue and stay there; among them by submit time, then position. What backfill may do is not changed by it.
Ageing
    Keys are ln(key) + submission / tau. Each job is queued with the tau of its submission; whenever tau changes, the
    pending jobs are queued anew before the next moment, and a pass is due in their partitions.

Applying changes
    :class:`SimCluster` implements the port ``Cluster`` in the timeline of a workload. Its own order is first in, first
    out; a job's key is its urgency, negated. At the moment that the clock is moved to, ends and arrivals have happened
    and the pass is still due, so that changes made there count for it. A change to a partition's queue makes a pass
    due by itself.

The compiled core (:mod:`helios.simulate.core.events`) keeps its state in plain arrays and can stop before any moment.
"""

from helios.choices import Backfill
from helios.errors import JobLargerThanPartition, PartitionUnknown
from helios.simulate.ageing import ORDERS, Ageing, LongestWaits, WaitBound
from helios.simulate.cluster import SimCluster
from helios.simulate.cluster_nodes import NodeHolding, NodeTally, Sleep
from helios.simulate.core.state import ClusterShape, Workload
from helios.simulate.job_trace import JobTrace
from helios.simulate.replay import RESERVING, Placement, Replay, Reservation, replay
from helios.simulate.snapshot import Predictions

__all__ = [
    "ORDERS",
    "RESERVING",
    "Ageing",
    "Backfill",
    "ClusterShape",
    "JobLargerThanPartition",
    "JobTrace",
    "LongestWaits",
    "NodeHolding",
    "NodeTally",
    "PartitionUnknown",
    "Placement",
    "Predictions",
    "Replay",
    "Reservation",
    "SimCluster",
    "Sleep",
    "WaitBound",
    "Workload",
    "replay",
]
