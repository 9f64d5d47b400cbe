"""The data of an experiment: where examples come from, and how they are prepared."""

from __future__ import annotations

from typing import Literal

from adamctl.config.augment import AugmentConfig
from adamctl.config.section import Section


class FeaturesConfig(Section, frozen=True):
    """What a frame of sound is, for `format = "audio"`: the defaults are DistBelief's (5), with the customary hop.

    Attributes:
        bands: filters of the mel scale; each gives the logarithm of its energy.
        window_ms: length of a frame, in milliseconds.
        hop_ms: distance of the starts of two frames, in milliseconds.
        context: frames on each side of one that are inputs, too: `model.input` is [(2 * context + 1) * bands].
        low_hz: where the lowest filter begins.
        high_hz: where the highest filter ends; unset: half of the recordings' rate.
        center: subtract from all frames of a recording their mean, band by band: what the microphone and the loudness
            add is the same in all of them.
    """

    bands: int = 40
    window_ms: float = 25.0
    hop_ms: float = 10.0
    context: int = 5
    low_hz: float = 20.0
    high_hz: float | None = None
    center: bool = True


class ColumnsConfig(Section, frozen=True):
    """Which columns of a table are its label, or its targets, and its inputs, for `csv` and `parquet`.

    Attributes:
        label: name of the column that holds the class, or its number from 0; unset: the one called `label` or `class`,
            else the last.
        targets: names, or numbers from 0, of the columns of numbers that outputs are compared with, in this order,
            where `model.loss` takes targets; then there is no label. In `parquet` also one column of lists.
        inputs: names, or numbers from 0, of the columns that are the model's input, in this order; empty: all others.
    """

    label: str | int | None = None
    targets: tuple[str | int, ...] = ()
    inputs: tuple[str | int, ...] = ()


class DataConfig(Section, frozen=True):
    """Where examples come from and how they are prepared.

    Attributes:
        format: a reader: one of the data formats below, or one that an installed package adds (entry point group
            `adamctl.readers`).
        source: a path; a bare name such as `mnist` that is looked up in `--data` / ADAMCTL_DATA; or a URL such as
            `s3://bucket/folder` or `https://host/set.parquet`, which `adamctl[remote]` fetches.
        disk_cache: how much disk the files of a URL may take on each machine, such as "20GB"; those used longest ago
            are removed first. They lie in the user's cache folder, or in ADAMCTL_CACHE.
        validation: share of the training set held out, 0 <= share < 1.
        stratify: hold out that share of each class, so that a rare one is not missed by chance; without, examples are
            held out whatever their class.
        sampling: which training examples a pass is of. `all`: each once. Any other value draws as many, with repeats:
            `balanced` each class equally often; a table class -> weight an example of each class in proportion to its
            weight, 1 where none is given; `weights` in proportion to the weights that come with the data.
        scale: `unit` maps bytes to [0, 1]; `standard` also subtracts the training set's mean and divides by its
            standard deviation (one of each over all pixels); `none` leaves values unchanged.
        class_from: for formats made of files: `folder`: the class of a file is the folder it is in; `name`: what stands
            before the first `_` of its name, as in `3_george_7.wav`.
        test_files: for formats made of files: files whose names match are the test part, as in `*_[0-4].wav` (`*`,
            `?` and `[...]` as in a shell). Empty: files in a folder `test` beside a folder `train`; without
            such folders, a fifth of the files, chosen by name.
        alignment: for `audio`: a file in `source`, or beside a tar, with lines `NAME START_MS END_MS CLASS`: the class
            of each frame. Empty: all frames of a recording are of its class.
        memory_share: share of a data server's memory (`--memory`, by default its machine's) for decoded examples.
        search: folders in which a bare name is looked up, first match wins; filled in from `--data` / ADAMCTL_DATA.
        translate: each pass trains on every image shifted by a random whole number of pixels, from -translate to
            translate, vertically and horizontally, so that passes see different variants (Adam 3.1); uncovered pixels
            get the value of a zero byte. Must be less than half the images' height and width; 0 shifts nothing.
            Validation and test images are never shifted.
        order: how a pass visits the training examples. `examples`: each from anywhere, in an order drawn by sorting all
            of them. `blocks`: what the source reads at once, such as 1,024 examples or a row group, in random order,
            and the examples of `window_blocks` of them together in random order; for sets larger than memory. `auto`:
            blocks from 4 million training examples on, and where single examples are dear to read (as in Parquet) and
            the training examples, or what is read for them, take 1 GiB and more; examples otherwise, and wherever
            `stratify` needs it. It depends on nothing but the data, so that all machines agree.
        window_blocks: how many blocks are shuffled together in block order. A data server keeps two such windows in
            memory, the one served and the one read ahead; `adamctl data inspect` says how large they are.
        decoder: what decodes JPEG files: `pillow` (extra `image`), or `opencv` (also extra `opencv`), which takes less
            time. Pixels differ a little between the two. Pillow decodes PNG files, and JPEG files that are neither grey
            nor RGB, in any case.
        on_error: what to do about a damaged example: `fail` ends the run and names it; `skip` leaves it out, names it
            in the data server's log, and counts it in the run's result. What is damaged so that nobody knows which
            examples there are, such as a table's header, ends the run in any case.
        targets: what outputs are compared with where `model.loss` takes targets: `data`, those that come with the data;
            `inputs`, the inputs themselves, for an autoencoder (docs/losses.md).
    """

    format: str = "digits"
    source: str = "digits"
    validation: float = 0.0
    stratify: bool = False
    sampling: Literal["all", "balanced", "weights"] | dict[str, float] = "all"
    scale: Literal["unit", "standard", "none"] = "unit"
    class_from: Literal["folder", "name"] = "folder"
    test_files: str = ""
    alignment: str = ""
    memory_share: float = 0.25
    search: tuple[str, ...] = ()
    translate: int = 0
    features: FeaturesConfig = FeaturesConfig()
    augment: AugmentConfig = AugmentConfig()
    columns: ColumnsConfig = ColumnsConfig()
    order: Literal["auto", "examples", "blocks"] = "auto"
    window_blocks: int = 64
    disk_cache: str = "20GB"
    decoder: Literal["pillow", "opencv"] = "pillow"
    on_error: Literal["fail", "skip"] = "fail"
    targets: Literal["data", "inputs"] = "data"
