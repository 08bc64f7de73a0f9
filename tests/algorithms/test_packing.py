"""Trees hold every sequence exactly, whatever they share."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_sdk.algorithms.batch import empty_batch, make_batch
from areal_sdk.algorithms.examples import Example, make_demonstration, make_example
from areal_sdk.algorithms.packing import Tree, build_trees, pack_trees, plan_rows, split_evenly
from areal_sdk.trajectory import Branch

from .trajectories import trajectory
from .trees import paths, trees_of

sequences = st.lists(
    st.lists(st.integers(0, 2), min_size=1, max_size=12).map(lambda s: np.array(s, dtype=np.int64)),
    min_size=1,
    max_size=8,
)


def total(trees: list[Tree]) -> int:
    return sum(len(tree) for tree in trees)


@given(sequences, st.integers(1, 40), st.booleans())
def test_every_sequence_can_be_read_back(
    given_sequences: list[np.ndarray], max_tokens: int, share: bool
) -> None:
    trees = trees_of(given_sequences, max_tokens=max_tokens, share=share)
    seen = []
    for tree in trees:
        for member, path in zip(tree.members, paths(tree), strict=True):
            seen.append(member)
            assert tree.tokens[path].tolist() == given_sequences[member].tolist()
            assert tree.positions[path].tolist() == list(range(len(path)))
    assert sorted(seen) == list(range(len(given_sequences)))


@given(sequences)
def test_no_prefix_is_stored_twice(given_sequences: list[np.ndarray]) -> None:
    prefixes = {tuple(s[: i + 1].tolist()) for s in given_sequences for i in range(len(s))}
    assert total(trees_of(given_sequences)) == len(prefixes)


@given(sequences)
def test_descendants_lie_right_behind_their_segment(given_sequences: list[np.ndarray]) -> None:
    given_sequences = [np.concatenate([[7], s]) for s in given_sequences]  # one root
    [tree] = trees_of(given_sequences)
    for index, segment in enumerate(tree.segments):
        below = {index}
        for other, candidate in enumerate(tree.segments):
            if candidate.parent in below:
                below.add(other)
        tokens = sorted(
            i
            for other in below
            for i in range(tree.segments[other].start, tree.segments[other].stop)
        )
        assert tokens == list(range(segment.start, segment.subtree_stop))


@given(st.data())
def test_branches_that_share_are_laid_out_as_if_each_were_whole(data: st.DataObject) -> None:
    branches: list[Branch] = []
    for index in range(data.draw(st.integers(1, 8))):
        before = (
            data.draw(st.sampled_from(branches)) if index and data.draw(st.booleans()) else None
        )
        num_before = 0 if before is None else data.draw(st.integers(0, len(before)))
        own = data.draw(st.lists(st.integers(0, 2), min_size=not num_before, max_size=6))
        branches.append(Branch(own, before=before, num_before=num_before))
    given_branches = [
        branch.cut(data.draw(st.integers(max(branch.num_before, 1), len(branch))))
        for branch in data.draw(st.lists(st.sampled_from(branches), min_size=1))
    ]
    limits = {
        "max_tokens": data.draw(st.integers(1, 40)),
        "num_ranks": data.draw(st.integers(1, 3)),
    }
    share = data.draw(st.booleans())
    shared = plan_rows(given_branches, **limits, share=share)
    alone = plan_rows([Branch(b.whole) for b in given_branches], **limits, share=share)
    assert shown(shared) == shown(alone)


def shown(plan: list[list[list[Tree]]]) -> object:
    return [
        [[(t.segments, t.members, t.ends, t.tokens.tolist()) for t in row] for row in rows]
        for rows in plan
    ]


def test_a_deep_tree_is_laid_out() -> None:
    """A thousand turns that each fork from the prompt of the turn before."""
    branches = [Branch([1])]
    for turn in range(1000):
        branches.append(Branch([2, turn], before=branches[-1], num_before=len(branches[-1])))
    [[[tree]]] = plan_rows(branches, max_tokens=10_000)
    assert len(tree) == 2001
    assert tree.nodes(1000, np.array([0, 1999, 2000])).tolist() == [0, 1999, 2000]


def test_without_sharing_each_sequence_is_its_own_tree() -> None:
    same = [np.array([1, 2, 3])] * 3
    assert total(trees_of(same, max_tokens=100)) == 3
    assert total(trees_of(same, max_tokens=100, share=False)) == 9


def test_rows_respect_the_budget_unless_one_tree_alone_exceeds_it() -> None:
    trees = trees_of([np.full(n, n) for n in (3, 4, 5, 20)], max_tokens=8)
    rows = pack_trees(trees, max_tokens=8)
    sizes = sorted(sum(len(trees[i]) for i in row) for row in rows)
    assert sizes == [4, 8, 20]


def test_ranks_get_about_equal_shares_and_nothing_is_lost() -> None:
    rng = np.random.default_rng(0)
    given_sequences = [rng.integers(0, 100, n) for n in rng.integers(5, 50, 24)]
    shares = plan_rows([Branch(s) for s in given_sequences], max_tokens=100, num_ranks=3)
    members = [m for rows in shares for trees in rows for t in trees for m in t.members]
    tokens = [sum(len(t) for trees in rows for t in trees) for rows in shares]
    assert len(members) == 24
    assert max(tokens) < 1.5 * min(tokens)


def test_a_single_tree_is_split_rather_than_leave_a_rank_idle() -> None:
    prompt = [7] * 20
    given_sequences = [np.array([*prompt, i, *[i] * 20]) for i in range(8)]
    one, other = plan_rows([Branch(s) for s in given_sequences], max_tokens=10_000, num_ranks=2)
    assert one
    assert other


def test_large_trees_are_split() -> None:
    prompt = [7] * 10
    given_sequences = [np.array([*prompt, i, *[i] * 39]) for i in range(16)]
    trees = trees_of(given_sequences, max_tokens=120)
    assert [len(tree.members) for tree in trees] == [2] * 8
    assert max(len(tree) for tree in trees) <= 120


def test_a_long_prompt_is_not_repeated_to_satisfy_a_budget_or_a_rank() -> None:
    prompt = [7] * 1000
    given_sequences = [np.array([*prompt, i, *[i] * 10]) for i in range(8)]
    assert total(trees_of(given_sequences, max_tokens=500)) == 1088
    shares = plan_rows([Branch(s) for s in given_sequences], max_tokens=10_000, num_ranks=4)
    assert max(sum(len(t) for trees in rows for t in trees) for rows in shares) <= 1088


def test_splitting_evenly_may_leave_parts_empty() -> None:
    assert split_evenly([3], 2) == [[0], []]


def test_what_follows_the_last_target_is_never_computed() -> None:
    example = make_example(trajectory([5, 6, 7, 8, 9], [2]), np.ones(5, dtype=np.float32))
    assert example is not None
    assert example.inputs.whole.tolist() == [5, 6]


def test_tokens_without_an_advantage_are_not_computed() -> None:
    advantages = np.array([0, 0, 1, 0], dtype=np.float32)
    example = make_example(trajectory([5, 6, 7, 8], [1, 2, 3]), advantages)
    assert example is not None
    assert example.targets_T.tolist() == [2]
    assert make_example(trajectory([5, 6, 7], [1, 2]), np.zeros(3, dtype=np.float32)) is None


def test_a_trained_first_token_is_refused() -> None:
    with pytest.raises(ValueError, match="no token before it predicts it"):
        make_example(trajectory([5, 6], [0, 1]), np.ones(2, dtype=np.float32))


def test_a_demonstration_without_targets_is_nothing() -> None:
    assert make_demonstration([1, 2, 3], [True, False, False]) is None
    example = make_demonstration([1, 2, 3], [True, False, True])
    assert example is not None
    assert example.targets_T.tolist() == [2]


def example(tokens: list[int], trained: list[int], **options: float) -> Example:
    made = make_example(
        trajectory(tokens, trained, **options),  # type: ignore[arg-type]
        np.ones(len(tokens), dtype=np.float32),
    )
    assert made is not None
    return made


def test_terms_that_share_a_node_stay_apart() -> None:
    examples = [
        example([1, 2, 3, 4], [2, 3], logprob=-0.1, version=3),
        example([1, 2, 3, 4], [2, 3], logprob=-0.2, version=5),
        example([1, 2, 9], [2], logprob=-0.3, version=4),
    ]
    trees = build_trees([e.inputs for e in examples], max_tokens=100)
    batch = make_batch(trees, examples, version=6)
    assert len(batch.tokens_N) == 3  # 1, 2, 3
    assert len(batch.nodes_R) == 2  # after 2, and after 3
    assert sorted(zip(batch.behaviour_T.tolist(), batch.lags_T.tolist(), strict=True)) == [
        (pytest.approx(-0.3), 2.0),
        (pytest.approx(-0.2), 1.0),
        (pytest.approx(-0.2), 1.0),
        (pytest.approx(-0.1), 3.0),
        (pytest.approx(-0.1), 3.0),
    ]
    assert set(batch.sequences_T.tolist()) == {0, 1, 2}


def test_one_node_at_two_temperatures_is_two_distributions() -> None:
    examples = [example([1, 2], [1], temperature=t) for t in (1.0, 0.5)]
    batch = make_batch(build_trees([e.inputs for e in examples], max_tokens=9), examples, version=0)
    assert batch.nodes_R.tolist() == [0, 0]
    assert batch.temperatures_R[batch.rows_T].tolist() == [1.0, 0.5]


def test_an_empty_batch_has_one_masked_term() -> None:
    assert empty_batch(example([1, 2], [1])).mask_T.tolist() == [False]
