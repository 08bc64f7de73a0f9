"""Text and tokens, in both directions, with the characters that break naive code."""

from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as HfTokenizer

from areal_sdk.gateway.tokens.tokenizer import Detokenizer, Tokenizer


@pytest.fixture(scope="module")
def tokenizer(model_dirs: dict[str, Path]) -> Tokenizer:
    return Tokenizer.load(model_dirs["qwen3"])


@pytest.fixture(scope="module")
def reference(model_dirs: dict[str, Path]) -> HfTokenizer:
    return HfTokenizer.from_file(str(model_dirs["qwen3"] / "tokenizer.json"))


@settings(max_examples=200)
@given(
    parts=st.lists(
        st.one_of(
            st.text(max_size=12),
            st.sampled_from(["<|im_end|>", "<think>", "<tool_call>", "\n", "  ", "<|im_", "hello"]),
        ),
        max_size=8,
    )
)
def test_encoding_equals_the_library(
    tokenizer: Tokenizer, reference: HfTokenizer, parts: list[str]
) -> None:
    text = "".join(parts)
    assert tokenizer.encode(text) == tuple(reference.encode(text, add_special_tokens=False).ids)


@settings(max_examples=200)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40), cut=st.integers(1, 5))
def test_a_text_survives_tokens_that_come_one_by_one(
    tokenizer: Tokenizer, text: str, cut: int
) -> None:
    ids = tokenizer.encode(tokenizer.defuse(text))
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.feed(ids[i : i + cut]) for i in range(0, len(ids), cut)]
    assert "".join(pieces) + detokenizer.finish() == text.replace("\ufdd0", "")


@settings(max_examples=200)
@given(inside=st.lists(st.sampled_from(["<|im_end|>", "<think>", "<|im_start|>", "a", " ", "<|"])))
def test_defused_text_holds_no_added_token(tokenizer: Tokenizer, inside: list[str]) -> None:
    text = "".join(inside)
    ids = tokenizer.encode(tokenizer.defuse(text))
    assert not set(ids) & set(tokenizer.added.values())
    assert tokenizer.decode(ids) == text


def test_an_emoji_is_shown_when_it_is_whole(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("🙂")
    assert len(ids) == 4
    detokenizer = Detokenizer(tokenizer)
    assert [detokenizer.feed([i]) for i in ids] == ["", "", "", "🙂"]


def test_half_an_emoji_ends_as_a_replacement_character(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.feed(tokenizer.encode("🙂")[:2]) + detokenizer.finish() == "\ufffd"


def test_a_zero_byte_is_a_character_like_any_other(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode("a\x00b")) == "a\x00b"


def test_special_tokens_are_hidden_unless_asked_for(tokenizer: Tokenizer) -> None:
    end = tokenizer.added["<|im_end|>"]
    ids = (*tokenizer.encode("<think>a"), end)
    assert tokenizer.decode(ids) == "<think>a"
    assert tokenizer.decode(ids, keep=frozenset({end})) == "<think>a<|im_end|>"


def test_a_sentencepiece_tokenizer_continues_without_a_new_start() -> None:
    """A text's first word gets a space in front; a continuation must not."""
    vocabulary = [("<unk>", 0.0), ("</s>", 0.0), ("\u2581hi", -1.0), ("hi", -2.0), ("\u2581", -3.0)]
    hf = HfTokenizer(models.Unigram([*vocabulary, ("h", -9.0), ("i", -9.0)], unk_id=0))
    hf.normalizer = normalizers.Sequence([])
    hf.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    hf.decoder = decoders.Metaspace(prepend_scheme="first")
    hf.add_special_tokens([AddedToken("</s>", special=True)])
    tokenizer = Tokenizer(hf.to_str().encode())
    end = tokenizer.added["</s>"]
    whole = tokenizer.encode("hi</s>hi hi")
    assert whole == (2, end, 3, 2)
    assert tokenizer.encode_continuation("</s>hi hi") == whole[1:]
    assert tokenizer.encode_continuation("hi") == (3,)
    assert tokenizer.encode("hi") == (2,)
    defused = tokenizer.encode_continuation("</s>" + tokenizer.defuse("hi</s>"))
    assert defused[0] == end
    assert end not in defused[1:]


@pytest.mark.parametrize("attack", ["<|IM_END|>", "x <|Im_End|>", "\uff1c|im_end|>", "<|im_end|>"])
def test_a_normalizer_cannot_make_a_special_token_of_text(
    model_dirs: dict[str, Path], attack: str
) -> None:
    """Tokens marked as normalized are looked for after letters were folded."""
    hf = HfTokenizer.from_file(str(model_dirs["qwen3"] / "tokenizer.json"))
    hf.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    document = orjson.loads(hf.to_str())
    for token in document["added_tokens"]:
        token["normalized"] = True
    tokenizer = Tokenizer(orjson.dumps(document))
    assert not set(tokenizer.added.values()) & set(tokenizer.encode(tokenizer.defuse(attack)))
