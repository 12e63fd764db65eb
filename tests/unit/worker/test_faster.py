"""Layers that compute the same in less time."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from worker.engines.continuous.faster import FusedNorm, Packed, PackedLinear, speed_up  # noqa: E402

ROWS = [1, 2, 7, 32, 33, 100]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", ROWS)
def test_packed_weights_give_the_same(rows, bias):
    torch.manual_seed(1)
    plain = torch.nn.Linear(48, 40, bias=bias)
    given = torch.randn(1, rows, 48)

    assert torch.allclose(PackedLinear(plain, Packed([plain]))(given), plain(given), atol=1e-5)


@pytest.mark.parametrize("rows", ROWS)
def test_siblings_give_the_same_whatever_they_are_asked_and_when(rows):
    """Of one input, of several in turn, of one twice, some of them only; one alone has a bias."""
    torch.manual_seed(1)
    plain = [torch.nn.Linear(48, size, bias=size == 24) for size in (40, 24, 24)]
    packed = Packed(plain)
    joined = [PackedLinear(one, packed, place) for place, one in enumerate(plain)]
    first, second = torch.randn(2, 1, rows, 48)

    for place, given in [(0, first), (1, first), (2, first), (0, first), (1, second), (0, second), (0, second),
                         (2, first), (1, second)]:  # fmt: skip
        assert torch.allclose(joined[place](given), plain[place](given), atol=1e-5)


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


def test_siblings_share_their_weights_and_others_do_not():
    parts = {name: torch.nn.Linear(8, 8) for name in ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj")}
    parts["up_proj"] = torch.nn.Linear(4, 8)  # its input must be another than the gate's
    network = torch.nn.ModuleDict(parts)
    network.device, network.dtype = torch.device("cpu"), torch.float32

    speed_up(network)

    packed = {name: module._packed for name, module in network.items()}
    assert packed["q_proj"] is packed["k_proj"] is packed["v_proj"]
    assert len({*map(id, packed.values())}) == 4
