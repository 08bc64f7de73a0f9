"""Findings of checks, and the certificate that they add up to."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    OK = "ok"
    NOTE = "note"
    """A finding that breaks nothing, but that users should know."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    level: Severity
    check: str
    found: str
    cure: str = ""


@dataclass(frozen=True, slots=True)
class TokenFinding(Finding):
    """The result of one check of a model's conversations."""

    client: str = ""
    """The client whose transcript showed the finding; empty if the finding concerns the model alone."""
    expected: tuple[str, ...] = ()
    """The expected tokens, as text; `got` has those that were found. Both are empty if the check compares no tokens."""
    got: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Certificate:
    """Whether a model's conversations can be trained token by token, and what was looked at."""

    key: str
    """Key of the tokenizer, the template and these checks; see `content_key`."""
    findings: tuple[TokenFinding, ...]

    @property
    def is_certified(self) -> bool:
        return all(finding.level is not Severity.FAILED for finding in self.findings)


def ok(check: str, found: str, *, client: str = "") -> TokenFinding:
    return TokenFinding(Severity.OK, check, found, client=client)


def note(check: str, found: str, cure: str = "", *, client: str = "") -> TokenFinding:
    return TokenFinding(Severity.NOTE, check, found, cure, client)


def failed(
    check: str,
    found: str,
    cure: str,
    *,
    client: str = "",
    expected: Sequence[str] = (),
    got: Sequence[str] = (),
) -> TokenFinding:
    return TokenFinding(Severity.FAILED, check, found, cure, client, tuple(expected), tuple(got))
