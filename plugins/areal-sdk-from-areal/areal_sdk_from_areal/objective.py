"""The keys that decide advantages and loss: which preset they mean, and its options."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from areal_sdk.settings import SettingsChecker, join_key
from areal_sdk_from_areal.defaults import LONGEST_ANSWER
from areal_sdk_from_areal.norms import BY_GROUP, Norms, norms_of
from areal_sdk_from_areal.outcome import (
    JSON,
    KeyOutcome,
    Keys,
    becomes,
    not_applicable,
    not_supported,
)
from areal_sdk_from_areal.weights import weight_outcome


def choose_preset(keys: Keys) -> str:
    """The preset that does what the keys ask for, or comes nearest."""
    if any(key.startswith("critic.") for key in keys):
        return "ppo"
    if keys.get("actor.use_sapo_loss"):
        return "sapo"
    if keys.get("actor.m2_threshold") is not None:
        return "m2po"
    if keys.get("actor.importance_sampling_level") == "sequence":
        return "gspo"
    if not keys.get("actor.use_decoupled_loss") and not keys.get("actor.recompute_logprob"):
        return "naive_ppo"
    norms = Norms.read(keys)
    if norms.leave_one_out:
        return "rloo"
    if norms.advantage is not None or norms.reward_mean is None:
        return "areal"
    return {"batch": "litepo", None: "drgrpo"}.get(norms.reward_std, "grpo")


class ObjectiveKeys:
    """The outcomes of the keys that `choose_preset` and its preset read."""

    def __init__(self, keys: Keys, checker: SettingsChecker) -> None:
        self.keys = keys
        self.preset = choose_preset(keys)
        self.options = checker.algorithm_options(self.preset)
        self.norms = Norms.read(keys)
        self.by_group = self.preset == "areal" and self.norms.reward_mean == "group"
        """Rewards by group, then advantages by batch."""

    def outcome(self, key: str, value: JSON) -> KeyOutcome | None:
        """None for a key of another kind."""
        if key.startswith(("actor.reward_norm.", "actor.group_reward_norm")):
            return self._reward_norm(key, value)
        if key.startswith("actor.adv_norm") or key == "actor.group_adv_norm":
            return self._advantage_norm(key, value)
        if weighs := weight_outcome(key, value, self.keys, self.take):
            return weighs
        rule = RULES.get(key)
        return None if rule is None else rule(self, value)

    def take(self, **options: JSON) -> KeyOutcome:
        """The options, if the preset has them."""
        if missing := [name for name in options if name not in self.options]:
            return not_supported(f"{self.preset} has no {missing[0]}")
        table = ("algorithm", self.preset)
        return becomes({join_key(*table, name): value for name, value in options.items()})

    def _chosen(self) -> KeyOutcome:
        return becomes({"algorithm.name": self.preset})

    # the norms

    def _reward_norm(self, key: str, value: JSON) -> KeyOutcome:
        does = BY_GROUP if self.by_group else norms_of(self.preset)
        wanted = {
            "mean_level": does.reward_mean,
            "std_level": does.reward_std,
            "mean_leave1out": does.leave_one_out,
            "group_reward_norm": does == BY_GROUP,
        }
        name = key.rpartition(".")[2]
        if name in wanted:
            if value != wanted[name]:
                return not_supported(f"{self.preset} normalises rewards in its own way")
            return self.take(group_norm=True) if self.by_group else self._chosen()
        return _detail(name, value)

    def _advantage_norm(self, key: str, value: JSON) -> KeyOutcome:
        does = norms_of(self.preset).advantage
        name = key.rpartition(".")[2]
        if name in ("mean_level", "std_level", "adv_norm"):
            given = {True: "batch", False: None}.get(value, value) if name == "adv_norm" else value
            if given == does:
                return self._chosen()
            return not_supported(f"advantages of {self.preset} are normalised by {does or 'group'}")
        if name == "group_adv_norm":
            return (
                not_applicable("as it is here")
                if not value
                else not_supported("normalise rewards instead")
            )
        return _detail(name, value)

    # rewards

    def reward_scaling(self, value: JSON) -> KeyOutcome:
        return self._reward(value, 1.0, reward_scale=value)

    def reward_bias(self, value: JSON) -> KeyOutcome:
        return self._reward(value, 0.0, reward_bias=value)

    def reward_clip(self, value: JSON) -> KeyOutcome:
        return self.take(reward_clip=value)

    def _reward(self, value: JSON, neutral: float, **option: JSON) -> KeyOutcome:
        if "reward_scale" in self.options:
            return self.take(**option)
        if value == neutral:
            return not_applicable("rewards are taken as they are")
        if norms_of(self.preset).reward_std is not None:
            return not_applicable(
                f"{self.preset} divides by the deviation of the rewards themselves"
            )
        return self.take(**option)

    def overlong_reward_penalty(self, value: JSON) -> KeyOutcome:
        if not value:
            return not_applicable("as it is here")
        return self.take(overlong_limit=self.keys.get("actor.max_new_tokens", LONGEST_ANSWER))

    def overlong_tokens(self, value: JSON) -> KeyOutcome:
        return self._overlong(overlong_margin=value)

    def overlong_penalty_factor(self, value: JSON) -> KeyOutcome:
        return self._overlong(overlong_penalty=value)

    def _overlong(self, **option: JSON) -> KeyOutcome:
        if not self.keys.get("actor.overlong_reward_penalty"):
            return not_applicable("there is no overlong penalty")
        return self.take(**option)

    def kl_ctl(self, value: JSON) -> KeyOutcome:
        if not value:
            return not_applicable("0: no reference is loaded")
        if not any(key.startswith("ref.") for key in self.keys):
            return not_supported(
                "without a ref AReaL subtracts kl_ctl * logprob from rewards, which is no KL: set "
                f"{join_key('algorithm', self.preset, 'kl')} if you want one"
            )
        if self.by_group:
            return not_supported("areal with group_norm has no KL; grpo has one, in the loss (kl)")
        outcome = self.take(kl=value)
        return becomes(outcome.settings, "in the loss") if self.preset == "grpo" else outcome

    def kl_estimator(self, value: JSON) -> KeyOutcome:
        if value == "k1" or not self.keys.get("actor.kl_ctl"):
            return not_applicable("k1 in rewards, k3 in a loss")
        return not_supported("k1 in rewards, k3 in a loss")

    def discount(self, value: JSON) -> KeyOutcome:
        if value == 1:
            return not_applicable("1: rewards are not discounted")
        if self.by_group:
            return not_supported("areal with group_norm has no token_discount")
        return self.take(token_discount=value)

    def turn_discount(self, value: JSON) -> KeyOutcome:
        if value == 1:
            return not_applicable("1: rewards are not discounted")
        outcome = self.take(discount=value)
        if not self.keys.get("actor.reward_bias"):
            return outcome
        shaped = "AReaL shapes a reward that was discounted; here the shaped reward is discounted"
        return replace(outcome, why=outcome.why or shaped)

    def gae_lambda(self, value: JSON) -> KeyOutcome:
        if self.preset == "ppo":
            return self.take(trace=value)
        return (
            not_applicable("as it is here")
            if value == 1
            else not_supported("only a critic has a trace (ppo)")
        )

    # the loss

    def eps_clip(self, value: JSON) -> KeyOutcome:
        if self.keys.get("actor.eps_clip_higher") is not None:
            return self.take(clip_low=value)
        return self.take(clip_low=value, clip_high=value)

    def eps_clip_higher(self, value: JSON) -> KeyOutcome:
        return (
            not_applicable("eps_clip bounds both sides")
            if value is None
            else self.take(clip_high=value)
        )

    def c_clip(self, value: JSON) -> KeyOutcome:
        return not_applicable("no dual clip") if value is None else self.take(dual_clip=value)

    def importance_sampling_level(self, value: JSON) -> KeyOutcome:
        if value == "token":
            return not_applicable("as it is here")
        return (
            self._chosen() if self.preset == "gspo" else not_supported(f"{self.preset} is by token")
        )

    def use_decoupled_loss(self, value: JSON) -> KeyOutcome:
        if value or self.preset == "naive_ppo":
            return self._chosen()
        return not_supported(f"{self.preset} weighs by who sampled, up to max_weight")

    def recompute_logprob(self, value: JSON) -> KeyOutcome:
        if self.preset == "naive_ppo":
            return self._chosen()
        if self.keys.get("actor.prox_logp_method") is not None:
            return not_applicable("prox_logp_method says how")
        return self.take(proximal="recompute")

    def prox_logp_method(self, value: JSON) -> KeyOutcome:
        known = {"recompute": "recompute", "metrics": "recompute", "loglinear": "interpolate"}
        if value not in known:
            return not_supported(f"choose one of {', '.join(known)}")
        return self.take(proximal=known[value])

    def m2_threshold(self, value: JSON) -> KeyOutcome:
        return not_applicable("no M2PO") if value is None else self.take(threshold=value)

    def use_sapo_loss(self, value: JSON) -> KeyOutcome:
        return self._chosen() if value else not_applicable("no SAPO")

    def sapo_tau_pos(self, value: JSON) -> KeyOutcome:
        return self.take(tau_positive=value) if self.preset == "sapo" else not_applicable("no SAPO")

    def sapo_tau_neg(self, value: JSON) -> KeyOutcome:
        return self.take(tau_negative=value) if self.preset == "sapo" else not_applicable("no SAPO")


def _detail(name: str, value: JSON) -> KeyOutcome:
    """The outcome of a norm's key that is not about levels."""
    known: Mapping[str, KeyOutcome] = {
        "std_unbiased": not_applicable(
            "deviations are biased: one factor where groups are equally large"
        ),
        "eps": not_applicable("nothing is added to a deviation; equal rewards teach nothing"),
        "group_size": not_applicable("groups are the siblings that there are"),
    }
    return known.get(name, not_supported("unknown"))


