"""Scripts of `benchmarks/` end with a line, not with a traceback."""

from __future__ import annotations

import argparse
import subprocess
import sys

import pytest

from adamctl.bench.script import counts, run_script
from adamctl.errors import EXIT_INTERRUPTED, ConfigurationError


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ConfigurationError("--rounds: expected 1; found 0"), 2, "error: --rounds: expected 1; found 0\n"),
        (KeyboardInterrupt(), EXIT_INTERRUPTED, "interrupted\n"),
    ],
)
def test_a_script_says_why_it_ends(
    capsys: pytest.CaptureFixture[str], error: BaseException, code: int, said: str
) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(SystemExit) as ended:
        run_script(fail)
    assert ended.value.code == code and capsys.readouterr().err == said


def test_a_script_in_the_background_hears_that_it_is_interrupted() -> None:
    """A shell starts it with SIGINT ignored."""
    program = """
import os, signal, subprocess, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
ended = subprocess.run([sys.executable, "-c", '''
import os, signal
from adamctl.bench.script import counts, run_script

def main():
    os.kill(os.getpid(), signal.SIGINT)
    signal.pause()

run_script(main)
'''], check=False)
sys.exit(ended.returncode)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (EXIT_INTERRUPTED, "interrupted\n")


def test_a_script_that_is_told_to_end_ends_what_it_started_first() -> None:
    """As by Ctrl-C: blocks are left, and what they started is ended."""
    program = """
import os, signal
from adamctl.bench.script import counts, run_script

def main():
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()
    finally:
        print("left", flush=True)

run_script(main)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (EXIT_INTERRUPTED, "left\n", "interrupted\n")


def test_a_script_that_does_its_work_just_ends() -> None:
    done: list[int] = []
    run_script(lambda: done.append(1))
    assert done == [1]


def test_an_option_takes_several_counts() -> None:
    assert counts("4, 1,2,1") == (4, 1, 2)
    for wrong in ("", "x", "1,,2", "0", "1.5", "-1"):
        with pytest.raises(argparse.ArgumentTypeError, match="expected whole numbers from 1 to 10000"):
            counts(wrong)
