"""Recipe: how a model's token vectors become one vector, as sentence-transformers writes it down beside the weights."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from shared.errors import ConfigError

FLAG = "pooling_mode_"


@dataclass(frozen=True, slots=True)
class Recipe:
    """Without a word of the model's authors: the mean of all tokens, as it is."""

    pooling: Literal["mean", "cls"] = "mean"
    is_normalised: bool = False
    max_tokens: int | None = None
    """Of one input, special tokens included, if the authors set a bound."""


def read(source: str) -> Recipe | None:
    """The recipe of the model at `source`, a folder or a Hugging Face id; None if its authors wrote none down.

    ConfigError if it asks for what this engine does not do.
    """
    modules = _json(source, "modules.json")
    if modules is None:
        return None
    kinds = {str(module["type"]).rsplit(".", 1)[-1]: module["path"] for module in modules}
    if strange := set(kinds) - {"Transformer", "Pooling", "Normalize"}:
        raise ConfigError(f"the embedding engine does not know the modules {sorted(strange)} of {source}")
    if below := kinds.get("Transformer"):
        raise ConfigError(f"the weights of {source} are in {below}; name that folder instead")
    limits = _json(source, "sentence_bert_config.json") or {}
    pooling = _json(source, f"{kinds['Pooling']}/config.json") if "Pooling" in kinds else None
    return Recipe(
        pooling=_pooling(source, pooling or {"pooling_mode": "mean"}),
        is_normalised="Normalize" in kinds,
        max_tokens=limits.get("max_seq_length"),
    )


def _pooling(source: str, config: dict[str, Any]) -> Literal["mean", "cls"]:
    """Newer files name the mode, older ones have a flag for each."""
    named = config.get("pooling_mode")
    modes = (
        [named]
        if named
        else [key.removeprefix(FLAG) for key, value in config.items() if key.startswith(FLAG) and value]
    )
    match modes:
        case ["mean" | "mean_tokens"]:
            return "mean"
        case ["cls" | "cls_token"]:
            return "cls"
    raise ConfigError(f"the embedding engine pools by mean or cls, but {source} asks for {modes}")


def _json(source: str, name: str) -> Any:
    """The content of a file of the model; None if there is no such file."""
    from transformers.utils.hub import cached_file

    try:
        path = cached_file(source, name, _raise_exceptions_for_missing_entries=False)
        return None if path is None else json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {name} of {source}: {error}") from error
