"""Linear layers with int8 weights."""

import pytest

torch = pytest.importorskip("torch")

from shared.sections import DEFAULT_MODEL  # noqa: E402
from shared.settings import load  # noqa: E402
from worker.engines.continuous import quantized  # noqa: E402
from worker.engines.continuous.quantized import Int8Linear, quantize, quantize_and_compare  # noqa: E402


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("width", [96, 128])
@pytest.mark.parametrize("rows", [1, 7, 8, 9, 64])
def test_few_rows_and_many_come_close_to_the_exact_layer(rows, width, bias):
    torch.manual_seed(3)
    exact = torch.nn.Linear(width, 64, bias=bias)
    given = torch.randn(2, rows, width)

    found = Int8Linear(exact)(given)

    assert found.shape == (2, rows, 64)
    assert found.dtype == torch.float32
    assert found.isfinite().all()
    assert (found - exact(given)).norm() / exact(given).norm() < 0.02


def test_every_linear_layer_is_replaced_and_nothing_else():
    network = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU()))

    quantize(network)

    assert [type(module).__name__ for module in (network[0], *network[1])] == ["Int8Linear", "Int8Linear", "ReLU"]


def test_a_channel_of_zeros_stays_one():
    exact = torch.nn.Linear(8, 2, bias=False)
    with torch.no_grad():
        exact.weight[0] = 0

    assert Int8Linear(exact)(torch.ones(1, 8))[0, 0] == 0


@pytest.mark.model
@pytest.mark.parametrize("few_rows", [0, 64])
def test_the_real_model_means_much_the_same(few_rows, monkeypatch):
    """With every row on unpacked weights, then with every row on packed ones. In nats, 0.004 to 0.007 when written."""
    from transformers import AutoModelForCausalLM

    from worker.engines.weights import ensure

    monkeypatch.setattr(quantized, "FEW_ROWS", few_rows)
    source = ensure(DEFAULT_MODEL, load().cache_dir)
    told = quantize_and_compare(AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval())

    assert 0 < told["kl"] < 0.02
    assert told["same_best"] > 0.75
