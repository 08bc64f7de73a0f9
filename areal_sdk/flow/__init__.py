"""The flow of groups: which may start, which can be trained, which a step takes, which are dropped.

    has_room -> admit -> accept or reject each sibling -> resolve -> finished -> shed -> cut

These are rules without clock, event loop or I/O. The buffer of a run follows them with the episodes that are played,
and `areal-sdk plan` with simulated ones, so a plan cannot differ from a run. A flow holds the slots that the gate
counts, and says which groups and members are dropped, and why. Its caller keeps the ledger.
"""

from areal_sdk.config import RolloutSection
from areal_sdk.flow.group_flow import GroupFlow
from areal_sdk.flow.groups import Drop, Member, OpenGroup, Stop, WaitingGroup
from areal_sdk.flow.rules import MAX_IMBALANCE, FlowRules, StalenessGate
from areal_sdk.telemetry.ledger import DropReason

__all__ = [
    "MAX_IMBALANCE",
    "Drop",
    "DropReason",
    "FlowRules",
    "GroupFlow",
    "Member",
    "OpenGroup",
    "RolloutSection",
    "StalenessGate",
    "Stop",
    "WaitingGroup",
]
