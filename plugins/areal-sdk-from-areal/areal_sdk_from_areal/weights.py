"""The keys that bound importance weights: `rejection_sampling`, and those of AReaL before 1.0."""

import math
from collections.abc import Callable, Mapping

from areal_sdk_from_areal.outcome import (
    JSON,
    KeyOutcome,
    Keys,
    becomes,
    not_applicable,
    not_supported,
)

REJECTION = "actor.rejection_sampling"
CAPS = ("actor.behav_imp_weight_cap", "actor.behave_imp_weight_cap")
MODE = "actor.behave_imp_weight_mode"
MODES = {
    "token_mask": {"weight_level": "token", "beyond": "mask"},
    "token_truncate": {"weight_level": "token", "beyond": "clamp"},
    "sequence_mask": {"weight_level": "sequence", "beyond": "mask"},
    "sequence_truncate": {"weight_level": "sequence", "beyond": "clamp"},
}
NO_WEIGHT = (
    "AReaL 1.0 then leaves the importance weight out. Here the weight stays, bounded by max_weight"
)

Take = Callable[..., KeyOutcome]
"""Options, if the preset has them."""
Rule = Callable[[JSON, Keys, Take], KeyOutcome]


def weight_outcome(key: str, value: JSON, keys: Keys, take: Take) -> KeyOutcome | None:
    """None for a key of another kind."""
    rule = RULES.get(key)
    if rule is None:
        return None
    if not keys.get("actor.use_decoupled_loss"):
        return not_applicable("only the decoupled loss has weights")
    return rule(value, keys, take)


def bounds_weights(keys: Keys) -> bool:
    """Whether the file says anything on bounds of weights."""
    return any(key in RULES for key in keys)


# `rejection_sampling`


def _rejection(value: JSON, _keys: Keys, _take: Take) -> KeyOutcome:
    if value is None:
        return not_supported(NO_WEIGHT)
    return not_applicable("an empty table: the defaults of its keys")


def _of_ratios(rule: Rule) -> Rule:
    """The other keys mean what they mean here where `metric` is the ratio."""

    def outcome(value: JSON, keys: Keys, take: Take) -> KeyOutcome:
        metric = keys.get(f"{REJECTION}.metric", "ratio")
        return rule(value, keys, take) if metric == "ratio" else not_supported(METRIC)

    return outcome


METRIC = "a weight is bounded as a ratio, not by a KL"


def _metric(value: JSON, _keys: Keys, _take: Take) -> KeyOutcome:
    return not_applicable("as it is here") if value == "ratio" else not_supported(METRIC)


def _aggregate(value: JSON, keys: Keys, _take: Take) -> KeyOutcome:
    if value == "mean" or keys.get(f"{REJECTION}.level", "token") == "token":
        return not_applicable("as it is here")
    return not_supported("the weight of a sequence is the geometric mean of its tokens'")


def _lower(value: JSON, _keys: Keys, _take: Take) -> KeyOutcome:
    return (
        not_supported("weights have no lower bound") if value else not_applicable("no lower bound")
    )


# before AReaL 1.0


def _cap(value: JSON, keys: Keys, take: Take) -> KeyOutcome:
    outcome = take(max_weight=math.inf if value is None else value)
    if not outcome.settings or value is None or MODE in keys:
        return outcome
    masks = take(**MODES["token_mask"])
    settings = {**outcome.settings, **masks.settings}
    return becomes(settings, "" if masks.settings else "weights beyond it are clamped, not masked")


def _mode(value: JSON, _keys: Keys, take: Take) -> KeyOutcome:
    if value == "disabled":
        return not_supported(NO_WEIGHT)
    if value not in MODES:
        return not_supported(f"choose one of {', '.join(MODES)}")
    return take(**MODES[value])


RULES: Mapping[str, Rule] = {
    REJECTION: _rejection,
    f"{REJECTION}.metric": _metric,
    f"{REJECTION}.upper": _of_ratios(lambda value, _keys, take: take(max_weight=value)),
    f"{REJECTION}.action": _of_ratios(lambda value, _keys, take: take(beyond=value)),
    f"{REJECTION}.level": _of_ratios(lambda value, _keys, take: take(weight_level=value)),
    f"{REJECTION}.agg": _of_ratios(_aggregate),
    f"{REJECTION}.lower": _of_ratios(_lower),
    **dict.fromkeys(CAPS, _cap),
    MODE: _mode,
}
