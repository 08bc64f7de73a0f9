"""AReaL's configuration keys as settings of areal-sdk (`areal-sdk init --from-areal`).

Each key of the file has one outcome: it is translated, it is not applicable here, or it is not
supported. Nothing is dropped without a word.
"""

from areal_sdk_from_areal.outcome import KeyOutcome, Kind
from areal_sdk_from_areal.reading import read_keys
from areal_sdk_from_areal.report import report_lines
from areal_sdk_from_areal.translation import Translation, translate

__all__ = ["Kind", "KeyOutcome", "Translation", "read_keys", "report_lines", "translate"]
