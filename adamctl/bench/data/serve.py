"""Two data servers with one decoding thread each against one: photographs decoded anew in each pass, and discarded."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import numpy as np

from adamctl.bench.bars import Found, Progress
from adamctl.bench.data.parts import DataSettings
from adamctl.bench.data.serving import DataProcesses
from adamctl.config.data import DataConfig

SOURCE = "caltech-10/caltech-10.tar"
SHAPE = (100, 100, 3)
RANGE_EXAMPLES = 64
ROUND_S_MIN = 3.0
UNCACHED = 1e-9
"""The share of memory for decoded images: none, so that every image is decoded each time."""


def measure(settings: DataSettings, progress: Progress) -> dict[str, Found]:
    """Returns how many times as many images as one server two of them serve, of each the median of all rounds."""
    path = next((Path(folder) / SOURCE for folder in settings.data if (Path(folder) / SOURCE).is_file()), None)
    if path is None:
        return {"serve": {"cannot": f"{SOURCE} is in none of the folders of --data"}}
    config = DataConfig(format="tar", source=str(path), scale="unit", memory_share=UNCACHED)
    seconds = max(settings.seconds, ROUND_S_MIN)
    rates: dict[int, list[float]] = {1: [], 2: []}
    with ExitStack() as stack:
        farms = {count: stack.enter_context(DataProcesses(count, 1, [str(path.parent)])) for count in rates}
        for turn in range(settings.rounds):
            progress(f"one and two data servers: round {turn + 1} of {settings.rounds}")
            for count, farm in farms.items():
                rates[count].append(farm.read(config, SHAPE, RANGE_EXAMPLES, seconds, 100 * turn).rate)
    one, two = (float(np.median(rates[count])) for count in (1, 2))
    return {"serve": {"ratio": two / one, "one_images_per_s": one, "two_images_per_s": two}}
