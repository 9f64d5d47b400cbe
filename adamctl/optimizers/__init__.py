"""Batch algorithms as programs: pure generators over vectors that they never hold (DistBelief 4.2, Sandblaster).

`vectors` is what a program is written with, `execution` how any driver carries it out, `local` the driver on numpy.
"""
