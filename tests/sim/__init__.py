"""Whole clusters in one thread under one seed, with the real cores and the real message types.

`engine` has what any of them needs: true time, clocks that differ from it, a network, faults, a trace. Each folder is a
kind of cluster: who takes part, what must hold, one seed (`scenario`), and planted faults that must be found
(`mutants`). `servers` adds parameter servers to the cluster of `controllers`, `runs` adds a coordinator and workers to
that; `processes` are what real shells run in. `suites` lists the kinds; `python -m tests.sim --help` runs seeds.
"""
