"""Damages small data sets of every format and reads them, in a process of its own.

    python -m tests.roles.data.readers.damage FOLDER SEED FIRST COUNT [VARIANT ...]

runs the cases FIRST to FIRST + COUNT - 1 of each variant and writes what came of them to FOLDER/found.json. A case is
made of (SEED, variant, number) alone. FOLDER/case.txt names the one that runs, for when a library takes the process
with it.
"""

from __future__ import annotations

import faulthandler
import gzip
import io
import json
import resource
import shutil
import sys
import tarfile
import traceback
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from adamctl.config.data import ColumnsConfig, DataConfig, FeaturesConfig
from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.roles.data.describe.look import Needs, look
from tests.roles.data.data_examples import idx_bytes, pattern
from tests.roles.data.prepared.sets import prepared, source
from tests.roles.data.speech.sounds import RATE_HZ, noise, tar_of, write_recordings

MAGICS: Final = (
    b"\xff\xd8\xff",
    b"\x89PNG\r\n\x1a\n",
    b"\x1f\x8b\x08",
    b"PK\3\4",
    b"PAR1",
    b"RIFF",
    b"\x93NUMPY\1\0",
    b"fLaC",
)
CASE_S_MAX: Final = 60
ADDRESS_BYTES_MAX: Final = 16 << 30  # so that a mistake harms this process alone
FAULTS_MAX: Final = 10
Made = tuple[DataConfig, tuple[int, ...]]


# --- data sets --------------------------------------------------------------------------------------------------------


def picture(number: int, kind: str = "PNG", side: int = 24) -> bytes:
    from PIL import Image

    y, x = np.mgrid[0:side, 0:side]
    values = np.stack((9 * y + number, 9 * x, 5 * x + 3 * y), axis=2).astype(np.uint8)
    file = io.BytesIO()
    options = {"progressive": number % 2 == 1, "exif": b"Exif\0\0II*\0\x08\0\0\0\1\0\x12\1\3\0\1\0\0\0\6\0\0\0\0\0\0\0"}
    Image.fromarray(values).save(file, kind, **(options if kind == "JPEG" else {}))
    return file.getvalue()


