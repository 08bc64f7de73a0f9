"""Every place of the viewer, for the tests that look at all of them."""

from view_browser import Page

PLACES = {
    "#runs": "guess-1",
    "#run/guess-1": "Every episode, accounted for",
    "#run/guess-1/curves?axis=tokens&smooth=0.9&log=1&names=other": "thing",
    "#run/guess-1/episodes?where=reward+%3C+0.5": "train-1.0",
    "#run/guess-1/episodes?text=times+ten&order=worst": "found in",
    "#run/guess-1/episode/train-4.3": "branch: compaction",
    "#run/guess-1/episode/train-4.0?colour=version&token=3": "token 3, id 4",
    "#run/guess-1/episode/train-4.0?colour=change": "the tokens that changed most",
    "#run/guess-1/episode/bad": "KeyError",
    "#run/guess-1/group/train-4": "tokens are the same",
    "#run/guess-1/group/train-4?order=reward": "train-4.3",
    "#run/guess-1/tasks": "t-1",
    "#run/guess-1/task/t-1": "The token that changed most between two weights",
    "#run/guess-1/failures": "last answer The answer is #.",
    "#run/guess-1/lanes": "kept empty by the gate",
    "#run/guess-1/logs": "No logs here",
    "#run/guess-1/settings": "algorithm.name",
    "#run/guess-1/why": "No fault found",
    "#compare?run=guess-1&run=guess-2": "trainer.learning_rate",
    "#compare/episodes?run=guess-1&run=guess-2&episode=train-2.0&episode=train-2.1": "train-2.1",
}
"""Places, and a text that each shows. A new view belongs here: all tests of pages go through this list."""


def check(page: Page, own: str) -> None:
    """Nothing went wrong, and nothing was asked of another host."""
    assert not page.problems, "\n".join(page.problems)
    foreign = [url for url in page.requested if not url.startswith((own, "data:", "blob:"))]
    assert not foreign, foreign
