"""Tags and notes that people keep beside a run: `view.json` in its directory, the one file that the viewer writes."""

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import orjson

FILE = "view.json"
MAX_TAGS, MAX_TAG, MAX_NOTE = 20, 40, 4000
"""Number of tags, and characters of one and of the note."""
NOTHING: Mapping[str, Any] = {"tags": [], "note": ""}


def read_note(run: Path) -> Mapping[str, Any]:
    """The `tags` and the `note` of a run. A file that is damaged has none: it may come from a stranger."""
    try:
        with (run / FILE).open("rb") as file:
            found = orjson.loads(file.read(1 << 16))
        return checked(found["tags"], found["note"])
    except (OSError, ValueError, LookupError, TypeError):
        return NOTHING


def write_note(run: Path, tags: object, note: object) -> Mapping[str, Any]:
    """Write these values in place of the note that was there. ValueError if a note does not hold such values."""
    value = checked(tags, note)
    with tempfile.NamedTemporaryFile(dir=run, prefix=f".{FILE}.", delete=False) as file:
        file.write(orjson.dumps(value, option=orjson.OPT_INDENT_2))
    os.replace(file.name, run / FILE)
    return value


def checked(tags: object, note: object) -> Mapping[str, Any]:
    """Tags without blanks around them, each once.

    >>> checked([" baseline ", "baseline", ""], "rate too high")
    {'tags': ['baseline'], 'note': 'rate too high'}
    """
    if not _are_texts(tags) or not isinstance(note, str):
        raise ValueError("give tags, a list of texts, and a note, a text")
    kept = list(dict.fromkeys(filter(None, (tag.strip() for tag in tags))))
    if len(kept) > MAX_TAGS or any(len(tag) > MAX_TAG or "," in tag for tag in kept):
        raise ValueError(f"at most {MAX_TAGS} tags of {MAX_TAG} characters, without commas")
    if len(note) > MAX_NOTE:
        raise ValueError(f"a note of {len(note)} characters: at most {MAX_NOTE}")
    return {"tags": kept, "note": note}


def _are_texts(values: object) -> TypeGuard[Sequence[str]]:
    return isinstance(values, list) and all(isinstance(one, str) for one in values)
