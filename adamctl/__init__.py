"""Train deep networks on ordinary CPU machines: Project Adam (OSDI 2014) and DistBelief (NIPS 2012) as one program."""

__version__ = "0.1.0"
