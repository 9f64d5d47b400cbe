"""Formats made of files: of what class a file is, and which files are the test part."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from adamctl.config.data import DataConfig
from adamctl.errors import ConfigurationError
from adamctl.roles.data.readers.source import CLASSES_MAX
from adamctl.roles.data.readers.splits import TEST_SHARE, arrange, files_below

BY_FOLDER = DataConfig(format="imagefolder", source="x")


def by_name(test_files: str = "") -> DataConfig:
    return DataConfig(format="imagefolder", source="x", class_from="name", test_files=test_files)


def write(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")
    return folder


def test_the_class_is_the_folder_whatever_lies_above_it() -> None:
    names = ["set/cat/1.jpg", "set/dog/2.jpg", "set/dog/1.jpg", "README.jpg"]
    found = arrange(names, BY_FOLDER, "set.tar")
    assert found.classes == ("cat", "dog")
    placed: dict[str, int] = {}
    for split, names in found.names.items():
        placed |= dict(zip(names, found.labels[split].tolist(), strict=True))
    assert placed == {"set/cat/1.jpg": 0, "set/dog/1.jpg": 1, "set/dog/2.jpg": 1}


def test_the_class_is_what_stands_before_the_first_underscore() -> None:
    names = ["recordings/3_george_7.wav", "recordings/0_jackson_0.wav", "recordings/3_george_0.wav"]
    found = arrange(names, by_name("*_0.wav"), "fsdd.tar")
    assert found.classes == ("0", "3")
    assert found.names == {"train": ["recordings/3_george_7.wav"], "test": [names[1], names[2]]}
    assert found.labels["train"].tolist() == [1] and found.labels["test"].tolist() == [0, 1]


def test_a_name_without_a_class_is_refused_with_what_to_do() -> None:
    for name in ("a/george.wav", "a/_george.wav"):
        with pytest.raises(ConfigurationError, match=rf"before the first \"_\".*found {name}; rename.*class_from"):
            arrange(["a/1_x.wav", name], by_name(), "a.tar")


def test_the_order_of_the_names_does_not_matter() -> None:
    names = [f"{digit}_{speaker}_{index}.wav" for digit in range(3) for speaker in "abc" for index in range(5)]
    found = arrange(names, by_name("*_b_*"), "x")
    random.Random(3).shuffle(names)
    again = arrange(names, by_name("*_b_*"), "x")
    assert found.names == again.names and len(found.names["test"]) == 15
    assert found.labels["train"].tolist() == again.labels["train"].tolist() == [0] * 10 + [1] * 10 + [2] * 10


def test_without_a_word_a_fifth_is_the_test_part_and_adding_files_moves_none() -> None:
    names = [f"cat/{number}.jpg" for number in range(1000)]
    test = set(arrange(names, BY_FOLDER, "x").names["test"])
    assert abs(len(test) - TEST_SHARE * 1000) < 50
    more = arrange([*names, *(f"dog/{number}.jpg" for number in range(1000))], BY_FOLDER, "x").names["test"]
    assert test == {name for name in more if name.startswith("cat/")}


@pytest.mark.parametrize("above", ["", "set/", "a/set/"])
@pytest.mark.parametrize("config", [BY_FOLDER, by_name()])
def test_folders_train_and_test_decide_where_there_are_any(above: str, config: DataConfig) -> None:
    names = [f"{above}train/cat/cat_{n}.jpg" for n in range(9)] + [f"{above}train/dog/dog_1.jpg"]
    found = arrange([*names, f"{above}test/cat/cat_9.jpg", f"{above}other/cow/cow_1.jpg"], config, "x")
    assert found.classes == ("cat", "dog")
    assert found.names == {"train": names, "test": [f"{above}test/cat/cat_9.jpg"]}


def test_a_class_may_be_called_train() -> None:
    found = arrange(["train/1.jpg", "car/1.jpg", "test/1.jpg"], BY_FOLDER, "x")
    assert found.classes == ("car", "test", "train")


def test_a_class_that_only_the_test_folder_has_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"that \"train\" has \(cat\), found emu"):
        arrange(["train/cat/1.jpg", "test/cat/1.jpg", "test/emu/1.jpg"], BY_FOLDER, "x")


def test_a_test_folder_and_a_pattern_are_refused_together() -> None:
    config = DataConfig(format="imagefolder", source="x", test_files="9*")
    with pytest.raises(ConfigurationError, match=r'data\.test_files = "9\*", but x has a folder "test"'):
        arrange(["train/cat/1.jpg", "test/cat/9.jpg"], config, "x")


def test_a_pattern_that_matches_nothing_is_refused_with_a_name_that_there_is() -> None:
    with pytest.raises(ConfigurationError, match=r'match "\*_\[5-9\]", found none; one of its 1 files is 1_a_7.wav'):
        arrange(["r/1_a_7.wav"], by_name("*_[5-9]"), "x")


def test_a_pattern_is_of_names_alone_and_of_their_case() -> None:
    names = ["b/1_A.wav", "b/2_a.wav", "a/2_b.wav"]
    assert arrange(names, by_name("*_a*"), "x").names["test"] == ["b/2_a.wav"]


def test_no_files_and_too_many_classes_are_refused() -> None:
    for config, wanted in ((BY_FOLDER, "one folder of files per class"), (by_name(), "expected files")):
        with pytest.raises(ConfigurationError, match=rf"x: .*{wanted}, found none"):
            arrange(["a.jpg"] if config is BY_FOLDER else [], config, "x")
    with pytest.raises(ConfigurationError, match=f"at most {CLASSES_MAX} classes, found {CLASSES_MAX + 1}"):
        arrange([f"{number}/a.jpg" for number in range(CLASSES_MAX + 1)], BY_FOLDER, "x")


def test_files_are_listed_without_hidden_and_other_ones(tmp_path: Path) -> None:
    write(tmp_path, "cat/b.JPG", "cat/a.jpg", "cat/.c.jpg", "cat/d.txt", "cat/in/e.jpg", ".git/f.jpg", "g.jpg")
    assert files_below(tmp_path, (".jpg",), BY_FOLDER, "JPEG files") == ["cat/a.jpg", "cat/b.JPG"]
    every = ["cat/a.jpg", "cat/b.JPG", "cat/in/e.jpg", "g.jpg"]
    assert files_below(tmp_path, (".jpg",), by_name(), "JPEG files") == every


def test_where_there_are_folders_train_and_test_only_they_are_listed(tmp_path: Path) -> None:
    write(tmp_path, "train/cat/a.jpg", "test/cat/b.jpg", "val/cat/c.jpg")
    assert files_below(tmp_path, (".jpg",), BY_FOLDER, "JPEG files") == ["test/cat/b.jpg", "train/cat/a.jpg"]


def test_a_class_without_files_and_a_file_in_place_of_a_folder_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "cat/a.jpg", "dog/a.png")
    with pytest.raises(ConfigurationError, match=r"dog: expected JPEG files of class 'dog', found none"):
        files_below(tmp_path, (".jpg",), BY_FOLDER, "JPEG files")
    with pytest.raises(ConfigurationError, match="expected a folder of JPEG files, found a file"):
        files_below(tmp_path / "cat" / "a.jpg", (".jpg",), BY_FOLDER, "JPEG files")
    with pytest.raises(ConfigurationError, match="expected WAV files, found none"):
        files_below(tmp_path, (".wav",), by_name(), "WAV files")
