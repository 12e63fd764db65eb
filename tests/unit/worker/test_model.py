"""A packed step over slots gives the logits of the plain forward, and what cannot run like that is refused."""

import random

import pytest

from shared.errors import ConfigError
from shared.wire import Sampling

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from worker.engines.continuous import attention, graphs  # noqa: E402
from worker.engines.continuous.chunks import arrange  # noqa: E402
from worker.engines.continuous.model import Model  # noqa: E402
from worker.engines.continuous.sequence import Sequence  # noqa: E402

SMALL = {
    "vocab_size": 200,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def network(kind="Llama", **more):
    torch.manual_seed(1)
    config = getattr(transformers, f"{kind}Config")(**SMALL, **more)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def sequence(slot, ids):
    return Sequence(str(slot), "", slot, list(ids), Sampling(seed=1), 100, (), None)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("static", [False, True])
def test_logits_are_those_of_the_plain_forward(seed, static, monkeypatch):
    """Random prompts in random slots, which earlier sequences have left dirty, at random cuts."""
    monkeypatch.setattr(graphs, "SHORTEST", 16)
    source = random.Random(seed)
    plain, model = network(), Model(network(), slots=6, max_model_len=100, static=static)
    running, checked = {}, 0
    while checked < 60:
        for slot in source.sample(range(6), 2):
            if slot not in running:
                running[slot] = sequence(slot, source.choices(range(200), k=source.randint(1, 70)))
        most = source.choice([1, 7, 40, 200])
        chunks = arrange(running.values(), {one.id: min(one.pending, most) for one in running.values()})
        logits = model.forward(chunks)
        ready = [chunk.sequence for chunk in chunks if chunk.is_last]
        for chunk in chunks:
            chunk.sequence.cached = chunk.end
        assert logits.shape == (len(ready), 200)
        for row, one in zip(logits, ready, strict=True):
            with torch.inference_mode():
                expected = plain(torch.tensor([one.prompt_ids + one.output_ids])).logits[0, -1]
            assert torch.allclose(row, expected, atol=1e-4)
            checked += 1
            one.output_ids.append(source.randrange(200))
            if one.length >= 100 or source.random() < 0.1:
                del running[one.slot]


def test_the_context_is_no_longer_than_the_models():
    assert Model(network(), slots=1, max_model_len=4096).max_model_len == 128
    assert Model(network(), slots=1, max_model_len=64).max_model_len == 64


def test_the_storage_is_made_once():
    model = Model(network(), slots=3, max_model_len=64)

    shapes = [[tuple(part.shape) for part in layer] for layer in model._storage.layers.values()]

    assert shapes == [[(3, 2, 64, 8)] * 2] * 2


def test_end_ids_may_be_one_several_or_none():
    loaded = network()
    model = Model(loaded, slots=1, max_model_len=64)

    for given, expected in ((2, {2}), ([2, 7], {2, 7}), (None, set())):
        loaded.generation_config.eos_token_id = given
        assert model.end_ids == expected


def test_a_window_that_holds_the_whole_context_is_none():
    assert Model(network("Mistral", sliding_window=64), slots=1, max_model_len=64).max_model_len == 64


def test_a_shorter_window_is_refused_and_the_message_says_what_would_run():
    with pytest.raises(ConfigError, match="MAX_MODEL_LEN=32"):
        Model(network("Mistral", sliding_window=32), slots=1, max_model_len=64)


def test_layers_that_are_no_attention_are_refused():
    with pytest.raises(ConfigError, match="conv"):
        Model(network("Lfm2", layer_types=["conv", "full_attention"]), slots=1, max_model_len=64)


def test_rotations_that_depend_on_the_longest_request_are_refused():
    scaled = network(rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0})
    scaled.config.rope_parameters["original_max_position_embeddings"] = 32

    with pytest.raises(ConfigError, match="MAX_MODEL_LEN=32"):
        Model(scaled, slots=1, max_model_len=64)


def test_a_model_that_hands_nothing_on_to_its_attention_is_refused():
    with pytest.raises(ConfigError, match="hands its attention nothing on"):
        Model(network("Nemotron"), slots=1, max_model_len=64)


def test_an_attention_that_does_more_than_ours_is_found_by_comparing():
    def sharpened(module, *states, scaling, **given):
        return attention.attend(module, *states, scaling=2 * scaling, **given)

    transformers.AttentionInterface.register(attention.NAME, sharpened)
    try:
        with pytest.raises(ConfigError, match="logits are off"):
            Model(network(), slots=1, max_model_len=64)
    finally:
        transformers.AttentionInterface.register(attention.NAME, attention.attend)
