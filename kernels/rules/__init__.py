"""Update rules that servers apply to their shards, and workers to their own copy."""

from adamctl.kernels.rules.factors import FactorUpdate, apply_factors, gradient_rows
from adamctl.kernels.rules.make import RULES, make_rule
from adamctl.kernels.rules.rule import Rule

__all__ = ["RULES", "FactorUpdate", "Rule", "apply_factors", "gradient_rows", "make_rule"]
