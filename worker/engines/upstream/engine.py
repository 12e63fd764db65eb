"""UpstreamEngine: relays requests to a server that speaks OpenAI, and its answers back.

An upstream tells no token ids. The ids here are the code points of the text, so that the text of
earlier attempts can be rebuilt from them. A resumed request is asked again, with the same seed; the new
answer must begin with what is there already, which is skipped. If it does not, the request fails: the
rest of another answer would be no answer.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

import httpx

from shared.errors import ConfigError, InvalidRequest
from shared.sections import WorkerSettings
from shared.wire import MAX_CHARS_PER_TOKEN, ErrorInfo, GenerateRequest, Outcome, Prompt, TokenLogprob, Usage
from worker.engine import Ended, Event, Progressed, Returned, Work
from worker.engines.limits import TOO_LONG, refusal, refuse_empty, refuse_outsized
from worker.engines.tasks import TaskEngine
from worker.engines.upstream.body import body, path, prompt_of
from worker.engines.upstream.health import Health
from worker.engines.upstream.reading import DONE, AwayError, Delta, delta, events, failure

CONNECT_S = 5.0
NO_TEXT = 0x110000
"""The id, beyond all code points, of what has log-probabilities and no text."""
MAX_ERROR_BYTES = 64 * 1024
REMEMBERED = 4096
BROKEN_REASONS = {"abort", "error"}


class DivergedError(Exception):
    """The answer does not begin with what an earlier attempt told of it."""


class Answer:
    """What one request's stream tells beyond what earlier attempts told."""

    def __init__(self, work: Work, prompt: Prompt | None, longest: int) -> None:
        self._id = work.id
        self._prior = "".join(chr(one) for one in work.prior_ids if one != NO_TEXT)
        self._prior_bytes = len(self._prior.encode())
        self._prompt = None if work.prior_ids else prompt
        self._longest = longest
        self._chars = 0
        self._deltas = 0
        self._reason: str | None = None
        self._usage: Usage | None = None

    def take(self, told: Delta) -> Progressed | None:
        """Account for the next event of the stream."""
        self._reason = told.reason or self._reason
        self._usage = told.usage or self._usage
        self._chars += len(told.text)
        if self._chars > self._longest:
            raise AwayError("the upstream's answer does not end")
        self._deltas += bool(told.text)
        text, logprobs = self._new_text(told.text), self._new_logprobs(told.logprobs)
        if not text and not logprobs:
            return None
        prompt, self._prompt = self._prompt, None
        ids = tuple(map(ord, text)) or (NO_TEXT,)
        return Progressed(self._id, ids, text, logprobs=logprobs, prompt=prompt)

    def end(self) -> Ended:
        """The stream is over."""
        if self._reason is None or self._reason in BROKEN_REASONS:
            raise AwayError("the upstream's answer is cut")
        if self._prior:
            raise DivergedError
        usage = self._usage or Usage(prompt_tokens=0, completion_tokens=self._deltas)
        reason = "length" if self._reason == "length" else "stop"
        return Ended(self._id, Outcome(state="done", reason=reason, usage=usage, prompt=self._prompt))

    def _new_text(self, text: str) -> str:
        count = min(len(self._prior), len(text))
        if self._prior[:count] != text[:count]:
            raise DivergedError
        self._prior = self._prior[count:]
        return text[count:]

    def _new_logprobs(self, told: Sequence[TokenLogprob]) -> tuple[TokenLogprob, ...]:
        new = []
        for one in told:
            if self._prior_bytes > 0:
                self._prior_bytes -= len(one.raw)
            else:
                new.append(one)
        return tuple(new)


