"""Layers that compute the same in less time."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from worker.engines.continuous.faster import FusedNorm, PackedLinear, speed_up  # noqa: E402


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 2, 7, 32, 33, 100])
def test_packed_weights_give_the_same(rows, bias):
    torch.manual_seed(1)
    plain = torch.nn.Linear(48, 40, bias=bias)
    given = torch.randn(1, rows, 48)

    assert torch.allclose(PackedLinear(plain)(given), plain(given), atol=1e-5)


def test_the_norm_is_the_same():
    norm = transformers.models.llama.modeling_llama.LlamaRMSNorm(64, eps=1e-5)
    with torch.no_grad():
        norm.weight.uniform_(0.5, 2)
    given = torch.randn(3, 5, 64) * 10

    assert torch.allclose(FusedNorm(norm)(given), norm(given), atol=1e-5)


def test_only_what_computes_the_same_is_replaced():
    config = transformers.GemmaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
    )
    network = transformers.GemmaForCausalLM(config).eval()
    ids = torch.arange(9)[None]
    with torch.no_grad():
        before = network(ids).logits
        speed_up(network)
        after = network(ids).logits

    kinds = {type(module).__name__ for module in network.modules()}
    assert "PackedLinear" in kinds and "FusedNorm" not in kinds
    assert torch.allclose(before, after, atol=1e-5)
