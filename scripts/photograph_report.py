"""Photographs the report of a run. It needs Chromium.

python scripts/photograph_report.py runs/NAME docs/images/report.png

The picture in the docs is of this run, which learns in a few minutes:

areal-sdk train examples/agents/guess_number.py --config examples/agents/guess_number.toml --set eval.every=20
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from areal_sdk.records.report import report_of
from areal_sdk.telemetry import RunDir

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
SIZE = "1120,1620"
"""Width and height in pixels: the figures, and the first curves."""
TIMEOUT_S = 120


def photograph(run: RunDir, picture: Path) -> None:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise SystemExit(f"no Chromium here (looked for {', '.join(BROWSERS)})")
    with tempfile.TemporaryDirectory() as directory:
        page = Path(directory) / "report.html"
        page.write_text(report_of(run))
        options = ["--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size={SIZE}"]
        command = [browser, *options, f"--screenshot={picture.resolve()}", page.as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=TIMEOUT_S)


if __name__ == "__main__":
    photograph(RunDir.open(Path(sys.argv[1])), Path(sys.argv[2]))