class UpstreamEngine(TaskEngine):
    """Ask, relay, report. It takes work only while the upstream answers."""

    def __init__(self, settings: WorkerSettings, transport: httpx.AsyncBaseTransport | None = None) -> None:
        """`transport` stands in for the network in tests. ConfigError if no upstream is named."""
        upstream = settings.upstream
        if not _is_url(upstream.url):
            raise ConfigError("the upstream engine needs BUSWAY_WORKER__UPSTREAM__URL, such as http://host:8000/v1")
        super().__init__(settings.model_name, slots=settings.slots, max_model_len=settings.max_model_len)
        self._base = upstream.url.rstrip("/")
        self._upstream_model = upstream.model or settings.model
        self._max_failures = settings.max_deaths
        self._failures: OrderedDict[str, int] = OrderedDict()
        self._health = Health(self._probe)
        self._probing = self.do(self._open(settings, transport))

    @property
    def is_ready(self) -> bool:
        return self._health.is_ready

    def refuse(self, request: GenerateRequest) -> None:
        refuse_outsized(request, self.max_model_len)
        refuse_empty(request)
        prompt_of(request)

    def count(self, event: Progressed) -> int:
        return len(event.logprobs) or 1

    async def answer(self, work: Work) -> AsyncGenerator[Event, None]:
        try:
            async for event in self._relay(work):
                yield event
            self._health.answered()
        except InvalidRequest as error:
            if error.code == TOO_LONG:
                error.param = work.request.source  # the limit that it names may be one that we filled in
            yield Ended(work.id, refusal(error))
        except DivergedError:
            problem = "The answer was cut, and the upstream's new answer differs from what was sent of it."
            yield Ended(work.id, Outcome(state="failed", error=ErrorInfo(code="worker_lost", message=problem)))
        except AwayError as error:
            yield self._give_back(work, error)
        except (httpx.HTTPError, httpx.StreamError) as error:
            is_unreached = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            yield self._give_back(work, AwayError(type(error).__name__, may_be_the_request=not is_unreached))

    async def shut(self) -> None:
        await self._client.aclose()

    async def _open(self, settings: WorkerSettings, transport: httpx.AsyncBaseTransport | None) -> asyncio.Task[None]:
        key = settings.upstream.api_key.get_secret_value()
        self._client = httpx.AsyncClient(
            headers={"authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(settings.upstream.timeout_s, connect=CONNECT_S),
            limits=httpx.Limits(max_connections=settings.slots + 2),
            transport=transport,
        )
        return self._loop.create_task(self._health.run())

    async def _relay(self, work: Work) -> AsyncIterator[Event]:
        request = work.request
        if request.echo and request.sampling.max_tokens == 0:  # the prompt alone, and it is we who tell it
            yield Ended(work.id, Outcome(state="done", reason="length", prompt=prompt_of(request)))
            return
        answer = Answer(work, prompt_of(request), MAX_CHARS_PER_TOKEN * self.max_model_len)
        sent = body(request, self._upstream_model, self.max_model_len)
        async with self._client.stream("POST", self._base + path(request), json=sent) as response:
            if response.status_code != httpx.codes.OK:
                raise failure(response.status_code, response.headers, await _head(response))
            async for data in events(response.aiter_bytes()):
                if data == DONE:
                    break
                if progressed := answer.take(delta(data)):
                    yield progressed
        yield answer.end()

    def _give_back(self, work: Work, error: AwayError) -> Event:
        """To the lane, unless it has failed so often that it may be to blame itself."""
        self._health.failed(str(error), error.pause_s)
        if not error.may_be_the_request:
            return Returned(work.id)
        request_id = work.id.split("#")[0]  # without the number of the attempt
        failures = self._failures.pop(request_id, 0) + 1
        if failures >= self._max_failures:
            problem = f"The upstream failed {failures} times with this request."
            return Ended(work.id, Outcome(state="failed", error=ErrorInfo(code="worker_lost", message=problem)))
        self._failures[request_id] = failures
        if len(self._failures) > REMEMBERED:
            self._failures.popitem(last=False)
        return Returned(work.id)

    async def _probe(self) -> str | None:
        """What is wrong with the upstream, None if nothing. A server without a list of models is well, too."""
        try:
            response = await self._client.get(self._base + "/models", timeout=CONNECT_S)
        except httpx.HTTPError as error:
            return type(error).__name__
        well = response.status_code < 500 and response.status_code not in {401, 403}
        return None if well else f"it answers {response.status_code}"


def _is_url(text: str) -> bool:
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL:
        return False
    return url.scheme in {"http", "https"} and bool(url.host)


async def _head(response: httpx.Response) -> bytes:
    """The beginning of a body."""
    raw = b""
    async for chunk in response.aiter_bytes():
        raw += chunk
        if len(raw) > MAX_ERROR_BYTES:
            break
    return raw[:MAX_ERROR_BYTES]
