"""Our algorithms against AReaL's own functions, on random inputs.

    pip download --no-deps areal==1.0.4
    python benchmarks/against_areal.py areal-1.0.4-py3-none-any.whl [--inputs 200] [--write]

The functions are imported out of the wheel (benchmarks/areal_functions.py); both sides get the same random numbers
(benchmarks/areal_inputs.py). A deviation is taken in the same way on both sides (biased, nothing added), since the two
defaults differ by a factor.

The error is the largest absolute difference of any advantage, loss or derivative over all inputs. AReaL computes
advantages and log-weights in float32.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from areal_functions import Theirs, import_areal
from areal_inputs import (
    GROUP_SIZE,
    Tokens,
    differentiated,
    distance,
    our_advantages,
    ours,
    random_rows,
    random_tokens,
    their_advantages,
)
from tables import table, write_section
from torch import Tensor

from areal_sdk.algorithms import (
    GAE,
    Algorithm,
    Beyond,
    Clip,
    Critic,
    ImportanceWeight,
    Level,
    NoWeight,
    SecondMoment,
    SequenceRatio,
    SoftGate,
    Surrogate,
)
from areal_sdk.algorithms.objectives import Objective, interpolate
from areal_sdk.algorithms.presets import areal, grpo, naive_ppo, rloo
from areal_sdk.finetune.preferences import DPO, PairScores

CLIP_LOW, CLIP_HIGH, DUAL, BOUND = 0.2, 0.28, 3.0, 1.5

Comparison = tuple[str, str, Callable[[int], float]]
"""(what is ours, what is AReaL's, the error for a seed)."""


def advantages_compared(theirs: Theirs) -> Iterator[Comparison]:
    norm = theirs.config.NormConfig
    by_batch = norm("batch", std_level="batch", std_unbiased=False, eps=0.0)
    by_group = norm("group", std_level="group", std_unbiased=False, eps=0.0, group_size=GROUP_SIZE)
    others = norm("group", mean_leave1out=True, std_level=None, group_size=GROUP_SIZE)
    paper = {"reward_scaling": 10.0, "reward_bias": -0.5, "adv_norm": by_batch}
    overlong = {
        "overlong_reward_penalty": True,
        "overlong_tokens": 4,
        "overlong_penalty_factor": 0.5,
        "max_new_tokens": 8,
    }
    with_critic = Algorithm(
        GAE(discount=1.0, trace=0.9, token_discount=0.95),
        Surrogate(Clip(CLIP_LOW, CLIP_LOW), NoWeight()),
        critic=Critic(1e-4),
    )
    limited = areal(overlong_limit=8, overlong_margin=4, overlong_penalty=0.5)
    cases: list[tuple[str, Algorithm, dict[str, Any]]] = [
        ("`areal()`", areal(), paper),
        ("`areal(kl=0.3)`", areal(kl=0.3), {**paper, "kl_ctl": 0.3}),
        (
            "`areal(kl=0.1, token_discount=0.9)`",
            areal(kl=0.1, token_discount=0.9),
            {**paper, "kl_ctl": 0.1, "discount": 0.9},
        ),
        ("`areal(group_norm=True)`", areal(group_norm=True), {**paper, "reward_norm": by_group}),
        ("`areal(overlong_limit=8, ...)`", limited, {**paper, **overlong}),
        ("`grpo()`", grpo(), {"reward_norm": by_group}),
        ("`rloo()`", rloo(), {"reward_norm": others}),
        ("`GAE(1.0, 0.9, 0.95)`", with_critic, {"discount": 0.95, "gae_lambda": 0.9}),
    ]
    for name, algorithm, keys in cases:

        def error(seed: int, algorithm: Algorithm = algorithm, keys: Any = keys) -> float:
            rows = random_rows(seed)
            found_BL = their_advantages(theirs, rows, keys, algorithm.critic is not None)
            apart_BL = np.abs(found_BL - our_advantages(algorithm, rows))
            return float(apart_BL[rows.trained_BL].max())

        yield f"advantages of {name}", "`PPOActor.compute_advantages`", error


def losses_compared(theirs: Theirs) -> Iterator[Comparison]:
    def rejection(level: str, action: str) -> Any:
        return theirs.config.RejectionSamplingConfig(level=level, action=action, upper=BOUND)

    clip = Clip(CLIP_LOW, CLIP_HIGH)
    dual = Clip(CLIP_LOW, CLIP_HIGH, DUAL)
    cases: list[tuple[str, Objective, dict[str, Any]]] = [
        ("`naive_ppo()`", naive_ppo().objective, {"proximal": "behaviour"}),
        ("dual clip, no weight", Surrogate(dual, NoWeight()), {"c_clip": DUAL}),
        (
            "geometric mean (`gspo`)",
            Surrogate(clip, NoWeight(), SequenceRatio()),
            {"importance_sampling_level": "sequence"},
        ),
    ]
    for level in Level:
        for beyond in Beyond:
            weight = ImportanceWeight(BOUND, level, beyond)
            bounds = {"rejection_sampling": rejection(level.value, beyond.value)}
            cases.append((f"weight by {level}, {beyond}ed", Surrogate(clip, weight), bounds))
    for name, objective, keys in cases:

        def error(seed: int, objective: Objective = objective, keys: Any = keys) -> float:
            tokens = random_tokens(seed)
            more = dict(keys)
            centre_T = tokens.behaviour_T if more.pop("proximal", None) else tokens.proximal_T
            tokens = Tokens(**{**vars(tokens), "proximal_T": centre_T})

            def loss_of(current_T: Tensor) -> Tensor:
                found: tuple[Tensor, object] = theirs.functional.ppo_actor_loss_fn(
                    current_T,
                    tokens.proximal_T,
                    tokens.behaviour_T,
                    tokens.advantages_T,
                    eps_clip=CLIP_LOW,
                    eps_clip_higher=CLIP_HIGH,
                    loss_mask=tokens.mask_T,
                    cu_seqlens=tokens.ends_S,
                    **more,
                )
                return found[0]

            return distance(ours(objective, tokens), differentiated(loss_of, tokens.current_T))

        yield f"loss: {name}", "`ppo_actor_loss_fn`", error
    yield "loss: `SoftGate` (`sapo`), mean over tokens", "`sapo_loss_fn`", soft_gate(theirs)
    yield "loss: `Critic(clip=0.5)`", "`ppo_critic_loss_fn`", critic(theirs)


def soft_gate(theirs: Theirs) -> Callable[[int], float]:
    def error(seed: int) -> float:
        tokens = random_tokens(seed)
        tokens = Tokens(**{**vars(tokens), "proximal_T": tokens.behaviour_T})

        def loss_of(current_T: Tensor) -> Tensor:
            found: tuple[Tensor, object] = theirs.functional.sapo_loss_fn(
                current_T, tokens.behaviour_T, tokens.advantages_T, 1.0, 1.05, tokens.mask_T
            )
            return found[0]

        gate = Surrogate(SoftGate(1.0, 1.05), NoWeight())
        return distance(ours(gate, tokens), differentiated(loss_of, tokens.current_T))

    return error


def critic(theirs: Theirs) -> Callable[[int], float]:
    def error(seed: int) -> float:
        tokens = random_tokens(seed)
        value_T, old_T, target_T = (
            t.float() for t in (tokens.current_T, tokens.proximal_T, tokens.behaviour_T)
        )

        def their_loss(value_T: Tensor) -> Tensor:
            found: tuple[Tensor, object] = theirs.functional.ppo_critic_loss_fn(
                value_T, old_T, target_T, 0.5, tokens.mask_T
            )
            return found[0]

        def our_loss(value_T: Tensor) -> Tensor:
            found = Critic(1e-4, 0.5).loss(value_T, old_T, target_T, tokens.mask_T)
            return found.terms_T.sum() / tokens.mask_T.sum()

        return distance(differentiated(our_loss, value_T), differentiated(their_loss, value_T))

    return error


def others_compared(theirs: Theirs) -> Iterator[Comparison]:
    def screen(seed: int) -> float:
        tokens = random_tokens(seed)
        kept_T = theirs.actor._apply_m2po_masking(
            tokens.behaviour_T, tokens.proximal_T, tokens.mask_T, 0.1
        )
        log_weights_T = (tokens.proximal_T - tokens.behaviour_T)[tokens.mask_T]
        return float((kept_T[tokens.mask_T] != SecondMoment(0.1).keep(log_weights_T)).sum())

    def centre(seed: int) -> float:
        tokens = random_tokens(seed)
        versions_T = torch.randint(0, 6, tokens.current_T.shape, generator=_seeded(seed))
        found = theirs.actor.compute_prox_logp_approximations(
            tokens.behaviour_T, tokens.current_T, versions_T, 6, "loglinear"
        )["loglinear"]
        lags_T = 5.0 - versions_T.double()
        mine = interpolate(tokens.behaviour_T, tokens.current_T, lags_T, progress=1.0)
        return float((found - mine).abs().max())

    def pair(seed: int) -> float:
        c, r, ref_c, ref_r = torch.randn(4, generator=_seeded(seed), dtype=torch.float64) * 5.0
        mine = DPO(0.1)(
            PairScores(float(c), float(r)), PairScores(float(ref_c), float(ref_r)), (1, 1)
        )
        logits = torch.stack([(c - ref_c) - (r - ref_r)])
        return abs(mine.loss - float(theirs.functional.dpo_preference_loss(logits, beta=0.1)))

    yield "tokens left out by `SecondMoment(0.1)` (`m2po`)", "`_apply_m2po_masking`", screen
    name = "`interpolate`, at the end of a step"
    yield name, "`compute_prox_logp_approximations`", centre
    yield "loss: DPO of a pair", "`dpo_preference_loss`", pair


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def section(found: Sequence[tuple[str, str, float]], wheel: Path, inputs: int) -> str:
    rows = [(mine, yours, f"{error:.1e}") for mine, yours, error in found]
    return (
        "## The algorithms against AReaL's own functions\n\n"
        f"`python benchmarks/against_areal.py {wheel.name} --inputs {inputs} --write`: the largest absolute difference "
        f"of any advantage, loss or derivative over {inputs} random inputs. AReaL's functions are imported out of the "
        "wheel; they compute advantages and log-weights in float32. The docstring of the program says more.\n\n"
        + table(("ours", "AReaL's", "largest difference"), rows)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--inputs", type=int, default=200)
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    options = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as directory:
        theirs = import_areal(options.wheel, Path(directory))
        for compared in (advantages_compared, losses_compared, others_compared):
            for mine, yours, error in compared(theirs):
                found.append((mine, yours, max(map(error, range(options.inputs)))))
                print(*found[-1], flush=True)
    if options.write:
        write_section("against-areal", section(found, options.wheel, options.inputs))


if __name__ == "__main__":
    main()
