"""A role that the driver's tests start in a process of its own: `python role_under_test.py KIND [flag=value ...]`."""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
from pathlib import Path
from typing import Any

from adamctl.errors import DamagedDataError, MembershipLostError, UnreachableError
from adamctl.roles import garbage
from adamctl.roles.controller.role import ROLE as CONTROLLER
from adamctl.roles.driver import RESTART, CommonOptions, RoleContext, run_role
from adamctl.roles.process import restart_process
from adamctl.roles.registry import Role
from adamctl.wire.messages import Empty


async def serve(context: RoleContext) -> None:
    await context.serve(lambda request: request.reply(Empty()))
    await context.stopping.wait()


async def finish(context: RoleContext) -> None:
    await context.serve(lambda request: request.reply(Empty()))


async def lets_go(context: RoleContext) -> None:
    """Ends once an old circle of objects was freed."""
    garbage.EVERY_S = garbage.LOOK_S = 0.05
    await context.serve(lambda request: request.reply(Empty()))
    await asyncio.sleep(0.5)  # after what there is was frozen
    circle = UnreachableError("refers to itself")
    circle.args = (circle,)
    freed = asyncio.Event()
    weakref.finalize(circle, freed.set)
    gc.collect(0)
    gc.collect(1)
    del circle
    async with asyncio.timeout(30):
        await freed.wait()


async def damaged(context: RoleContext) -> None:
    raise DamagedDataError("the file is damaged; delete it")


async def bug(context: RoleContext) -> None:
    raise ValueError("an ordinary bug")


async def fail_while_serving(context: RoleContext) -> None:
    await context.serve(lambda request: request.reply(Empty()))
    goodbye, file = context.close, Path(context.options["wait_for"])

    async def close() -> None:
        while not file.exists():  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.01)
        await goodbye()

    context.close = close  # type: ignore[method-assign]
    raise ValueError("an ordinary bug")


async def late(context: RoleContext) -> None:
    await serve(context)
    raise UnreachableError("a peer stopped first")


async def lost_once(context: RoleContext) -> None:
    await context.serve(lambda request: request.reply(Empty()))
    file = Path(context.options["once"])
    if not file.exists():  # noqa: ASYNC240
        file.touch()  # noqa: ASYNC240
        raise MembershipLostError("silent for too long")
    await context.stopping.wait()


async def stubborn(context: RoleContext) -> None:
    await context.serve(lambda request: request.reply(Empty()))
    while True:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            if context.options.get("really"):
                continue
            raise


def main(kind: str, *settings: str) -> int:
    values: dict[str, Any] = dict(setting.split("=", 1) for setting in settings)
    own = {name.removeprefix("own."): values.pop(name) for name in list(values) if name.startswith("own.")}
    if "lease" in own:
        own["lease"] = float(own["lease"])
    for name, value in values.items():
        if name in ("port", "ready_fd", "lifeline_fd"):
            values[name] = int(value)
        elif name.endswith("_s"):
            values[name] = float(value)
        elif name in ("log_file", "socket_folder"):
            values[name] = Path(value)
        elif name == "controller":
            values[name] = (value,)
    needs_controller = "controller" in values
    restarts = values.pop("restarts", "") == "True"
    role = Role("sample", "", f"__main__:{kind}", (), needs_controller, restarts=restarts)
    code = run_role(CONTROLLER if kind == "controller" else role, CommonOptions(**values), own)
    if code == RESTART:
        restart_process(values.get("ready_fd"), values.get("lifeline_fd"))
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
