"""The rule of a job as it travels: every name can be built, defaults are the papers' and the field's."""

from __future__ import annotations

import msgspec
import pytest

from adamctl.kernels.rules import RULES, make_rule
from adamctl.model.rule import RULE_NAMES, RuleConfig


def test_every_rule_that_is_named_can_be_built_and_no_other() -> None:
    assert set(RULE_NAMES) == set(RULES)
    for name in RULE_NAMES:
        assert make_rule(RuleConfig(name), "numpy").name == name


def test_a_rule_comes_back_from_bytes_and_unknown_settings_are_refused() -> None:
    rule = RuleConfig("momentum", momentum=0.5, weight_decay=1e-4, nesterov=True)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(rule), type=RuleConfig) == rule
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"name": "sgd", "lr": 0.1}, RuleConfig)
