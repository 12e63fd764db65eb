"""Sampling, log-probabilities, guides and prefix reuse of the continuous engine, on the real model."""

import json
import re

import pytest

from shared.sections import DEFAULT_MODEL
from shared.settings import load
from shared.wire import GenerateRequest, Guide, Sampling
from tests.support.engines import PROMPTS, chat, run
from worker.engine import Work

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

LETTER = GenerateRequest(sampling=Sampling(seed=1, temperature=0, max_tokens=8), prompt="The letters are: a")
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 1, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
GUIDES = {
    "json": Guide(kind="json_schema", text=json.dumps(SCHEMA)),
    "regex": Guide(kind="regex", text="[A-Z][a-z]{2,5} [0-9]{4}"),
    "choice": Guide(kind="grammar", text='start: "red" | "green" | "light blue"'),
}


def alone(engine, request, prior_ids=()):
    return run(engine, [Work("alone", request, tuple(prior_ids))])["alone"]


def greedy(prompt, **more):
    sampling = {"seed": 1, "temperature": 0, "max_tokens": 8, "ignore_eos": True}
    sampling.update({name: more.pop(name) for name in list(more) if name in Sampling.__struct_fields__})
    return GenerateRequest(sampling=Sampling(**sampling), prompt=prompt, **more)


