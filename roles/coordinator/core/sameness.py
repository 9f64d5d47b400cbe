"""Which workers give the same bits, for a batch algorithm (pure).

Its result is the same to the last bit whatever the number of workers, as long as they compute alike. So a worker that
computes otherwise than those in the run is refused. When none of them is left, the next one decides, and it is said
that bits may differ from here on: a run must be able to go on, and to be resumed, on other machines.
"""

from __future__ import annotations

from collections.abc import Mapping

from adamctl.roles.coordinator.core.bundles import WorkerKey

PROCESSOR = "processor"
ADVICE = (
    "use the same packages, kernels (ADAMCTL_KERNELS) and kind of processor for all workers of a batch algorithm, or "
    "have its BLAS take the same one for granted (OPENBLAS_CORETYPE)"
)


class Sameness:
    """Of one run.

    Attributes:
        implementation: of the workers in the run, or of those that were there last; {} before the first.
        notices: what is to be told to people.
    """

    def __init__(self, former: Mapping[str, str]) -> None:
        """`former`: of the run that is resumed; {} of a new one."""
        self.implementation = dict(former)
        self.notices: list[str] = []
        self._told: dict[str, int] = {}  # node -> incarnation

    def refusal(self, worker: WorkerKey, implementation: Mapping[str, str], others: bool) -> str:
        """Returns why a worker cannot be used, "" if it can.

        Args:
            others: whether other workers are in the run.
        """
        found = differences(self.implementation, implementation)
        if not found:
            self.implementation = dict(implementation)
            return ""
        if not others:
            self.notices.append(
                f"worker {worker[0]} computes otherwise than those before it, so bits may differ from here on: {found}"
            )
            self.implementation = dict(implementation)
            return ""
        text = f"worker {worker[0]} computes otherwise than the workers of this run: {found}; {ADVICE}"
        if self._told.get(worker[0]) != worker[1]:
            self._told[worker[0]] = worker[1]
            self.notices.append(text)
        return text

    def take_notices(self) -> list[str]:
        taken, self.notices = self.notices, []
        return taken


def differences(expected: Mapping[str, str], found: Mapping[str, str]) -> str:
    """Returns in what two implementations differ, "" if in nothing that decides about bits or is known of both."""
    if not expected or expected == found:
        return ""
    return ", ".join(
        _difference(name, expected.get(name, ""), found.get(name, ""))
        for name in {**expected, **found}
        if expected.get(name, "") != found.get(name, "")
    )


def _difference(name: str, expected: str, found: str) -> str:
    if name != PROCESSOR:
        return f"{name} is {found or 'not told'}, expected {expected or 'none'}"
    own, wanted = set(found.split()), set(expected.split())
    parts = [f"{'has' if more else 'lacks'} {' '.join(sorted(more or less))}"
             for more, less in ((own - wanted, set()), (set(), wanted - own)) if more or less]  # fmt: skip
    return f"its {name} {' and '.join(parts)}"
