"""Measurements as scalars that TensorBoard shows; steps are examples, or evaluations of a batch algorithm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from adamctl.errors import ConfigurationError
from adamctl.launch.sinks.measurement import Measurement
from adamctl.launch.sinks.plugins import SinkKind

SINK = SinkKind(
    "tensorboard", "adamctl.launch.sinks.tensorboard:open_events", extra="tensorboard", folder="tensorboard"
)


def open_events(run: str, folder: Path) -> Events:
    """Opens a new file of events in `folder`, beside those of earlier followings, which it takes the place of."""
    return Events(folder)


class Events:
    """A file of events. It is written without TensorFlow."""

    def __init__(self, folder: Path) -> None:
        """Raises ConfigurationError: the folder cannot be written."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._session, self._summary = Event, SessionLog, Summary
        try:
            self._writer: Any = EventFileWriter(str(folder))
        except OSError as error:
            raise ConfigurationError(
                f"{folder}: cannot write events: {error.strerror}; name another --logdir"
            ) from error
        self._started = False

    def add(self, measurement: Measurement) -> None:
        if not self._started:
            self.went_back(measurement.step)
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in measurement.values.items()]
        summary = self._summary(value=values)
        self._writer.add_event(self._event(wall_time=measurement.time_s, step=measurement.step, summary=summary))

    def went_back(self, step: int) -> None:
        """TensorBoard drops what it has read from a step on when a session starts at it."""
        self._started = True
        session = self._session(status=self._session.START)
        self._writer.add_event(self._event(step=step, session_log=session))

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
