"""`python -m areal_sdk_otel > board.json`: the Grafana board, to import there."""

import sys
from importlib.resources import files


def main() -> None:
    sys.stdout.write(files("areal_sdk_otel").joinpath("board.json").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