@pytest.fixture(scope="module")
def plain():
    """transformers alone."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from worker.engines.weights import ensure

    source = ensure(DEFAULT_MODEL, load().cache_dir)
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)

    def logprobs(ids):
        with torch.inference_mode():
            return model(torch.tensor([ids])).logits[0].log_softmax(dim=-1)

    return tokenizer, logprobs


def test_log_probabilities_are_those_of_transformers_in_any_company(continuous, plain):
    """Prompt and answer, the chosen tokens and the likeliest, among strangers."""
    tokenizer, logprobs = plain
    prompts = ["The capital of France is", "Once upon a time, " * 9, "x"]
    works = [Work(str(n), greedy(text, logprobs=3, echo=True)) for n, text in enumerate(prompts)]
    works += [Work(f"s{n}", chat(text, temperature=1.0, seed=n)) for n, text in enumerate(PROMPTS[:5])]

    told = run(continuous, works)

    for number, text in enumerate(prompts):
        one, ids = told[str(number)], tokenizer(text)["input_ids"]
        expected = logprobs(ids + one.ids)
        tokens = [*one.prompt.tokens, *one.logprobs]
        assert len(tokens) == len(ids) + len(one.ids)
        for place, token in enumerate((ids + one.ids)[1:], 1):
            assert tokens[place].logprob == pytest.approx(float(expected[place - 1, token]), abs=1e-3)
            best = expected[place - 1].topk(3).values.tolist()
            assert [logprob for _, logprob in tokens[place].top] == pytest.approx(best, abs=1e-3)


def test_the_greedy_token_is_told_with_the_very_number_of_the_likeliest(continuous):
    """Harnesses compare the two."""
    told = alone(continuous, greedy("The sea is", logprobs=1))

    assert all(one.logprob == one.top[0][1] and one.raw == one.top[0][0] for one in told.logprobs)


def test_bytes_of_half_characters_are_exact(continuous):
    told = alone(continuous, greedy("Repeat: 🫠🥹 龜 안녕 🫠🥹 龜 안녕", echo=True, logprobs=0))

    assert b"".join(one.raw for one in told.prompt.tokens).decode() == "Repeat: 🫠🥹 龜 안녕 🫠🥹 龜 안녕"


@pytest.mark.parametrize("param", ["logit_bias", "stop_token_ids"])
def test_a_token_that_the_model_has_not_harms_only_who_names_it(continuous, param):
    """B053."""
    wrong = {"logit_bias": ((999_999, 5.0),)} if param == "logit_bias" else {"stop_token_ids": (999_999,)}

    told = run(continuous, [Work("wrong", greedy("a", **wrong)), Work("right", LETTER)])

    assert (told["wrong"].outcome.state, told["wrong"].outcome.error.param) == ("failed", param)
    assert told["right"].ids == alone(continuous, LETTER).ids


@pytest.mark.parametrize("option", [{"logit_bias": ((28, 100.0),)}, {"repetition_penalty": 1.8}, {"top_k": 1}])
def test_options_change_the_answer_where_they_must(continuous, option):
    """B059."""
    base = {"temperature": 0 if "top_k" not in option else 1.5, "seed": 4}
    without, with_it = (alone(continuous, greedy("So so so so so so", **base, **more)).ids for more in ({}, option))

    assert without != with_it
    if "logit_bias" in option:
        assert set(with_it) == {28}
    if "top_k" in option:
        assert with_it == alone(continuous, greedy("So so so so so so")).ids


@pytest.mark.parametrize("kind", GUIDES)
def test_a_guided_answer_matches_among_strangers_and_changes_nothing_for_them(continuous, kind):
    strangers = [chat(text, temperature=1.0, seed=n) for n, text in enumerate(PROMPTS[:3])]
    expected = [alone(continuous, request).ids for request in strangers]
    guided = [chat(seed=n, temperature=1.0, max_tokens=60) for n in range(4)]
    guided = [GenerateRequest(sampling=one.sampling, messages=one.messages, guide=GUIDES[kind]) for one in guided]

    works = [Work(f"s{n}", request) for n, request in enumerate(strangers)]
    told = run(continuous, [Work(f"g{n}", request) for n, request in enumerate(guided)] + works)

    assert [told[f"s{n}"].ids for n in range(3)] == expected
    for number in range(4):
        one = told[f"g{number}"]
        assert one.outcome.reason == "stop", one.text
        if kind == "json":
            found = json.loads(one.text)
            assert found.keys() == {"name", "age"} and 1 <= found["age"] <= 99 and len(found["name"]) <= 8
        elif kind == "regex":
            assert re.fullmatch(GUIDES[kind].text, one.text)
        else:
            assert one.text in {"red", "green", "light blue"}


def test_a_guided_answer_goes_on_from_any_token(continuous):
    request = GenerateRequest(
        sampling=Sampling(seed=5, temperature=1.0, max_tokens=60), prompt="A person: ", guide=GUIDES["json"]
    )
    whole = alone(continuous, request)

    for cut in range(len(whole.ids) + 1):
        resumed = alone(continuous, request, whole.ids[:cut])
        assert whole.ids[:cut] + resumed.ids == whole.ids
        assert resumed.outcome == whole.outcome


def test_a_guide_that_cannot_be_used_fails_alone(continuous):
    bad = greedy("a", guide=Guide(kind="regex", text="(a"))
    cycle = {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}
    endless = greedy("a", guide=Guide(kind="json_schema", text=json.dumps(cycle)))

    told = run(continuous, [Work("bad", bad), Work("endless", endless), Work("right", LETTER)])

    assert (told["bad"].outcome.state, told["bad"].outcome.error.param) == ("failed", "response_format")
    assert told["endless"].outcome.state == "failed"
    assert told["right"].outcome.state == "done"


def test_a_guide_wins_over_the_least_number_of_tokens(continuous):
    request = greedy("Colour: ", guide=GUIDES["choice"], min_tokens=6, ignore_eos=False, max_tokens=8)

    told = alone(continuous, request)

    assert told.text in {"red", "green", "light blue"}
    assert told.outcome.reason == "stop"


def test_a_request_that_waits_for_its_grammar_can_be_cancelled(continuous):
    continuous.add(Work("a", greedy("a", guide=Guide(kind="regex", text="[a-f]{3,900}x"))))
    continuous.cancel("a")

    assert continuous.free_slots == continuous.slots


def test_a_beginning_that_was_seen_is_not_computed_again(continuous):
    """B126: and answers stay what they are."""
    system = "You are a careful librarian who answers in few words and never guesses. " * 5
    requests = [greedy(f"{system} Question {n}: why?", max_tokens=10) for n in range(3)]
    first = alone(continuous, requests[0])
    spent = continuous.spent.total()
    again = run(continuous, [Work(str(n), request) for n, request in enumerate(requests)])

    assert again["0"].ids == first.ids
    for number in range(3):
        cached = again[str(number)].cached_tokens
        assert cached % 32 == 0 and cached >= 64
        prompt_tokens = again[str(number)].outcome.usage.prompt_tokens
        assert prompt_tokens == first.outcome.usage.prompt_tokens
        spent += prompt_tokens - cached + 9
    assert continuous.spent.total() == spent


def test_a_prompt_whose_log_probabilities_are_wanted_is_read_whole(continuous):
    prompt = "A long enough beginning that fills more than one block of the cache, surely it does. " * 3
    alone(continuous, greedy(prompt))

    told = alone(continuous, greedy(prompt, echo=True, logprobs=0))

    assert told.cached_tokens == 0
    assert len(told.prompt.tokens) == told.outcome.usage.prompt_tokens


def test_a_prompt_that_does_not_fit_into_memory_fails_alone(continuous, monkeypatch):
    """B120."""
    torch = pytest.importorskip("torch")
    expected = [alone(continuous, greedy(text)).ids for text in ("One two", "Red green")]
    forward, failures = continuous._network.forward, []

    def short_of_memory(chunks):
        if any(chunk.sequence.id == "large" for chunk in chunks):
            failures.append(chunks)
            raise torch.OutOfMemoryError("no room")
        return forward(chunks)

    monkeypatch.setattr(continuous._network, "forward", short_of_memory)
    requests = {"a": greedy("One two"), "large": greedy("x " * 60), "b": greedy("Red green")}
    told = run(continuous, [Work(name, request) for name, request in requests.items()])

    assert failures
    assert (told["large"].outcome.state, told["large"].outcome.error.code) == ("failed", "internal_error")
    assert [told["a"].ids, told["b"].ids] == expected
