"""What a soak leaves behind if it is ended at any moment, and what it finds when it goes on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from adamctl.bench.soak.plan import Account, Sample
from adamctl.bench.soak.record import SAMPLES, STATE, AccountFile, Record, State
from adamctl.errors import ConfigurationError

BEGUN = State(seconds=60.0, seed=3, acks="durable", ports={"ps-1": 20_000})


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    record = Record(tmp_path)
    assert record.state() is None
    record.save(BEGUN)
    BEGUN.elapsed_s, BEGUN.starts = 12.5, 2
    record.save(BEGUN)
    assert Record(tmp_path).state() == BEGUN
    (tmp_path / STATE).write_text("{")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        record.state()
    (tmp_path / STATE).unlink()
    (tmp_path / STATE).mkdir()
    with pytest.raises(ConfigurationError, match="cannot be read"):
        record.state()


def test_an_account_is_true_whenever_it_is_read(tmp_path: Path) -> None:
    account = AccountFile(tmp_path / "account-1", 2)
    for client in (0, 1, 1):
        account.sends(client)
    account.acknowledged(1)
    other = AccountFile(tmp_path / "account-1", 2)  # as after kill -9: nothing was closed
    assert other.total == account.total == Account(3, 1)
    other.acknowledged(0)
    assert other.total == Account(3, 2)
    account.close()
    other.close()


def test_a_base_belongs_to_its_start(tmp_path: Path) -> None:
    record, values = Record(tmp_path), np.arange(6, dtype=np.float32).reshape(2, 3)
    assert record.base(1) is None
    record.save_base(1, values)
    record.save_base(2, values + 1)
    first, second = record.base(1), record.base(2)
    assert first is not None and second is not None
    assert np.array_equal(first, values) and np.array_equal(second, values + 1)


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    record = Record(tmp_path)
    record.add(SAMPLES, {"at_s": 1.0, "since_start_s": 1.0, "resident_mib": {"ps-1": 2.0}})
    with (tmp_path / SAMPLES).open("a") as stream:
        stream.write('{"at_s": 2.0, "since')
    assert record.samples() == [Sample(1.0, 1.0, {"ps-1": 2.0})]
