"""Sampling, guides and embeddings in request bodies: what is taken, and what is refused before it is queued."""

import pytest

from gateway.openai.schemas import CompletionBody, EmbeddingsBody
from shared.errors import InvalidRequest
from shared.guides import prepared
from tests.unit.gateway.test_schemas import CHAT, COMPLETION, chat, completion, refusal


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 0}, "n"), ({"n": 4097}, "n"), ({"n": True}, "n"), ({"n": "1"}, "n"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"logprobs": 1}, "logprobs"), ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logit_bias": {"abc": 1}}, "logit_bias"), ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 1000}}, "logit_bias"), ({"logit_bias": {"5": "x"}}, "logit_bias"),
        ({"logit_bias": {"999999999999": 5}}, "logit_bias"), ({"logit_bias": {"5": True}}, "logit_bias"),
        ({"logit_bias": [5]}, "logit_bias"), ({"logit_bias": {str(n): 1 for n in range(1025)}}, "logit_bias"),
        ({"frequency_penalty": 2.1}, "frequency_penalty"), ({"presence_penalty": -3}, "presence_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"), ({"min_p": 1.1}, "min_p"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"), ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"stop_token_ids": list(range(129))}, "stop_token_ids"), ({"stop_token_ids": 3}, "stop_token_ids"),
        ({"response_format": {"type": "xml"}}, "response_format"), ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"), ({"guided_regex": ""}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"), ({"guided_choice": ["a", ""]}, "guided_choice"),
        ({"guided_choice": ["x"] * 1001}, "guided_choice"), ({"structured_outputs": {"xml": 1}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "response_format"),
    ],
)  # fmt: skip
def test_a_value_that_makes_no_sense_is_refused_and_named(fields, param):
    """B053, B059: before anything is queued."""
    error = refusal({**CHAT, **fields})

    assert (error.code, error.param) == ("invalid_value", param)


@pytest.mark.parametrize(
    ("fields", "kind", "part"),
    [
        ({"response_format": {"type": "json_object"}}, "json_schema", '"object"'),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "integer"}}}},
         "json_schema", '"integer"'),
        ({"structured_outputs": {"regex": "a+"}}, "regex", "a+"), ({"guided_regex": "a+"}, "regex", "a+"),
        ({"structured_outputs": {"json": {"type": "null"}}}, "json_schema", "null"),
        ({"guided_json": '{"type": "null"}'}, "json_schema", "null"),
        ({"guided_choice": ["yes", 'n"o']}, "grammar", 'start: "yes" | "n\\"o"'),
        ({"guided_grammar": 'start: "a"'}, "grammar", 'start: "a"'),
        ({"guided_grammar": 'root ::= "a" | "b"'}, "grammar", "start:"),
    ],
)  # fmt: skip
def test_a_guide_in_any_of_its_forms(fields, kind, part):
    guide = guide_of(chat(**fields))

    assert guide.kind == kind
    assert part in guide.text


def guide_of(body):
    return prepared(getattr(body, body.guide_field), body.guide_field)


def test_no_guide_is_asked_for():
    assert chat().guide_field is None
    assert chat(response_format={"type": "text"}, structured_outputs={}).guide_field is None


DEEP = '{"type":"object","properties":{"a":' * 1000 + "{}" + "}}" * 1000


@pytest.mark.parametrize(
    "fields",
    [
        {"guided_json": "{"}, {"guided_json": {"type": "foo"}}, {"guided_json": DEEP}, {"guided_json": DEEP * 60},
        {"guided_regex": "(a"}, {"guided_regex": "(" * 5000 + "a" + ")" * 5000}, {"guided_grammar": "start: foo"},
        {"guided_grammar": "start: " + "(" * 60000 + '"a"' + ")" * 60000}, {"guided_grammar": "root ::= ("},
        {"guided_json": {"$ref": "http://127.0.0.1:1/x.json"}}, {"guided_json": {"enum": ["x" * 70000]}},
        {"guided_grammar": "root ::= " + "(" * 30000}, {"guided_grammar": "root ::= missing"},
        {"guided_grammar": 'x ::= "a"'}, {"guided_grammar": 'root ::= a-b\na-b ::= "x"\na_b ::= "y"'},
        {"guided_grammar": 'root ::= "\\'}, {"guided_grammar": "root ::= " + "a ::= b\n" * 5000},
    ],
)  # fmt: skip
def test_a_guide_of_which_nothing_can_be_made_is_refused(fields):
    """B060, B062: quickly, and the process lives on."""
    with pytest.raises(InvalidRequest) as caught:
        guide_of(chat(**fields))

    assert len(caught.value.message) < 700
    assert caught.value.param == next(iter(fields))


def test_a_grammar_in_larks_form_may_speak_of_the_other_form():
    text = 'start: NAME " ::= " NAME\nNAME: /[a-z]+/'

    assert guide_of(chat(guided_grammar=text)).text == text


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {"type": "integer"}, "maxItems": 2**40},
        {"type": "array", "items": {"type": "integer"}, "maxItems": 2**64 - 1},
        {"type": "array", "items": {"type": "integer"}, "minItems": 10**9},
        {"type": "object", "properties": {"child": {"$ref": "#"}}},
    ],
)
def test_large_bounds_and_legal_recursion_are_taken(schema):
    guide_of(chat(guided_json=schema))


def test_max_tokens_may_be_zero_only_with_echo():
    assert completion(max_tokens=0, echo=True).token_limit == 0
    assert refusal({**COMPLETION, "max_tokens": 0}, CompletionBody).param == "max_tokens"


@pytest.mark.parametrize("given", ["", [], [""], [[]], ["x"] * 2049, [1, "x"], 5, [[1], "x", 2]])
def test_inputs_that_cannot_be_embedded_are_refused(given):
    assert refusal({"model": "m", "input": given}, EmbeddingsBody).param == "input"


@pytest.mark.parametrize("fields", [{"encoding_format": "hex"}, {"dimensions": 0}, {"dimensions": 1.5}])
def test_embeddings_have_known_forms(fields):
    assert refusal({"model": "m", "input": "x", **fields}, EmbeddingsBody).param == next(iter(fields))
