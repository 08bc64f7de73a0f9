"""`areal-sdk why`: what keeps a run from learning."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from areal_sdk.records.diagnosis.rules import RunFault
    from areal_sdk.records.diagnosis.why import Diagnosis

WIDTH = 10
"""Width of the column of names on the left, in characters."""


@click.command(name="why")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def why(run: Path, as_json: bool) -> None:
    """Say what keeps the run in the directory RUN from learning: the likely cause first.

    \b
    areal-sdk why runs/calculator-20261121-101500
    """
    from areal_sdk.cli.records.inspect import print_json
    from areal_sdk.records.diagnosis.why import why as diagnosis_of
    from areal_sdk.telemetry import RunDir

    diagnosis = diagnosis_of(RunDir.open(run))
    if as_json:
        print_json(diagnosis.to_json())
        return
    for line in _lines(diagnosis):
        click.echo(line)


def _lines(diagnosis: "Diagnosis") -> Iterator[str]:
    if diagnosis.failed:
        yield f"{'ended by':{WIDTH}}{diagnosis.failed}"
    for number, line in enumerate(diagnosis.last):
        yield f"{'' if number else 'at last':{WIDTH}}{line}"
    if diagnosis.num_unreadable:
        yield f"{'unseen':{WIDTH}}{diagnosis.num_unreadable} episodes of the sample cannot be read"
    if not diagnosis.findings:
        yield f"no fault found; {diagnosis.course}"
        return
    first, *others = diagnosis.findings
    yield from _about("likely", first)
    for finding in others:
        yield ""
        yield from _about("also", finding)


def _about(head: str, finding: "RunFault") -> Iterator[str]:
    kind = "costs time alone" if finding.costs_time else ""
    audit = "" if finding.warns_early else "told by the harm, not before it"
    remark = "; ".join(text for text in (kind, audit) if text)
    since = f", since step {finding.since}" if finding.since else ""
    yield f"{head:{WIDTH}}{finding.fault}{f' ({remark})' if remark else ''}{since}"
    yield f"{'found':{WIDTH}}{finding.found}"
    for evidence in finding.evidence:
        yield f"{'':{WIDTH}}{evidence}"
    if finding.first is not None:
        yield f"{'first':{WIDTH}}{finding.first}"
    yield f"{'cure':{WIDTH}}{finding.cure}"
