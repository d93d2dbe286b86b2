"""Helios, which learns from a Slurm cluster's history and acts on it."""

__version__: str


def __getattr__(name: str) -> str:
    # Looked up when it is asked for, since each agent of a training pool would pay 4 MiB for it.
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import version  # noqa: PLC0415 - as above

    return version("helios-slurm")
