"""A figure that measures nothing real: what the frame does with any figure is tested with it."""

from __future__ import annotations

from adamctl.bench.figures.figure import Claim, Figure, Judged, Panel, Table, measured, planned
from adamctl.bench.figures.judging import at_least, median_point
from adamctl.bench.figures.parts import Part
from adamctl.bench.figures.rounds import Rounds
from adamctl.bench.figures.session import Session

PART = Part("Speed over machines, made up", 1, "fake", has_machines=False, has_rates=True)


class FakeModule:
    """Two settings in turn; `fail_at`: the key of a round that fails, as when somebody interrupts it.

    A search takes one more round before them.
    """

    def __init__(self, fail_at: str = "") -> None:
        self.fail_at = fail_at
        self.measured: list[str] = []

    def measure(self, session: Session) -> None:
        def one(name: str, number: int) -> float:
            if f"{name}/round-{number}" == self.fail_at:
                raise KeyboardInterrupt
            self.measured.append(f"{name}/round-{number}")
            return (0 if name == "search" else float(name)) + number / 100

        if session.settings.searches:
            session.take("search/1", lambda: one("search", 1))
        session.in_turn(("1", "2"), one, count=3)

    def figure_of(self, rounds: Rounds) -> Figure:
        rounds["1/round-1"]
        points = [median_point(x, rounds.under(str(x))) for x in (1, 2)]
        panel = Panel(
            "machines", "speed-up", (measured("network", points), planned("network, planned", points)),
            (Claim("cross", "the paper, section 5", 8, 2.2), Claim("level", "a level", y=1.5)),
        )  # fmt: skip
        bar = at_least("speed of two", points[1].y / points[0].y, 1.9)
        return Figure((panel,), (bar, Judged("order", "a tie", "not settled")), (TABLE,), ("A network of one layer.",))


TABLE = Table(("setting", "rate"), (("one", "1.5"), ("two", "10")), "Rates")
