r"""Photographs the viewer showing a run. It needs Chromium and the package areal-sdk-view.

python scripts/photograph_viewer.py runs/NAME docs/images

The pictures in the docs are of this run, which learns in a few minutes:

areal-sdk train examples/agents/guess_number.py --config examples/agents/guess_number.toml --set eval.every=20 \
  --set run.checkpoint_every=20 --set run.keep_checkpoints=20
areal-sdk reread runs/NAME EPISODE --model step-000020 --model step-000080 --model step-000140
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from areal_sdk_view.answers.readings import largest_changes, lines_of
from areal_sdk_view.export import export
from areal_sdk_view.library import OpenRun

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
VIRTUAL_TIME_MS = 8000
"""Time of the page, which passes at once when nothing happens."""
TIMEOUT_S = 120
"""Deadline of one picture."""


def photograph(path: Path, pictures: Path) -> None:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise SystemExit(f"no Chromium here (looked for {', '.join(BROWSERS)})")
    name = path.resolve().name
    run = OpenRun(path)
    run.refresh()
    places = {
        "viewer.png": (f"#run/{name}/curves?smooth=0.6", "1280,1000"),
        "viewer-siblings.png": (f"#run/{name}/group/{instructive_group(run)}", "1280,760"),
    }
    for change in largest_changes(run, lines_of(run)):
        place = f"#run/{name}/episode/{change['id']}?colour=change"
        places["viewer-checkpoints.png"] = (place, "1280,1150")
    with tempfile.TemporaryDirectory() as directory:
        page = Path(directory) / "page.html"
        page.write_bytes(export(path, num_episodes=500))
        for picture, (place, size) in places.items():
            command = [
                *(browser, *OPTIONS, f"--user-data-dir={directory}/profile"),
                *(f"--virtual-time-budget={VIRTUAL_TIME_MS}", f"--window-size={size}"),
                *(f"--screenshot={(pictures / picture).resolve()}", f"{page.as_uri()}{place}"),
            ]
            subprocess.run(command, check=True, capture_output=True, timeout=TIMEOUT_S)


def instructive_group(run: OpenRun) -> str:
    """The group of the most surprising episode: one attempt among many that went another way."""
    return max(reversed(run.episodes), key=lambda one: abs(one.advantage or 0.0)).group


if __name__ == "__main__":
    photograph(Path(sys.argv[1]), Path(sys.argv[2]))
