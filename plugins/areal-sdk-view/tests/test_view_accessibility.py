"""The pages for people who do not see well, or use no mouse: axe-core finds nothing, and keys reach everything."""

import itertools
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from view_browser import Page
from view_colours import EYES, Colour, contrast, distance, of_hex
from view_places import PLACES, check
from view_runs import STEPS, TOKEN, add_failures, evaluate, write_step

from areal_sdk.records import FollowedRun
from areal_sdk.testing import RecordedRun

STANDARDS = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")
WITH_MORE = (
    "#run/guess-2/why",
    "#compare/tasks?run=guess-2&run=guess-2&step=first&step=last",
)
"""Places that show faults and evaluations, which the test adds."""
WIDTHS = {"desktop": (1280, 900, False), "phone": (390, 840, True)}


def axe_source() -> str:
    """The script of axe-core: that of the package `axe-core-python`, or a newer one that AXE_MIN_JS names."""
    if given := os.environ.get("AXE_MIN_JS"):
        return Path(given).read_text(encoding="utf-8")
    package = find_spec("axe_core_python")
    if package is None or package.origin is None:
        pytest.skip("axe-core-python is not installed")
    return Path(package.origin).with_name("axe.min.js").read_text(encoding="utf-8")


@contextmanager
def going_on(path: Path) -> Iterator[None]:
    """The run in `path` as a live one: in use by a process, with a status and a newer step."""
    run_dir = FollowedRun(path).run_dir
    with run_dir.in_use():
        waits = [{"name": "engine: tokens of 3 requests", "waited_s": 2.0}]
        run_dir.write_live({"step": STEPS + 1, "elapsed_s": 70.0, "note": "", "waits": waits})
        run = RecordedRun(path)
        write_step(run, STEPS + 1)
        yield
        run.close()


async def violations(page: Page, axe: str) -> list[str]:
    """Violations that axe-core finds in the page as it is: the rule, and the elements that break it."""
    if not await page.run("'axe' in window"):
        await page.run(f"{axe}; 1")
    options = {"runOnly": {"type": "tag", "values": STANDARDS}, "resultTypes": ["violations"]}
    found: list[dict[str, Any]] = await page.run(
        f"axe.run(document, {json.dumps(options)}).then((result) => result.violations)"
    )
    return [
        f"{one['id']}: {node['html'][:160]}: {node['failureSummary']}"
        for one in found
        for node in one["nodes"][:3]
    ]


async def show(page: Page, theme: str, width: str) -> None:
    wide, tall, is_mobile = WIDTHS[width]
    scheme = [{"name": "prefers-color-scheme", "value": theme}]
    await page.call("Emulation.setEmulatedMedia", features=scheme)
    await page.call(
        "Emulation.setDeviceMetricsOverride",
        width=wide,
        height=tall,
        deviceScaleFactor=1,
        mobile=is_mobile,
    )


async def audit(page: Page, address: str, places: Iterable[str]) -> None:
    axe, found = axe_source(), []
    await page.open(f"{address}/?token={TOKEN}")
    for place in places:
        await page.go(place)
        found += [f"{place}: {one}" for one in await violations(page, axe)]
    assert not found, "\n".join(found)
    check(page, address)


async def test_axe_finds_nothing_on_a_dark_phone(page: Page, address: str) -> None:
    await show(page, "dark", "phone")
    await audit(page, address, [*PLACES][::4])


@pytest.mark.long  # 9 to 12 s each
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("state", ["finished", "live"])
async def test_axe_finds_nothing_in_any_view(
    page: Page, address: str, runs: Path, state: str, theme: str, width: str
) -> None:
    add_failures(runs / "guess-2")
    for step in (0, STEPS):
        evaluate(runs / "guess-2", step=step, rewards={"a": [step / STEPS, 0], "b": [1, None]})
    await show(page, theme, width)
    with going_on(runs / "guess-1") if state == "live" else nullcontext():
        await audit(page, address, [*PLACES, *WITH_MORE])


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_texts_have_the_contrast_of_wcag_aa(page: Page, address: str, theme: str) -> None:
    await show(page, theme, "desktop")
    await page.open(f"{address}/?token={TOKEN}#run/guess-1/episode/train-4.0")
    colours = await page.run(
        """["ink", "dim", "accent", "good", "bad", "ground", "panel", "soft", "accent-soft", "warn-soft"].map((name) =>
          [name, getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim()])"""
    )
    of = dict(colours)
    for text, grounds in {
        "ink": ("ground", "panel", "soft"),
        "dim": ("ground", "panel", "soft"),
        "accent": ("ground", "panel", "accent-soft", "soft"),
        "good": ("panel", "soft"),
        "bad": ("panel", "warn-soft", "soft"),
    }.items():
        for ground in grounds:
            assert contrast(of_hex(of[text]), of_hex(of[ground])) >= 4.5, (theme, text, ground)


