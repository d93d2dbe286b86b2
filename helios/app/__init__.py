"""Use cases of Helios, the only package that knows all others.

The modules are use cases, not layers. Examples: ``history`` loads and reads job history, ``whatif`` replays it under
another service, ``operations`` has what the daemon runs, ``demo`` shows all of it on a synthetic month.
"""
