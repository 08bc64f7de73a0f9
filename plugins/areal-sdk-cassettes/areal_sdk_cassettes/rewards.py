"""The reward `cassette`: the recorded answer, and how far an episode kept to its recording."""

from areal_sdk import Episode, Outcome
from areal_sdk.types import OutcomeKind
from areal_sdk_cassettes.recording import Playback, Recording


def cassette(episode: Episode) -> Outcome:
    """1.0 for the recorded last answer, letter case and space aside; else 0.0.

    An episode whose last message makes a call that is not recorded abstains: nobody knows what the tool would have
    said, so it is no zero. So does each episode of a recording without a last answer. Metrics: `left_recording`, 1.0 if
    any call was not recorded, and `recorded_calls`, the share of the others.
    """
    playback = Playback(recording := Recording.of(episode.task))
    ends_unseen = False
    for turn in episode.turns:
        calls = turn.message.get("tool_calls") or ()
        ends_unseen = None in [playback.result(call) for call in calls]
    metrics = {"left_recording": float(playback.num_unseen > 0)}
    if playback.num_calls:
        metrics["recorded_calls"] = 1.0 - playback.num_unseen / playback.num_calls
    if (final := recording.final_text) is None:
        why = "the recording breaks off before a last answer: leave it out, or judge it otherwise"
    elif ends_unseen:
        why = "a call is not in the recording"
    else:
        why = "" if episode.turns else "the model gave no answer"
    if why or final is None:
        return Outcome(OutcomeKind.ABSTAIN, message=why, metrics=metrics)
    is_same = _plain(episode.final_text) == _plain(final)
    return Outcome.scored(float(is_same), success=is_same, metrics=metrics)


def _plain(text: str) -> str:
    """The text without case and with single spaces.

    >>> _plain(" In  Oslo\\n")
    'in oslo'
    """
    return " ".join(text.casefold().split())
