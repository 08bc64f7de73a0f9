"""Lines of code, as the comparisons count them."""

import ast
import tokenize
from pathlib import Path


def count_lines(file: Path) -> int:
    """Lines that are neither empty nor only a comment or part of a docstring."""
    with file.open("rb") as content:
        kinds = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
        kinds |= {tokenize.ENCODING, tokenize.ENDMARKER}
        used = {
            number
            for token in tokenize.tokenize(content.readline)
            if token.type not in kinds
            for number in range(token.start[0], token.end[0] + 1)
        }
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            used -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(used)
