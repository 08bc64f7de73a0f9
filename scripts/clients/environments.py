"""Environments of their own for other people's packages, made once and kept in a cache."""

import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "areal-sdk" / "clients"
CONSTRAINTS = Path(__file__).parent / "constraints.txt"
INSTALL_TIMEOUT_S = 900
NODE_VERSION = "22.23.3"
"""Version that the clients in JavaScript ask for; Debian's is older."""


def environment(name: str, *requirements: str) -> Path:
    """The Python of an environment that has these packages."""
    root = CACHE / name
    installed, wanted = root / "installed.txt", "\n".join(requirements)
    python = root / "bin" / "python"
    if not installed.is_file() or installed.read_text() != wanted:
        _run(sys.executable, "-m", "venv", "--clear", str(root))
        where = ["--constraint", str(CONSTRAINTS)]
        _run(str(python), "-m", "pip", "install", "--quiet", *where, *requirements)
        installed.write_text(wanted)
    return python


def npm_environment(name: str, *requirements: str) -> Path:
    """The folder whose node_modules has these packages of npm. Nothing that they bring is run."""
    root = CACHE / name
    installed, wanted = root / "installed.txt", "\n".join(requirements)
    if not installed.is_file() or installed.read_text() != wanted:
        if shutil.which("npm") is None:
            sys.exit("npm is missing: install it to try clients in JavaScript")
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        (root / "package.json").write_text(json.dumps({"private": True, "type": "module"}))
        options = ["--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(root)]
        _run("npm", "install", *options, *requirements)
        installed.write_text(wanted)
    return root


def npm_version(root: Path, package: str) -> str:
    """The version of a package that is installed there."""
    described = json.loads((root / "node_modules" / package / "package.json").read_text())
    return str(described["version"])


def node() -> Path:
    machine = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    package = f"node-{sys.platform}-{machine}"
    root = npm_environment("node", f"{package}@{NODE_VERSION}")
    return root / "node_modules" / package / "bin" / "node"


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
