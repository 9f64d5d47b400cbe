"""A role that is only a process: it reports as told, waits, and ends as told. Started by test_front.py.

fake_role.py BEHAVIOUR FOLDER --name NODE ... --ready-fd N --lifeline-fd M

serve: serves, and leaves when asked to. deaf: says that it serves, and waits. refuse: reports a configuration error.
silent: never reports. failing: says that it serves and, when FOLDER/break is there, why it fails; then it makes
FOLDER/fail, so that the run fails because of it, and lingers. diverge: likewise, but makes FOLDER/gone, of which
the run tells in a message, and ends a little later; nobody should try again.
run: serves a run's status as a coordinator does, but nobody while FOLDER/NODE.away is there; the run ends when
FOLDER/finish is there, fails when FOLDER/fail is.
Any of them ends with the status in FOLDER/NODE.exit when that appears, and neither leaves when asked to nor heeds
END_SIGNAL if FOLDER/stubborn is there.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from adamctl.roles.role_process import END_SIGNAL

POLL_S = 0.01
LINGERS_S = 1.0  # longer than the front takes to ask twice how the run does


def report(fd: int, **values: object) -> None:
    os.write(fd, json.dumps(values).encode() + b"\n")
    os.close(fd)


def watch_exit(folder: Path, node: str) -> None:
    file = folder / f"{node}.exit"
    while not file.exists() or not (text := file.read_text()):  # it is there before its content is
        time.sleep(POLL_S)
    status = int(text)
    file.unlink()
    print(f"{node} was told to end", file=sys.stderr, flush=True)
    os._exit(status)


async def serve_run(folder: Path, node: str, ready_fd: int) -> None:
    import msgspec

    from adamctl.net.handshake import make_hello
    from adamctl.net.stream import StreamTransport
    from adamctl.net.transport import Request, Server
    from adamctl.roles.coordinator.core.progress import RunProgress
    from adamctl.wire.messages import Empty, RunStatusReply, RunStatusRequest, RunStopRequest, ShutdownRequest

    stopped = ""
    leaving = asyncio.Event()

    def handle(request: Request) -> None:
        nonlocal stopped
        if isinstance(request.message, RunStatusRequest):
            state = "training"
            if stopped:
                state = "stopped"
            elif (folder / "fail").exists():
                state = "failed"
            elif (folder / "finish").exists():
                state = "ended"
            result = {"run": "fake"} if state in ("ended", "stopped") else None
            failure = "no server is left" if state == "failed" else stopped
            messages = ("begun", *(("a worker is gone",) if (folder / "gone").exists() else ()))
            progress = RunProgress(
                state=state, job="fake", passes_total=1, failure=failure, result=result, messages=messages
            )
            request.reply(RunStatusReply(state), (msgspec.json.encode(progress),))
        elif isinstance(request.message, RunStopRequest):
            stopped = request.message.reason
            request.reply(Empty())
        elif isinstance(request.message, ShutdownRequest):
            request.reply(Empty())
            if not (folder / "stubborn").exists():
                with (folder / "left").open("a") as stream:
                    stream.write(f"{node}\n")
                leaving.set()

    address = f"unix://{folder}/{node}.s"
    hello, away = make_hello(node.partition("_")[0], node), folder / f"{node}.away"
    server: Server | None = await StreamTransport().serve([address], hello, handle)
    report(ready_fd, addresses=[address])
    while not leaving.is_set():
        if server is not None and away.exists():
            await server.close()
            server = None
        elif server is None and not away.exists():
            server = await StreamTransport().serve([address], hello, handle)
        with suppress(TimeoutError):
            await asyncio.wait_for(leaving.wait(), POLL_S)
    if server is not None:
        await server.close()


def main() -> None:
    behaviour, folder = sys.argv[1], Path(sys.argv[2])
    options = dict(zip(sys.argv[3::2], sys.argv[4::2], strict=True))
    node, ready_fd, lifeline_fd = options["--name"], int(options["--ready-fd"]), int(options["--lifeline-fd"])
    if (folder / "stubborn").exists():
        signal.signal(END_SIGNAL, signal.SIG_IGN)
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])  # a child that must not outlive us
    threading.Thread(target=watch_exit, args=(folder, node), daemon=True).start()
    threading.Thread(target=lambda: (os.read(lifeline_fd, 1), os._exit(9)), daemon=True).start()
    (folder / f"{node}.starts").open("a").write("x")
    if behaviour == "diverge":
        os.write(ready_fd, json.dumps({"addresses": [f"unix://{folder}/nobody-listens.s"]}).encode() + b"\n")
        while not (folder / "break").exists():
            time.sleep(POLL_S)
        report(ready_fd, error="the loss is not finite; lower optimizer.lr", exit_code=1, retry_helps=False)
        (folder / "gone").touch()
        time.sleep(LINGERS_S)
        sys.exit(1)
    if behaviour == "refuse":
        report(ready_fd, error="--threads: expected at least 1, found 0", exit_code=2)
        sys.exit(2)
    if behaviour in ("run", "serve"):
        asyncio.run(serve_run(folder, node, ready_fd))
        return
    if behaviour == "failing":
        os.write(ready_fd, json.dumps({"addresses": [f"unix://{folder}/nobody-listens.s"]}).encode() + b"\n")
        while not (folder / "break").exists():
            time.sleep(POLL_S)
        print(f"2026-05-01T12:00:00.123+02:00 ERROR ps {node} the role failed\nValueError: a bug", flush=True)
        print(f"2026-05-01T12:00:00.124+02:00 INFO ps {node} could not say goodbye", flush=True)
        report(ready_fd, error="ValueError: a bug", exit_code=1, failed_s=time.monotonic())
        (folder / "fail").touch()
    if behaviour == "deaf":
        report(ready_fd, addresses=[f"unix://{folder}/nobody-listens.s"])
    while True:
        time.sleep(60)


if __name__ == "__main__":
    main()
