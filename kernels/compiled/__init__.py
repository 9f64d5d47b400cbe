"""Compiled kernels. Modules here import numba: import them only through `adamctl.kernels.backend`."""
