"""`--check-report`: a report in Markdown, each of its quotes held against the episode that its link names."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import parse_qs, unquote

from areal_sdk import ArealError
from areal_sdk_view.answers.messages import plain, said
from areal_sdk_view.library import Library, NotThereError

_LINK = re.compile(r"\]\([^)\s]*#run/([^/)\s]+)/episode/([^?)\s]+)(?:\?([^)\s]*))?\)")
_CODE = re.compile(r"^[ \t]*(```|~~~).*?(?:^[ \t]*\1.*?$|\Z)", re.MULTILINE | re.DOTALL)
_LEFT_OUT = re.compile(r"\[(?:…|\.\.\.)\]")
"""Mark of words that a quote leaves out."""


@dataclass(frozen=True, slots=True)
class Link:
    """The place in a run that a report names."""

    run: str
    episode: str
    turn: int | None


@dataclass(frozen=True, slots=True)
class Quote:
    """Lines that begin with `>`, with the link in them or in the line after them."""

    line: int
    text: str
    link: Link | None


@dataclass(frozen=True, slots=True)
class Problem:
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The findings of a check."""

    num_quotes: int
    problems: Sequence[Problem]


def check(report: str, library: Library) -> Verdict:
    """Look up every quote of the report, and every episode that it links to."""
    lines = _CODE.sub(lambda found: "\n" * found[0].count("\n"), report).splitlines()
    quotes = list(_quotes(lines))
    texts: dict[tuple[str, str], list[tuple[int | None, str]] | str] = {}
    problems = []
    for number, line in enumerate(lines, start=1):
        for link in _links(line):
            found = _texts(library, link, texts)
            if isinstance(found, str):
                problems.append(Problem(number, found))
    for quote in quotes:
        if quote.link is None:
            problems.append(Problem(quote.line, "a quote without a link to its episode"))
        elif not isinstance(found := _texts(library, quote.link, texts), str):
            problems += [Problem(quote.line, text) for text in _wrong(quote, quote.link, found)]
    return Verdict(len(quotes), sorted(problems, key=lambda one: one.line))


def _quotes(lines: Sequence[str]) -> Iterator[Quote]:
    first = 0
    while first < len(lines):
        end = first
        while end < len(lines) and lines[end].lstrip().startswith(">"):
            end += 1
        if end > first:
            block = [line.lstrip()[1:] for line in lines[first:end]]
            after = next((line for line in lines[end : end + 2] if line.strip()), "")
            beside = [*block, *([] if after.lstrip().startswith(">") else [after])]
            link = next((link for line in beside for link in _links(line)), None)
            text = " ".join(line for line in block if not _LINK.search(line))
            yield Quote(first + 1, plain(text), link)
        first = end + 1


def _links(line: str) -> Iterator[Link]:
    for run, episode, query in _LINK.findall(line):
        turn = parse_qs(query).get("turn", [""])[0]
        yield Link(unquote(run), unquote(episode), int(turn) if turn.isdecimal() else None)


def _texts(
    library: Library, link: Link, known: dict[tuple[str, str], list[tuple[int | None, str]] | str]
) -> list[tuple[int | None, str]] | str:
    """The texts of an episode with their turns, or the reason why there are none."""
    place = link.run, link.episode
    if place not in known:
        try:
            with library.open(link.run) as run:
                known[place] = list(said(run.episode(link.episode).episode))
        except (ArealError, NotThereError) as exc:
            known[place] = str(exc)
    return known[place]


def _wrong(quote: Quote, link: Link, texts: Sequence[tuple[int | None, str]]) -> Iterator[str]:
    """The reason why a quote is wrong, if it is."""
    parts = [part.strip() for part in _LEFT_OUT.split(quote.text)]
    if not any(parts):
        yield "an empty quote"
        return
    turns = [turn for turn, text in texts if _holds(text, parts)]
    part = "episode" if link.turn is None else f"turn {link.turn} of"
    where = f"{part} {link.episode}"
    if not turns:
        yield f"not in {where}: {quote.text[:80]!r}"
    elif link.turn is not None and link.turn not in turns:
        other = "its error" if turns[0] is None else f"turn {turns[0]}"
        yield f"not in {where}, but in {other}: {quote.text[:80]!r}"


def _holds(text: str, parts: Sequence[str]) -> bool:
    """Whether a text has all parts, one after the other."""
    at = 0
    for part in parts:
        found = text.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return True
