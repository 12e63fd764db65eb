"""What one gateway process measures."""

from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from gateway.follower import Verdict

# vLLM's buckets, so that its dashboards read alike.
TTFT_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
)  # fmt: skip
E2E_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
ITL_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5)
CANCEL_REASONS = ("disconnect", "deadline", "queue_timeout", "drain", "lost", "no_workers", "sibling", "asked")


@dataclass(frozen=True, slots=True)
class Meters:
    """What is measured of each request of one lane and model, its labels looked up once."""

    queue_wait: Histogram
    first_token: Histogram
    whole: Histogram
    between: Histogram
    prompt_tokens: Counter
    generation_tokens: Counter


class Metrics:
    """The numbers of one process; with PROMETHEUS_MULTIPROC_DIR set, prometheus_client adds up those of all."""

    def __init__(self) -> None:
        disable_created_metrics()  # they double the text and nothing reads them
        self.registry = CollectorRegistry()
        both = ["lane", "model"]
        self.requests = self._counter("requests", "Requests that ended", ["lane", "model", "endpoint", "outcome"])
        self.in_flight = Gauge(
            "busway_requests_in_flight", "Requests (choices, where there are several) accepted and not ended", ["lane"],
            registry=self.registry, multiprocess_mode="livesum",
        )  # fmt: skip
        self.lane_full = self._counter("lane_full", "Requests that a full lane refused", ["lane"])
        self.deadline_refused = self._counter(
            "deadline_refused", "Requests that would not have started in time", ["lane"]
        )
        self.joined = self._counter("requests_joined", "Requests whose idempotency key named one that was there")
        self.resumed = self._counter("requests_resumed", "Clients that came back for the rest of an answer")
        self.cancels = self._counter("cancels_sent", "Unfinished requests that were taken back", ["reason"])
        self.resubscribes = self._counter("stream_resubscribes", "Times at which frames may have been missed")
        self.gaps_filled = self._counter("stream_gaps_filled", "Reads of a log that brought missing tokens")
        self.dropped = self._counter("stream_dropped", "Clients dropped because they did not read")
        odd = self._counter("stream_odd_frames", "Frames that were not the next one", ["kind"])
        self.odd_frames = {one: odd.labels(one.name.lower()) for one in Verdict if one is not Verdict.TAKEN}
        for reason in CANCEL_REASONS:
            self.cancels.labels(reason)
        self._queue_wait = self._histogram("queue_wait", "In the lane, before a worker took the request", TTFT_S)
        self._first_token = self._histogram("time_to_first_token", "From arrival, the queue included", TTFT_S)
        self._whole = self._histogram("e2e", "From arrival to the end", E2E_S)
        self._between = self._histogram("inter_token", "Between tokens of a stream, the first excluded", ITL_S)
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of requests that ended well", both)
        self._generation_tokens = self._counter("generation_tokens", "Tokens received from workers", both)
        self._meters: dict[tuple[str, str], Meters] = {}

    def meters(self, lane: str, model: str) -> Meters:
        found = self._meters.get((lane, model))
        if found is None:
            found = self._meters[lane, model] = Meters(
                queue_wait=self._queue_wait.labels(lane, model),
                first_token=self._first_token.labels(lane, model),
                whole=self._whole.labels(lane, model),
                between=self._between.labels(lane, model),
                prompt_tokens=self._prompt_tokens.labels(lane, model),
                generation_tokens=self._generation_tokens.labels(lane, model),
            )
        return found

    def _counter(self, name: str, says: str, labels: list[str] | None = None) -> Counter:
        return Counter(f"busway_{name}", says, labels or [], registry=self.registry)

    def _histogram(self, name: str, says: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"busway_{name}_seconds", says, ["lane", "model"], buckets=buckets, registry=self.registry)
