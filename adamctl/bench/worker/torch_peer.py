"""PyTorch training the same model on the same cores: tries every setting a user would try and keeps the best."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import msgspec

from adamctl.bench.peer import PeerProcess
from adamctl.bench.worker.trainer import Rate
from adamctl.errors import ConfigurationError
from adamctl.model.description import Conv2D, Model

PROGRAM = "torch_program.py"
BUILD_S = 600.0  # torch.compile takes its time
ROUND_SLACK_S = 120.0


@dataclass(frozen=True)
class PeerSetting:
    """How PyTorch is run: `processes` processes of `threads` threads, each on batches of `batch`."""

    batch: int
    threads: int
    processes: int
    channels_last: bool
    compiled: bool = False

    def describe(self) -> str:
        """Returns the setting in words, for a table."""
        words = [f"{self.processes} processes"] if self.processes > 1 else []
        words += ["channels last"] if self.channels_last else []
        words += ["torch.compile"] if self.compiled else []
        return ", ".join(words) or "eager"


def settings_for(model: Model, batches: Sequence[int], cores: int) -> Iterator[PeerSetting]:
    """Yields the settings to try: each batch size, one process with all cores or one per core, both image layouts."""
    has_images = any(isinstance(layer, Conv2D) for layer in model.layers)
    for batch in batches:
        for channels_last in (False, True) if has_images else (False,):
            yield PeerSetting(batch, cores, 1, channels_last)
            if cores > 1:
                yield PeerSetting(batch, 1, cores, channels_last)


class TorchPeer:
    """The processes of one setting. A context manager.

    Raises:
        ConfigurationError: PyTorch is missing, or cannot build or run the model in this setting.
    """

    def __init__(self, python: str, model: Model, setting: PeerSetting) -> None:
        self.setting = setting
        self._stack = ExitStack()
        request = {
            "do": "train",
            "model": msgspec.to_builtins(model),
            "batch": setting.batch,
            "threads": setting.threads,
            "channels_last": setting.channels_last,
            "compile": setting.compiled,
        }
        try:
            self._processes = [
                self._stack.enter_context(PeerProcess(python, PROGRAM, setting.threads))
                for _ in range(setting.processes)
            ]
            for answer in self._all(request, BUILD_S):
                if not answer["ok"]:
                    raise ConfigurationError(f"PyTorch, {setting.describe()}: {answer['error']}")
                self.version = str(answer["torch_version"])
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> TorchPeer:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, seconds: float) -> Rate:
        """Trains for about `seconds` in all processes at once and returns the sum of their rates."""
        answers = self._all({"do": "run", "seconds": seconds}, seconds + ROUND_SLACK_S)
        images_per_s = sum(answer["examples"] / answer["seconds"] for answer in answers)
        longest = max(answer["seconds"] for answer in answers)
        return Rate(round(images_per_s * longest), longest)

    def _all(self, request: dict[str, Any], timeout_s: float) -> list[dict[str, Any]]:
        for process in self._processes:
            process.send(request)
        return [process.receive(timeout_s) for process in self._processes]


def scan(
    python: str, model: Model, batches: Sequence[int], cores: int, seconds: float, progress: Callable[[str], None]
) -> list[tuple[PeerSetting, float | None, str]]:
    """Runs every setting once, then the best one compiled; yields (setting, images per second or None, why not).

    Raises:
        ConfigurationError: no setting works.
    """
    rows: list[tuple[PeerSetting, float | None, str]] = []
    for setting in settings_for(model, batches, cores):
        rows.append(_try(python, model, setting, seconds, progress))
    working = [(rate, setting) for setting, rate, _ in rows if rate is not None]
    if not working:
        raise ConfigurationError(rows[0][2])
    best = max(working, key=lambda pair: pair[0])[1]
    compiled = PeerSetting(best.batch, best.threads, best.processes, best.channels_last, compiled=True)
    rows.append(_try(python, model, compiled, seconds, progress))
    return rows


def _try(
    python: str, model: Model, setting: PeerSetting, seconds: float, progress: Callable[[str], None]
) -> tuple[PeerSetting, float | None, str]:
    progress(f"PyTorch, batch {setting.batch}, {setting.threads} thread(s), {setting.describe()}")
    try:
        with TorchPeer(python, model, setting) as peer:
            return setting, peer.run(seconds).images_per_s, ""
    except ConfigurationError as error:
        return setting, None, str(error)
