"""Text and tokens: prompts are written once, answers are read whole, character by character."""

import random

import pytest

from shared.errors import InvalidRequest
from shared.wire import GenerateRequest, Sampling

pytest.importorskip("transformers")

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from worker.engines.continuous.sequence import Sequence
from worker.engines.continuous.text import Codec, TextStream

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('unknown role ' + m['role']) }}{% endif %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}>{% endif %}{{ note }}"
)


def byte_level(template=TEMPLATE):
    """Every byte is a token, and so are some words; `<s>` is put in front by the tokenizer, too."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = ["he", "hel", "Ġw", "Ġwo"]
    merges = [("h", "e"), ("he", "l"), ("Ġ", "w"), ("Ġw", "o")]
    vocab = {token: index for index, token in enumerate(["<s>", "</s>", *alphabet, *words])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return wrapped(tokenizer, template)


def llama_type(template=TEMPLATE):
    """SentencePiece as Llama has it: blanks belong to words, and rare characters are bytes."""
    words = ["▁the", "▁cat", "s", "at", "▁", "▁▁", "\n", "ing", "▁a", "é", ",", "▁.", "b"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return wrapped(tokenizer, template)


def wrapped(tokenizer, template):
    bos = tokenizer.token_to_id("<s>")
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in ("<s>", "</s>")])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    fast.chat_template = template
    return Codec(fast, len(tokenizer.get_vocab())), fast


def byte_ids(fast, text):
    """One token a byte, whatever words there are."""
    names = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)[0][0]
    return [fast.convert_tokens_to_ids(name) for name in names]


def pieces(codec, ids, stops=()):
    stream = TextStream(codec, tuple(stops))
    shown = [stream.feed(token) for token in ids]
    return [*shown, stream.flush()]


def chat(*contents, role="user", **kwargs):
    messages = tuple({"role": role, "content": content} for content in contents)
    return GenerateRequest(sampling=Sampling(seed=1), messages=messages, chat_template_kwargs=kwargs)


def completion(prompt):
    return GenerateRequest(sampling=Sampling(seed=1), prompt=prompt)


@pytest.mark.parametrize("char", ["é", "龜", "🫠"])  # 2, 3 and 4 bytes
def test_a_character_over_several_tokens_comes_whole(char):
    """B001."""
    codec, fast = byte_level()
    ids = byte_ids(fast, "a" + char + "b")

    shown = pieces(codec, ids)

    assert len(ids) == 2 + len(char.encode())
    assert shown == ["a", *[""] * (len(char.encode()) - 1), char, "b", ""]


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_a_character_that_stays_incomplete_is_shown_once_at_the_end(missing):
    """B001: the budget ends in the middle of a character."""
    codec, fast = byte_level()
    ids = byte_ids(fast, "ab🫠")[:-missing]

    shown = pieces(codec, ids)

    assert shown == ["a", "b", *[""] * (4 - missing), "\ufffd"]
    assert "".join(shown) == codec.decode(ids)


def test_emoji_and_hangul_one_byte_at_a_time():
    codec, fast = byte_level()
    text = "🫠🥹 龜 안녕하세요"

    shown = pieces(codec, byte_ids(fast, text))

    assert "".join(shown) == text
    assert not any("\ufffd" in piece for piece in shown)


@pytest.mark.parametrize("seed", range(200))
def test_pieces_of_random_bytes_join_to_the_whole(seed):
    """B028, and bytes that are no character at all."""
    codec, fast = byte_level()
    source = random.Random(seed)
    ids = source.choices(range(len(fast)), k=60)
    ids[:0] = source.choice([[], byte_ids(fast, " "), byte_ids(fast, "\n"), [0], [1]])

    assert "".join(pieces(codec, ids)) == codec.decode(ids)


@pytest.mark.parametrize("seed", range(200))
def test_pieces_of_a_llama_type_tokenizer_join_to_the_whole(seed):
    """B028: word-leading blanks live in the tokens, and vanish when one is decoded alone."""
    codec, fast = llama_type()
    source = random.Random(seed)
    words = list(range(259, len(fast)))
    ids = []
    while len(ids) < 60:
        # Bytes as a model writes them: whole characters. (Stray ones change how their neighbours are read.)
        char = source.choice(["🫠", "龜", "ß"])
        as_bytes = [fast.convert_tokens_to_ids(f"<0x{byte:02X}>") for byte in char.encode()]
        ids += source.choices([[source.choice(words)], [source.choice([1, 2])], as_bytes], [8, 1, 1])[0]
    ids[:0] = source.choice([[], [fast.convert_tokens_to_ids("▁")], [fast.convert_tokens_to_ids("\n")], [1]])

    assert "".join(pieces(codec, ids)) == codec.decode(ids)


def test_a_stop_is_found_across_bytes_and_not_shown():
    codec, fast = byte_level()

    shown = pieces(codec, byte_ids(fast, "ask 龜 and go"), ["龜 a"])

    assert "".join(shown) == "ask "


def test_a_tail_that_opened_no_stop_is_shown_at_the_end():
    codec, fast = byte_level()

    assert "".join(pieces(codec, byte_ids(fast, "one EN"), ["END"])) == "one EN"


def test_special_tokens_add_no_text():
    codec, fast = byte_level()
    head, tail = byte_ids(fast, "a龜")[:2], byte_ids(fast, "a龜b")[2:]

    assert pieces(codec, [0, *head, 1, *tail]) == ["", "a", "", "", "", "龜", "b", ""]


def test_a_chat_is_tokenised_without_more_special_tokens():
    """B030."""
    codec, fast = byte_level()

    ids = codec.encode(chat("hello"))

    assert ids.count(0) == 1
    assert fast.decode(ids) == "<s>[user]hello>"
    assert ids == fast.apply_chat_template([{"role": "user", "content": "hello"}], add_generation_prompt=True).input_ids


def test_a_prompt_is_tokenised_as_the_tokenizer_does_by_default():
    codec, fast = byte_level()

    assert codec.encode(completion("hello")) == fast("hello").input_ids
    assert codec.encode(completion("hello"))[0] == 0
    assert codec.encode(completion((5, 6))) == [5, 6]


def test_template_arguments_reach_the_template_but_not_its_machinery():
    codec, fast = byte_level()

    assert fast.decode(codec.encode(chat("x", note="!", add_generation_prompt=False))) == "<s>[user]x!"
    for name in ("chat_template", "tokenize", "return_tensors", "conversation"):
        with pytest.raises(InvalidRequest, match=name) as caught:
            codec.encode(chat("x", **{name: "y"}))
        assert caught.value.param == "chat_template_kwargs"


@pytest.mark.parametrize("request_", [chat("x", role="wizard"), chat(None), chat(4)])
def test_what_the_template_refuses_is_the_callers_mistake(request_):
    template = TEMPLATE.replace("{{ m['content'] }}", "{{ m['content'] + '' }}")
    codec, _ = byte_level(template)

    with pytest.raises(InvalidRequest) as caught:
        codec.encode(request_)

    assert (caught.value.code, caught.value.param) == ("invalid_value", "messages")


def test_without_a_template_there_is_no_chat():
    codec, _ = byte_level(template=None)

    with pytest.raises(InvalidRequest) as caught:
        codec.encode(chat("x"))

    assert caught.value.code == "unsupported_value"


@pytest.mark.parametrize("prompt", [(-1,), (10_000,)])
def test_a_token_id_that_the_model_lacks_is_refused(prompt):
    codec, _ = byte_level()

    with pytest.raises(InvalidRequest) as caught:
        codec.encode(completion(prompt))

    assert (caught.value.code, caught.value.param) == ("invalid_value", "prompt")


@pytest.mark.parametrize("stops", [(), ("d 龜",), ("zz",)])
@pytest.mark.parametrize("limit", [100, 12])
def test_a_sequence_resumed_at_any_token_goes_on_with_the_rest_of_the_text(stops, limit):
    codec, fast = byte_level()
    ids = [*byte_ids(fast, "say 🫠 and 龜 now"), 1]

    def sequence():
        return Sequence("r", "", 0, [5], Sampling(seed=1), limit, {1}, TextStream(codec, stops))

    whole = sequence()
    texts = []
    for token in ids:
        texts.append(whole.take(token))
        if whole.reason:
            break

    for cut in range(len(texts) + 1):
        resumed = sequence()
        resumed.replay(ids[:cut])
        rest = []
        while resumed.reason is None:
            rest.append(resumed.take(ids[len(resumed.output_ids)]))
        assert rest == texts[cut:]
        assert resumed.outcome() == whole.outcome()
