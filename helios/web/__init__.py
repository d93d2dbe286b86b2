"""Read-only web page of a cluster: its queue, its history, and what Helios did.

Needs the extra ``[web]``.
"""
