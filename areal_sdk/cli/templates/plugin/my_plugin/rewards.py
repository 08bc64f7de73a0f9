"""A reward is a function of an episode; its keyword parameters are its options."""

from areal_sdk import Episode


def brevity(episode: Episode, *, max_words: int = 50) -> float | None:
    """1.0 up to `max_words` words, then falling to 0.0 at twice as many; None if nothing was said."""
    if not episode.final_text.strip():
        return None  # no verdict, which is not the same as a reward of zero
    excess = len(episode.final_text.split()) - max_words
    return min(1.0, max(0.0, 1.0 - excess / max_words))
