from areal_sdk.backends.local.sequence import Finish, StopRule
from areal_sdk.types import FinishReason


class Bytes:
    """Every token is one byte, as a byte-level tokenizer's smallest tokens are."""

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        return bytes(ids).decode(errors="replace")


def finish_of(text: str, *stops: str, max_new_tokens: int = 100) -> tuple[int, Finish | None]:
    """The number of bytes of `text` that are generated, and the reason why generation ended."""
    rule = StopRule(max_new_tokens, frozenset(), stops, Bytes())
    output: list[int] = []
    for byte in text.encode():
        output.append(byte)
        if (finish := rule.check(output)) is not None:
            return len(output), finish
    return len(output), None


def test_the_token_that_completes_a_stop_string_is_the_last() -> None:
    assert finish_of("say END now", "END") == (7, Finish(FinishReason.STOP, "END"))


def test_a_stop_string_is_found_behind_any_text() -> None:
    assert finish_of("x" * 80 + "<sto" * 9 + "<stop>", "<stop>", max_new_tokens=200)[1] == Finish(
        FinishReason.STOP, "<stop>"
    )


def test_a_stop_string_of_several_bytes_a_character_is_found() -> None:
    assert finish_of("ü" * 9 + "日本語", "日本") == (18 + 6, Finish(FinishReason.STOP, "日本"))


def test_of_two_stop_strings_the_one_that_begins_first_is_reported() -> None:
    assert finish_of("abc", "bc", "abc")[1] == Finish(FinishReason.STOP, "abc")


def test_length_ends_what_nothing_else_ends() -> None:
    assert finish_of("abcdef", "x", max_new_tokens=4) == (4, Finish(FinishReason.LENGTH))


def test_a_stop_at_the_last_allowed_token_is_a_stop() -> None:
    rule = StopRule(2, frozenset({7}))
    assert rule.check([1, 7]) == Finish(FinishReason.STOP, 7)
