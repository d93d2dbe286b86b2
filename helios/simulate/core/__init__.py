"""The event engine of the simulated cluster, compiled with numba."""
