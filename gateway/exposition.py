"""The exposition: what a scrape of this gateway gets, its own numbers and what it knows of the fleet."""

import os
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector

from gateway.catalogue import Catalogue
from gateway.metrics import Metrics
from shared.lanes import Lane
from shared.version import VERSION

SAME = "(the same from every gateway: max, not sum)"
WORKER_GAUGES = {
    "slots": "Slots",
    "free_slots": "Slots without a request",
    "max_model_len": "Tokens of one request, at most",
    "draining": "1 while it takes nothing new",
}
WORKER_COUNTERS = {
    "steps": "Steps run",
    "tokens": "Tokens produced",
    "refused": "Reports refused because the request was no longer its own",
}


class Exposition:
    """With PROMETHEUS_MULTIPROC_DIR set, the numbers of all processes that share the folder, added up."""

    def __init__(self, metrics: Metrics, catalogue: Catalogue, lanes: dict[str, Lane]) -> None:
        self._registry = CollectorRegistry()
        try:
            MultiProcessCollector(self._registry)
        except ValueError:  # not set: this process is alone
            self._is_shared = False
            self._registry = metrics.registry
            ProcessCollector(registry=self._registry)
        else:
            self._is_shared = True
        self._registry.register(Fleet(catalogue, lanes))

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def close(self) -> None:
        """Take this process's live numbers off the sum."""
        if self._is_shared:
            mark_process_dead(os.getpid())


class Fleet(Collector):
    """The fleet as the catalogue knows it. Every gateway tells the same, so take the max over them, not the sum."""

    def __init__(self, catalogue: Catalogue, lanes: dict[str, Lane]) -> None:
        self._catalogue = catalogue
        self._lanes = lanes

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        info = GaugeMetricFamily("busway_build_info", "The version that runs", labels=["version"])
        info.add_metric([VERSION], 1)
        weight = GaugeMetricFamily("busway_lane_weight", "Share of slots when several lanes have work", labels=["lane"])
        for name, lane in self._lanes.items():
            weight.add_metric([name], lane.weight)
        ttft = GaugeMetricFamily("busway_lane_ttft_target_seconds", "Promised time to first token", labels=["lane"])
        itl = GaugeMetricFamily("busway_lane_itl_target_seconds", "Promised time between tokens", labels=["lane"])
        for name, lane in self._lanes.items():
            ttft.add_metric([name], lane.ttft_target_ms / 1000)
            itl.add_metric([name], lane.itl_target_ms / 1000)
        depth = GaugeMetricFamily(
            "busway_lane_depth", f"Requests in a lane, waiting or running {SAME}", labels=["lane", "model"]
        )
        for model, depths in self._catalogue.depths.items():
            for name, entries in depths.items():
                depth.add_metric([name, model], entries)
        yield from (info, weight, ttft, itl, depth, *self._workers())

    def _workers(self) -> Iterator[Metric]:
        labels = ["model", "worker"]
        up = GaugeMetricFamily("busway_worker_up", f"Workers that live {SAME}", labels=labels)
        busy = CounterMetricFamily("busway_worker_busy_seconds", f"Time spent in steps {SAME}", labels=labels)
        rows = [([model.name, w["id"]], w) for model in self._catalogue.models for w in model.workers]
        for row, worker in rows:
            up.add_metric(row, 1)
            busy.add_metric(row, number(worker.get("busy_ms")) / 1000)
        yield from (up, busy)
        for family, table in ((GaugeMetricFamily, WORKER_GAUGES), (CounterMetricFamily, WORKER_COUNTERS)):
            for field, says in table.items():
                metric = family(f"busway_worker_{field}", f"{says} {SAME}", labels=labels)
                for row, worker in rows:
                    metric.add_metric(row, number(worker.get(field)))
                yield metric


def number(text: str | None) -> float:
    """What a worker said, if it is a number; else 0."""
    try:
        return float(text or 0)
    except ValueError:
        return 0.0
