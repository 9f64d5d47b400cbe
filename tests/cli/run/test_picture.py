"""The picture of the live view."""

from __future__ import annotations

import os
import signal
from xml.etree import ElementTree

import pytest

from adamctl.cli.run.picture import Photographer, draw
from adamctl.live.view import view_of
from tests.live.test_view import PROGRESS


def test_a_picture_is_svg_that_needs_nothing_from_elsewhere() -> None:
    text = draw(view_of(PROGRESS, {}), "adamctl train examples/mnist.toml", 80)
    ElementTree.fromstring(text)
    assert "examples/mnist.toml" in text and "worker-1" in text and "98.00%" in text
    assert "url(" not in text.replace("url(#", "")


def test_one_look_when_the_run_is_far_enough_then_it_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    early, due = Photographer(at=0.5), Photographer(at=0.25)
    for photographer in (early, due, due):
        photographer.show(PROGRESS, {})
    assert early.view is None and due.view is not None
    assert sent == [(os.getpid(), signal.SIGINT)]