RULES: Mapping[str, Callable[[ObjectiveKeys, JSON], KeyOutcome]] = {
    "actor.reward_scaling": ObjectiveKeys.reward_scaling,
    "actor.reward_bias": ObjectiveKeys.reward_bias,
    "actor.reward_clip": ObjectiveKeys.reward_clip,
    "actor.overlong_reward_penalty": ObjectiveKeys.overlong_reward_penalty,
    "actor.overlong_tokens": ObjectiveKeys.overlong_tokens,
    "actor.overlong_penalty_factor": ObjectiveKeys.overlong_penalty_factor,
    "actor.kl_ctl": ObjectiveKeys.kl_ctl,
    "actor.kl_estimator": ObjectiveKeys.kl_estimator,
    "actor.discount": ObjectiveKeys.discount,
    "rollout.agent.turn_discount": ObjectiveKeys.turn_discount,
    "actor.gae_lambda": ObjectiveKeys.gae_lambda,
    "actor.eps_clip": ObjectiveKeys.eps_clip,
    "actor.eps_clip_higher": ObjectiveKeys.eps_clip_higher,
    "actor.c_clip": ObjectiveKeys.c_clip,
    "actor.importance_sampling_level": ObjectiveKeys.importance_sampling_level,
    "actor.use_decoupled_loss": ObjectiveKeys.use_decoupled_loss,
    "actor.recompute_logprob": ObjectiveKeys.recompute_logprob,
    "actor.prox_logp_method": ObjectiveKeys.prox_logp_method,
    "actor.m2_threshold": ObjectiveKeys.m2_threshold,
    "actor.use_sapo_loss": ObjectiveKeys.use_sapo_loss,
    "actor.sapo_tau_pos": ObjectiveKeys.sapo_tau_pos,
    "actor.sapo_tau_neg": ObjectiveKeys.sapo_tau_neg,
    "critic.eps_clip": lambda objective, value: objective.take(value_clip=value),
    "critic.optimizer.lr": lambda objective, value: objective.take(critic_learning_rate=value),
}
