"""Whether a model reads the tokens of a record as the text that they were."""

from collections.abc import Sequence
from pathlib import Path

from areal_sdk import ConfigError, Turn

FILE = "tokenizer.json"
UNREADABLE = "\ufffd"
"""Stands for bytes that are no text. Where it is put depends on how a text was cut."""


def check_tokenizer(turns: Sequence[Turn], model: Path, *, recorded: Path) -> None:
    """Raise ConfigError if `model` has another tokenizer than the run that recorded the turns.

    `recorded` is the run's own tokenizer. A run that kept none is compared by the texts of its answers, but for those with
    tool calls: what stood on both sides of a call is one text in the record.
    """
    from tokenizers import Tokenizer

    if not (model / FILE).is_file():
        return
    theirs = Tokenizer.from_file(str(model / FILE))
    if recorded.is_file():
        ours = Tokenizer.from_file(str(recorded))
        used = {token for turn in turns for token in (*turn.prompt_tokens, *turn.output_tokens)}
        for token in sorted(used):
            names = theirs.id_to_token(token), ours.id_to_token(token)
            if names[0] != names[1]:
                raise _other(
                    model, f"token {token} is {names[0]!r} there, and {names[1]!r} in the record"
                )
        return
    for turn in turns:
        if turn.message.get("tool_calls"):
            continue
        # An answer's text has no marks of the chat template, but those that the model's format names.
        whole, said = (
            theirs.decode(list(turn.output_tokens), skip_special_tokens=skips)
            for skips in (False, True)
        )
        if _plain(turn.text) not in _plain(whole) and _plain(turn.text) not in _plain(said):
            raise _other(
                model, f"an answer reads {said[:40]!r} there, and {turn.text[:40]!r} in the record"
            )


def _plain(text: str) -> str:
    return "".join(text.replace(UNREADABLE, "").split())


def _other(model: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{model} has another tokenizer than the run: {why}: name weights that were trained from the run's model"
    )
