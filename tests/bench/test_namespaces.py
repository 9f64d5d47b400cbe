"""Network namespaces: a network of one's own, links that are cut, links that are slow."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from adamctl.bench import namespaces

SERVER = """
import subprocess, sys
from adamctl.bench.namespaces import enter, is_inside, namespaces
assert is_inside()
SERVE = 'import socket; s = socket.create_server(("0.0.0.0", 4000)); print(1, flush=True)\\n'
SERVE += 'while True:\\n c = s.accept()[0]; n = 0\\n'
SERVE += ' while (data := c.recv(1 << 16)): n += len(data)\\n'
with namespaces(('a', 'b')) as links:
    child = subprocess.Popen([*links.prefix('a'), sys.executable, '-c', SERVE], stdout=subprocess.PIPE)
    child.stdout.readline()
    try:
        BODY
    finally:
        child.kill(); child.wait(); child.stdout.close()
"""
CUTS = """
import socket
def reach():
    try:
        socket.create_connection((links.address('a'), 4000), 0.5).close()
    except TimeoutError:
        return False
    return True
found = [reach()]
for way in ({'outward': False}, {'inward': False}, {}):
    links.cut('a', **way); found.append(reach()); links.heal('a'); found.append(reach())
assert found == [True, False, True, False, True, False, True], found
"""
LIMITS = """
import re, threading
def rates():
    shown = [subprocess.run([*way, 'tc', 'qdisc', 'show'], capture_output=True, text=True).stdout
             for way in ((), links.prefix('b'))]
    return [re.findall(r'tbf .*rate (\\S+)', text) for text in shown]
assert rates() == [[], []]
links.limit('b', 1e6)
assert rates() == [['8Mbit'], ['8Mbit']], rates()
links.limit('b', 2e6)
assert rates() == [['16Mbit'], ['16Mbit']], rates()
links.limit('b', None)
assert rates() == [[], []]
# A thread that enters sees the addresses of that network.
import socket
def bind():
    enter(links.holder('b'))
    socket.create_server((links.address('b'), 0)).close()
    try:
        socket.create_server((links.address('a'), 0)).close()
    except OSError:
        bound.append(True)
bound = []
thread = threading.Thread(target=bind); thread.start(); thread.join()
assert bound == [True]
"""


def _inside(body: str) -> None:
    code = SERVER.replace("BODY", body.strip().replace("\n", "\n        "))
    environment = {**os.environ, namespaces.INSIDE: "1"}
    command = ["unshare", "--user", "--map-root-user", "--net", sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(bool(namespaces.missing()), reason="needs network namespaces")
@pytest.mark.parametrize("body", [CUTS, LIMITS], ids=["cut", "limited"])
def test_links_are_as_they_are_told_to_be(body: str) -> None:
    _inside(body)
