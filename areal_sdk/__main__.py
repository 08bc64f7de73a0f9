"""`python -m areal_sdk` is `areal-sdk`."""

from areal_sdk.cli import main

if __name__ == "__main__":
    main()
