"""Text of the experiment files' reference beside its tables: what adamctl is for, and how data are stored on disk."""

from __future__ import annotations

from typing import Final

INTRODUCTION: Final = """# Reference of experiment files

`adamctl config reference` generates this page from the program's own types; a test compares the two. Any key can also
be set on the command line: `--set optimizer.lr=0.01`. `adamctl config show EXP.toml --origin` shows where each value of
an experiment comes from.
"""

WHEN: Final = """## When to use it, and when not

Use it

- for networks that one CPU machine, or a few dozen of them, can train: convolutions and dense layers on images, speech
  frames and tables, up to a few hundred million parameters;
- if you have ordinary machines without accelerators, and machines may die during a run;
- to keep the parameters of your own training loop on servers (`adam.ParameterClient`), whatever computes the gradients;
- to study asynchronous training: `train.consistency`, `train.max_staleness`, pushes and fetches are keys.

Do not use it

- if you have a GPU and the network fits on it: PyTorch or JAX on a GPU is far faster;
- for transformers or recurrent networks: there are no such layers;
- for a network that does not fit into one machine's memory (over several workers: [partitions.md](partitions.md));
- with `--insecure` over networks that strangers can reach: nothing is encrypted then ([tls.md](tls.md)).
"""

CUSTOM = """\
### `type = "module:Class"`, `"whiten"`, `"global_average_pool"`, `"relu"`

A layer of your own, computed by a Python class, whose keys stand beside it
([layers_of_your_own.md](layers_of_your_own.md)). Three that come with adamctl are written the same way: `whiten`
(keys `size`, an odd number, default 5, and `epsilon`, default 0.01) centres and scales each map by the window around
each pixel, times a learned gain; `global_average_pool` makes a vector of the mean of each map; `relu` is max(x, 0) by
itself.
"""
"""Layers that classes compute."""
FORMATS: Final[dict[str, str]] = {
    "digits": """\
1,797 handwritten digits of 8 x 8 pixels that come with scikit-learn (`'adamctl[examples]'`). They need no folder; leave
`source` at its default. The last 360 images are the test part.
""",
    "idx": """\
Files like MNIST's, with or without `.gz`, also spelled `train-images.idx3-ubyte`; the test part may be missing. Images
are [examples, height, width], labels are whole numbers from 0. `source` is the folder, or a name that is looked up in
`--data`.

```text
mnist/
├── train-images-idx3-ubyte.gz     images of the training part
├── train-labels-idx1-ubyte.gz     one label each, from 0
├── t10k-images-idx3-ubyte.gz      images of the test part
└── t10k-labels-idx1-ubyte.gz
```
""",
    "npz": """\
One NumPy archive. Arrays may also be called `images`, `labels`, `test_images` and `test_labels`; those of the test
part may be missing. Images are bytes (`scale = "unit"` divides them by 255) or other numbers, which stay unchanged.
Labels are whole numbers from 0, or names. In their place there may be `targets_train` and `targets_test`, or
`targets` and `test_targets`: numbers to come close to, [examples, k], for losses of your own. A further array
`weights`, a number for each training example, is for `data.sampling = "weights"`. `source` is the file, its name
without `.npz`, or a folder of such files, which follow one another.

```text
frames.npz
├── x_train     [examples, ...]
├── y_train     [examples]
├── x_test      [examples, ...]
└── y_test      [examples]
```
""",
    "npy": """\
NumPy files, mapped into memory: for arrays that are larger than it. What they hold is as in `npz`; the two of the test
part may be missing. Do not change them while a run reads them. `source` is the folder.

```text
frames/
├── x_train.npy     [examples, ...]
├── y_train.npy     [examples]
├── x_test.npy      [examples, ...]
└── y_test.npy      [examples]
```
""",
    "csv": """\
A table as text, with commas, semicolons or tabs: one line per example, one column the label, the others numbers. The
first line may name the columns. Labels are whole numbers from 0, or texts, which are the names of the classes.
`[data.columns]` says which column is what; `targets` there takes the place of the label. Inputs are float32 of shape
[columns], or of any `model.input` with as many elements; `scale = "unit"` leaves them unchanged. All of it is held in
memory. `source` is the file, or its name without `.csv`: a fifth of its lines, chosen by their number, becomes the test
part, so that a line added at the end moves no other. Or `source` is a folder with `train.csv` and `test.csv`.

```text
flowers/
├── train.csv     sepal,petal,label
│                 5.1,1.4,setosa
│                 7.0,4.7,versicolor
└── test.csv      sepal,petal,label
                  4.9,1.4,setosa
```
""",
    "parquet": """\
Parquet files; needs pyarrow (`'adamctl[parquet]'`). The label column holds whole numbers from 0, texts, or a
dictionary of texts; names of classes that Hugging Face's writer left in the file are used. The input is one column of
encoded JPEG or PNG images (also as a struct with `bytes`), of bytes, or of lists of numbers, all of one length, or
else all other columns, which must then be numbers. `[data.columns]` says which column is what, and there may be
targets in place of the label. Images are scaled as in `imagefolder`; uint8 stays bytes (`scale = "unit"` divides it
by 255), other numbers become float32. Row groups are read as a whole, so write them of some thousand rows, at most
1 GiB each. `source` is the folder, or one file; the test part is found as in `csv`, or is a fifth of each file's rows,
chosen by their number.

```text
pets/
├── train-00000-of-00002.parquet     image: struct<bytes: binary, path: string>, label: int64
├── train-00001-of-00002.parquet
└── test-00000-of-00001.parquet
```
""",
    "prepared": """\
A folder that `adamctl data prepare` wrote from data of any other format: decoded, in the size of the model's input,
shuffled, with a checksum for every block. It is read as it is, so it costs little to serve; `adamctl data verify` finds
what is damaged. `source` is the folder ([prepared.md](formats/prepared.md)).

```text
pets/
├── prepared.json
├── train.labels
├── train-00000.examples
├── test.labels
└── test-00000.examples
```
""",
    "imagefolder": """\
JPEG and PNG files, one folder per class; needs Pillow (`'adamctl[image]'`). Each image is scaled until it just covers
`model.input`, then cropped to its centre. Classes are numbered in the order of their names. `source` is the folder.

```text
pets/
├── train/
│   ├── cat/
│   │   ├── 0001.jpg
│   │   └── 0002.png
│   └── dog/
│       └── 0001.jpg
└── test/
    ├── cat/
    │   └── 0003.jpg
    └── dog/
        └── 0002.jpg
```

Without `train` and `test`, the files that match `test_files` are the test part, or else a fifth of the files, chosen by
name, so that adding a file moves no other file. With `class_from = "name"` files may lie in any folders.

```text
pets/
├── cat/
│   ├── 0001.jpg
│   └── 0002.png
└── dog/
    └── 0001.jpg
```
""",
    "tar": """\
Tar files (shards) of JPEG, PNG or `.npy` files. `source` is a tar file, a folder of them, or a path whose last part is
a pattern: `./pets/shard-{000..063}.tar` or `./pets/*.tar`. Compressed ones are refused: their members cannot be read at
random.

In WebDataset's convention, members with the same name up to the first dot stand together and are one example. Its class
is in `.cls` (a number or a name), or in `.json` (key `cls`, `class` or `label`), or in `.txt` (a name). Other members
are ignored.

```text
pets/
├── train/
│   ├── shard-000.tar
│   │   ├── 0000.jpg
│   │   ├── 0000.cls
│   │   ├── 0001.jpg
│   │   └── 0001.cls
│   └── shard-001.tar
└── test/
    └── shard-000.tar
```

Without folders `train` and `test`, `test_files` names shards (of several) or members, or else a fifth of the members,
chosen by name, becomes the test part. A tar file without members that say a class is read as the folder that was packed
into it: `train/cat/0001.jpg`, or `cat/0001.jpg`.
""",
    "audio": """\
Recordings: WAV (PCM of 8, 16, 24 or 32 bits) or FLAC (`'adamctl[audio]'`), all of one rate, in a folder or an
uncompressed tar of it. An example is a frame with its neighbours side by side (`[data.features]`), so `model.input` has
one number. The label is that of the recording, or, with `alignment`, of the frame ([speech.md](speech.md)). Folders and
the test part are as in `imagefolder`; a validation part holds out whole recordings. `source` is the folder or the tar,
or a name.

```text
digits.tar                  class_from = "name", test_files = "*_[0-4].wav"
└── recordings/
    ├── 0_george_0.wav
    └── 0_george_1.wav

words/                      class_from = "folder"
├── yes/
│   └── 0001.wav
└── no/
    └── 0001.flac
```
""",
}
"""Format -> how its data are stored on disk."""
