"""`areal-sdk doctor model`: can the tokens that a model samples be trained exactly?"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from areal_sdk.certificate import Certificate, TokenFinding
    from areal_sdk.gateway.tokens.renderer import Renderer

_COLORS = {"ok": "green", "note": "yellow", "failed": "red"}
_CONTEXT = 6
"""Number of equal tokens that are shown before the first that differs."""
_SHOWN = 24
"""Tokens shown of each side."""


@click.command(name="model")
@click.argument("model")
@click.option(
    "--transcript",
    "transcripts",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    help="Also play these conversations, not only those of real clients.",
)
@click.option(
    "--tool-format",
    metavar="NAME",
    help="Format of tool calls, as gateway.tool_format; default: the template's.",
)
@click.option(
    "--rows",
    "row_files",
    type=click.Path(exists=True, path_type=Path),
    multiple=True,
    help="Also say which of these conversations, as `areal-sdk sft` reads them, the model can learn, and their lengths.",
)
@click.option("--json", "as_json", is_flag=True)
def check_model(
    model: str,
    transcripts: Sequence[Path],
    tool_format: str | None,
    row_files: Sequence[Path],
    as_json: bool,
) -> None:
    """Certify that MODEL's conversations keep every sampled token.

    Plays recorded conversations of real clients through the tokenizer and the chat template; needs no weights. Exits
    with 0 if the model gets a certificate, else with 1. `train` and `serve` warn of models that have none.
    """
    from areal_sdk.certificate import certify, keep, read_transcript, recorded
    from areal_sdk.certificate.model import ChatModel
    from areal_sdk.models import resolve_model
    from areal_sdk.plugins import load_plugins

    formats = load_plugins().tool_formats
    named = None if tool_format is None else formats.get(tool_format)
    local = Path(model).expanduser()
    directory = local if local.is_dir() else resolve_model(model, weights=False)
    played = (*recorded(), *map(read_transcript, transcripts))
    certificate = certify(
        directory, transcripts=played, tool_format=named, formats=formats.in_order()
    )
    keep(certificate)
    fits: dict[str, Mapping[str, Any]] = {}
    if row_files:
        renderer = ChatModel.load(directory, tool_format=named, formats=formats.in_order()).renderer
        fits = {str(path): _fit(path, renderer) for path in row_files}
    if as_json:
        from areal_sdk.telemetry.files import to_json

        summary = {"certified": certificate.is_certified, "key": certificate.key}
        document = {"model": model, **summary, "findings": certificate.findings, "rows": fits}
        click.echo(to_json(document, indent=True).decode())
    else:
        for path, fit in fits.items():
            lengths = " / ".join(map(str, fit["tokens"].values()))
            click.echo(
                f"rows    {path}: {fit['learnt']} of {fit['given']} conversations can be learnt"
            )
            click.echo(f"{'':<8}tokens {lengths} (50, 90, 100 % have at most so many)")
            for line in fit["notes"]:
                click.echo(f"{'':<8}{line}")
        for line in _lines(model, certificate):
            click.echo(line)
    if not certificate.is_certified:
        raise SystemExit(1)


def _fit(path: Path, renderer: "Renderer") -> Mapping[str, Any]:
    """The conversations of a file that the template takes, and the lengths of all, also of those that are too long."""
    from areal_sdk.config import FinetuneSection
    from areal_sdk.finetune.rendering import render_conversations
    from areal_sdk.loop.plan.rows import read_conversations

    rows = read_conversations(path)
    all_lengths = render_conversations(rows, renderer, max_tokens=1 << 62).rows
    lengths = sorted(len(row.tokens) for row in all_lengths) or [0]
    found = render_conversations(rows, renderer, max_tokens=FinetuneSection().max_tokens)
    lost = {place for places in found.left_out.values() for place in places}
    return {
        "given": len(rows),
        "learnt": len(rows) - len(lost),
        "tokens": {f"p{p}": lengths[(len(lengths) - 1) * p // 100] for p in (50, 90, 100)},
        "notes": found.notes(),
    }


def _lines(model: str, certificate: "Certificate") -> Iterator[str]:
    all_clients = {finding.client for finding in certificate.findings} - {""}
    for finding, clients in _alike(certificate.findings):
        level = label(finding.level)
        who = f"all {len(clients)} clients" if all_clients == set(clients) else ", ".join(clients)
        yield f"{level} {finding.check:<18} {who + ': ' if clients else ''}{finding.found}"
        if finding.cure:
            yield f"{'':<26} {finding.cure}"
        yield from token_diff(finding)
    verdict = ("certified", "green") if certificate.is_certified else ("not certified", "red")
    yield click.style(f"{model}: {verdict[0]}", fg=verdict[1], bold=True)


def _alike(findings: "Sequence[TokenFinding]") -> "Iterator[tuple[TokenFinding, list[str]]]":
    """Yield each finding with its clients; a failure that several clients met comes once."""
    seen: dict[TokenFinding, list[str]] = {}
    for finding in findings:
        failure = replace(finding, client="") if finding.level == "failed" else finding
        seen.setdefault(failure, []).extend([finding.client] if finding.client else [])
    yield from seen.items()


def label(level: str) -> str:
    """The beginning of a finding's line: `ok`, `note` or `failed`, in its colour."""
    return click.style(f"{level:<7}", fg=_COLORS[level])


def token_diff(finding: "TokenFinding") -> Iterator[str]:
    """The expected and the found tokens, from a little before their first difference."""
    expected, got = finding.expected, finding.got
    if not expected and not got:
        return
    pairs = enumerate(zip(expected, got, strict=False))
    same = next((i for i, (one, other) in pairs if one != other), min(len(expected), len(got)))
    start = max(0, same - _CONTEXT)
    for name, tokens, color in (("expected", expected, "green"), ("got", got, "red")):
        shown = [_token(token) for token in tokens[start : start + _SHOWN]]
        before = "".join(click.style(f"[{t}]", dim=True) for t in shown[: same - start])
        after = "".join(click.style(f"[{t}]", fg=color) for t in shown[same - start :])
        more = " ..." if len(tokens) > start + _SHOWN else ""
        yield f"{'':<26} {name:>8} {'... ' if start else ''}{before}{after}{more}"


def _token(text: str) -> str:
    """A token on one line, harmless to the terminal."""
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t")
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in escaped)
