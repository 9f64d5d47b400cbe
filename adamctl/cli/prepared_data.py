"""`adamctl data prepare|verify`: write data once as they are served, and find what is damaged in them."""

from __future__ import annotations

import os
from pathlib import Path

import click

from adamctl.cli import completing, options
from adamctl.cli.data import Progress, configuration
from adamctl.cli.output import echo, print_json
from adamctl.errors import ConfigurationError, DamagedDataError


@click.command("prepare")
@click.argument("source", shell_complete=completing.data_sets)
@click.option(
    "--to", "folder", required=True, metavar="FOLDER", type=click.Path(path_type=Path), help="Folder to make."
)
@click.option(
    "--format",
    "format_",
    metavar="FORMAT",
    shell_complete=completing.formats,
    help="Format of SOURCE: idx, npz or another name of data.format.",
)
@click.option("--shape", metavar="SIZES", help="Shape of an example, such as 64,64,3; images are scaled to it.")
@click.option(
    "--seed", type=click.IntRange(min=0), default=7, show_default=True, help="Seed of the order of training examples."
)
@click.option("--threads", type=click.IntRange(1, 1024), help="Threads that decode; by default one for each core.")
@click.option(
    "--on-error",
    type=click.Choice(("fail", "skip")),
    help="What to do about a damaged example; by default what the experiment says, or fail.",
)
@options.data_option
@options.set_option
@options.json_option
def prepare(
    source: str,
    folder: Path,
    format_: str | None,
    shape: str | None,
    seed: int,
    threads: int | None,
    on_error: str | None,
    data: tuple[str, ...],
    settings: tuple[str, ...],
    as_json: bool,
) -> None:
    """Write SOURCE, an experiment file's data, a path or a name, into FOLDER: decoded, shuffled, with checksums.

    Experiments read it with format = "prepared". FOLDER is there when it is complete, and not before.
    """
    from adamctl.roles.data.catalogue.catalogue import find_source
    from adamctl.roles.data.prepared.prepare import prepare as prepare_data
    from adamctl.roles.data.readers import open_source
    from adamctl.roles.data.readers.access import exists, reported

    wanted = _shape(shape)
    config, input_shape = configuration(source, format_, data, settings)
    with reported(folder):
        if exists(folder):
            raise ConfigurationError(f"{folder} exists already; remove it, or give another folder")
    opened = open_source(config, find_source(config), wanted or input_shape)
    made_from = f"{config.format} {config.source}"
    manifest, skipped = prepare_data(
        opened,
        folder,
        seed=seed,
        threads=threads or os.cpu_count() or 1,
        made_from=made_from,
        skip=(on_error or config.on_error) == "skip",
        progress=Progress("examples"),
    )
    examples = {split: sum(file.rows for file in manifest.of(split, "examples")) for split in ("train", "test")}
    size_bytes = sum(file.size_bytes for file in manifest.files)
    if as_json:
        files = [file.name for file in manifest.files]
        print_json(
            {
                "folder": str(folder),
                "examples": examples,
                "skipped": skipped,
                "size_bytes": size_bytes,
                "files": files,
            }
        )
        return
    counts = f"{examples['train']:,} training and {examples['test']:,} test examples"
    left_out = sum(skipped.values())
    counts += f", {left_out:,} damaged ones left out" if left_out else ""
    echo(f'{folder}: {counts}, {size_bytes:,} bytes; read them with format = "prepared"')


def _shape(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        sizes = tuple(int(size) for size in text.split(","))
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 1:
        raise ConfigurationError(
            f"--shape: expected whole numbers above 0 with commas, such as 64,64,3; found {text!r}"
        )
    return sizes


@click.command("verify")
@click.argument("folder", type=click.Path(path_type=Path))
@options.json_option
def verify(folder: Path, as_json: bool) -> int:
    """Check every byte of FOLDER, which `adamctl data prepare` wrote, and name what is damaged.

    Exit code 5 if anything is: a block, a file that is missing or of another length, or one too many.
    """
    from adamctl.roles.data.prepared.verify import find_damage, read_manifest

    manifest = read_manifest(folder)
    found = list(find_damage(folder, Progress("bytes")))
    size_bytes = sum(file.size_bytes for file in manifest.files)
    if as_json:
        rows = [
            {"file": one.file, "block": one.block, "start": one.start, "stop": one.stop, "what": one.what}
            for one in found
        ]
        sizes = {"files": len(manifest.files), "size_bytes": size_bytes}
        print_json({"ok": not found, "folder": str(folder), **sizes, "damage": rows})
    else:
        state = f"{len(found)} damaged parts" if found else "whole"
        echo(f"{folder}: {state}, {len(manifest.files)} files of {size_bytes:,} bytes")
    for one in found:
        echo(f"{folder / one.file}: {one.where}{one.what}", err=True)
    return DamagedDataError.exit_code if found else 0
