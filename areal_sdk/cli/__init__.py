"""The command line. Commands import what they need when they run, so that `--help` is instant."""

from areal_sdk.cli.main import main

__all__ = ["main"]
