"""Imports go on without the garbage collector, which then goes on as before."""

from __future__ import annotations

import gc

import pytest

from adamctl.importing import importing


def test_the_collector_rests_meanwhile_and_goes_on_whatever_happens() -> None:
    with importing(keep=False):
        assert not gc.isenabled()
        with importing(keep=False):
            pass
        assert not gc.isenabled(), "the outer one says when"
    assert gc.isenabled()
    with pytest.raises(ImportError), importing(keep=False):
        raise ImportError
    assert gc.isenabled()


def test_what_was_imported_is_looked_through_no_more() -> None:
    before = gc.get_freeze_count()
    try:
        with importing():
            pass
        assert gc.get_freeze_count() > before
    finally:
        gc.unfreeze()


def test_whoever_has_switched_it_off_keeps_it_so() -> None:
    gc.disable()
    try:
        with importing():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
