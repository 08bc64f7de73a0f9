"""`Judge`: whether the model has done in each turn what the known solution does, by BFCL's own checks."""

from collections.abc import Sequence

from areal_sdk_bfcl.entries import Entry
from areal_sdk_bfcl.package import make_importable
from areal_sdk_bfcl.world import World


class Judge:
    """The known solution of a conversation, carried out beside the model's calls."""

    def __init__(self, entry: Entry) -> None:
        self._truth = World(entry)
        self._entry = entry
        self._shown: list[str] = []

    def agrees(self, turn: int, world: World, results: Sequence[str]) -> bool | None:
        """Whether the turn is right. `results` are of the model's calls in this turn. Turns come in order.

        The states of all APIs must be equal, the results of the known calls must be among the model's of all turns
        so far, and there must have been a call. None: there is no known call, and BFCL judges no such turn.
        """
        make_importable()
        from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_checker as bfcl

        self._shown += results
        known = self._entry.truth[turn]
        wanted = [self._truth.carry_out(self._truth.read(call)) for call in known]
        if not known:
            return None
        states = bfcl.state_checker(world.instances, self._truth.instances)
        shown = bfcl.response_checker(self._shown, wanted, turn)
        return bool(results and states["valid"] and shown["valid"])
