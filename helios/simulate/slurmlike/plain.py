"""Numbers that are as any other to the compiler."""

from __future__ import annotations

from helios.simulate.kernel import kernel


@kernel
def plain(number: int) -> int:
    """Return ``number``, no longer a constant: numba compiles a callee anew for each constant it is called with."""
    return number + 0
