"""Replies of judges on disk, so that a repeated question is not paid for again. Processes may share a file."""

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

BUSY_S = 10.0
"""Seconds to wait while another process writes: it is done in milliseconds."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A judge's reply, why the reply ended, and its tokens."""

    text: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    finish_reason: str | None = "stop"
    """Finish reason in the endpoint's words. Only replies that stopped are kept."""
    is_cached: bool = False


class ReplyCache:
    """A SQLite file. Every call opens it anew: a call takes a millisecond, and nothing is left open."""

    def __init__(self, path: Path) -> None:
        self._path = path.expanduser()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with closing(self._open()) as file, file:
            file.execute("PRAGMA journal_mode = WAL")
            file.execute(
                "CREATE TABLE IF NOT EXISTS replies "
                "(key TEXT PRIMARY KEY, text TEXT, prompt_tokens INTEGER, completion_tokens INTEGER)"
            )

    def get(self, key: str) -> Reply | None:
        with closing(self._open()) as file:
            row = file.execute(
                "SELECT text, prompt_tokens, completion_tokens FROM replies WHERE key = ?", (key,)
            ).fetchone()
        if row is None:
            return None
        text, prompt_tokens, completion_tokens = row
        return Reply(text, prompt_tokens, completion_tokens, is_cached=True)

    def put(self, key: str, reply: Reply) -> None:
        with closing(self._open()) as file, file:
            file.execute(
                "INSERT OR REPLACE INTO replies VALUES (?, ?, ?, ?)",
                (key, reply.text, reply.prompt_tokens, reply.completion_tokens),
            )

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=BUSY_S)
