"""`python -m areal_sdk_otel > board.json`: the Grafana board of a run, to import there. With `serve` that of a server."""

import sys
from importlib.resources import files

BOARDS = {"": "board.json", "serve": "serve-board.json"}


def main() -> None:
    name = "".join(sys.argv[1:])
    if name not in BOARDS:
        sys.exit(f"no board {name!r}: python -m areal_sdk_otel, or python -m areal_sdk_otel serve")
    sys.stdout.write(files("areal_sdk_otel").joinpath(BOARDS[name]).read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
