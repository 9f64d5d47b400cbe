"""A process that compiles kernels: `python -m adamctl.kernels.compile_ahead` reads names, one per line, from stdin.

It writes each name to stdout once the kernel is in the cache, and ends at the end of its input. Compiling holds the
interpreter lock, so compiling several kernels in parallel needs several processes.
"""

from __future__ import annotations

import sys

from adamctl.kernels import kernel_cache
from adamctl.kernels.backend import load


def main() -> None:
    kernel_cache.prepare()
    for line in sys.stdin:
        name = line.strip()
        load([name])
        kernel_cache.mark(name)
        print(name, flush=True)


if __name__ == "__main__":
    main()
