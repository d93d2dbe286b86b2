"""Read-only web page of a cluster.

It shows the queue, the history, and what Helios did. Needs the extra ``[web]``.
"""
