"""VllmEngine: vLLM behind our contract, for its speed on GPUs.

vLLM chooses tokens; text and stop strings are made from them as the continuous engine makes them. A resumed
request goes on from prompt and tokens as one prompt. What depends on the answer so far, guides and the penalties
that count its tokens, vLLM would then begin anew; such a request is asked again from its prompt instead, and
fails if it does not repeat what was told of it. Log-probabilities are vLLM's, before penalties and biases.
"""

# pyright: reportMissingImports=false
# The environment of the tests has no vLLM: it pins other builds of torch and transformers.

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

from vllm import AsyncEngineArgs, SamplingParams, TokensPrompt  # pyright: ignore[reportAttributeAccessIssue]
from vllm.exceptions import VLLMClientError
from vllm.logprobs import Logprob
from vllm.outputs import CompletionOutput
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams
from vllm.v1.engine.async_llm import AsyncLLM

from shared.errors import ConfigError, InvalidRequest
from shared.sections import WorkerSettings
from shared.tokens import refuse_ids
from shared.wire import ErrorInfo, GenerateRequest, Outcome, Prompt, TokenLogprob
from worker.engine import Ended, Event, Progressed, Returned, Work
from worker.engines.continuous.text import Codec
from worker.engines.limits import output_limit, refusal, refuse_empty, refuse_outsized
from worker.engines.tasks import TaskEngine
from worker.engines.vllm.answer import Answer
from worker.engines.vllm.mapping import guide_fields, must_repeat, sampling_fields
from worker.engines.weights import ensure

DIVERGED = "The answer was cut, and asked again it differs from what was sent of it."


class DivergedError(Exception):
    """The answer does not begin with what an earlier attempt told of it."""


class VllmEngine(TaskEngine):
    """One AsyncLLM; each request is one of its generators."""

    is_ready = True

    def __init__(self, settings: WorkerSettings, source: str) -> None:
        """ConfigError if vLLM cannot load the model."""
        super().__init__(settings.model_name, slots=settings.slots, max_model_len=settings.max_model_len)
        try:
            self._llm = self.do(_start(settings, source))
        except Exception as error:
            self.close()
            raise ConfigError(f"vLLM cannot load BUSWAY_WORKER__MODEL={settings.model}: {error}") from error
        config = self._llm.model_config
        self.max_model_len = config.max_model_len
        self.vocab_size = config.get_vocab_size()
        self._codec = Codec.load(source, self.vocab_size)
        ends = config.try_get_generation_config().get("eos_token_id")
        given = ends if isinstance(ends, list | tuple) else () if ends is None else (ends,)
        self._end_ids = frozenset(given) | self._codec.end_ids

    @classmethod
    def load(cls, settings: WorkerSettings, cache_dir: Path) -> "VllmEngine":
        """The engine for the configured model; ConfigError if it cannot be had or cannot run here."""
        return cls(settings, ensure(settings.model, cache_dir))

    def refuse(self, request: GenerateRequest) -> None:
        refuse_outsized(request, self.max_model_len)
        refuse_empty(request)
        refuse_ids(request.sampling, self.vocab_size)

    def count(self, event: Progressed) -> int:
        return len(event.ids)

    async def answer(self, work: Work) -> AsyncGenerator[Event, None]:
        try:
            async for event in self._generate(work):
                yield event
        except InvalidRequest as error:
            yield Ended(work.id, refusal(error))
        except VLLMClientError as error:
            yield Ended(work.id, refusal(InvalidRequest(str(error), param=getattr(error, "parameter", None))))
        except DivergedError:
            yield Ended(work.id, Outcome(state="failed", error=ErrorInfo(code="worker_lost", message=DIVERGED)))

    async def shut(self) -> None:
        if hasattr(self, "_llm"):
            self._llm.shutdown()
            del self._llm  # it shuts down again when it is collected, which must not be at the interpreter's end

    async def _generate(self, work: Work) -> AsyncGenerator[Event, None]:
        request = work.request
        prompt_ids = self._codec.encode(request)
        limit = output_limit(request, len(prompt_ids), self.max_model_len)
        answer = Answer(work, self._codec, prompt_ids, limit, self._end_ids)
        prompt = None if answer.produced else self._prompt(request, prompt_ids)
        cached = 0
        if answer.reason is None:
            expected = list(answer.produced) if must_repeat(request) else []
            given = prompt_ids if expected else prompt_ids + answer.produced
            params = self._params(request, limit=limit, produced=len(given) - len(prompt_ids))
            async with aclosing(self._llm.generate(TokensPrompt(prompt_token_ids=given), params, work.id)) as outputs:
                async for output in outputs:  # leaving it early aborts what still runs
                    cached = output.num_cached_tokens or cached
                    if prompt is not None and output.prompt_logprobs:
                        prompt = Prompt(prompt.text, self._logprobs(prompt_ids, output.prompt_logprobs))
                    for progressed in self._progress(work.id, answer, output.outputs[0], expected):
                        yield replace(progressed, prompt=prompt)
                        prompt = None
                    if answer.reason is not None:
                        break
        yield Returned(work.id) if answer.reason is None else Ended(work.id, answer.outcome(prompt, cached))

    def _progress(
        self, request_id: str, answer: Answer, output: CompletionOutput, expected: list[int]
    ) -> Iterator[Progressed]:
        """What new tokens are worth; those that an earlier attempt told are taken off `expected`."""
        ids = list(output.token_ids)
        logprobs = self._logprobs(ids, output.logprobs) if output.logprobs else ()
        for number, token in enumerate(ids):
            if expected:
                if expected.pop(0) != token:
                    raise DivergedError
            elif answer.reason is None:
                text = answer.take(token)
                yield Progressed(request_id, (token,), text, logprobs=logprobs[number : number + 1])

    def _params(self, request: GenerateRequest, *, limit: int, produced: int) -> SamplingParams:
        fields = sampling_fields(request, limit=limit, produced=produced)
        if guide := guide_fields(request):
            fields["structured_outputs"] = StructuredOutputsParams(**guide)
        return SamplingParams(**fields, output_kind=RequestOutputKind.DELTA)

    def _prompt(self, request: GenerateRequest, ids: list[int]) -> Prompt | None:
        """The prompt, if it is to be told back."""
        if not request.echo:
            return None
        return Prompt(request.prompt if isinstance(request.prompt, str) else self._codec.decode(ids))

    def _logprobs(self, ids: Sequence[int], told: Sequence[Mapping[int, Logprob] | None]) -> tuple[TokenLogprob, ...]:
        """For each id; vLLM tells the chosen token beside the likeliest, and nothing of a text's first."""
        found = []
        for token, chances in zip(ids, told, strict=True):
            if chances is None:
                found.append(TokenLogprob(raw=self._raw(token)))
                continue
            likeliest = sorted(chances.items(), key=lambda pair: -pair[1].logprob)
            top = tuple((self._raw(other), chance.logprob) for other, chance in likeliest)
            wanted = len(top) - 1 if len(top) > 1 and likeliest[-1][0] == token else len(top)
            found.append(TokenLogprob(raw=self._raw(token), logprob=chances[token].logprob, top=top[:wanted]))
        return tuple(found)

    def _raw(self, token: int) -> bytes:
        return self._codec.decode([token]).encode()


async def _start(settings: WorkerSettings, source: str) -> AsyncLLM:
    arguments = AsyncEngineArgs(
        model=source,
        dtype=settings.dtype,
        max_model_len=settings.max_model_len,
        max_num_seqs=settings.slots,
        disable_log_stats=True,
        enable_log_requests=False,
    )
    return AsyncLLM.from_engine_args(arguments)
