"""Tables for `docs/benchmarks.md`: each program owns one section, between its own markers."""

from collections.abc import Sequence
from pathlib import Path

DOCUMENT = Path(__file__).parents[1] / "docs" / "benchmarks.md"


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Markdown."""
    lines = [f"| {' | '.join(header)} |", f"|{'|'.join('---' for _ in header)}|"]
    lines += [f"| {' | '.join(str(cell) for cell in row)} |" for row in rows]
    return "\n".join(lines)


def write_section(name: str, text: str, *, document: Path = DOCUMENT) -> None:
    """Put `text` where the section `name` is, or at the end."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    content = document.read_text() if document.exists() else "# Benchmarks\n"
    section = f"{begin}\n{text.strip()}\n{end}"
    if begin in content:
        head, _, rest = content.partition(begin)
        content = head + section + rest.partition(end)[2]
    else:
        content = f"{content.rstrip()}\n\n{section}\n"
    document.parent.mkdir(exist_ok=True)
    document.write_text(content)
