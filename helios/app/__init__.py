"""The composition root: the only room that knows every other, each use case one function.

The modules are use cases, not layers: ``history`` (what was), ``expectation`` (what a model makes of it),
``whatif`` (what would have been), ``tryout`` (all of it once, on a synthetic month).
"""
