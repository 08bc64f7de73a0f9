"""The API: what the pages read, and what an assistant may read and do. README.md describes it.

Every answer is JSON. Reading happens in threads, so that one slow run holds nothing else up.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import orjson
from aiohttp import web

from areal_sdk import ArealError, ConfigError
from areal_sdk_view.answers import (
    episodes,
    events,
    failures,
    held_out,
    lanes,
    overview,
    planned,
    reading,
    siblings,
    tasks,
)
from areal_sdk_view.library import Library, NotThereError, OpenRun, whole_text
from areal_sdk_view.notes import write_note

JSON = dict[str, Any]
Answer = Callable[[OpenRun, Mapping[str, str]], Any]

WATCH_S = 1.0
"""Seconds between two looks at the files of a run that a tab shows."""
MAX_HIGHLIGHT = 2000
"""Maximum number of characters of a quote that an assistant highlights."""

OF_RUN: Mapping[str, Answer] = {
    "": overview.describe,
    "events": events.read,
    "episodes": episodes.select,
    "episode": reading.read,
    "text": reading.read_text,
    "tokens": reading.read_tokens,
    "copy": reading.copy,
    "siblings": siblings.align,
    "tasks": tasks.list_tasks,
    "task": tasks.through_training,
    "failures": failures.group,
    "lanes": lanes.lanes,
    "why": overview.why,
    "logs": overview.logs,
}
"""The answers about one run: `/api/runs/NAME/WHAT`."""


class Api:
    def __init__(self, library: Library) -> None:
        self._library = library
        self._tabs: set[asyncio.Queue[JSON | None]] = set()
        """The places to open in each tab; None when the server stops."""

    def add_to(self, app: web.Application) -> None:
        app.on_shutdown.append(self._end_streams)
        app.router.add_get("/api/runs", self._list)
        app.router.add_get("/api/compare", self._compare)
        app.router.add_get("/api/compare/tasks", self._compare_tasks)
        app.router.add_get("/api/stream", self._stream)
        app.router.add_post("/api/view", self._view)
        app.router.add_post("/api/note", self._note)
        app.router.add_get("/api/runs/{run}", self._about)
        app.router.add_get("/api/runs/{run}/plan", self._plan)
        app.router.add_get("/api/runs/{run}/{what}", self._about)

    async def _list(self, request: web.Request) -> web.Response:
        return _answer(await asyncio.to_thread(self._library.list))

    async def _about(self, request: web.Request) -> web.Response:
        answer = OF_RUN.get(request.match_info.get("what", ""))
        if answer is None:
            return _problem(404, f"the API has no {request.path}")
        name = request.match_info["run"]

        def read() -> Any:
            with self._library.open(name) as run:
                return answer(run, request.query)

        return await _answered(read)

    async def _plan(self, request: web.Request) -> web.Response:
        name, query = request.match_info["run"], request.query
        return await _answered(lambda: planned.plan(self._library, name, query))

    async def _compare(self, request: web.Request) -> web.Response:
        paths, names = self._library.path, request.query.getall("run", [])
        return await _answered(lambda: overview.compare({name: paths(name) for name in names}))

    async def _compare_tasks(self, request: web.Request) -> web.Response:
        """The tasks of several sides. The n-th `run` and the n-th `step` of the query are one side."""
        names, steps = (request.query.getall(name, []) for name in ("run", "step"))
        split = request.query.get("split", "")
        return await _answered(lambda: compare_tasks(self._library, names, steps, split=split))

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        """Server-sent events of one tab: `changed` when its run wrote something, and `view`."""
        name = request.query.get("run", "")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        queue: asyncio.Queue[JSON | None] = asyncio.Queue()
        self._tabs.add(queue)
        try:
            known = await self._state(name)
            await response.write(b": open\n\n")
            while True:
                try:
                    place = await asyncio.wait_for(queue.get(), WATCH_S)
                except TimeoutError:
                    now = await self._state(name)
                    if now != known:
                        known = now
                        await response.write(b"event: changed\ndata: {}\n\n")
                    continue
                if place is None:
                    break
                await response.write(b"event: view\ndata: %b\n\n" % orjson.dumps(place))
        except ConnectionError:
            pass  # the tab was closed
        finally:
            self._tabs.discard(queue)
        return response

    async def _end_streams(self, app: web.Application) -> None:
        for queue in self._tabs:
            queue.put_nowait(None)

    async def _state(self, name: str) -> object:
        try:
            return await asyncio.to_thread(self._library.state, name)
        except (ArealError, NotThereError, OSError):
            return None  # the run was deleted: the page says so at its next request

    async def _note(self, request: web.Request) -> web.Response:
        """Keep the tags and the note of a run: `{"run", "tags", "note"}`."""
        body = await request.read()

        def write() -> Any:
            asked = orjson.loads(body)
            if not isinstance(asked, dict) or not isinstance(asked.get("run"), str):
                raise ValueError("give run, tags and note")
            path = self._library.path(asked["run"])
            return write_note(path, asked.get("tags"), asked.get("note"))

        return await _answered(write)

    async def _view(self, request: web.Request) -> web.Response:
        """Open a place in every open tab: `{"run", "tab", "episode", "turn", "task", "quote", ...}`."""
        try:
            asked = orjson.loads(await request.read())
        except orjson.JSONDecodeError as exc:
            return _problem(400, f"the body is no JSON: {exc}")
        known = ("run", "tab", "episode", "turn", "task", "group", "failure", "where", "quote")
        if not isinstance(asked, dict) or not all(
            key in known and isinstance(value, str) for key, value in asked.items()
        ):
            return _problem(400, f"give texts for some of {', '.join(known)}")
        if asked.get("run") not in self._library.paths():
            return _problem(404, f"no run {asked.get('run')!r}")
        place = {key: value[:MAX_HIGHLIGHT] for key, value in asked.items()}
        for queue in self._tabs:
            queue.put_nowait(place)
        return _answer({"tabs": len(self._tabs)})


def compare_tasks(
    library: Library, names: Sequence[str], steps: Sequence[str] = (), *, split: str = ""
) -> JSON:
    """The evaluations of these runs, task by task; the last ones, where `steps` names none."""
    if not 2 <= len(names) <= held_out.MAX_SIDES:
        raise ValueError(f"{len(names)} runs: name 2 to {held_out.MAX_SIDES}")
    sides: list[held_out.Evaluation] = []
    for name, step in zip_longest(names, steps[: len(names)], fillvalue=held_out.LAST):
        with library.open(name) as run:
            sides.append(held_out.evaluation_of(run, name, split=split, step=step))
        split = sides[0].split
    return held_out.compare_tasks(sides)


async def _answered(read: Callable[[], Any]) -> web.Response:
    """The answer that a thread reads, or what is wrong with the request or the run."""
    try:
        return _answer(await asyncio.to_thread(read))
    except NotThereError as exc:
        return _problem(404, str(exc))
    except (ConfigError, ValueError) as exc:
        return _problem(400, str(exc))
    except (ArealError, OSError) as exc:
        return _problem(410, str(exc))


def encode(value: Any) -> bytes:
    """The value as JSON. NaN becomes null, and half a character, as in the name of a directory, becomes a mark."""
    options = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
    try:
        return orjson.dumps(value, option=options)
    except TypeError:
        return orjson.dumps(_whole(value), option=options)


def _whole(value: Any) -> Any:
    """`value` with whole characters alone, and integers of 65 bits as text."""
    if isinstance(value, str):
        return whole_text(value)
    if isinstance(value, Mapping):
        return {_whole(key): _whole(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_whole(one) for one in value]
    return str(value) if isinstance(value, int) and value.bit_length() > 63 else value


def _answer(value: Any, status: int = 200) -> web.Response:
    return web.Response(status=status, body=encode(value), content_type="application/json")


def _problem(status: int, text: str) -> web.Response:
    return _answer({"error": text}, status)
