"""Interpolated proximal logprobs."""

import pytest
import torch

from areal_sdk.algorithms.objectives import Proximal, interpolate
from areal_sdk.algorithms.presets import grpo
from areal_sdk.errors import ConfigError


def test_at_lag_zero_the_sampler_is_the_proximal_policy() -> None:
    b, q = torch.tensor([-2.0, -0.5]), torch.tensor([-1.0, -3.0])
    assert interpolate(b, q, torch.zeros(2), progress=0.5).tolist() == b.tolist()


def test_before_the_first_update_the_current_policy_is_the_proximal_one() -> None:
    b, q = torch.tensor([-2.0, -0.5]), torch.tensor([-1.0, -3.0], requires_grad=True)
    p = interpolate(b, q, torch.tensor([0.0, 3.0]), progress=0.0)
    assert p.tolist() == q.tolist()
    assert not p.requires_grad


def test_older_samples_put_the_proximal_policy_closer_to_the_current_one() -> None:
    b, q = torch.full((4,), -2.0), torch.full((4,), -1.0)
    p = interpolate(b, q, torch.tensor([0.0, 1.0, 2.0, 8.0]), progress=0.5)
    assert p.tolist() == sorted(p.tolist())
    assert len(set(p.tolist())) == 4


def test_it_is_exact_where_logprobs_drift_evenly() -> None:
    # Logprob at time t is -3 + 0.4 t; sampled at 1, the step starts at 3, and is now at 3.5.
    def at(time: float) -> torch.Tensor:
        return torch.tensor([-3.0 + 0.4 * time])

    p = interpolate(at(1.0), at(3.5), torch.tensor([2.0]), progress=0.5)
    torch.testing.assert_close(p, at(3.0))


def test_it_is_nearer_than_the_sampler_and_than_a_step_behind() -> None:
    # The convention v_prox = v - 1 would say p = b at lag one.
    b, p_true, q = -2.0, -1.6, -1.4
    p = interpolate(torch.tensor([b]), torch.tensor([q]), torch.tensor([1.0]), progress=0.5).item()
    assert abs(p - p_true) < abs(b - p_true)
    assert abs(p - p_true) < abs(q - p_true)


def test_a_preset_may_name_the_centre_in_its_own_words_and_not_misspell_it() -> None:
    """A text was taken for `interpolate`, whatever it said."""
    assert grpo(proximal="recompute").proximal is Proximal.RECOMPUTE  # type: ignore[arg-type]
    assert grpo(proximal="interpolate").proximal is Proximal.INTERPOLATE  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"'recomputed'.* recompute, interpolate"):
        grpo(proximal="recomputed")  # type: ignore[arg-type]
