"""Decode steps of fixed shapes, as far as a CPU can show: the same logits, few shapes, nothing baked in."""

import random

import pytest

from shared.errors import ConfigError
from shared.sections import WorkerSettings
from shared.wire import Sampling

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from worker.engines.continuous import graphs  # noqa: E402
from worker.engines.continuous.chunks import Chunk, arrange  # noqa: E402
from worker.engines.continuous.model import Model  # noqa: E402
from worker.engines.continuous.sequence import Sequence  # noqa: E402

SLOTS = 6


def model(*, static):
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=200,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=100,
    )
    return Model(transformers.LlamaForCausalLM(config).eval(), slots=SLOTS, max_model_len=100, static=static)


def sequences():
    return [Sequence(str(n), "", n, [7 * n + 3] * (3 + 9 * n), Sampling(seed=1), 100, (), None) for n in range(SLOTS)]


def steps(dice, count):
    """The prompts, then decodes of some sequences each."""
    running = sequences()
    yield arrange(running, {one.id: one.pending for one in running})
    for _ in range(count):
        for one in running:
            one.cached = one.length
        some = dice.sample(running, dice.randint(1, SLOTS))
        for one in some:
            one.output_ids.append(dice.randrange(200))
        yield arrange(some, dict.fromkeys((one.id for one in some), 1))


def test_decodes_are_those_of_the_eager_engine_in_few_shapes(monkeypatch):
    monkeypatch.setattr(graphs, "SHORTEST", 16)
    eager, static = model(static=False), model(static=True)
    shapes = []
    step = static._static._step
    monkeypatch.setattr(
        static._static, "_step", lambda inputs, length: shapes.append((inputs.shape[1], length)) or step(inputs, length)
    )

    for chunks in steps(random.Random(4), 40):
        assert torch.allclose(static.forward(chunks), eager.forward(chunks), atol=1e-5)

    assert len(shapes) == 40
    assert {rows for rows, _ in shapes} == {1, 2, 4, SLOTS}
    assert {length for _, length in shapes} <= {16, 32, 64, 100}
    for layer in range(2):
        for ours, theirs in zip(static._storage.layers[layer], eager._storage.layers[layer], strict=True):
            assert torch.allclose(ours, theirs, atol=1e-5), "a step wrote where nothing was to be written"


def test_a_step_recorded_once_is_right_for_every_input_of_its_shape():
    """Recorded by tracing, which keeps what the host decides at the time, as a CUDA graph does."""
    eager, static = model(static=False), model(static=True)
    decoding, layers = static._static, static._storage.layers
    chunks = next(steps(random.Random(4), 0))
    with torch.no_grad():
        for index, layer in layers.items():  # tracing takes no tensors that were made for inference
            layers[index] = (layer[0].clone(), layer[1].clone())
        recorded = make_fx(lambda inputs: decoding._step(inputs, 100))(torch.zeros(3, 2, dtype=torch.long))
        eager.forward(chunks)
        static.forward(chunks)
        for chunk in chunks:
            chunk.sequence.cached = chunk.end

        for first, second in ((0, 1), (4, 5), (2, 5)):
            pair = [chunks[first].sequence, chunks[second].sequence]
            for one in pair:
                one.output_ids.append(11 + first)
            wanted = [Chunk(one, one.length - 1, 1) for one in pair]
            inputs = torch.tensor([[one.output_ids[-1], one.slot, one.length - 1] for one in pair]).T
            assert torch.allclose(recorded(inputs), eager.forward(wanted), atol=1e-5)


def test_graphs_without_cuda_are_refused():
    with pytest.raises(ConfigError, match="only CUDA has graphs"):
        Model.load("nowhere", WorkerSettings.model_validate({"device": "cpu", "cuda_graphs": True}))
