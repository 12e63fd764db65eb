"""GGUF: the model and the tokenizer in such a file, as transformers saves them."""

from pathlib import Path
from typing import Any

from shared.errors import ConfigError

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert(gguf: Path, target: Path) -> None:
    """Make `target` a folder that `from_pretrained` loads; ConfigError if the file is not what it says.

    The weights are read with `gguf` itself: `from_pretrained(gguf_file=...)` needs accelerate, and writes a
    quantisation into the config that is saved.
    """
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    config = AutoConfig.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model: Any = AutoModelForCausalLM.from_config(config)
    problems = model.load_state_dict(_tensors(gguf, config), strict=False)
    if problems.unexpected_keys or set(problems.missing_keys) - {"lm_head.weight"}:
        raise ConfigError(f"{gguf.name} does not fit its own architecture: {problems}")
    model.tie_weights()
    tokenizer = _tokenizer(gguf, config)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def _tensors(gguf: Path, config: Any) -> dict[str, Any]:
    import torch
    from gguf import GGUFReader, dequantize

    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    tensors = {}
    for tensor in GGUFReader(gguf).tensors:
        *block, name, kind = tensor.name.split(".")
        values = dequantize(tensor.data, tensor.tensor_type)
        if name in heads:
            # llama.cpp keeps the two halves of a rotary pair side by side; transformers half a head apart.
            rows, columns = values.shape
            pairs = values.reshape(heads[name], rows // heads[name] // 2, 2, columns)
            values = pairs.swapaxes(1, 2).reshape(rows, columns)
        prefix = f"model.layers.{block[1]}." if block else ""
        tensors[f"{prefix}{NAMES[name]}.{kind}"] = torch.tensor(values)
    return tensors


def _tokenizer(gguf: Path, config: Any) -> Any:
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # The file says `pre: smollm`, which parts digits; transformers drops that, and "  12" would get other ids.
    tokenizer.backend_tokenizer.pre_tokenizer = Sequence([Digits(individual_digits=True), ByteLevel(False)])
    tokenizer.model_max_length = config.max_position_embeddings
    return tokenizer
