"""What Prometheus reads, from a reading of a cluster, by the `prometheus-client` package (the extra `metrics`)."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from adamctl.errors import ConfigurationError
from adamctl.metrics.catalogue import Metric
from adamctl.metrics.samples import ClusterReading, samples


class Exposition:
    """A custom collector with a registry of its own, so that nothing else of this process is shown."""

    def __init__(self) -> None:
        """Raises ConfigurationError: the package is not installed."""
        try:
            self._client: Any = importlib.import_module("prometheus_client")
            self._core: Any = importlib.import_module("prometheus_client.core")
            self._text: Any = importlib.import_module("prometheus_client.exposition")
        except ImportError as error:
            raise ConfigurationError(
                f"metrics need prometheus-client ({error}); install it with: pip install 'adamctl[metrics]'"
            ) from error

    def render(self, reading: ClusterReading, accept: str = "") -> tuple[bytes, str]:
        """Returns the metrics as bytes, and their content type, which `accept` (a header) chooses."""
        encode, content_type = self._text.choose_encoder(accept)
        registry = self._client.CollectorRegistry(auto_describe=False)
        registry.register(_Collected(self._core, reading))
        text: bytes = encode(registry)
        return text, str(content_type)


class _Collected:
    """One reading, as a collector."""

    def __init__(self, core: Any, reading: ClusterReading) -> None:
        self._core, self._reading = core, reading

    def collect(self) -> Iterator[Any]:
        for metric, found in samples(self._reading):
            family = _family(self._core, metric)
            for labels, value in found:
                family.add_metric(labels, value)
            yield family


def _family(core: Any, metric: Metric) -> Any:
    kind = core.CounterMetricFamily if metric.kind == "counter" else core.GaugeMetricFamily
    return kind(metric.name, metric.help, labels=metric.labels)
