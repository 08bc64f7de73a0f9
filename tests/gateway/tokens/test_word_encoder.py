"""Words that are encoded once give the ids that the tokenizer gives to the whole text."""

import string
from functools import cache

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as HfTokenizer

from areal_sdk.gateway.tokens import word_encoder as words
from areal_sdk.gateway.tokens.tokenizer import Tokenizer
from areal_sdk.gateway.tokens.word_encoder import WordEncoder, word_pattern
from tests.gateway.real_models import REAL_MODELS, real_model_dir

_CORPUS = [
    "The answer isn't 42: it's 1234, they'll say.\n\nI'D go;  WE'VE gone. path/to/file\r\n",
    'def f(x):\n    return {"a": [1, 22, 333], "b": None}  # comment\n\tCamelCase snake_case\n',
]

_TRICKY = [
    "'s",
    "'LL",
    "'Re",
    "  ",
    "\n\n",
    "\r\n",
    " 12",
    "1234",
    "isn't",
    "wORld",
    " x",
    "_",
    "/\n",
]

_SHAPES = ["digits", *words._SPLITS]

_ALL = [*_SHAPES, *(pytest.param(name, marks=pytest.mark.slow) for name in REAL_MODELS)]

_other_characters = st.characters(max_codepoint=0x2FFF, exclude_categories=["Cs"])

_texts = st.lists(
    st.one_of(st.sampled_from(_TRICKY), st.characters(max_codepoint=127), _other_characters),
    max_size=20,
).map("".join)


def _build(shape: str) -> HfTokenizer:
    hf = HfTokenizer(models.BPE())
    hf.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True)
            if shape == "digits"
            else pre_tokenizers.Split(Regex(shape), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=shape == "digits"),
        ]
    )
    hf.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    hf.train_from_iterator(
        _CORPUS * 3,
        trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False),
    )
    return hf


@cache
def _pair(shape: str) -> tuple[Tokenizer, HfTokenizer]:
    if shape in REAL_MODELS:
        path = real_model_dir(shape) / "tokenizer.json"
        return Tokenizer(path.read_bytes()), HfTokenizer.from_file(str(path))
    hf = _build(shape)
    return Tokenizer(hf.to_str().encode()), hf


@pytest.mark.parametrize("shape", _ALL)
@settings(max_examples=150)
@given(texts=st.lists(_texts, max_size=4))
def test_ids_are_those_of_the_whole_text(shape: str, texts: list[str]) -> None:
    tokenizer, reference = _pair(shape)
    for text in texts:
        assert tokenizer.encode(text) == tuple(reference.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize("shape", _ALL)
def test_every_pair_of_ascii_characters_is_cut_as_the_tokenizer_cuts_it(shape: str) -> None:
    tokenizer, reference = _pair(shape)
    text = "".join(chr(a) + chr(b) for a in range(128) for b in range(128))
    assert tokenizer.encode(text) == tuple(reference.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize("shape", _SHAPES)
def test_the_known_ways_to_cut_are_recognised(shape: str) -> None:
    assert word_pattern(orjson.loads(_build(shape).to_str())) is not None


def test_what_changes_a_text_or_cuts_it_otherwise_is_left_to_the_tokenizer() -> None:
    folded, random, other = (_build("digits") for _ in range(3))
    folded.normalizer = normalizers.Lowercase()
    random.model.dropout = 0.1
    other.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\d+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    assert [word_pattern(orjson.loads(hf.to_str())) for hf in (folded, random, other)] == [None] * 3


class Bytes:
    """A tokenizer of bytes that notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def encode(self, text: str) -> tuple[int, ...]:
        self.asked.append(text)
        return tuple(text.encode())


@pytest.fixture
def tokenizer() -> Bytes:
    return Bytes()


@pytest.fixture
def encoder(tokenizer: Bytes) -> WordEncoder:
    pattern = word_pattern(orjson.loads(_build("digits").to_str()))
    assert pattern is not None
    return WordEncoder(pattern, tokenizer.encode)


def test_a_word_is_encoded_once(encoder: WordEncoder, tokenizer: Bytes) -> None:
    assert encoder.encode("to be or not to be") == tuple(b"to be or not to be")
    assert sorted(tokenizer.asked) == [" be", " not", " or", " to", "to"]


def test_a_long_word_is_not_kept(encoder: WordEncoder, tokenizer: Bytes) -> None:
    encoder.encode("to be")
    tokenizer.asked.clear()
    long = " " + "x" * 100
    assert encoder.encode("to be" + long) == tuple(b"to be" + long.encode())
    assert encoder.encode(long) == tuple(long.encode())
    assert tokenizer.asked == [long, long]


def test_a_text_full_of_new_words_is_encoded_as_a_whole(
    encoder: WordEncoder, tokenizer: Bytes
) -> None:
    letters = string.ascii_letters
    many = " ".join(a + b for a in letters for b in letters)
    assert encoder.encode(many) == tuple(many.encode())
    assert tokenizer.asked == [many]


def test_a_text_beyond_ascii_is_encoded_as_a_whole(encoder: WordEncoder, tokenizer: Bytes) -> None:
    assert encoder.encode("na\xefve to") == tuple("na\xefve to".encode())
    assert tokenizer.asked == ["na\xefve to"]


def test_the_words_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "_MAX_WORDS", 4)
    tokenizer, reference = _pair("digits")
    for text in ("one two three", "four five", "six seven one two", "a b c d e f"):
        assert tokenizer.encode(text) == tuple(reference.encode(text).ids)
