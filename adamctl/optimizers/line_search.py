"""The search for a step along a direction (More and Thuente 1994), as a pure state machine: a trial in, a step out.

It makes the same steps as MINPACK-2's `dcsrch`. A step is accepted under the strong Wolfe conditions. Where losses
differ by no more than rounding, the approximate ones of Hager and Zhang (2005, equation T2) are enough: they are about
slopes alone.
"""

from __future__ import annotations

import math
from typing import NamedTuple

SUFFICIENT_DECREASE = 1e-3
"""c1 of the Wolfe conditions, as in L-BFGS-B."""
CURVATURE = 0.9
"""c2 of the Wolfe conditions."""
ROUNDING = 1e-6
"""What part of |loss| is taken for rounding (Hager and Zhang's epsilon). Only where losses differ by no more are the
approximate conditions enough: elsewhere they would accept steps that decrease the loss too little."""
EVALUATIONS_MAX = 20
STEP_MAX = 1e10
WIDTH_MIN = 1e-14
"""A bracket that is narrower, as a part of its upper end, has no better step."""
EXTRAPOLATION_MIN, EXTRAPOLATION_MAX = 1.1, 4.0
SHRINKAGE = 0.66
"""A bracket that two trials have not narrowed to this part is halved."""


class Trial(NamedTuple):
    """The loss and its slope along the direction, at a step."""

    step: float
    value: float
    slope: float

    def tilted(self, slope: float) -> Trial:
        """Returns this trial of the function less `slope` x step."""
        return Trial(self.step, self.value - slope * self.step, self.slope - slope)


