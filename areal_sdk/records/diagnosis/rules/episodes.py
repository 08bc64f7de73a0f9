"""Rules about what the model says and what becomes of it: text, its end, tool calls, branches, errors."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean

from areal_sdk.records.diagnosis.course import number
from areal_sdk.records.diagnosis.cures import LIMITS, WITHOUT_REWARD
from areal_sdk.records.diagnosis.rules import REPLACEMENT, RunFault, counted_of
from areal_sdk.records.diagnosis.signs import Signs, since, step_of
from areal_sdk.telemetry import DropReason, EpisodeSummary
from areal_sdk.telemetry.metrics import cold_start
from areal_sdk.types import FinishReason, ForkReason, Turn

FEWEST_TURNS = 16
"""Number of turns below which there is no finding about turns."""
FEWEST_EPISODES = 16
"""Number of episodes below which there is no finding about errors."""

GARBLED_CHARACTERS = 0.05
"""Share of replacement characters above which a text is garbled."""
NGRAM, LONG, REPEATED = 4, 32, 0.7
"""Length of an n-gram, fewest tokens of a text whose n-grams are counted, and share of repeated n-grams above which the
text is garbled."""
GARBLED = 0.3
"""Share of garbled turns from which garbled output is a fault of the run."""
UNTAUGHT = 4.0
"""Entropy of the first step, in nats a token, above which a model knows no language: trained ones have one or two."""

UNENDED, WORDS = 0.95, 16
"""Share of the turns that the limit must have ended, if no turn stopped by itself, and fewest tokens of the longest
turn: a lower limit only asks for a word or a digit."""
UNPARSED, PARSED = 0.3, 0.05
"""Share of the turns with tools that try a call in vain, and share of all tries that parse, if a format is broken."""
CALL_MARKS = re.compile(
    r"<tool_call|<function|<\|python_tag\||\[TOOL_CALLS\]|\"(?:name|arguments|parameters)\"\s*:"
)
"""Beginnings of a tool call in the formats of the models that we serve."""
FORKING = 0.5
"""Share of the later turns (all but the first of an episode) that fork, from which forks are a fault."""
SILENT = 0.5
"""Share of the later turns that got only empty messages, from which an environment is silent."""
FAILING = 0.1
"""Share of the episodes that end with the same kind of error, from which this error is a fault."""

FORK_CURES: Mapping[ForkReason, str] = {
    ForkReason.SYSTEM_CHANGED: "keep the system message as it is from call to call: no clock, no counter",
    ForkReason.TOOLS_CHANGED: "send the same `tools` in the same order with every call",
    ForkReason.ARGS_CHANGED: "send `tool_calls[].function.arguments` back as they were received, not parsed and dumped again",
    ForkReason.EDITED: "send earlier messages back as they were received: no stripping, no rewriting",
    ForkReason.COMPACTION: "let the agent shorten its history later, or raise rollout.max_episode_tokens",
    ForkReason.THINKING_DROPPED: "send `reasoning_content` back with each assistant message",
    ForkReason.TEMPLATE_UNSTABLE: "the chat template writes earlier turns anew: choose another gateway.tool_format",
}
"""The cure for each kind of fork. Sub-agents and repeated samples fork on purpose, and need none."""

ERRORS: Mapping[DropReason, tuple[str, str]] = {
    DropReason.ERROR_AGENT: ("agent errors", "batch/agent_error_share"),
    DropReason.ERROR_REWARD: ("failing reward", "batch/reward_error_share"),
    DropReason.ERROR_ENVIRONMENT: ("environment errors", "batch/environment_error_share"),
    DropReason.ERROR_TIMEOUT: ("timeouts", "batch/timeout_share"),
}
"""The fault and the metric of each way to end without a reward."""
OF_SOURCE = 0.8
"""Smallest share of the failed episodes for which a single source is named."""


def garbled(signs: Signs) -> RunFault | None:
    """Replacement characters, and loops of the same few tokens."""
    judged = [(step, turn, how) for step, turn in signs.turns if (how := _garble(turn)) is not None]
    bad = [(step, turn, how) for step, turn, how in judged if how]
    if len(judged) < FEWEST_TURNS or len(bad) < GARBLED * len(judged):
        return None
    kinds = Counter(how for _, _, how in bad)
    at = since([(step, float(bool(how))) for step, _, how in judged], lambda share: share > GARBLED)
    step, turn, _ = bad[0]
    found = f"{counted_of(len(bad), len(judged))} sampled turns are garbled: "
    found += ", ".join(f"{count} {how}" for how, count in kinds.most_common())
    cure = (
        "look at an episode (areal-sdk inspect RUN --worst 1). If output was garbled from the first step, check the model and "
        "its tokenizer (areal-sdk doctor model); if it became so, go back to a checkpoint before, and lower trainer.learning_rate"
    )
    surprise = -fmean(logprob for _, turn, _ in bad for logprob in turn.logprobs or (0.0,))
    if (entropy := next(iter(signs.points("train/entropy")), (0, surprise))[1]) > UNTAUGHT:
        found += f"; the model began with an entropy of {number(entropy)} nats a token, as one that was never trained"
        cure = (
            "begin with a model that was trained, or warm this one up on demonstrations (sft.steps)"
        )
    moved = signs.moved(("train/kl_step", "train/entropy", "train/dlogp_lag_0", "batch/reward"))
    return RunFault("garbled output", found, cure, at, (f"step {step}: {turn.text[:60]!r}",), moved)


def _garble(turn: Turn) -> str | None:
    """The fault of the text; empty if there is none, None for a turn without text to judge."""
    text, tokens = turn.text, turn.output_tokens
    if text and text.count(REPLACEMENT) > GARBLED_CHARACTERS * len(text):
        return "with replacement characters"
    if len(tokens) < LONG:
        return "" if text else None
    grams = [tokens[at : at + NGRAM] for at in range(len(tokens) - NGRAM + 1)]
    return "that repeat themselves" if 1.0 - len({*grams}) / len(grams) > REPEATED else ""


def never_stops(signs: Signs) -> RunFault | None:
    """Turns that only the limit ends, from the first step on."""
    if signs.is_healthy:
        return None
    ends = Counter(turn.finish_reason for _, turn in signs.turns)
    total = sum(ends.values())
    if (
        total < FEWEST_TURNS
        or ends[FinishReason.STOP]
        or ends[FinishReason.LENGTH] < UNENDED * total
    ):
        return None
    longest = max(len(turn.output_tokens) for _, turn in signs.turns)
    if longest < WORDS:
        return None
    return RunFault(
        "stop token never sampled",
        f"none of {total} sampled turns ended by itself: the limit ended {ends[FinishReason.LENGTH]}",
        "look at the end of an answer (areal-sdk inspect RUN --worst 1). If it goes on after the answer, the model does not "
        "know its stop token: check eos_token_id and the chat template, or imitate demonstrations first (areal-sdk sft). If it "
        f"stops in the middle, raise {LIMITS}",
        min(step for step, _ in signs.turns),
        (f"longest sampled turn: {longest} tokens",),
        signs.moved(("batch/sampled_tokens", "batch/truncated")),
    )


def unparsed_calls(signs: Signs) -> RunFault | None:
    """Tool calls that stay text, or that are never tried."""
    offered = [(step, turn) for step, turn in signs.turns if turn.offers_tools]
    calls = [turn for _, turn in offered if turn.message.get("tool_calls")]
    tries = [
        (step, turn)
        for step, turn in offered
        if not turn.message.get("tool_calls") and CALL_MARKS.search(turn.text)
    ]
    enough = len(offered) >= FEWEST_TURNS and len(tries) > UNPARSED * len(offered)
    if enough and len(calls) <= PARSED * (len(calls) + len(tries)):
        step, turn = tries[0]
        return RunFault(
            "tool calls never parse",
            f"{len(tries)} of {len(offered)} turns with tools try a call, and {len(calls)} parse",
            "set gateway.tool_format to the model's own (areal-sdk doctor model tries it), and check the call below: a limit may "
            "cut it, or its JSON is wrong",
            step,
            (f"step {step}: {turn.text[:120]!r}",),
            signs.moved(("batch/called_tools", "batch/reward")),
        )
    if (said := cold_start(signs.steps)) and not tries and not signs.is_healthy:
        found, _, cure = said.partition(": ")
        return RunFault("tools never called", found, cure, signs.steps[0]["step"])
    return None


def forks(signs: Signs) -> RunFault | None:
    """Turns that do not continue the turn before, because the client changed its history."""
    later = [(step, turn) for step, episode in signs.sampled for turn in episode.turns[1:]]
    forked = [(step, turn.fork) for step, turn in later if turn.fork in FORK_CURES]
    if len(later) < FEWEST_TURNS or len(forked) < FORKING * len(later):
        return None
    (reason, count), *others = Counter(fork for _, fork in forked if fork).most_common()
    return RunFault(
        "forks on every turn",
        f"{counted_of(len(forked), len(later))} later turns fork, {count} of them by {reason.value}: their history is "
        "computed and trained anew",
        FORK_CURES[reason],
        min(step for step, _ in forked),
        tuple(f"{number} by {other.value}" for other, number in others),
    )


def silent(signs: Signs) -> RunFault | None:
    """Later turns to which the environment, or the tools, said nothing."""
    heard = [
        (step, [m.get("content") for m in turn.new_messages if m.get("role") != "assistant"])
        for step, episode in signs.sampled
        for turn in episode.turns[1:]
    ]
    empty = [step for step, said in heard if said and not any(str(c or "").strip() for c in said)]
    if signs.is_healthy or len(heard) < FEWEST_TURNS or len(empty) < SILENT * len(heard):
        return None
    found = f"{counted_of(len(empty), len(heard))} later turns were told nothing: every new message was empty"
    cure = "look at an episode (areal-sdk inspect RUN --worst 1): let `step`, or the tool, answer with a text"
    return RunFault("empty observations", found, cure, min(empty))


def errors(signs: Signs) -> RunFault | None:
    """The most frequent kind of error with which episodes ended without a reward."""
    total = len(signs.summaries)
    dropped = (one.dropped for one in signs.summaries)
    counts = Counter(why for why in dropped if isinstance(why, DropReason) and why in ERRORS)
    if total < FEWEST_EPISODES or not counts:
        return None
    (reason, count), *_ = counts.most_common(1)
    fault, metric = ERRORS[reason]
    failed = [(step_of(one), float(one.dropped is reason)) for one in signs.summaries]
    if count < FAILING * total:
        return None
    bad = [one for one in signs.summaries if one.dropped is reason]
    (error, times), *_ = Counter(
        " ".join((one.error or "").split())[:160] for one in bad
    ).most_common(1)
    return RunFault(
        fault,
        f"{counted_of(count, total)} episodes got no reward and are not trained{_by_source(signs, bad)}",
        WITHOUT_REWARD[metric],
        since(failed, lambda share: share > FAILING),
        (f"{times} times: {error}",),
        signs.moved((metric, "batch/reward", "train/entropy", "train/kl_step")),
    )


def _by_source(signs: Signs, bad: Sequence[EpisodeSummary]) -> str:
    """The source of nearly all failed episodes, in words; empty if there is none, or if all tasks have one source."""
    names = {one.id for one in bad}
    failed = Counter(episode.task.source for episode in signs.failed if episode.id in names)
    known = {episode.task.source for _, episode in signs.sampled} | {*failed}
    if len(known) < 2 or not failed:
        return ""
    (source, count), *_ = failed.most_common(1)
    is_one = source and count >= OF_SOURCE * failed.total()
    return f", nearly all of source {source!r}" if is_one else ""
