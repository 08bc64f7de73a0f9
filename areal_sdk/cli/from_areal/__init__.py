"""`areal-sdk init --from-areal`: AReaL's configuration keys as settings of areal-sdk.

Each key of the file has one outcome: it is translated, it is not applicable here, or it is not
supported. Nothing is dropped without a word.
"""

from areal_sdk.cli.from_areal.outcome import KeyOutcome, Kind
from areal_sdk.cli.from_areal.reading import read_keys
from areal_sdk.cli.from_areal.report import report
from areal_sdk.cli.from_areal.translation import Translation, translate

__all__ = ["Kind", "KeyOutcome", "Translation", "read_keys", "report", "translate"]
