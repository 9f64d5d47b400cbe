"""The apply threads of a simulated server: real appliers, which take their time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from adamctl.roles.ps.apply.applier import Applier
from adamctl.roles.ps.apply.load_meter import Work
from adamctl.roles.ps.core.instructions import Apply, Compute

if TYPE_CHECKING:
    from tests.sim.servers.shells.server import SimServer


class SimApply:
    """What `ApplyThreads` does, after a moment. What a batch writes over looks like nothing meanwhile."""

    def __init__(self, server: SimServer, completed: Callable[[Apply | Compute], None]) -> None:
        self.busy_s = [0.0]
        self.works = (Work(),)
        self._server, self._completed = server, completed
        self._applier = Applier()

    def submit(self, instruction: Apply | Compute) -> None:
        server = self._server
        random = server.world.random
        touched: list[tuple[Any, float]] = []

        def halfway() -> None:
            for batch in instruction.batches:
                arrays = [batch.shard.values.array] if batch.in_place else []
                if not batch.copy_state:
                    arrays += [array for array in batch.shard.state.arrays if array.strides[0]]
                for array in arrays:
                    touched.append((array, float(array[-1])))
                    array[-1] += 0.5

        def done() -> None:
            for array, value in touched:
                array[-1] = value
            self._applier.carry_out(instruction)
            server.loop.do(lambda: self._completed(instruction))

        due_s = random.random() * server.apply_s_max
        if random.random() < 0.2:
            server.view.after(due_s / 2, halfway)
        server.view.after(due_s, done)

    def stop(self) -> None:
        """Nothing to end."""
