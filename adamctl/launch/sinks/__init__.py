"""Where `adamctl run follow` puts what a run measures: built in, or added by other packages. Here, names alone."""

from __future__ import annotations

from typing import Final

from adamctl.plugins import PluginGroup

BUILT_IN: Final = ("tensorboard", "csv", "jsonl")
SINKS: Final = PluginGroup("adamctl.sinks", "--to", "a sink", BUILT_IN)
