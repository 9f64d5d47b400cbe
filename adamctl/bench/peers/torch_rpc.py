"""PyTorch's RPC on the work of `adamctl bench ps-throughput`: blocks on a server, added to, returned, multiplied.

Runs by its path in any interpreter that has PyTorch; nothing else is imported. Reads one JSON object per line from
stdin and answers each with one on stdout:

    {"do": "start", "blocks": 95, "block_bytes": 1048576, "factors": [4096, 4096, 128], "transport": "shm"}
        -> {"ok": true, "torch_version": "..."} or {"ok": false, "error": "..."}
    {"do": "run", "mode": "push", "window": 8, "seconds": 1.0}
        -> {"ok": true, "bytes": ..., "updates": ..., "seconds": ...}

The server is a second process, started by "start". A push is one call per block that adds a delta on the server, a
pull one call per block that returns it, a push of factors one call that adds their product, with `window` calls in
flight at a time. Transports: "shm" (shared memory, and what PyTorch adds to it by itself) or "uv" (TCP). The sums are
checked at the end of every run.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from typing import Any

import torch
from torch.distributed import rpc

SERVER, CLIENT = "server", "client"
START_S = 60
END_S = 5
BLOCKS: list[torch.Tensor] = []
CHANNELS = {"shm": ["cma", "basic"], "uv": ["mpt_uv", "basic"]}


def options(transport: str, port: int) -> rpc.TensorPipeRpcBackendOptions:
    transports = [transport] if transport == "uv" else [transport, "uv"]
    return rpc.TensorPipeRpcBackendOptions(
        num_worker_threads=4,
        rpc_timeout=START_S,
        init_method=f"tcp://127.0.0.1:{port}",
        _transports=transports,
        _channels=CHANNELS[transport],
    )


# --- on the server ----------------------------------------------------------------------------------------------------


def make_blocks(blocks: int, size: int, outputs: int, inputs: int) -> None:
    BLOCKS[:] = [torch.zeros(size) for _ in range(blocks)] + [torch.zeros(outputs, inputs)]


def add(index: int, delta: torch.Tensor) -> None:
    BLOCKS[index].add_(delta)


def add_product(errors: torch.Tensor, activations: torch.Tensor) -> None:
    BLOCKS[-1].addmm_(errors.t(), activations)


def give(index: int) -> torch.Tensor:
    return BLOCKS[index]


def end_with_parent() -> None:
    sys.stdin.buffer.read()
    time.sleep(END_S)  # an orderly shutdown is quicker
    os._exit(1)


def serve(transport: str, port: int, threads: int) -> None:
    threading.Thread(target=end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    rpc.init_rpc(SERVER, rank=1, world_size=2, rpc_backend_options=options(transport, port))
    rpc.shutdown()


# --- the client -------------------------------------------------------------------------------------------------------


class Client:
    """Measures against a server of its own."""

    def __init__(self, request: dict[str, Any]) -> None:
        transport = request["transport"]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        threads = os.environ.get("OMP_NUM_THREADS", "1")
        self._server = subprocess.Popen(
            [sys.executable, __file__, "serve", transport, str(port), threads],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )
        rpc.init_rpc(CLIENT, rank=0, world_size=2, rpc_backend_options=options(transport, port))
        size = request["block_bytes"] // 4
        outputs, inputs, examples = request["factors"]
        self._deltas = [torch.ones(size) for _ in range(request["blocks"])]
        self._errors = torch.randint(-2, 3, (examples, outputs)).float()
        self._activations = torch.randint(-2, 3, (examples, inputs)).float()
        self._pushed = [0] * request["blocks"]
        self._products = 0
        rpc.rpc_sync(SERVER, make_blocks, args=(request["blocks"], size, outputs, inputs))

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        call = {"push": self._push, "pull": self._pull, "factors": self._multiply}[request["mode"]]
        under_way: deque[Any] = deque()
        count, moved, updates, start = 0, 0, 0, time.perf_counter()
        while not count or time.perf_counter() - start < request["seconds"]:
            if len(under_way) == request["window"]:
                under_way.popleft().wait()
            future, call_bytes, call_updates = call(count)
            under_way.append(future)
            count, moved, updates = count + 1, moved + call_bytes, updates + call_updates
        while under_way:
            under_way.popleft().wait()
        seconds = time.perf_counter() - start
        self._check()
        return {"ok": True, "bytes": moved, "updates": updates, "seconds": seconds}

    def _push(self, count: int) -> tuple[Any, int, int]:
        index = count % len(self._deltas)
        delta = self._deltas[index]
        self._pushed[index] += 1
        return rpc.rpc_async(SERVER, add, args=(index, delta)), 4 * delta.numel(), delta.numel()

    def _pull(self, count: int) -> tuple[Any, int, int]:
        index = count % len(self._deltas)
        return rpc.rpc_async(SERVER, give, args=(index,)), 4 * self._deltas[index].numel(), 0

    def _multiply(self, count: int) -> tuple[Any, int, int]:
        self._products += 1
        updates = self._errors.shape[0] * self._errors.shape[1] * self._activations.shape[1]
        future = rpc.rpc_async(SERVER, add_product, args=(self._errors, self._activations))
        return future, 4 * (self._errors.numel() + self._activations.numel()), updates

    def _check(self) -> None:
        for index in (0, len(self._pushed) - 1):
            block = rpc.rpc_sync(SERVER, give, args=(index,))
            if not bool((block == self._pushed[index]).all()):
                raise RuntimeError(f"block {index} holds {block[0].item()}, not {self._pushed[index]}")

    def close(self) -> None:
        rpc.shutdown()
        self._server.wait(START_S)


def main() -> None:
    client: Client | None = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request["do"] == "start":
                client = Client(request)
                answer: dict[str, Any] = {"ok": True, "torch_version": torch.__version__}
            else:
                assert client is not None
                answer = client.run(request)
        except Exception as error:
            answer = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    if client is not None:
        client.close()


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        main()
