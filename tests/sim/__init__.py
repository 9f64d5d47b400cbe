"""Whole clusters in one thread under one seed, with the real cores and the real message types.

`engine` has what any of them needs: true time, clocks that differ from it, a network, faults, a trace. `controllers`,
`clients` and `nodes` are who takes part, `invariants` and `history` say what must hold, `scenario` puts one seed
together, `mutants` are planted faults that must be found. `server_*` and `run_*` are the same for clusters with
parameter servers and for runs, which add a coordinator; `sim_*` the processes. `python -m tests.sim --help` runs seeds.
"""
