"""JSON schemas as masks over the vocabulary, through llguidance."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from areal_sdk.errors import UnsupportedSchemaError

if TYPE_CHECKING:
    from llguidance import LLMatcher

_WHITESPACE = r"[ \n\t]{0,16}"
"""Enough to indent with. Without a bound a policy may go on writing spaces until it is cut."""


class Grammar:
    """What one completion may say next."""

    def __init__(self, matcher: "LLMatcher", vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size

    def allowed(self) -> NDArray[np.bool_]:
        """Of each token, whether it may come next: an end of turn only when the JSON is whole."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        return np.unpackbits(bits, count=self._vocab_size, bitorder="little").view(np.bool_)

    def accept(self, token: int) -> None:
        """Go on after `token`, which was allowed."""
        self._matcher.consume_token(token)


class GrammarCompiler:
    """Compiles schemas for one tokenizer. Made once: reading the tokenizer takes seconds."""

    def __init__(self, tokenizer_path: Path, *, vocab_size: int, end_tokens: Sequence[int]) -> None:
        from llguidance import LLTokenizer  # its absence is an error of requests that need it

        self._vocab_size = vocab_size
        self._tokenizer = LLTokenizer(
            str(tokenizer_path), n_vocab=vocab_size, eos_token=list(end_tokens)
        )

    def compile(self, schema: Mapping[str, Any]) -> Grammar:
        """UnsupportedSchemaError where the schema is wrong, or says what cannot be enforced."""
        from llguidance import LLMatcher

        try:
            grammar = LLMatcher.grammar_from_json_schema(
                dict(schema), overrides={"whitespace_pattern": _WHITESPACE}
            )
        except ValueError as exc:
            raise UnsupportedSchemaError(str(exc)) from exc
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise UnsupportedSchemaError(matcher.get_error().partition("\n\n")[0])
        return Grammar(matcher, self._vocab_size)
