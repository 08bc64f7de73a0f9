"""The outcome of each key, as lines to print."""

import json
from collections.abc import Iterator

from areal_sdk_from_areal.outcome import JSON, KeyOutcome, Kind
from areal_sdk_from_areal.translation import Translation

LONGEST = 60
"""Maximum number of characters of a value."""


def report_lines(translation: Translation) -> Iterator[str]:
    """The keys by kind of outcome, each with what it became or why it did not."""
    for kind in Kind:
        outcomes = translation.of_kind(kind)
        yield f"{kind} ({len(outcomes)}):"
        for key, outcome in outcomes.items():
            default = "" if key in translation.given else ", AReaL's default"
            yield f"  {key} = {_written(translation.keys[key])}{default}{_became(outcome)}"


def _became(outcome: KeyOutcome) -> str:
    if outcome.kind is not Kind.TRANSLATED:
        return f": {outcome.why}"
    settings = ", ".join(f"{key} = {_written(value)}" for key, value in outcome.settings.items())
    return f" -> {settings}" + (f" ({outcome.why})" if outcome.why else "")


def _written(value: JSON) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
