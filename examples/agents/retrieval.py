"""An agent that looks answers up: a full-text index (SQLite FTS5), a search tool, and one question.

    areal-sdk train examples/agents/retrieval.py --model smollm2 --config examples/agents/retrieval.toml

The documents are made up, so no model knows them: the answer has to be found. Half of the reward is
for the right document, half for the answer. The people of held-out questions are never asked about in
training, and their documents are in the same index.
"""

import json
import random
import re
import sqlite3
from collections.abc import Iterator
from functools import cache

from openai import AsyncOpenAI

from areal_sdk import Agent, EpisodeContext, Outcome, Task

NAMES = [f"{a}{b}" for a in ("Tam", "Bel", "Ko", "Mar", "Ru", "Sel") for b in ("ina", "os", "dek")]
TOWNS = [f"{a}{b}" for a in ("Nor", "Ash", "Wick", "Elm") for b in ("ford", "ton", "by", "field")]
JOBS = ("baker", "miller", "painter", "doctor", "sailor", "tailor")
QUERY = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "search", "description": "Find a text.", "parameters": QUERY},
    }
]


def _call(query: str) -> dict[str, object]:
    function = {"name": "search", "arguments": json.dumps({"query": query})}
    return {"id": "example", "type": "function", "function": function}


EXAMPLE = [
    {"role": "system", "content": "Search, then answer with one word."},
    {"role": "user", "content": "Where does the farmer Oliver live?"},
    {"role": "assistant", "content": None, "tool_calls": [_call("farmer Oliver")]},
    {"role": "tool", "tool_call_id": "example", "content": "Oliver is a farmer in Redhill."},
    {"role": "assistant", "content": "Redhill"},
]


class Retrieval(Agent):
    async def run(self, task: Task, context: EpisodeContext) -> Outcome:
        client = AsyncOpenAI(
            base_url=context.base_url, api_key=context.api_key, http_client=context.http_client
        )
        messages = [*EXAMPLE, {"role": "user", "content": task.data["question"]}]
        found = answered = False
        for _ in range(3):
            completion = await client.chat.completions.create(
                model=context.model, messages=messages, tools=TOOLS
            )
            message = completion.choices[0].message
            if not message.tool_calls:
                answered = (message.content or "").strip(" .\n") == task.data["answer"]
                break
            messages.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls:
                text = search(call.function.arguments)
                found = found or text == task.data["document"]
                messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
        return Outcome.scored(0.5 * found + 0.5 * (found and answered), success=found and answered)


def search(arguments: str) -> str:
    """The text that fits the model's query best: of one that matches nothing, that it does.

    >>> search('{"query": "nobody at all"}'), search("[]")
    ('nothing found', 'error: no query')
    """
    try:
        query = str(json.loads(arguments)["query"])
    except (ValueError, KeyError, TypeError):
        return "error: no query"
    words = [f'"{word}"' for word in re.findall(r"\w+", query[:200])]
    if not words:
        return "nothing found"
    rows = _index().execute(
        "SELECT text FROM documents WHERE documents MATCH ? ORDER BY rank, rowid LIMIT 1",
        (" OR ".join(words),),
    )
    return next((str(text) for (text,) in rows), "nothing found")


@cache
def _index() -> sqlite3.Connection:
    """Made once in a process; it is small, so no search is worth a thread."""
    index = sqlite3.connect(":memory:", check_same_thread=False)
    index.execute("CREATE VIRTUAL TABLE documents USING fts5(text)")
    index.executemany("INSERT INTO documents VALUES (?)", ((text,) for *_, text in _people()))
    return index


def _people() -> list[tuple[str, str, str, str]]:
    """Name, job, town, and the document that says so, of everyone; some share a name."""
    generator = random.Random(0)
    people = [(name, job) for name in NAMES for job in JOBS]
    generator.shuffle(people)
    with_towns = [(name, job, generator.choice(TOWNS)) for name, job in people]
    return [(n, j, t, f"{n} is a {j} in {t}.") for n, j, t in with_towns]


def tasks(split: str) -> Iterator[Task]:
    people = _people()
    for name, job, town, text in people[:28] if split == "eval" else people[28:]:
        question = f"Where does the {job} {name} live?"
        data = {"question": question, "answer": town, "document": text}
        yield Task(f"{split}-{name}-{job}", data)
