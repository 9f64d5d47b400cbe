"""Compiled kernels. Modules here import numba: import them through `adamctl.kernels.backend` only."""
