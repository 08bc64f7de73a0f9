"""Deadlines short enough for tests that break servers."""

from areal_sdk.backends.remote.client import Deadlines
from areal_sdk.backends.remote.options import ServerLimits
from areal_sdk.backends.remote.supervisor import SupervisionOptions
from areal_sdk_sglang.settings import SGLangSection

LIMITS = ServerLimits(
    deadlines=Deadlines(token_s=30.0, control_s=5.0, probe_s=3.0, busy_probe_s=6.0, weights_s=60.0),
    supervision=SupervisionOptions(check_every_s=0.5),
)
WAITS = SGLangSection(transport="disk", request_wait_s=600.0)
