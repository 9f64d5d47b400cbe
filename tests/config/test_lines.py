"""The line of every key, for every way TOML has of writing one."""

from adamctl.config.lines import dotted, key_lines

TEXT = '''# a comment with [brackets] and "quotes
name = "a # not a comment"   # one
"quoted key" = 1

[data]
text = """
several ] } lines
ending in quotes"""""
list = [
  1,  # one
  [2, 3],
]

[model]
[[model.layers]]
type = "dense"
size = { width = 1, height = [2, 3] }
[[model.layers]]
type = 'soft\\max'

[optimizer]
schedule.type = "cosine"
when = 1979-05-27 07:32:00
[optimizer.more]
last = true'''


def test_keys_of_plain_tables() -> None:
    lines = key_lines(TEXT)
    assert lines[("name",)] == 2
    assert lines[("quoted key",)] == 3
    assert lines[("data",)] == 5
    assert lines[("data", "text")] == 6
    assert lines[("optimizer", "more", "last")] == 25


def test_elements_of_arrays_and_inline_tables() -> None:
    lines = key_lines(TEXT)
    assert lines[("data", "list")] == 9
    assert lines[("data", "list", 0)] == 10
    assert lines[("data", "list", 1, 1)] == 11
    assert lines[("model", "layers", 0, "size", "height")] == 17
    assert lines[("model", "layers", 0, "size", "height", 1)] == 17


def test_arrays_of_tables_count_their_elements() -> None:
    lines = key_lines(TEXT)
    assert lines[("model", "layers", 0)] == 15
    assert lines[("model", "layers", 1)] == 18
    assert lines[("model", "layers", 1, "type")] == 19


def test_dotted_keys() -> None:
    assert key_lines(TEXT)[("optimizer", "schedule", "type")] == 22


def test_an_empty_text_has_no_keys() -> None:
    assert key_lines("\n# nothing\n") == {}


def test_paths_are_written_as_people_do() -> None:
    assert dotted(("model", "layers", 2, "units")) == "model.layers[2].units"
