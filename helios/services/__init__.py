"""Services, which propose changes to a cluster and never apply them.

Services do not import each other.
"""
