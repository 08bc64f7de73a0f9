"""Issues certificates, and finds those that were issued on this machine before.

A certificate holds every check of the model and every recorded client, played on the model.
"""

from collections.abc import Iterable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

import orjson

from areal_sdk.certificate.findings import Certificate, TokenFinding, failed, note, ok
from areal_sdk.certificate.model import TODAY, ChatModel, content_key
from areal_sdk.certificate.probes import probe
from areal_sdk.certificate.replay import Transcript, recorded, replay
from areal_sdk.errors import ConfigError
from areal_sdk.gateway.errors import TemplateRefusalError
from areal_sdk.gateway.tokens.renderer import Renderer, TemplateInput
from areal_sdk.gateway.tokens.template import ChatTemplate
from areal_sdk.gateway.tool_calls import FORMATS
from areal_sdk.models.cache import Cache
from areal_sdk.telemetry.files import to_json, write_atomically
from areal_sdk.tool_calls import ToolFormat


def certify(
    directory: Path,
    *,
    transcripts: Iterable[Transcript] | None = None,
    tool_format: ToolFormat | None = None,
    formats: Iterable[ToolFormat] = tuple(FORMATS.values()),
) -> Certificate:
    """Whether conversations of this model can be trained exactly as they were sampled.

    `tool_format` is the run's `gateway.tool_format`, where it overrules the template. `formats` are those that
    the template may speak.
    """
    played = tuple(recorded() if transcripts is None else transcripts)
    named = None if tool_format is None else tool_format.name
    try:
        model = ChatModel.load(directory, tool_format=tool_format, formats=formats)
    except ConfigError as exc:
        failure = failed("loads", str(exc), "correct the files of the model")
        return Certificate(content_key(directory, tool_format=named), (failure,))
    key = content_key(directory, tool_format=format_in_key(model.renderer, named))
    return Certificate(key, tuple(_findings(directory, model, played)))


def format_in_key(renderer: Renderer, named: str | None) -> str | None:
    """The tool format that belongs to the key of a certificate: one that was named, or a plugin's. Else None."""
    found = renderer.tool_format.name
    return found if named is not None or found not in FORMATS else None


def _findings(
    directory: Path, model: ChatModel, transcripts: Iterable[Transcript]
) -> Iterator[TokenFinding]:
    yield ok("loads", f"tool calls: {model.renderer.tool_format.name}")
    try:
        yield from probe(model)
        yield from _clock(directory, model)
    except TemplateRefusalError as exc:
        cure = "use a template that accepts systems, users, assistants and tools"
        yield failed("template", f"it refuses a plain conversation: {exc}", cure)
    for transcript in transcripts:
        yield from replay(model, transcript)


def _clock(directory: Path, model: ChatModel) -> Iterator[TokenFinding]:
    chat = TemplateInput(({"role": "user", "content": "Hi"},))
    now = model.renderer.text(chat)
    for later in (timedelta(seconds=1), timedelta(days=40)):
        template = ChatTemplate.load(directory, clock=partial(TODAY.__add__, later))
        if Renderer(model.tokenizer, template).text(chat) == now:
            continue
        if later.days == 0:
            cure = "siblings of one task would get different prompts: take the time out"
            yield failed("clock", "the prompt changes from one second to the next", cure)
        else:
            yield note("clock", "the prompt holds the date: runs on other days see other prompts")
        return
    yield ok("clock", "the prompt does not depend on the time")


_BUILT_IN = frozenset({"6f4b14d2559313875e46fdffd96e74d7", "10bfeecc91508ec8cdda815087bd1637"})
"""The `content_key` of each model that comes with this package, `tiny` and `smollm2`. Our tests certify both models."""


def keep(certificate: Certificate, *, cache_dir: Path | None = None) -> Path:
    """Write a certificate to the cache, also a negative one."""
    path = _path(certificate.key, cache_dir)
    summary = {"certified": certificate.is_certified, "findings": certificate.findings}
    write_atomically(path, to_json(summary, indent=True) + b"\n")
    return path


def is_certified(
    model_dir: Path, *, tool_format: str | None = None, cache_dir: Path | None = None
) -> bool | None:
    """The verdict of this model's certificate for this `gateway.tool_format`; None without a certificate."""
    key = content_key(model_dir, tool_format=tool_format)
    if key in _BUILT_IN:
        return True
    path = _path(key, cache_dir)
    if not path.is_file():
        return None
    try:
        return bool(orjson.loads(path.read_bytes())["certified"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None


def warning(
    model_dir: Path, *, tool_format: str | None = None, cache_dir: Path | None = None
) -> str | None:
    """A warning to show before training this model, in one line; None if it is certified."""
    certified = is_certified(model_dir, tool_format=tool_format, cache_dir=cache_dir)
    if certified:
        return None
    why = "has no token-exactness certificate" if certified is None else "is not token-exact"
    option = "" if tool_format is None else f" --tool-format {tool_format}"
    return f"this model {why}: see areal-sdk doctor model {model_dir}{option}"


def _path(key: str, cache_dir: Path | None) -> Path:
    return Cache(cache_dir).root / "certificates" / f"{key}.json"
