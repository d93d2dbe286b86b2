"""The scheduling simulator that the SC'21 paper published, to the second, so that its tables can be held against ours.

Source: Hu, Sun, Yan, Wen, Zhang, "Characterization and Prediction of Deep Learning Workloads in Large-Scale GPU
Datacenters", SC'21, and its published artifact (S-Lab-System-Group/HeliosArtifact, MIT), whose behaviour is described
here and was written anew. That one steps through every second of every virtual cluster; this one goes from event to
event and gives the same second for every start and end. What it computes, and where it differs from
:mod:`helios.simulate`:

Cluster
    Every partition by itself, empty at first, strict queues: the first job in the order that does not fit ends the
    pass. A job needs enough whole nodes and one more for the rest; up to a node's GPUs it takes the fullest node that
    fits, and the rest of a larger one goes to the *emptiest* node left (ours: to the fullest). The lowest node wins
    ties; the artifact's sort is stable here.
One second
    First all ends, then all arrivals, then one pass. What ends frees its GPUs for that second's pass.
Order
    FIFO by submission, SJF by true run time; ties by place in the trace. The artifact sorts the trace by submission
    with an unstable sort, so that jobs of one second come in any order: ``tie_rank`` draws another one.
QSSF
    By priority, then GPUs, then place in the trace; but in a second in which nobody has waited since before, new jobs
    go by GPUs alone, and priorities have no say.
SRTF
    Not what its name says elsewhere. Each second running and waiting jobs are listed by remaining run time, waiting
    ones first among equals, those who came to their list first before others. Down the list each that the GPUs left
    *by count* suffice for is elected. Who runs and is not elected is stopped, and has 7 s (1 GPU), 30 s (to 8) or
    60 s more to run. Then the elected who wait are placed, each if it fits; one that does not waits on,
    although others may have been stopped for it. A stopped job is tried again in the next second at the earliest. A
    run takes a second longer than its run time, since an end is seen a second late.
Length 0
    The artifact's loop never ends a job of length 0 but under SRTF, nor itself then; such jobs are refused.
Measures
    Queue: waiting until the first start, and under SRTF between a stop and the next start. JCT: end - submission.
"""

from helios.simulate.artifact.replay import PublishedPolicy, PublishedReplay, replay_as_published

__all__ = ["PublishedPolicy", "PublishedReplay", "replay_as_published"]
