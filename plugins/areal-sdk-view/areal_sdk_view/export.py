"""`--export`: one page with a run, for a browser without network. It has the viewer's modules and the API's answers.

The modules stay modules: an import map gives each name its text as a `data:` address. The page's policy admits these
alone, so what a model wrote is as inert there as it is on the server.
"""

import base64
import gzip
import hashlib
import posixpath
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson

from areal_sdk import ArealError
from areal_sdk.records import EpisodeSummary
from areal_sdk_view import api
from areal_sdk_view.answers import held_out, overview
from areal_sdk_view.answers.episodes import ORDERS, ranked, row_of
from areal_sdk_view.answers.readings import lines_of
from areal_sdk_view.library import Library, NotThereError, OpenRun
from areal_sdk_view.server import static_files

MAX_GROUPS = 80
"""Maximum number of groups whose attempts are in the page side by side."""
MAX_TASKS = 200
CHOSEN_BY = ("worst", "best", "surprising")
"""Orders whose first episodes are in the page, beside the newest."""
_IMPORT = re.compile(r'from "(\.[\w./]+\.js)"')


def export(*paths: Path, num_episodes: int) -> bytes:
    """The page of the runs in `paths`, with some of their episodes: newest, worst, best and most surprising. Several
    runs share `num_episodes`, and the page opens with their comparison."""
    library = Library(paths)
    answers: dict[str, Any] = {"runs": library.list()}
    names = [row["run"] for row in answers["runs"]]
    for name in names:
        with library.open(name) as run:
            answers |= _answers(run, name, num_episodes // len(names))
        answers[f"runs/{name}"]["overview"]["path"] = name  # the page may be mailed
    answers["start"] = f"#run/{quote(names[0])}"
    if len(names) > 1:
        answers |= _comparisons(library, names)
        answers["start"] = "#compare?" + "&".join(f"run={quote(name)}" for name in names)
    packed = base64.b64encode(gzip.compress(api.encode(answers), mtime=0))
    return _page(packed)


def _comparisons(library: Library, names: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """The comparison of all runs: figures, settings, and the last evaluations where there are some."""
    asked = "&".join(f"run={name}" for name in names)
    compared = overview.compare({name: library.path(name) for name in names})
    yield f"compare?{asked}", compared
    with suppress(ValueError, NotThereError):
        steps = "&".join(f"step={held_out.LAST}" for _ in names)
        yield f"compare/tasks?{asked}&{steps}", api.compare_tasks(library, names)


def _answers(run: OpenRun, name: str, num_episodes: int) -> Iterator[tuple[str, Any]]:
    def answer(what: str, **query: str) -> tuple[str, Any]:
        key = "/".join(filter(None, ("runs", name, what)))
        asked = "&".join(f"{field}={value}" for field, value in query.items())
        return f"{key}?{asked}" if asked else key, api.OF_RUN[what](run, query)

    for what in ("", "events", "failures", "lanes", "tasks", "why"):
        yield answer(what)
    chosen = _chosen(run, num_episodes)
    kept = []
    for one in chosen:
        try:
            found = [answer("episode", id=one.id), answer("tokens", id=one.id)]
        except ArealError:
            continue  # `run.keep_episodes` deleted it
        kept.append(one)
        yield from found
    rows = [row_of(one) for one in kept]
    listed = {"total": len(run.episodes), "found": len(rows), "scanned": None, "rows": rows}
    yield f"runs/{name}/episodes", listed
    for group in list(dict.fromkeys(one.group for one in kept if one.group))[:MAX_GROUPS]:
        yield answer("siblings", group=group)
    for task in list(dict.fromkeys(one.task_id for one in kept))[:MAX_TASKS]:
        where, of_task = answer("task", task=task)
        yield where, of_task
        if len(of_task["splits"]) > 1:
            yield from (answer("task", task=task, split=split) for split in of_task["splits"])


def _chosen(run: OpenRun, num: int) -> list[EpisodeSummary]:
    """Newest first."""
    newest = run.episodes[::-1]
    read_again = filter(None, map(run.find, lines_of(run)))
    chosen: dict[str, EpisodeSummary] = {one.id: one for one in read_again}
    for order in CHOSEN_BY:
        best = ranked(newest, ORDERS[order])[: num // (len(CHOSEN_BY) + 1)]
        chosen |= {one.id: one for one in best}
    for one in newest:
        if len(chosen) >= num:
            break
        chosen[one.id] = one
    return sorted(chosen.values(), key=lambda one: -one.time)


def _page(answers: bytes) -> bytes:
    pages = {name: text.decode() for name, text in static_files().items()}
    style = pages["style.css"]
    imports = {
        f"view/{name}": _address(_absolute(text, name))
        for name, text in pages.items()
        if name.endswith(".js")
    }
    names = orjson.dumps({"imports": imports}).decode()
    begin = 'import "view/app.js";'
    policy = (
        f"default-src 'none'; script-src data: {_hash(names)} {_hash(begin)}; style-src {_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    meta = '<meta charset="utf-8">'
    scripts = f'<script type="importmap">{names}</script>\n<script type="module">{begin}</script>'
    carried = f'<script type="application/octet-stream" id="carried">{answers.decode()}</script>'
    page = pages["index.html"]
    for old, new in {
        meta: f'{meta}\n<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<link rel="stylesheet" href="/static/style.css">': f"<style>{style}</style>",
        '<script type="module" src="/static/app.js"></script>': scripts,
        "</body>": f"{carried}\n</body>",
    }.items():
        page = page.replace(old, new)
    return page.encode()


def _absolute(text: str, name: str) -> str:
    """The module `name` with its imports by the names of the import map: a `data:` address has no folder."""

    def named(found: re.Match[str]) -> str:
        path = posixpath.join(posixpath.dirname(name), found[1])
        return f'from "view/{posixpath.normpath(path)}"'

    return _IMPORT.sub(named, text)


def _address(text: str) -> str:
    return "data:text/javascript;base64," + base64.b64encode(text.encode()).decode()


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
