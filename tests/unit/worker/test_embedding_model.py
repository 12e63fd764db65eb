"""Encoders of other kinds than the built-in one: what lies beside the weights decides how they are used."""

import json

import pytest

from shared.errors import ConfigError
from shared.lanes import DEFAULTS, Lane
from shared.sections import WorkerSettings
from tests.support.engines import embed, run
from worker.engine import Work

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "c", "d"]
HIDDEN = 8


def folder_of(tmp_path, kind="bert", *, modules=(), pooling=None, limit=None):
    """A tiny model with random weights and a tokenizer of single letters."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(3)
    sizes = {"hidden_size": HIDDEN, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    config = AutoConfig.for_model(kind, vocab_size=len(WORDS), max_position_embeddings=34, pad_token_id=0, **sizes)
    model = (AutoModelForCausalLM if kind == "llama" else AutoModel).from_config(config)
    model.save_pretrained(tmp_path)
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]").save_pretrained(tmp_path)
    if modules:
        listed = [{"idx": n, "path": path, "type": f"some.place.{kind}"} for n, (kind, path) in enumerate(modules)]
        (tmp_path / "modules.json").write_text(json.dumps(listed))
        (tmp_path / "1_Pooling").mkdir()
        (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(pooling or {}))
    if limit:
        (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": limit}))
    return tmp_path


def engine_of(folder):
    from worker.engines.embedding.engine import EmbeddingEngine

    lanes = {name: Lane(**fields) for name, fields in DEFAULTS.items()}
    settings = WorkerSettings(engine="embedding", model=str(folder), slots=4, threads=1)
    return EmbeddingEngine.load(settings, lanes, folder)


def vectors_of(engine, *texts):
    outcome = run(engine, [Work("x", embed(*texts))])["x"].outcome
    assert outcome.state == "done", outcome
    return np.frombuffer(outcome.embeddings, "<f4").reshape(len(texts), HIDDEN)


def hidden_of(folder, text):
    from transformers import AutoModel, AutoTokenizer

    given = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")
    given.pop("token_type_ids", None)
    with torch.inference_mode():
        return AutoModel.from_pretrained(folder).eval()(**given).last_hidden_state[0].numpy()


STACK = (("Transformer", ""), ("Pooling", "1_Pooling"))


def test_without_a_word_of_its_authors_it_is_the_mean_as_it_is(tmp_path):
    engine = engine_of(folder_of(tmp_path))

    found = vectors_of(engine, "a b c", "d")

    for vector, text in zip(found, ["a b c", "d"], strict=True):
        assert np.abs(vector - hidden_of(tmp_path, text).mean(0)).max() < 1e-5


@pytest.mark.parametrize("pooling", [{"pooling_mode_cls_token": True}, {"pooling_mode": "cls"}])
def test_the_first_token_if_its_authors_say_so(tmp_path, pooling):
    engine = engine_of(folder_of(tmp_path, modules=STACK, pooling=pooling))

    assert np.abs(vectors_of(engine, "a b c")[0] - hidden_of(tmp_path, "a b c")[0]).max() < 1e-5


def test_of_length_one_if_its_authors_say_so(tmp_path):
    stack = (*STACK, ("Normalize", "2_Normalize"))
    engine = engine_of(folder_of(tmp_path, modules=stack, pooling={"pooling_mode": "mean"}, limit=9))

    assert np.linalg.norm(vectors_of(engine, "a b c")[0]) == pytest.approx(1, abs=1e-6)
    assert engine.max_model_len == 9


def test_roberta_has_fewer_positions_than_it_says(tmp_path):
    engine = engine_of(folder_of(tmp_path, "roberta"))

    assert engine.max_model_len == 33  # of 34, the first is the padding token's
    vectors_of(engine, "a " * 31)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"modules": STACK, "pooling": {"pooling_mode_max_tokens": True}}, "max_tokens"),
        (
            {"modules": STACK, "pooling": {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}},
            "max_tokens",
        ),
        ({"modules": (*STACK, ("Dense", "2_Dense")), "pooling": {"pooling_mode": "mean"}}, "Dense"),
        ({"kind": "llama"}, "language model"),
    ],
)
def test_what_it_cannot_do_right_it_does_not_do(tmp_path, arguments, says):
    with pytest.raises(ConfigError, match=says):
        engine_of(folder_of(tmp_path, **arguments))


def test_a_folder_without_a_model_is_named(tmp_path):
    with pytest.raises(ConfigError, match="BUSWAY_WORKER__MODEL="):
        engine_of(tmp_path)
