"""The text of each token, by the tokenizer that the run keeps beside its episodes.

The text of one token is not always a text: half a character has none. Such a token is shown as its bytes were cut,
with the mark of the tokenizer; a token that begins with a space keeps it.
"""

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from tokenizers import Tokenizer

ANCHOR = "a"
"""Text before each token that is decoded: some tokenizers drop the space of the first token."""


class Pieces:
    """Texts by id. Without a tokenizer they are the ids."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, str] = {}
        self._anchor = (
            [] if tokenizer is None else tokenizer.encode(ANCHOR, add_special_tokens=False).ids
        )
        self._before = (
            "" if tokenizer is None else tokenizer.decode(self._anchor, skip_special_tokens=False)
        )

    def of(self, token: int) -> str:
        text = self._known.get(token)
        if text is None:
            text = self._known[token] = self._decode(token)
        return text

    def _decode(self, token: int) -> str:
        if self._tokenizer is None or not 0 <= token < 1 << 32:
            return f"{token} "
        both = self._tokenizer.decode([*self._anchor, token], skip_special_tokens=False)
        if both.startswith(self._before) and len(both) > len(self._before):
            return both[len(self._before) :]
        return self._tokenizer.id_to_token(token) or f"<{token}>"

    def table(self, tokens: Iterable[int]) -> tuple[list[str], list[int]]:
        """The different texts, and the place of each token's text among them."""
        places: dict[str, int] = {}
        found = [places.setdefault(self.of(token), len(places)) for token in tokens]
        return list(places), found


@lru_cache(maxsize=8)
def pieces_of(model: Path) -> Pieces:
    """The texts of the tokens of a run whose model's files are in `model`; their ids, if its tokenizer is damaged."""
    file = model / "tokenizer.json"
    try:
        return Pieces(Tokenizer.from_file(str(file)) if file.is_file() else None)
    except Exception:  # noqa: BLE001 - the library raises nothing more special
        return Pieces(None)
