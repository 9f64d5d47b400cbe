"""An experiment that any kind of optimizer may train, as a file with nothing but its network."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from adamctl.config.experiment import Experiment
from adamctl.config.load import load_experiment, parse_setting

NETWORK = """\
name = "small"
[model]
input = [8, 8, 1]
[[model.layers]]
type = "dense"
units = 4
[[model.layers]]
type = "softmax"
units = 10
"""


def load(folder: Path, *settings: str, environment: Mapping[str, str] | None = None) -> Experiment:
    """Writes the file into a folder and loads it with settings of `--set`."""
    path = folder / "exp.toml"
    path.write_text(NETWORK)
    changes = [parse_setting(text) for text in settings]
    return load_experiment(path, settings=changes, environment=environment).experiment
