"""Prometheus metrics of a server."""

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """Metrics of one server. They have their own registry: a process may run several servers."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        metric: dict[str, Any] = {"namespace": "keras_transformer", "registry": self._registry}
        self.requests = Counter("requests", "Requests.", ["route", "status"], **metric)
        self.seconds = Histogram(
            "request_seconds", "Time to answer.", ["route"], buckets=SECONDS, **metric
        )
        self.rows = Counter("rows", "Lines that the model ran.", ["signature"], **metric)
        self.batch_rows = Histogram("batch_rows", "Lines of a batch.", buckets=ROWS, **metric)
        self.queue_rows = Gauge("queue_rows", "Lines that wait for the model.", **metric)

    def text(self) -> bytes:
        """Returns all metrics in Prometheus's text format."""
        return generate_latest(self._registry)
