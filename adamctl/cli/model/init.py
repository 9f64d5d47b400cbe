"""`adamctl init`: writes files to start from."""

from __future__ import annotations

from pathlib import Path

import click

from adamctl.cli.lazy import TableGroup
from adamctl.cli.output import echo

command = TableGroup(
    name="init",
    help="Write files to start from.",
    context_settings={"help_option_names": ["-h", "--help"]},
    table={"layer": ("adamctl.cli.model.init:layer", "Write a layer of your own, and its test")},
)

LAYER = '''"""A layer of one's own; docs/layers_of_your_own.md says what it promises."""

from __future__ import annotations

import numpy as np

import adamctl as adam


class CLASS(adam.Layer, name="NAME"):
    """out = gain * the mean of the window around each pixel; a gain for each map."""

    size: int = 3

    def output_shape(self, input):
        return input

    def connectivity(self):  # or adam.Same(), adam.Full()
        return adam.Window(self.size, padding="same")

    def parameters(self, input):
        return {"gain": adam.Parameter((input[2],), init="ones", shared=True)}

    def state(self, part):  # what upward leaves to downward, for one example
        return {"mean": part.output_shape}

    def upward(self, part, inputs, parameters, state, out):
        mean = state["mean"]
        mean[...] = 0
        for window in self.windows(part, inputs):
            mean += window
        mean /= part.counts[..., None]
        np.multiply(mean, parameters["gain"], out=out)

    def downward(self, part, error, inputs, parameters, gradients, state, out):
        np.sum(error * state["mean"], axis=(0, 1, 2), out=gradients["gain"])
        if out is None:  # nobody needs the error at the inputs
            return
        error *= parameters["gain"]
        error /= part.counts[..., None]
        out[...] = 0
        for window in self.windows(part, out):
            window += error

    def windows(self, part, image):
        """Yields, for each place in a window, its pixels [n, rows, columns, maps]."""
        rows, columns, _ = part.output_shape
        for y, x in np.ndindex(self.size, self.size):
            yield image[:, y : y + rows, x : x + columns]
'''
TEST = '''"""CLASS keeps its promises: gradients, parts, and what it says that it reads."""

import adamctl as adam
from NAME import CLASS


def test_NAME_keeps_its_promises():
    adam.check_layer(CLASS(), input_shape=(9, 8, 3), partitions=(2, 3))
'''


@click.command("layer")
@click.argument("name")
@click.option("--folder", type=click.Path(path_type=Path), default=".", help="Where the files go; the present folder.")
def layer(name: str, folder: Path) -> None:
    """Write NAME.py with a layer that works, and test_NAME.py with its test.

    NAME is what the layer is called in a network, such as `whiten`. Change the computation and run the test.
    """
    from adamctl.errors import ConfigurationError
    from adamctl.model.custom.interface import name_problem

    if problem := name_problem(name):
        raise ConfigurationError(f"init layer {name}: {problem}")
    found = "".join(word.capitalize() for word in name.split("_"))
    files = {folder / f"{name}.py": LAYER, folder / f"test_{name}.py": TEST}
    for path in files:
        if path.exists():
            raise ConfigurationError(f"{path} exists; choose another name or --folder, or remove it")
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        path.write_text(text.replace("CLASS", found).replace("NAME", name))
        echo(str(path))
    echo(f"test it: pytest {folder / f'test_{name}.py'}")
    echo(f'use it in an experiment of that folder: type = "{name}:{found}"')
