"""The container file, read as text: nothing here builds it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def instructions() -> list[tuple[str, str]]:
    """Returns (instruction, arguments), with continued lines joined."""
    text = re.sub(r"\\\n\s*", "", (ROOT / "Containerfile").read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.partition(" ")[0], line.partition(" ")[2].strip()) for line in lines]


def test_base_images_are_the_public_ones_by_name_alone() -> None:
    images = [arguments.split()[0] for name, arguments in instructions() if name == "FROM"]
    assert images and all(re.fullmatch(r"python:3\.\d+-slim", image) for image in images)
    version = tuple(map(int, images[0].removeprefix("python:").removesuffix("-slim").split(".")))
    lowest = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert version >= tuple(map(int, lowest.removeprefix(">=").split(".")))


def test_it_does_not_run_as_root() -> None:
    found = instructions()
    users = [arguments for name, arguments in found if name == "USER"]
    assert users and int(users[-1].partition(":")[0]) > 0
    place = max(number for number, (name, _) in enumerate(found) if name == "USER")
    assert "RUN" not in [name for name, _ in found[place:]], "nothing is installed afterwards"


def test_what_it_installs_are_extras_of_the_project() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (named,) = [re.findall(r"\.whl\)\[([\w,]+)\]", arguments) for name, arguments in instructions()
                if name == "RUN" and ".whl" in arguments]  # fmt: skip
    assert set(named[0].split(",")) <= set(extras)


@pytest.mark.parametrize(("answer", "healthy"), [(None, True), (200, True), (503, False)])
def test_its_health_check_asks_the_health_port_if_there_is_one(answer: int | None, healthy: bool) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(answer or 200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    asked: list[str] = []
    (check,) = [arguments for name, arguments in instructions() if name == "HEALTHCHECK"]
    program, *arguments = json.loads(check.partition("CMD ")[2])
    environment = {key: value for key, value in os.environ.items() if key != "ADAMCTL_HEALTH"}
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            if answer is not None:
                environment["ADAMCTL_HEALTH"] = f"127.0.0.1:{server.server_port}"
            done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, timeout=60)
        finally:
            server.shutdown()
            thread.join()
    assert program == "python" and (done.returncode == 0) is healthy, done.stderr
    assert asked == ([] if answer is None else ["/livez"])
    assert json.loads(dict(instructions())["ENTRYPOINT"]) == ["adamctl"]


def test_what_is_left_out_of_the_build_is_the_same_for_both_programs() -> None:
    assert (ROOT / ".containerignore").read_text() == (ROOT / ".dockerignore").read_text()
