"""The wire: what is sent is frozen in golden files, and readers of other versions cope."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared import wire
from shared.errors import WireError

GOLDEN = Path(__file__).parent / "golden"
ERROR = wire.ErrorInfo(code="internal_error", message="It broke.", param="stop")
USAGE = wire.Usage(prompt_tokens=12, completion_tokens=2)
DONE = wire.Outcome(state="done", reason="stop", usage=USAGE)
TOKEN = wire.TokenLogprob(raw=b"\xbc", logprob=-0.25, top=((b"\xbc", -0.25), (b"e", -2.5)))
FRAME = wire.Frame(id="r-1", attempt=2, at=5, ids=(17, 4), text="Grüße\n")
END = wire.Frame(id="r-1", attempt=2, at=7, end=DONE)

MESSAGES = {
    "request_chat": wire.GenerateRequest(
        sampling=wire.Sampling(seed=42, max_tokens=16, temperature=0.5, top_p=0.9, top_k=40, stop=("\n", "END")),
        messages=({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Grüße"}),
        chat_template_kwargs={"enable_thinking": False},
    ),
    "request_completion": wire.GenerateRequest(sampling=wire.Sampling(seed=0), prompt="Once upon"),
    "request_token_ids": wire.GenerateRequest(
        sampling=wire.Sampling(seed=1, temperature=0, ignore_eos=True), prompt=(1, 2, 3)
    ),
    "request_embeddings": wire.GenerateRequest(
        sampling=wire.Sampling(seed=0, max_tokens=0), inputs=("Grüße", (1, 2)), dimensions=64
    ),
    "request_guided": wire.GenerateRequest(
        sampling=wire.Sampling(seed=0, logprobs=2),
        prompt="A date: ",
        guide=wire.Guide(kind="regex", text="[0-9]{4}"),
        echo=True,
    ),
    "sampling": wire.Sampling(seed=9, max_tokens=1),
    "sampling_all": wire.Sampling(
        seed=9,
        min_p=0.05,
        frequency_penalty=0.5,
        presence_penalty=-0.5,
        repetition_penalty=1.1,
        logit_bias=((5, -100.0), (17, 2.5)),
        stop_token_ids=(2, 3),
        min_tokens=4,
        logprobs=0,
    ),
    "frame": FRAME,
    "frame_end": END,
    "frame_logprobs": wire.Frame(
        id="r-1",
        attempt=1,
        at=0,
        ids=(17,),
        logprobs=(TOKEN,),
        prompt=wire.Prompt(text="Grü", tokens=(wire.TokenLogprob(raw=b"Gr\xc3"), TOKEN)),
    ),
    "frames": wire.Frames(frames=(FRAME, END)),
    "outcome_done": DONE,
    "outcome_embedded": wire.Outcome(
        state="done",
        usage=wire.Usage(prompt_tokens=12, completion_tokens=0, cached_tokens=8),
        prompt=wire.Prompt(text="Grü"),
        embeddings=b"\x00\x00\x80?",
    ),
    "outcome_waited": wire.Outcome(state="done", reason="stop", usage=USAGE, queued_ms=5),
    "outcome_failed": wire.Outcome(state="failed", error=ERROR),
    "outcome_cancelled": wire.Outcome(state="cancelled", error=wire.ErrorInfo(code="cancelled", message="Gone.")),
    "outcome_expired": wire.Outcome(state="expired", error=wire.ErrorInfo(code="deadline_exceeded", message="Late.")),
    "control_cancel": wire.Control(id="r-1"),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_the_encoded_form_is_frozen(name):
    """A difference here breaks a fleet in which old and new processes run side by side."""
    golden = (GOLDEN / f"{name}.json").read_bytes().rstrip(b"\n")

    assert wire.encode(MESSAGES[name]) == golden
    assert wire.decode(golden, type(MESSAGES[name])) == MESSAGES[name]


def test_the_members_of_a_piece_are_frozen():
    """They stand in the log as they are, and emit.lua puts them into a frame."""
    golden = (GOLDEN / "piece_members.txt").read_bytes().rstrip(b"\n")
    piece = wire.Piece(ids=(17, 4), text='Grü "ße"')

    assert wire.encode_members(piece) == golden
    assert wire.decode_members(golden, wire.Piece) == piece


def test_every_golden_file_is_compared():
    others = {"piece_members", "request_hash", "request_hash_revived", "lane_entry", "log_entries", "dead_letter"}
    others |= {"worker_hash", "bell"}

    assert {path.stem for path in GOLDEN.iterdir()} == set(MESSAGES) | others


@pytest.mark.parametrize("name", MESSAGES)
def test_unknown_fields_are_ignored_at_every_depth(name):
    """Yesterday's process reads what tomorrow's one writes."""

    free_form = {"messages", "chat_template_kwargs"}

    def grown(value):
        if isinstance(value, dict):
            return {key: grown(one) if key not in free_form else one for key, one in value.items()} | {"new_field": [1]}
        return [grown(one) for one in value] if isinstance(value, list) else value

    later = msgspec.json.encode(grown(msgspec.json.decode(wire.encode(MESSAGES[name]))))

    assert wire.decode(later, type(MESSAGES[name])) == MESSAGES[name]


@pytest.mark.parametrize(
    "message",
    [MESSAGES["request_chat"], MESSAGES["frames"], MESSAGES["control_cancel"]],
    ids=lambda m: type(m).__name__,
)
def test_a_newer_version_names_itself_and_is_refused(message):
    """The version is never left out as a default, or nobody could refuse it."""
    newer = wire.encode(msgspec.structs.replace(message, v=wire.VERSION + 1))

    with pytest.raises(WireError, match=f"version {wire.VERSION + 1}"):
        wire.decode(newer, type(message))


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b"null", b'{"sampling": {}}', b'{"sampling": {"seed": "x"}}', b"\xff"]
)
def test_what_is_no_message_is_a_wire_error(raw):
    with pytest.raises(WireError):
        wire.decode(raw, wire.GenerateRequest)


def test_an_error_about_a_message_does_not_repeat_its_content():
    """The error is logged, and prompts never are."""
    raw = b'{"sampling": {"seed": 1}, "prompt": {"secret": "the prompt"}}'

    with pytest.raises(WireError) as caught:
        wire.decode(raw, wire.GenerateRequest)

    assert "the prompt" not in str(caught.value)


TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
IDS = st.lists(st.integers(0, 2**31), max_size=5).map(tuple)
SAMPLING = st.builds(
    wire.Sampling,
    seed=st.integers(0, 2**63 - 1),
    max_tokens=st.none() | st.integers(1, 10**6),
    temperature=st.floats(0, 2),
    top_p=st.floats(0, 1),
    top_k=st.integers(0, 1000),
    stop=st.lists(TEXT, max_size=4).map(tuple),
    ignore_eos=st.booleans(),
)
REQUEST = st.builds(
    wire.GenerateRequest,
    sampling=SAMPLING,
    messages=st.none() | st.lists(st.fixed_dictionaries({"role": TEXT, "content": TEXT}), max_size=3).map(tuple),
    prompt=st.none() | TEXT | IDS,
    chat_template_kwargs=st.dictionaries(TEXT, st.booleans(), max_size=2),
)
OUTCOME = st.builds(
    wire.Outcome,
    state=st.sampled_from(sorted(wire.TERMINAL)),
    reason=st.sampled_from([None, "stop", "length"]),
    usage=st.none() | st.builds(wire.Usage, prompt_tokens=st.integers(0), completion_tokens=st.integers(0)),
    error=st.none() | st.builds(wire.ErrorInfo, code=TEXT, message=TEXT, param=st.none() | TEXT),
)
FRAMES = st.builds(
    wire.Frames,
    frames=st.lists(
        st.builds(
            wire.Frame,
            id=TEXT,
            attempt=st.integers(0),
            at=st.integers(0),
            ids=IDS,
            text=TEXT,
            end=st.none() | OUTCOME,
        ),
        max_size=3,
    ).map(tuple),
)


@given(REQUEST | OUTCOME | FRAMES)
def test_what_is_encoded_is_decoded_again(message):
    assert wire.decode(wire.encode(message), type(message)) == message


@given(IDS, TEXT)
def test_what_is_encoded_as_members_is_decoded_again(ids, text):
    piece = wire.Piece(ids=ids, text=text)

    assert wire.decode_members(wire.encode_members(piece), wire.Piece) == piece
