"""Affine and elastic warps of small images on one thread, drawn and carried out, beside SciPy's and OpenCV's."""

from __future__ import annotations

from contextlib import ExitStack

from adamctl.bench.bars import Found, Progress
from adamctl.bench.data.parts import DataSettings
from adamctl.bench.kernels.warps import RANGES, measure_warps
from adamctl.bench.peer import PeerProcess, require
from adamctl.errors import ConfigurationError

SIZE = 28
EXAMPLES = 256  # a call of ours warps so many, as a data server does
ANSWER_S = 60.0


def measure(settings: DataSettings, progress: Progress) -> dict[str, Found]:
    """Returns how many times as fast as SciPy and as OpenCV ours is; of each the least of all rounds."""
    ours: list[float] = []
    peers: dict[str, list[float]] = {"scipy": [], "opencv": []}
    with ExitStack() as stack:
        opencv, why = _opencv(settings, stack)
        for turn in range(settings.rounds):
            progress(f"warps of {SIZE} x {SIZE}: round {turn + 1} of {settings.rounds}")
            found = measure_warps(SIZE, EXAMPLES, 1, settings.seconds)
            ours.append(min(found[name] or float("inf") for name in ("numba_us", "numpy_us")))
            if found["scipy_us"] is not None:
                peers["scipy"].append(found["scipy_us"])
            if opencv is not None:
                answer = opencv.ask({"do": "run", "seconds": settings.seconds}, ANSWER_S + settings.seconds)
                peers["opencv"].append(1e6 * answer["seconds"] / answer["images"])
    reasons = {"scipy": "SciPy is not installed", "opencv": why}
    return {f"warps-{name}": _found(min(ours), peers[name], name, reasons[name]) for name in peers}


def _found(ours_us: float, theirs_us: list[float], name: str, reason: str) -> Found:
    if not theirs_us:
        return {"cannot": reason, "ours_us": ours_us}
    return {"ratio": min(theirs_us) / ours_us, "ours_us": ours_us, f"{name}_us": min(theirs_us)}


def _opencv(settings: DataSettings, stack: ExitStack) -> tuple[PeerProcess | None, str]:
    """Returns the peer, ready to run; or None and why there is none."""
    try:
        require(settings.peer_python, "cv2")
    except ConfigurationError as error:
        return None, str(error)
    peer = stack.enter_context(PeerProcess(settings.peer_python, "opencv_warps.py", 1))
    peer.ask({"do": "prepare", "size": SIZE, **RANGES._asdict()}, ANSWER_S)
    return peer, ""
