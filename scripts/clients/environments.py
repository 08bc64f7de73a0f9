"""Environments of their own for other people's packages, made once and kept in a cache."""

import os
import subprocess
import sys
import tarfile
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "areal-sdk" / "clients"
INSTALL_TIMEOUT_S = 900


def environment(name: str, *requirements: str) -> Path:
    """The Python of an environment that has these packages."""
    root = CACHE / name
    installed, wanted = root / "installed.txt", "\n".join(requirements)
    python = root / "bin" / "python"
    if not installed.is_file() or installed.read_text() != wanted:
        _run(sys.executable, "-m", "venv", "--clear", str(root))
        _run(str(python), "-m", "pip", "install", "--quiet", *requirements)
        installed.write_text(wanted)
    return python


def source(python: Path, package: str) -> Path:
    """The unpacked source distribution of the version that is installed for `python`."""
    version = _run(
        str(python), "-c", f"from importlib.metadata import version as v; print(v('{package}'))"
    ).strip()
    root = CACHE / "sources" / f"{package}-{version}"
    if not root.is_dir():
        root.parent.mkdir(parents=True, exist_ok=True)
        where = ["--dest", str(root.parent), f"{package}=={version}"]
        _run(str(python), "-m", "pip", "download", "--no-deps", "--no-binary", ":all:", *where)
        with tarfile.open(root.parent / f"{package}-{version}.tar.gz") as archive:
            archive.extractall(root.parent, filter="data")
    return root


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout
