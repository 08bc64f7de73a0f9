"""The common parts of all peers' programs: their options, and the way to say where sessions are."""

import argparse
import json
import os
import sys
from collections.abc import Iterable

_SEATS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # libraries greet on stdout, which is where the seats go


def parser(description: str | None) -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--model", required=True)
    options.add_argument("--sessions", type=int, required=True)
    options.add_argument("--upstream", required=True)
    return options


def announce(seats: Iterable[tuple[str, str]]) -> None:
    """Address and key of each session, once calls are served."""
    _SEATS.write(json.dumps(list(seats)) + "\n")
    _SEATS.flush()


def wait_for_end() -> None:
    """Wait until the benchmark is done with this server, or gone."""
    sys.stdin.read()
