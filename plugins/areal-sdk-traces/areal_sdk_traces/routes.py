"""Routes by which users of a server read their recorded sessions and rate them. No user sees those of another.

`GET /v1/traces`, `GET /v1/traces/ID`, `POST /v1/traces/ID/feedback`. The admin key sees all.
"""

import asyncio
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import orjson
from aiohttp import web

from areal_sdk import Episode
from areal_sdk.records import EpisodeSummary, FollowedRun
from areal_sdk.routes import ApiError, Call, Route
from areal_sdk_traces.feedback import Feedback, FollowedFeedback, append, checked

_T = TypeVar("_T")
_PAGE, _LONGEST_PAGE = 50, 500


class RecordedSessions:
    """The sessions of the runs that this process serves, each run read on where the last request stopped."""

    def __init__(self) -> None:
        self._runs: dict[Path, FollowedRun] = {}
        self._said: dict[Path, FollowedFeedback] = {}
        self._lock = threading.Lock()
        """Requests run in threads, and one run is read by one of them at a time."""

    async def page(self, call: Call) -> web.Response:
        """Summaries of the caller's sessions, the newest first."""
        query = call.request.query
        limit, before = query.get("limit", str(_PAGE)), query.get("before", "")
        if not limit.isdecimal() or not 0 < int(limit) <= _LONGEST_PAGE:
            raise ApiError(400, f"limit must be a number from 1 to {_LONGEST_PAGE}", param="limit")

        def read(run: Path) -> dict[str, Any]:
            own = self._own(run, call)
            names = [one.id for one in own]
            if before and before not in names:
                raise ApiError(
                    400, "before must be the id of a session in the list", param="before"
                )
            own = own[names.index(before) + 1 :] if before else own
            said = self._feedback(run)
            page = own[: int(limit)]
            return {
                "traces": [_summary(one, said.get(one.id)) for one in page],
                "has_more": len(own) > len(page),
            }

        return web.json_response(await self._in_thread(call, read), dumps=_dumps)

    async def show(self, call: Call) -> web.Response:
        """One session: its messages, turn by turn, and what was said about it."""

        def read(run: Path) -> dict[str, Any]:
            one = self._find(run, call)
            episode = self._runs[run].record(one).episode
            return {**_summary(one, self._feedback(run).get(one.id)), "turns": _turns(episode)}

        return web.json_response(await self._in_thread(call, read), dumps=_dumps)

    async def rate(self, call: Call) -> web.Response:
        """Keep scores and a comment. The latest score of a name counts."""
        raw = await call.body()

        def write(run: Path) -> dict[str, Any]:
            one = self._find(run, call)
            try:
                said = checked(orjson.loads(raw), num_turns=one.num_turns)
            except ValueError as exc:  # orjson's errors are some
                raise ApiError(400, str(exc)) from None
            append(run, session=one.id, by=call.user, said=said)
            return _summary(one, self._feedback(run).get(one.id))

        return web.json_response(await self._in_thread(call, write), dumps=_dumps)

    async def _in_thread(self, call: Call, work: Callable[[Path], _T]) -> _T:
        run = call.run_dir
        if not call.user:
            raise ApiError(
                403,
                "A session's own key reads no recorded sessions: use the key of the user.",
                code="users_only",
            )
        if run is None:
            raise ApiError(
                409,
                "This server keeps no sessions: start it with `areal-sdk serve --record`, `--learn` or `--upstream`.",
                code="traces_not_kept",
                retry=False,
            )

        def locked() -> _T:
            with self._lock:
                return work(run)

        return await asyncio.to_thread(locked)

    def _own(self, run: Path, call: Call) -> list[EpisodeSummary]:
        """The sessions that the caller may see, the newest first."""
        followed = self._runs.setdefault(run, FollowedRun(run))
        followed.refresh()
        return [
            one for one in reversed(followed.episodes) if call.is_admin or one.task_id == call.user
        ]

    def _feedback(self, run: Path) -> Mapping[str, Feedback]:
        return self._said.setdefault(run, FollowedFeedback(run)).read_on()

    def _find(self, run: Path, call: Call) -> EpisodeSummary:
        name = call.request.match_info["id"]
        for one in self._own(run, call):
            if one.id in (name, f"{call.user}/{name}"):
                return one
        raise ApiError(
            404,
            f"No recorded session {name!r:.100} of yours. A session is recorded when it has its reward, or has ended "
            "and the time for a reward is over (serve.reward_wait_s).",
            code="trace_not_found",
        )


def _summary(one: EpisodeSummary, said: Feedback | None) -> dict[str, Any]:
    return {
        "id": one.id,
        "user": one.task_id,
        "time": one.time,
        "num_turns": one.num_turns,
        "reward": one.reward,
        "text": one.text,
        "feedback": (said or Feedback()).to_json(),
    }


def _turns(episode: Episode) -> list[dict[str, Any]]:
    """Each turn with its new messages and its answer; `parent` is the turn that it continues."""
    rewards = episode.outcome.turn_rewards
    return [
        {
            "turn": index,
            "parent": turn.parent,
            "model": turn.policy or None,
            "messages": [*turn.new_messages, {"role": "assistant", **turn.message}],
            "reward": rewards[index] if index < len(rewards) else None,
        }
        for index, turn in enumerate(episode.turns)
    ]


def _dumps(value: Any) -> str:
    return orjson.dumps(value).decode()


SESSIONS = RecordedSessions()
LIST = Route("GET", "traces", SESSIONS.page, beside_backends=True)
SHOW = Route("GET", "traces/{id:.+}", SESSIONS.show, beside_backends=True)
RATE = Route("POST", "traces/{id:.+}/feedback", SESSIONS.rate, beside_backends=True)
