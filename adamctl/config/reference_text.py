"""What the reference of experiment files says beside its tables: what adamctl is for, and how data lie on disk."""

from __future__ import annotations

from typing import Final

INTRODUCTION: Final = """# Reference of experiment files

`adamctl config reference` prints this page from the program's own types; a test compares the two. Any key can be given
on the command line, too: `--set optimizer.lr=0.01`. `adamctl config show EXP.toml --origin` says where each value of an
experiment comes from.
"""

WHEN: Final = """## When to use it, and when not

Use it

- for networks that one CPU machine, or some dozens of them, can train: convolutions and dense layers on images, speech
  frames and tables, up to some hundred million parameters;
- where there are ordinary machines and no accelerators, and machines may die while a run goes on;
- to hold the parameters of a loop of your own on servers (`adam.ParameterClient`), whatever computes the gradients;
- to look at how asynchronous training behaves: `train.consistency`, `train.max_staleness`, pushes and fetches are keys.

Do not use it

- where you have a GPU and the network fits it: PyTorch or JAX there is faster by far;
- for transformers, recurrent networks, or layers of your own: the layers below are all there are;
- for a network that does not fit the memory of one worker: models are not cut across machines;
- over networks that strangers reach: what travels is not encrypted.
"""

FORMATS: Final[dict[str, str]] = {
    "digits": """\
1,797 handwritten digits of 8 x 8 that install with scikit-learn (`'adamctl[examples]'`). Nothing lies in a folder, and
`source` stays as it is. The last 360 images are the test part.
""",
    "idx": """\
Files as MNIST's, with or without `.gz`, also spelled `train-images.idx3-ubyte`; those of the test part may be missing.
Images are [examples, height, width], labels whole numbers from 0. `source` is the folder, or a name that is looked up
in `--data`.

```text
mnist/
├── train-images-idx3-ubyte.gz     images of the training part
├── train-labels-idx1-ubyte.gz     one label each, from 0
├── t10k-images-idx3-ubyte.gz      images of the test part
└── t10k-labels-idx1-ubyte.gz
```
""",
    "npz": """\
One archive of NumPy's. Arrays may also be called `images`, `labels`, `test_images` and `test_labels`; those of the test
part may be missing. Images are bytes (`scale = "unit"` divides them by 255) or other numbers, which stay as they are.
Labels are whole numbers from 0. `source` is the file, or its name without `.npz`.

```text
frames.npz
├── x_train     [examples, ...]
├── y_train     [examples]
├── x_test      [examples, ...]
└── y_test      [examples]
```
""",
    "imagefolder": """\
JPEG and PNG files in a folder for each class; needs Pillow (`'adamctl[image]'`). Each image is scaled until it just
covers `model.input`, then cropped around its centre. Classes are numbered in the order of their names. `source` is the
folder.

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

Without `train` and `test`, a fifth of the files is of the test part, chosen by their names, so that a file that is
added moves no other one.

```text
pets/
├── cat/
│   ├── 0001.jpg
│   └── 0002.png
└── dog/
    └── 0001.jpg
```
""",
}
"""Format -> how its data lie on disk."""
