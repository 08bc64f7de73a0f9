"""Issues a certificate: every check of the model, and every recorded client played on it."""

from collections.abc import Iterable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

from areal_sdk.errors import ConfigError
from areal_sdk.gateway.certificate.findings import Certificate, Finding, failed, note, ok
from areal_sdk.gateway.certificate.model import TODAY, Model, content_key
from areal_sdk.gateway.certificate.probes import probe
from areal_sdk.gateway.certificate.replay import replay
from areal_sdk.gateway.certificate.transcripts import Transcript, recorded
from areal_sdk.gateway.renderer import Chat, Renderer
from areal_sdk.gateway.templates import ChatTemplate, TemplateRefusal


def certify(
    directory: Path,
    *,
    transcripts: Iterable[Transcript] | None = None,
    tool_format: str | None = None,
) -> Certificate:
    """Whether conversations of this model can be trained exactly as they were sampled.

    `tool_format` is the run's `gateway.tool_format`, where it overrules the template.
    """
    played = tuple(recorded() if transcripts is None else transcripts)
    key = content_key(directory, tool_format=tool_format)
    return Certificate(key, tuple(_findings(directory, played, tool_format)))


def _findings(
    directory: Path, transcripts: Iterable[Transcript], tool_format: str | None
) -> Iterator[Finding]:
    try:
        model = Model.load(directory, tool_format=tool_format)
    except ConfigError as exc:
        yield failed("loads", str(exc), "correct the files of the model")
        return
    yield ok("loads", f"tool calls: {model.renderer.tool_format.name}")
    try:
        yield from probe(model)
        yield from _clock(directory, model)
    except TemplateRefusal as exc:
        cure = "use a template that accepts systems, users, assistants and tools"
        yield failed("template", f"it refuses a plain conversation: {exc}", cure)
    for transcript in transcripts:
        yield from replay(model, transcript)


def _clock(directory: Path, model: Model) -> Iterator[Finding]:
    chat = Chat(({"role": "user", "content": "Hi"},))
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
