"""The rules of `areal-sdk why`, by what they look at. A rule is a pure function from `Signs` to a `RunFault`, or None."""

from dataclasses import dataclass

from areal_sdk.records.diagnosis.signs import FirstMove

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
"""The sign of bytes that are no text: texts with it may look equal and differ."""


@dataclass(frozen=True, slots=True)
class RunFault:
    """A fault that a rule found."""

    fault: str
    """The name of the fault, one of those that docs/why.md lists."""
    found: str
    """The fault in one sentence, with its main figures."""
    cure: str
    """The setting to change, or what to look at."""
    since: int
    """The step from which the fault holds; 0 in an evaluation, which has no steps."""
    evidence: tuple[str, ...] = ()
    """Further figures, each with its step or its episode."""
    first: FirstMove | None = None
    """The metric that moved first, of those that the fault moves; None if all are as they were at the start."""
    warns_early: bool = True
    """Whether the rule can speak before the harm is done. Else it audits a run that already has the fault."""
    costs_time: bool = False
    """Whether the fault only costs time: the run learns as much, but later."""

    def __str__(self) -> str:
        return f"{self.fault}: {self.found}"


def counted_of(part: int, whole: int) -> str:
    """A part of a whole with its share.

    >>> counted_of(3, 4)
    '3 of 4 (75%)'
    """
    return f"{part} of {whole} ({part / whole:.0%})" if whole else "0 of 0"
