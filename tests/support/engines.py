"""Requests for engines, and what an engine says of them."""

from msgspec import structs

from shared.wire import GenerateRequest, Sampling
from worker.engine import Progressed

SLOTS = 9
MAX_MODEL_LEN = 192
PROMPTS = [
    "Hi, who are you?",
    "Count in words from one to twenty.",
    "Repeat exactly: 🫠🥹 龜 안녕하세요",
    "Write a haiku about the sea and its tides, in three lines.",
    "What is 12 plus 30?",
    "Name three colours.",
    "The old lighthouse keeper had seen many storms. " * 6 + "Go on with this story.",
    "Explain why the sky is blue to a child.",
    "List the days of the week.",
]


def chat(text=PROMPTS[0], **sampling):
    chosen = {"seed": 7, "temperature": 0, "max_tokens": 12, **sampling}
    return GenerateRequest(sampling=Sampling(**chosen), messages=({"role": "user", "content": text},))


def embed(*inputs, **fields):
    return GenerateRequest(sampling=Sampling(seed=1), inputs=inputs, **fields)


class Told:
    """What an engine reported about one request."""

    def __init__(self, *, has_ids=True):
        self.ids, self.texts, self.logprobs, self.prompt, self.outcome = [], [], [], None, None
        self.cached_tokens = 0
        self._has_ids = has_ids

    @property
    def tokens(self):
        """How many it was told of. An engine that has no ids of tokens tells one at a time."""
        return len(self.ids) if self._has_ids else len(self.texts)

    @property
    def text(self):
        return "".join(self.texts)

    def keep(self, outcome):
        """The outcome, apart from how much of the prompt was cached: that depends on who came before."""
        self.prompt = self.prompt or outcome.prompt
        if outcome.usage:
            self.cached_tokens = outcome.usage.cached_tokens
            outcome = structs.replace(outcome, usage=structs.replace(outcome.usage, cached_tokens=0))
        self.outcome = outcome


def has_ids(engine):
    """Its ids are those of a model's tokens; an upstream's tokens have none that we know."""
    return type(engine).__name__ != "UpstreamEngine"


def run(engine, works):
    """Add the works as slots allow, step to the end; every promise about the order of events is checked here."""
    waiting, told, steps = list(works), {}, 0
    while waiting or engine.free_slots < engine.slots:
        while waiting and engine.free_slots:
            work = waiting.pop(0)
            told[work.id] = Told(has_ids=has_ids(engine))
            engine.add(work)
        for event in engine.step():
            one = told[event.id]
            assert one.outcome is None, "an event after the end"
            if isinstance(event, Progressed):
                assert event.ids
                one.ids += event.ids
                one.texts.append(event.text)
                one.logprobs += event.logprobs
                assert event.prompt is None or len(one.texts) == 1, "a prompt comes with the first token"
                one.prompt = one.prompt or event.prompt
            else:
                one.keep(event.outcome)
        steps += 1
        assert steps < 2000
    return told
