"""Whether tests can run bubblewrap on this machine. Bubblewrap itself is asked, not the sandbox under test."""

import shutil
import subprocess

import pytest


def _why_not() -> str:
    program = shutil.which("bwrap")
    if program is None:
        return "bubblewrap is not installed (Debian, Ubuntu: apt install bubblewrap)"
    words = [program, "--unshare-all", "--dev-bind", "/", "/", "--proc", "/proc", "true"]
    tried = subprocess.run(words, capture_output=True, text=True, timeout=60)
    return f"bubblewrap does not run here: {tried.stderr.strip()}" if tried.returncode else ""


needs_bubblewrap = pytest.mark.skipif(bool(why := _why_not()), reason=why or "bubblewrap runs")