def saved(values: NDArray[Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


def make_idx(folder: Path, pack: Callable[[bytes], bytes] = lambda content: content) -> Made:
    for prefix, count in (("train", 12), ("t10k", 4)):
        images = pattern(count)
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(pack(idx_bytes(images)))
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(pack(idx_bytes(images[:, 0, 0] % 3)))
    return DataConfig(format="idx", source=str(folder)), (4, 4, 1)


def make_packed_idx(folder: Path) -> Made:
    return make_idx(folder, gzip.compress)


def _arrays() -> dict[str, NDArray[Any]]:
    values = np.linspace(0, 1, 12 * 6).reshape(12, 6)
    return {"x_train": values, "y_train": np.arange(12) % 3, "x_test": values[:4], "y_test": np.arange(4) % 3}


def make_npz(folder: Path) -> Made:
    np.savez(folder / "a.npz", **_arrays())  # type: ignore[arg-type]
    return DataConfig(format="npz", source=str(folder / "a.npz")), (6,)


def make_packed_npz(folder: Path) -> Made:
    np.savez_compressed(folder / "a.npz", **_arrays())  # type: ignore[arg-type]
    return DataConfig(format="npz", source=str(folder / "a.npz")), (6,)


def make_npy(folder: Path) -> Made:
    for name, values in _arrays().items():
        np.save(folder / f"{name}.npy", values)
    return DataConfig(format="npy", source=str(folder)), (6,)


def make_csv(folder: Path) -> Made:
    lines = ['a,"b, too",kind', *(f"{row},{row / 3:.3f},{'cat' if row % 2 else 'dog'}" for row in range(20))]
    (folder / "train.csv").write_text("\n".join(lines) + "\n")
    return DataConfig(format="csv", source=str(folder / "train.csv"), columns=ColumnsConfig(label="kind")), (2,)


def make_imagefolder(folder: Path, decoder: Any = "pillow") -> Made:
    for name in ("cat", "dog"):
        for part in ("train", "test"):
            (folder / part / name).mkdir(parents=True)
            for number, kind in enumerate(("JPEG", "PNG", "JPEG")):
                (folder / part / name / f"{number}.{kind.lower()}").write_bytes(picture(number, kind))
    return DataConfig(format="imagefolder", source=str(folder), decoder=decoder), (10, 8, 3)


def make_imagefolder_for_opencv(folder: Path) -> Made:
    return make_imagefolder(folder, "opencv")


def _tar(path: Path, files: list[tuple[str, bytes]], dialect: int = tarfile.PAX_FORMAT) -> None:
    with tarfile.open(path, "w", format=dialect) as archive:
        for name, content in files:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def make_tar(folder: Path) -> Made:
    for part, count in (("train", 3), ("test", 2)):
        (folder / part).mkdir()
        files = []
        for number in range(count):
            name = f"{'long/' * 30 if number == 1 else ''}{number}"
            files += [(f"{name}.jpg", picture(number, "JPEG", 16)), (f"{name}.json", b'{"label": %d}' % number)]
        _tar(folder / part / "a.tar", files)
    return DataConfig(format="tar", source=str(folder)), (10, 8, 3)


def make_tar_of_arrays(folder: Path) -> Made:
    (folder / "train").mkdir()
    files = []
    for number in range(6):
        name = f"{'long/' * 30 if number == 1 else ''}{number}"
        files += [(f"{name}.npy", saved(np.full((2, 3), number, np.float32))), (f"{name}.cls", b"%d" % (number % 2))]
    _tar(folder / "train" / "a.tar", files, tarfile.GNU_FORMAT)
    return DataConfig(format="tar", source=str(folder)), (2, 3, 1)


def make_packed_folder(folder: Path) -> Made:
    _tar(folder / "a.tar", [(f"{name}/{n}.png", picture(n, side=8)) for name in ("cat", "dog") for n in range(6)])
    return DataConfig(format="tar", source=str(folder / "a.tar"), test_files="0.png"), (4, 4, 1)


def make_parquet(folder: Path) -> Made:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for name, count in (("train", 8), ("test", 4)):
        images = pa.array([picture(number, "PNG", 8) for number in range(count)])
        table = pa.table({"image": images, "kind": ["cat" if number % 2 else "dog" for number in range(count)]})
        pq.write_table(table, folder / f"{name}.parquet", row_group_size=4)
    return DataConfig(format="parquet", source=str(folder), columns=ColumnsConfig(label="kind")), (4, 4, 3)


def make_parquet_of_numbers(folder: Path) -> Made:
    import pyarrow as pa
    import pyarrow.parquet as pq

    lists = pa.array([[row / 7, 2.0] for row in range(20)], pa.list_(pa.float32()))
    table = pa.table({"x": lists, "label": np.arange(20) % 3})
    pq.write_table(table, folder / "a.parquet", row_group_size=5, write_page_checksum=True, compression="zstd")
    return DataConfig(format="parquet", source=str(folder / "a.parquet")), (2,)


def make_prepared(folder: Path) -> Made:
    prepared(folder / "set", source(train=60, test=9))
    return DataConfig(format="prepared", source=str(folder / "set")), (4, 3, 1)


def make_audio(folder: Path) -> Made:
    write_recordings(folder / "set", {"cat/0.wav": 2000, "cat/1.wav": 900, "dog/0.wav": 1200, "dog/1.wav": 700})
    (folder / "set" / "cat" / "2.flac").write_bytes(flac(1000))
    config = DataConfig(format="audio", source=str(folder / "set"), test_files="0.wav")
    return msgspec.structs.replace(config, features=FeaturesConfig(bands=8, context=2)), (40,)


def make_packed_audio(folder: Path) -> Made:
    config, shape = make_audio(folder)
    tar_of(folder / "set", folder / "set.tar")
    shutil.rmtree(folder / "set")
    return msgspec.structs.replace(config, source=str(folder / "set.tar")), shape


def flac(samples: int) -> bytes:
    import soundfile

    file = io.BytesIO()
    soundfile.write(file, noise(samples, 9), RATE_HZ, format="FLAC", subtype="PCM_16")
    return file.getvalue()


VARIANTS: Final[dict[str, Callable[[Path], Made]]] = {
    "idx": make_idx,
    "idx gzip": make_packed_idx,
    "npz": make_npz,
    "npz deflate": make_packed_npz,
    "npy": make_npy,
    "csv": make_csv,
    "parquet": make_parquet,
    "parquet numbers": make_parquet_of_numbers,
    "imagefolder": make_imagefolder,
    "imagefolder opencv": make_imagefolder_for_opencv,
    "tar": make_tar,
    "tar arrays": make_tar_of_arrays,
    "tar folder": make_packed_folder,
    "prepared": make_prepared,
    "audio": make_audio,
    "audio tar": make_packed_audio,
}
"""Small whole data sets. The first word is the format."""


# --- damage -----------------------------------------------------------------------------------------------------------


def damaged(content: bytes, random: np.random.Generator) -> bytes:
    """Returns a file with one or two kinds of damage."""
    for _ in range(int(random.integers(1, 3))):
        content = KINDS[int(random.integers(len(KINDS)))](bytearray(content), random)
    return content


def _flip_bits(content: bytearray, random: np.random.Generator) -> bytes:
    for _ in range(int(random.integers(1, 9)) if content else 0):
        content[int(random.integers(len(content)))] ^= 1 << int(random.integers(8))
    return bytes(content)


def _flip_bits_of_the_beginning(content: bytearray, random: np.random.Generator) -> bytes:
    for _ in range(int(random.integers(1, 5)) if content else 0):
        content[int(random.integers(min(len(content), 64)))] ^= 1 << int(random.integers(8))
    return bytes(content)


def _cut(content: bytearray, random: np.random.Generator) -> bytes:
    return bytes(content[: int(random.integers(len(content) + 1))])


def _cut_the_beginning(content: bytearray, random: np.random.Generator) -> bytes:
    return bytes(content[int(random.integers(len(content) + 1)) :])


def _replace_magic(content: bytearray, random: np.random.Generator) -> bytes:
    magic = MAGICS[int(random.integers(len(MAGICS)))] if random.random() < 0.7 else random.bytes(6)
    return magic + bytes(content[len(magic) :])


def _swap_parts(content: bytearray, random: np.random.Generator) -> bytes:
    a, b, c = sorted(random.integers(len(content) + 1, size=3).tolist())
    return bytes(content[:a] + content[b:c] + content[a:b] + content[c:])


def _overwrite(content: bytearray, random: np.random.Generator) -> bytes:
    start, size = int(random.integers(len(content) + 1)), int(random.integers(1, 40))
    fill = (bytes(size), b"\xff" * size, random.bytes(size))[int(random.integers(3))]
    content[start : start + size] = fill[: max(0, len(content) - start)]
    return bytes(content)


def _insert(content: bytearray, random: np.random.Generator) -> bytes:
    at = int(random.integers(len(content) + 1))
    return bytes(content[:at]) + random.bytes(int(random.integers(1, 600))) + bytes(content[at:])


def _repeat(content: bytearray, random: np.random.Generator) -> bytes:
    start, stop = sorted(random.integers(len(content) + 1, size=2).tolist())
    return bytes(content[:stop] + content[start:])


KINDS: Final = (
    _flip_bits,
    _flip_bits_of_the_beginning,
    _cut,
    _cut_the_beginning,
    _replace_magic,
    _swap_parts,
    _overwrite,
    _insert,
    _repeat,
)


# --- the process ------------------------------------------------------------------------------------------------------


def read(made: Made, full: bool) -> str:
    """Returns what came of reading a data set: "read", or the name of the typed error. Anything else is raised."""
    config, shape = made
    try:
        look(config, Needs(shape, outputs=1 << 31, batch=1, seed=7), full=full)
    except (ConfigurationError, DamagedDataError) as error:
        if not str(error).strip():
            raise AssertionError(f"{type(error).__name__} without a message") from error
        return type(error).__name__
    return "read"


def run(variant: str, folder: Path, seed: int, first: int, count: int, note: Callable[[str], None]) -> dict[str, Any]:
    """Runs cases of one variant and returns counts of what came of them, and the faults."""
    made = VARIANTS[variant](folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    whole = {path: path.read_bytes() for path in files}
    outcomes: Counter[str] = Counter()
    faults: list[str] = []
    if read(made, full=True) != "read":
        faults.append(f"{variant}: what is not damaged cannot be read")
    for number in range(first, first + count):
        random = np.random.default_rng([seed, zlib.crc32(variant.encode()), number])
        path = files[int(random.integers(len(files)))]
        note(f"{variant}: case {number} of seed {seed}: {path.relative_to(folder)}")
        path.write_bytes(damaged(whole[path], random))
        faulthandler.dump_traceback_later(CASE_S_MAX, exit=True)
        try:
            outcomes[read(made, full=number % 4 > 0)] += 1
        except Exception:
            outcomes["fault"] += 1
            if len(faults) < FAULTS_MAX:
                faults.append(f"{variant}: case {number} of seed {seed}: {path.name}: {traceback.format_exc()[-1500:]}")
        finally:
            faulthandler.cancel_dump_traceback_later()
            path.write_bytes(whole[path])
    return {"outcomes": outcomes, "faults": faults}


def main(folder: str, seed: str, first: str, count: str, *variants: str) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_BYTES_MAX, ADDRESS_BYTES_MAX))
    root = Path(folder)
    found: dict[str, Any] = {}
    begun_kib = 0
    with (root / "case.txt").open("w") as case:

        def note(text: str) -> None:
            case.seek(0)
            case.write(f"{text}\n")
            case.flush()

        for variant in variants or VARIANTS:
            inner = root / variant.replace(" ", "-")
            inner.mkdir()
            begun_kib = begun_kib or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            found[variant] = run(variant, inner, int(seed), int(first), int(count), note)
    grown_bytes = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - begun_kib)
    (root / "found.json").write_text(json.dumps({"variants": found, "grown_bytes": grown_bytes}))


if __name__ == "__main__":
    main(*sys.argv[1:])
