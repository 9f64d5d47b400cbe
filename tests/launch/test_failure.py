"""The message that ends a failed run."""

from pathlib import Path

from adamctl.launch.failure import LastWords, first_cause, last_error, up_to_the_error, words_here
from adamctl.roles.log import json_line


def test_role_host_reason_and_log(tmp_path: Path) -> None:
    log = tmp_path / "ps-1.log"
    log.write_text("the last words\n")
    lines = first_cause("ps", "ps-1", "killed by SIGKILL", words_here(log)).splitlines()
    assert lines[0].startswith("the run failed: ps-1 (role ps on ")
    assert lines[0].endswith("ended: killed by SIGKILL")
    assert lines[1:] == [f"  the end of {log}:", "    the last words"]


def test_a_role_that_said_why_it_failed_is_quoted_up_to_its_error(tmp_path: Path) -> None:
    log = tmp_path / "ps-1.log"
    records = [f"2026-05-01T12:00:00.123+02:00 {level} ps ps-1 {text}" for level, text in (
        ("ERROR", "another one"), ("INFO", "serving"), ("ERROR", "the role failed"), ("INFO", "stopping"),
    )]  # fmt: skip
    traceback = ["Traceback (most recent call last):", "ValueError: x"]
    log.write_text("\n".join([*records[:3], *traceback, records[3], "  more about that"]))
    quoted = first_cause("ps", "ps-1", "ValueError: x", words_here(log), said_why=True).splitlines()[2:]
    assert quoted == [f"    {line}" for line in (*records[:3], *traceback)]
    assert up_to_the_error(["2026-05-01T12:00:00.123+02:00 INFO ps ps-1 x", "y"])[1:] == ["y"]


def test_no_log(tmp_path: Path) -> None:
    assert "its log is empty" in first_cause("ps", "ps-1", "exit status 1", words_here(tmp_path / "none.log"))


def test_the_last_error_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "coordinator.log"
    stamp = "2026-05-01T12:00:00.123+02:00"
    lines = ("ERROR ps ps-1 first", "ERROR ps ps-1 last", "INFO ps ps-1 x")
    log.write_text("".join(f"{stamp} {line}\n" for line in lines))
    assert last_error(words_here(log)) == "last"
    assert last_error(words_here(tmp_path / "none.log")) == ""


def test_a_log_of_json_is_quoted_as_text(tmp_path: Path) -> None:
    log = tmp_path / "ps-1.log"
    at = "2026-05-01T12:00:00.123+02:00"
    log.write_text(
        json_line("INFO", "ps", "ps-1", "serving", at=at) + "\n"
        + json_line("ERROR", "ps", "ps-1", "the role failed", at=at, exception="Traceback\nValueError: x") + "\n"
        + json_line("INFO", "ps", "ps-1", "stopping", at=at) + "\n"
    )  # fmt: skip
    assert last_error(words_here(log)) == "the role failed"
    quoted = first_cause("ps", "ps-1", "ValueError: x", words_here(log), said_why=True).splitlines()[2:]
    text = [f"{at} INFO ps ps-1 serving", f"{at} ERROR ps ps-1 the role failed", "Traceback", "ValueError: x"]
    assert quoted == [f"    {line}" for line in text]


def test_a_role_of_another_host_is_named_with_it() -> None:
    words = LastWords("host-2", "/var/lib/host-2/logs/worker-3.log", ("the last words",))
    lines = first_cause("worker", "worker-3", "killed by SIGKILL", words).splitlines()
    assert lines[0] == "the run failed: worker-3 (role worker on host-2) ended: killed by SIGKILL"
    assert lines[1:] == ["  the end of /var/lib/host-2/logs/worker-3.log:", "    the last words"]
