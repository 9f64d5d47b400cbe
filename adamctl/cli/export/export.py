"""`adamctl export` and `adamctl import`: parameters to and from files of other programs."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

import click

from adamctl.cli import completing, options
from adamctl.cli.output import echo, print_json, say_which, table

_FORMATS = click.Choice(["safetensors", "npz", "torch"])


@click.command("export")
@click.argument("place", shell_complete=completing.runs)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--to", "kind", type=_FORMATS, help="The file's format; by default, taken from its ending.")
@click.option(
    "--order",
    type=click.Choice(["adamctl", "torch"]),
    help="Names and order of dimensions: adamctl's (default) or PyTorch's (default with --to torch).",
)
@options.checkpoint_option
@options.runs_option
@options.json_option
def export(
    place: str, file: Path, kind: str | None, order: str | None, which: str, run_dir: str, as_json: bool
) -> None:
    """Write the parameters of PLACE, a checkpoint or a run (--checkpoint says which of its checkpoints), to FILE.

    In adamctl's order, names are those of `adamctl summary` with .weight and .bias; a convolution's weight is [filters,
    height, width, channels], a dense layer's [units, inputs]. In PyTorch's order, a convolution's weight is [filters,
    channels, height, width], and names are those of the printed nn.Sequential, which computes the same from images [n,
    channels, height, width]. The checkpoint is verified first; damage ends the command with exit code 5.
    """
    from adamctl.cli.checkpoint.damage import find_damage
    from adamctl.cli.export.files import format_of, write_arrays
    from adamctl.cli.export.torch_model import module_code, to_torch
    from adamctl.errors import DamagedDataError
    from adamctl.launch.trained import choose
    from adamctl.live.units import size
    from adamctl.roles.coordinator.checkpoint.manifest import read_manifest
    from adamctl.roles.ps.checkpoint_files import load_parameters

    kind = format_of(file, kind, "--to")
    order = order or ("torch" if kind == "torch" else "adamctl")
    folder, chosen = choose(place, Path(run_dir), which)
    say_which(folder, chosen)
    if damage := find_damage(folder):
        raise DamagedDataError("\n".join(damage))
    found = read_manifest(folder)
    code = module_code(found.experiment.model) if order == "torch" else None
    values = load_parameters(folder)
    if order == "torch":
        values = to_torch(found.experiment.model, values)
    described = {"format": "pt" if order == "torch" else "np", "order": order, "job": found.job}
    write_arrays(file, kind, values, described)
    if as_json:
        tensors = [{"name": name, "shape": list(array.shape)} for name, array in values.items()]
        print_json({"file": str(file), "format": kind, "order": order, "tensors": tensors, "module": code})
        return
    echo(table(("name", "shape"), [(name, "x".join(map(str, a.shape))) for name, a in values.items()]))
    echo(f"{file}: {len(values)} arrays, {size(file.stat().st_size)}, {kind} in the order of {order}")
    if code is not None:
        echo(f"\n{code}")


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("folder", metavar="CKPT_FOLDER", type=click.Path(path_type=Path))
@click.option("--model", "experiment", required=True, metavar="EXP.toml", help="Experiment that defines the model.")
@click.option("--from", "kind", type=_FORMATS, help="The file's format; by default, taken from its ending.")
@options.set_option
@options.json_option
def import_(
    file: Path, folder: Path, experiment: str, kind: str | None, settings: tuple[str, ...], as_json: bool
) -> None:
    """Make a checkpoint in CKPT_FOLDER from the parameters in FILE.

    Names and shapes must be those of the model, in adamctl's order or in PyTorch's (see `adamctl export`); the names
    tell which. `adamctl eval` and `predict` accept the checkpoint, and train.warmstart_from starts training from it.
    """
    from adamctl.cli.export.checkpoint import check_arrays, write_checkpoint
    from adamctl.cli.export.files import format_of, read_arrays
    from adamctl.cli.export.torch_model import from_torch
    from adamctl.model.layout import build_layout

    loaded = options.load(experiment, settings, (), {}).experiment
    values = read_arrays(file, format_of(file, kind, "--from"))
    order = "torch" if values and all(name.partition(".")[0].isdecimal() for name in values) else "adamctl"
    if order == "torch":
        values = from_torch(loaded.model, values)
    check_arrays(build_layout(loaded.model, loaded.cluster.ps), values, file)
    write_checkpoint(folder, loaded, values)
    command = f"adamctl train {quote(experiment)} --set train.warmstart_from={quote(str(folder))}"
    if as_json:
        print_json({"folder": str(folder), "order": order, "tensors": len(values), "command": command})
        return
    echo(f"{folder}: a checkpoint of {len(values)} arrays, read in the order of {order}; start from it with")
    echo(f"  {command}")