class LineSearch:
    """One search. Evaluate at `step`, say `tried`, until `ended`.

    Attributes:
        step: where to evaluate next; once the search has succeeded, what it has found.
        evaluations: how many trials it was told.
        ended: there is nothing more to try.
        succeeded: the last trial fulfils the conditions.
        best: the trial of the least loss below that at step 0, to fall back on; None if there was none.
    """

    def __init__(
        self,
        value: float,
        slope: float,
        first_step: float,
        *,
        sufficient_decrease: float = SUFFICIENT_DECREASE,
        curvature: float = CURVATURE,
        approximate: bool = True,
        evaluations_max: int = EVALUATIONS_MAX,
        step_max: float = STEP_MAX,
    ) -> None:
        """
        Args:
            value, slope: the loss at step 0, and its slope, which is below 0.
            approximate: accept what fulfils the approximate Wolfe conditions where losses differ by rounding.
        """
        assert slope < 0 < first_step <= step_max
        self.step = first_step
        self.evaluations = 0
        self.ended = self.succeeded = False
        self.best: Trial | None = None
        self._start = self._low = self._high = Trial(0.0, value, slope)
        self._decrease, self._curvature = sufficient_decrease, curvature
        self._approximate, self._evaluations_max = approximate, evaluations_max
        self._step_max = step_max
        self._bracketed = False
        self._first_stage = True
        self._width, self._width_before = step_max, 2 * step_max
        self._least, self._most = 0.0, (1 + EXTRAPOLATION_MAX) * first_step
        self._infinite_from = math.inf

    def tried(self, value: float, slope: float) -> None:
        """Takes the loss at `step` and its slope there; what is not finite counts as an infinite loss."""
        assert not self.ended
        self.evaluations += 1
        trial = Trial(self.step, value, slope)
        if not (math.isfinite(value) and math.isfinite(slope)):
            self.ended = self.evaluations >= self._evaluations_max
            if not self.ended:
                self._retreat()
            return
        if value < min(self._start.value, self.best.value if self.best else math.inf):
            self.best = trial
        allowed = self._start.value + self._decrease * self._start.slope * trial.step
        if self._first_stage and value <= allowed and slope >= 0:
            self._first_stage = False
        self.succeeded = self._fulfils(trial, allowed)
        self.ended = self.succeeded or self.evaluations >= self._evaluations_max or self._is_stuck(trial, allowed)
        if not self.ended:
            self._narrow(trial, allowed)

    def _fulfils(self, trial: Trial, allowed: float) -> bool:
        start = self._start
        if trial.value <= allowed and abs(trial.slope) <= -self._curvature * start.slope:
            return True
        same = abs(trial.value - start.value) <= ROUNDING * abs(start.value)
        steepest = (2 * self._decrease - 1) * start.slope
        return self._approximate and same and self._curvature * start.slope <= trial.slope <= steepest

    def _is_stuck(self, trial: Trial, allowed: float) -> bool:
        """No step is better for all the arithmetic can tell, or the longest one is still too short."""
        if trial.step == self._low.step:
            return True
        if self._bracketed:
            outside = trial.step <= self._least or trial.step >= self._most
            return outside or self._most - self._least <= WIDTH_MIN * self._most
        slope = self._decrease * self._start.slope
        return trial.step == self._step_max and trial.value <= allowed and trial.slope <= slope

    def _narrow(self, trial: Trial, allowed: float) -> None:
        if self._first_stage and allowed < trial.value <= self._low.value:
            tilt = self._decrease * self._start.slope
            step = self._interpolate(self._low.tilted(tilt), self._high.tilted(tilt), trial.tilted(tilt))
            self._update(trial, trial.tilted(tilt), self._low.tilted(tilt))
        else:
            step = self._interpolate(self._low, self._high, trial)
            self._update(trial, trial, self._low)
        low, high = self._low.step, self._high.step
        if math.isnan(step):  # of values that differ by more than float64 holds
            step = low + 0.5 * (high - low) if self._bracketed else 2 * trial.step
        if self._bracketed:
            if abs(high - low) >= SHRINKAGE * self._width_before:
                step = low + 0.5 * (high - low)
            self._width_before, self._width = self._width, abs(high - low)
            self._least, self._most = min(low, high), max(low, high)
        else:
            self._least = step + EXTRAPOLATION_MIN * (step - low)
            self._most = step + EXTRAPOLATION_MAX * (step - low)
        step = min(max(step, 0.0), self._step_max)
        if self._bracketed and (
            step <= self._least or step >= self._most or self._most - self._least <= WIDTH_MIN * self._most
        ):
            step = low
        if not self._bracketed and step >= self._infinite_from:
            step = low + 0.5 * (self._infinite_from - low)
        self.step = step

    def _interpolate(self, low: Trial, high: Trial, trial: Trial) -> float:
        """Returns the next step, of the four cases of More and Thuente's section 4; sets whether there is a bracket."""
        away = trial.step > low.step
        extreme = self._most if away else self._least
        if trial.value > low.value:
            self._bracketed = True
            cubic = _cubic(low, trial)[0]
            quadratic = low.step + _ratio(
                low.slope, (low.value - trial.value) / (trial.step - low.step) + low.slope
            ) / 2 * (trial.step - low.step)
            nearer = abs(cubic - low.step) <= abs(quadratic - low.step)
            return cubic if nearer else cubic + (quadratic - cubic) / 2
        secant = trial.step + _ratio(trial.slope, trial.slope - low.slope) * (low.step - trial.step)
        if trial.slope * math.copysign(1.0, low.slope) < 0:
            self._bracketed = True
            cubic = _cubic(trial, low)[0]
            return cubic if abs(cubic - trial.step) > abs(secant - trial.step) else secant
        if abs(trial.slope) < abs(low.slope):
            cubic, has_minimum = _cubic(trial, low)
            if not has_minimum:
                cubic = extreme
            nearer = abs(cubic - trial.step) < abs(secant - trial.step)
            if self._bracketed:
                step = cubic if nearer else secant
                limit = trial.step + SHRINKAGE * (high.step - trial.step)
                return min(limit, step) if away else max(limit, step)
            return min(max(secant if nearer else cubic, self._least), self._most)
        return _cubic(trial, high)[0] if self._bracketed else extreme

    def _update(self, trial: Trial, compared: Trial, low: Trial) -> None:
        """The end of less loss is `low`; `compared` and `low` are of the function that is interpolated."""
        if compared.value > low.value:
            self._high = trial
            return
        if compared.slope * math.copysign(1.0, low.slope) < 0:
            self._high = self._low
        self._low = trial

    def _retreat(self) -> None:
        """After an infinite loss: a tenth of the way, from the best end of the bracket."""
        low = self._low.step
        if not self._bracketed:
            self._infinite_from = self.step
        self.step = low + (self.step - low) / 10
        if not self._bracketed:
            self._least, self._most = low, self._infinite_from


def _cubic(origin: Trial, other: Trial) -> tuple[float, bool]:
    """Returns the minimum of the cubic with these values and slopes, and whether it lies beyond `origin`."""
    theta = 3 * (origin.value - other.value) / (other.step - origin.step) + origin.slope + other.slope
    scale = max(abs(theta), abs(origin.slope), abs(other.slope))
    if scale == 0:
        return origin.step, False
    gamma = scale * math.sqrt(max(0.0, (theta / scale) ** 2 - origin.slope / scale * (other.slope / scale)))
    if other.step < origin.step:
        gamma = -gamma
    ratio = _ratio(gamma - origin.slope + theta, gamma - origin.slope + gamma + other.slope)
    return origin.step + ratio * (other.step - origin.step), ratio < 0 and gamma != 0


def _ratio(a: float, b: float) -> float:
    return a / b if b else math.copysign(math.inf, a)