PAINTED = """import('/static/parts/colours.js').then((colours) => {
  const canvas = document.createElement('canvas');
  const pen = canvas.getContext('2d', { willReadFrequently: true });
  const over = (colour) => {
    for (const fill of [colours.colour('panel'), colour]) { pen.fillStyle = fill; pen.fillRect(0, 0, 1, 1); }
    return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const shares = [0, 0.35, 0.7, 1];
  return {
    ink: [over(colours.colour('ink'))],
    panel: [over(colours.colour('panel'))],
    meaning: ['good', 'bad'].map((name) => over(colours.colour(name))),
    series: Array.from({ length: colours.NUM_SERIES }, (_, n) => over(colours.series(n))),
    diverging: [-1, -0.4, 0.4, 1].map((value) => over(colours.diverging(value, 1))),
    purple: shares.map((share) => over(colours.sequential(share))),
    azure: shares.map((share) => over(colours.sequential(share, 200))),
    version: [1, 2, 3, 4, 5, 6, 7, 8].map((value) => over(colours.version(value))),
  };
})"""
"""The colours of the page as they are painted on a panel."""
LEAST = {"series": 18.0, "meaning": 40.0, "diverging": 20.0, "purple": 9.0, "azure": 8.0}
"""Distance of any two colours of a scale."""
LEAST_NEIGHBOURS = 30.0
"""Distance of the colours of two versions that follow each other."""


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_colours_differ_to_eyes_without_a_kind_of_cone(
    page: Page, address: str, theme: str
) -> None:
    await show(page, theme, "desktop")
    await page.open(f"{address}/?token={TOKEN}")
    painted: dict[str, list[Colour]] = await page.run(PAINTED)
    (ink,), (panel,) = painted["ink"], painted["panel"]
    for eye in EYES:
        for scale, least in LEAST.items():
            for one, other in itertools.combinations(painted[scale], 2):
                assert distance(one, other, eye=eye) >= least, (eye, scale, one, other)
        for one, other in itertools.pairwise(painted["version"]):
            assert distance(one, other, eye=eye) >= LEAST_NEIGHBOURS, (eye, one, other)
    for line in painted["series"]:
        assert contrast(line, panel) >= 3.0, line
    for scale in ("diverging", "purple", "azure", "version"):
        for ground in painted[scale]:
            assert contrast(ink, ground) >= 4.5, (scale, ground)


WALK = {
    "x j x c": "#compare?run=",
    "Escape j Enter": "#run/guess-",
    "2": "/episodes",
    "3": "/tasks",
    "4": "/failures",
    "5": "/lanes",
    "6": "/settings",
    "7": "/why",
    "8": "/logs",
    "1": "/curves",
    "2 j j Enter": "/episode/",
    "g": "/group/",
    "j Enter": "/episode/",
    "t": "/task/",
    "j j Enter": "/episode/",
    "Escape": "/episodes",
    "r": "#runs",
}
"""Keys from the list of runs on, and a part of the address to which they lead."""


async def test_every_view_is_reached_by_keys_alone(page: Page, address: str) -> None:
    await page.open(f"{address}/?token={TOKEN}")
    await page.press("j")
    for keys, place in WALK.items():
        for key in keys.split():
            await page.press(key)
            await page.until("document.body.dataset.ready === (location.hash || '#')")
        assert place in await page.run("location.hash"), keys
    check(page, address)


TABBABLE = "a[href], button, input, select, summary, [tabindex='0']"


@pytest.mark.long  # 10 s
async def test_the_tabulator_reaches_everything_that_can_be_used(page: Page, address: str) -> None:
    await page.open(f"{address}/?token={TOKEN}")
    for place in PLACES:
        await page.go(place)
        script = f"""window.unseen = new Set([...document.querySelectorAll({TABBABLE!r})].filter((one) => one.checkVisibility() && !one.disabled));
            document.activeElement.blur(); window.unseen.size"""
        for _ in range(await page.run(script) + 2):
            await page.press("Tab")
            await page.run("window.unseen.delete(document.activeElement); 1")
        missed = await page.run("[...window.unseen].map((one) => one.outerHTML.slice(0, 200))")
        assert missed == [], place
    check(page, address)


async def test_arrow_keys_read_a_chart_and_zoom_it(page: Page, address: str) -> None:
    await page.open(f"{address}/?token={TOKEN}#run/guess-1/curves")
    await page.until("document.querySelector('.chart canvas')")
    await page.run("document.querySelector('.chart canvas').focus()")
    for key in ("ArrowRight", "Enter", "ArrowRight", "Enter"):
        await page.press(key)
    await page.until("location.hash.includes('from=')")
    check(page, address)


async def test_arrow_keys_walk_through_the_lanes(page: Page, address: str) -> None:
    await page.open(f"{address}/?token={TOKEN}#run/guess-1/lanes")
    await page.until("document.body.dataset.ready === location.hash")
    await page.run("document.querySelector('canvas').focus()")
    await page.press("ArrowRight")
    await page.until("document.querySelector('.readout').innerText.includes('version')")
    await page.press("Enter")
    await page.until("location.hash.includes('/episode/')")
    check(page, address)
