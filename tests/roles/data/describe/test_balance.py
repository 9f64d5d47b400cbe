"""What is said of classes with few examples or none."""

from __future__ import annotations

from adamctl.roles.data.describe.balance import balance


def test_even_classes_need_no_advice() -> None:
    found = balance({"cat": 60, "dog": 100}, {"cat": 10, "dog": 10})
    assert found == {"largest": "dog", "smallest": "cat", "ratio": 100 / 60, "absent": [], "advice": []}


def test_a_small_class_is_named_with_what_to_do() -> None:
    found = balance({"cat": 900, "dog": 60, "owl": 40}, {})
    assert (found["largest"], found["smallest"], found["ratio"]) == ("cat", "owl", 22.5)
    measure, act, split = found["advice"]
    assert measure.startswith("cat has 900 training examples, owl 40: 1 to 22.5. Top-1 says little")
    assert "who always answers cat has 90.0%" in measure
    assert act.startswith('set train.class_weights = "balanced", or data.sampling = "balanced"')
    assert "each example of owl comes about 8.33 times in a pass" in act and "by heart" not in act
    assert "data.stratify = true" in split


def test_a_few_examples_would_be_learnt_by_heart() -> None:
    (_, act, _) = balance({"cat": 990, "owl": 10}, {})["advice"]
    assert "about 50 times in a pass (so often that they are learnt by heart" in act


def test_classes_without_examples_are_named() -> None:
    found = balance({"cat": 5, "dog": 0, "owl": 0}, {"cat": 1, "dog": 3, "owl": 4})
    assert found["absent"] == ["dog", "owl"]
    assert found["advice"] == [
        "no training examples of dog, owl; the 7 test examples of them cannot be classified: add some, or leave these "
        "classes out"
    ]
    assert balance({"cat": 5, "dog": 4}, {"cat": 1, "dog": 0})["advice"] == [
        "no test examples of dog: nothing is measured for them"
    ]


def test_many_classes_are_counted() -> None:
    (said,) = balance({"cat": 5} | {f"c{number}": 0 for number in range(1200)}, {})["advice"]
    assert said.startswith("no training examples of c0, c1, c2,") and "c9 and 1,190 more classes: add" in said


def test_no_examples_at_all() -> None:
    found = balance({"cat": 0}, {"cat": 0})
    assert (found["largest"], found["smallest"], found["ratio"], found["absent"]) == (None, None, None, ["cat"])
    (said,) = found["advice"]
    assert said.startswith("there are no training examples: nothing can be trained")


def test_of_targets_in_place_of_classes_there_is_nothing_to_say() -> None:
    assert balance({}, {}) == {"largest": None, "smallest": None, "ratio": None, "absent": [], "advice": []}
