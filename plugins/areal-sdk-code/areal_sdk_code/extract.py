"""The program in an answer: pure functions."""

import re

_BLOCK = re.compile(r"^```[ \t]*([\w+-]*)[^\n]*\n(.*?)(?:^```|\Z)", re.DOTALL | re.MULTILINE)
_PYTHON = {"python", "py", "python3"}


def code_of(text: str) -> str:
    """The last block that is marked as Python, else the last block, else the whole text.

    >>> code_of("Try this:\\n```python\\nx = 1\\n```\\nIt works.")
    'x = 1\\n'
    >>> code_of("x = 2")
    'x = 2'
    """
    blocks = _BLOCK.findall(text)
    marked = [code for language, code in blocks if language.lower() in _PYTHON]
    rest = [code for _, code in blocks]
    return str((marked or rest or [text])[-1])
