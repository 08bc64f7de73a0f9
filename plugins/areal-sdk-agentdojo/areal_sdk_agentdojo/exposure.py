"""The moment at which a conversation shows the model a text of the attacker.

A tool may wrap or quote a text, so the text itself is hard to find in a result. Here the same calls are made once
more, with a short mark in place of each text: AgentDojo finds in this way where an attack can stand.
"""

from collections.abc import Iterable

from areal_sdk import Message
from areal_sdk_agentdojo.case import Case
from areal_sdk_agentdojo.world import World


def first_exposure(case: Case, messages: Iterable[Message]) -> int | None:
    """The place, among the assistant's messages, of the first whose calls return a text of the attacker."""
    marks = {place: f"<MARK---{place}--->" for place in case.injections}
    world = World.of(case, injections=marks)
    said = (message for message in messages if message["role"] == "assistant")
    for number, message in enumerate(said):
        shown = [act.result for act in world.act(message)]
        if any(mark in result for mark in marks.values() for result in shown):
            return number
    return None
