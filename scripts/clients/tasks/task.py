"""The task every client does: calls of a tool, an answer, a second question, a call, an answer."""

import os
import sys
from collections.abc import Callable

BASE_URL, API_KEY = os.environ["BASE_URL"], os.environ["API_KEY"]
ROOT_URL = BASE_URL.removesuffix("/v1")
"""Anthropic's clients add /v1 themselves."""

ENDPOINT, STREAMS = sys.argv[1], sys.argv[2] == "streamed"

INSTRUCTIONS = "Be exact."
QUESTIONS = ("What is 1 + 1 + 1?", "And 9?")
NUM_CALLS = int(os.environ["NUM_CALLS"])
PARAMETERS = {
    "type": "object",
    "properties": {"expression": {"type": "string"}, "digits": {"type": "number"}},
    "required": ["expression"],
}
NAME, DESCRIPTION = "calculator", "Evaluate an arithmetic expression."

_num_results = 0


def calculate(expression: str, digits: float = 0.0) -> str:
    global _num_results
    _num_results += 1
    return f"RESULT-{_num_results} of {expression}"


def check(answers: list[str | None]) -> None:
    """End with an error unless every question was answered after all of its calls."""
    if _num_results != NUM_CALLS or any("answer is" not in (answer or "") for answer in answers):
        sys.exit(f"{_num_results} calls, answers {answers}")


def ask_each(ask: Callable[[str], str | None]) -> None:
    check([ask(question) for question in QUESTIONS])
