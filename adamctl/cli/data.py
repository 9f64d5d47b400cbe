"""`adamctl data inspect|fetch`: commands for data that need no running server."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from adamctl.cli import completing, options
from adamctl.cli.output import echo, print_json, table
from adamctl.errors import ConfigurationError

if TYPE_CHECKING:
    from adamctl.config.data import DataConfig

_PROGRESS_INTERVAL_S = 2.0
_ENDS: tuple[tuple[int, Callable[..., int]], ...] = ((0, min), (1, max))


@click.command("inspect")
@click.argument("source", shell_complete=completing.data_sets)
@click.option(
    "--format",
    "format_",
    metavar="FORMAT",
    shell_complete=completing.formats,
    help="Its format: idx, npz or another name of data.format.",
)
@options.data_option
@options.set_option
@options.json_option
def inspect(source: str, format_: str | None, data: tuple[str, ...], settings: tuple[str, ...], as_json: bool) -> None:
    """Show what is in SOURCE: an experiment file, a path, or a name such as mnist or digits."""
    from adamctl.roles.data.describe.inspect import inspect as inspect_data

    config, input_shape = configuration(source, format_, data, settings)
    described = inspect_data(config, input_shape=input_shape)
    if as_json:
        print_json(described)
        return
    _print(described)


def configuration(
    source: str, format_: str | None, data: tuple[str, ...], settings: tuple[str, ...]
) -> tuple[DataConfig, tuple[int, ...] | None]:
    """Returns the configuration of SOURCE, and the model's input shape if SOURCE is an experiment file.

    Of a path or a name without a format, the format is guessed.

    Raises:
        ConfigurationError: a value is wrong, there is no such format, or it cannot be guessed.
    """
    from adamctl.config.check import suggestion
    from adamctl.config.formats import formats, is_format
    from adamctl.config.load import data_folders, load_data, parse_setting
    from adamctl.roles.data.catalogue.catalogue import CATALOGUE

    if source.endswith(".toml"):
        if format_ is not None:
            raise ConfigurationError(f"--format: {source} names the format; --set data.format={format_} changes it")
        experiment = options.load(source, settings, data, {}).experiment
        return experiment.data, experiment.model.input
    given = [parse_setting(text) for text in settings]
    if format_ is None:
        named = [str(setting.value) for setting in given if setting.key == "data.format"]
        format_ = named[-1] if named else _guessed_format(source)
    elif not is_format(format_):
        names = formats()
        near = suggestion(format_, names)
        raise ConfigurationError(f"--format: found {format_!r}; expected one of {', '.join(names)}.{near}")
    search = [str(Path(folder).expanduser().absolute()) for folder in (*data, *data_folders(os.environ))]
    known = CATALOGUE[source].settings if source in CATALOGUE and CATALOGUE[source].format == format_ else {}
    return load_data({"format": format_, "source": source, "search": search, **known}, given), None


def _guessed_format(source: str) -> str:
    from adamctl.config.formats import formats
    from adamctl.config.urls import is_url
    from adamctl.roles.data.catalogue.catalogue import CATALOGUE
    from adamctl.roles.data.readers.plugins import find_by_content

    if source == "digits":
        return "digits"
    if source in CATALOGUE:
        return CATALOGUE[source].format
    place = Path(source).expanduser()
    reader = find_by_content(place)
    if reader is None:
        missing = "" if place.exists() or is_url(source) else ", and there is no such file or folder here"
        raise ConfigurationError(
            f"the format of {source!r} is unknown{missing}; give --format, one of {', '.join(formats())}"
        )
    return reader.name


def _print(described: dict[str, Any]) -> None:
    from adamctl.live.units import share, size

    echo(f"{described['source']}: {described['format']}, from {described['path'] or 'an installed package'}")
    echo(
        f"examples of shape {'x'.join(map(str, described['shape']))}, {described['dtype']}; "
        f"{size(described['stored_bytes'])} stored, {size(described['decoded_bytes'])} decoded"
    )
    if described["order"] == "blocks":
        window = f"{described['window_blocks']} to a window of up to {size(described['window_bytes'])}"
        echo(f"visited in block order: {described['blocks']:,} blocks, {window}")
    if "decoder" in described:
        echo(_images(described))
    groups = {split: values["groups"] for split, values in described["splits"].items() if "groups" in values}
    if groups:
        echo("in groups: " + ", ".join(f"{count:,} of {split}" for split, count in groups.items()))
    skipped = {split: values.get("skipped", 0) for split, values in described["splits"].items()}
    if any(skipped.values()):
        told = ", ".join(f"{count:,} of {split}" for split, count in skipped.items() if count)
        echo(f"damaged: {told}; a run skips them, and so do the figures of the values")
    rows = []
    for split, values in described["splits"].items():
        figures = [f"{values[key]:.4g}" if key in values else "-" for key in ("min", "max", "mean", "std")]
        rows.append((split, f"{values['examples']:,}", *figures))
    echo(table(("split", "examples", "min", "max", "mean", "std"), rows, right=(1, 2, 3, 4, 5)))
    if described["targets"]:
        ranges = {split: values["targets"] for split, values in described["splits"].items() if "targets" in values}
        told = ", ".join(f"{split} {found['min']:.4g} to {found['max']:.4g}" for split, found in ranges.items())
        echo(f"targets of {described['targets']} number(s) in place of classes: {told}")
        return
    names = described["classes"]
    counts = {split: values.get("classes", {}) for split, values in described["splits"].items()}
    of_all = {split: max(sum(of_split.values()), 1) for split, of_split in counts.items()}
    class_rows = []
    for name in names:
        found = [(counts[split].get(name, 0), of_all[split]) for split in counts]
        class_rows.append((name, *(cell for count, of in found for cell in (f"{count:,}", share(count / of)))))
    echo()
    header = [cell for split in counts for cell in (split, f"of {split}")]
    echo(table(("class", *header), class_rows, right=tuple(range(1, 1 + len(header)))))
    for advice in described["balance"]["advice"]:
        echo(f"\nnote: {advice}")


def _images(described: dict[str, Any]) -> str:
    parts = [values for values in described["splits"].values() if "sizes" in values]
    low, high = ([end(part["sizes"][side][at] for part in parts) for side in ("height", "width")] for at, end in _ENDS)
    grey = sum(part["grey"] for part in parts)
    return f"images of {low[0]} to {high[0]} x {low[1]} to {high[1]}, {grey:,} grey; decoded by {described['decoder']}"


@click.command("fetch")
@click.argument("name", shell_complete=completing.known_data_sets)
@click.option("--data", metavar="DIR", help="Folder to put it in; by default the first in ADAMCTL_DATA.")
@click.option("--url", metavar="URL", help="Folder to download from instead of the known sources.")
@options.json_option
def fetch(name: str, data: str | None, url: str | None, as_json: bool) -> None:
    """Download the data set NAME and verify it; files that are already there and correct are kept."""
    from adamctl.config.load import data_folders
    from adamctl.roles.data.catalogue.catalogue import CATALOGUE
    from adamctl.roles.data.catalogue.fetch import fetch as fetch_data

    folder = data or next(iter(data_folders(os.environ)), "")
    if not folder and name in CATALOGUE:
        raise ConfigurationError(f"say where {name} should go: --data DIR, or set ADAMCTL_DATA")
    fetched = fetch_data(name, Path(folder), base_url=url, progress=Progress("bytes", to_the_end=True))
    if as_json:
        print_json(
            {
                "name": name,
                "folder": str(fetched.folder),
                "kept": list(fetched.kept),
                "downloaded": list(fetched.downloaded),
                "downloaded_bytes": fetched.downloaded_bytes,
            }
        )
        return
    echo(f"{name} is in {fetched.folder}: {len(fetched.downloaded)} downloaded, {len(fetched.kept)} already there")


class Progress:
    """Prints how far a part is, every two seconds, and with `to_the_end` also once when it is complete."""

    def __init__(self, of_what: str, *, to_the_end: bool = False) -> None:
        self._of_what, self._to_the_end = of_what, to_the_end
        self._last_s = time.monotonic()
        self._complete = ""

    def __call__(self, name: str, done: int, total: int) -> None:
        """`total`: 0 if it is unknown."""
        now_s = time.monotonic()
        completes = self._to_the_end and 0 < total <= done
        if completes and self._complete == name:
            return
        if completes or now_s - self._last_s >= _PROGRESS_INTERVAL_S:
            self._last_s = now_s
            self._complete = name if completes else ""
            of_all = f" of {total:,}" if total else ""
            echo(f"{name}: {done:,}{of_all} {self._of_what}", err=True)
