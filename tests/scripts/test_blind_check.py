"""The blind check draws lines that can be asked about, and writes where they are from."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "blind_check.py"


def test_the_key_names_the_folder_of_every_line_that_is_shown(tmp_path: Path) -> None:
    key = tmp_path / "key.txt"
    command = [sys.executable, SCRIPT, "--seed", "3", "--lines", "5", "--key", key]
    asked = subprocess.check_output([str(part) for part in command], text=True).splitlines()
    shown = [line.strip() for line in asked[1::2]]
    rows = [row.split() for row in key.read_text().splitlines()]
    assert len(shown) == len(rows) == 5
    for text, (_, folder, place) in zip(shown, rows, strict=True):
        name, _, number = place.partition(":")
        lines = (ROOT / folder / name).read_text().splitlines()
        assert lines[int(number) - 1].strip() == text
        assert not text.startswith(("import ", "from "))
