"""The tool that these agents use: a digit to guess, in two guesses."""

INSTRUCTIONS = "Find the digit with guess, then say ok."
QUESTION = "0-2?"
HIGHEST = 2
NUM_GUESSES = 2


class NumberGame:
    """Guessing 1 first and then following the hint always wins; guessing blindly wins 5 of 9 games."""

    def __init__(self, secret: int) -> None:
        self.secret = secret
        self.num_left = NUM_GUESSES
        self.won = False

    def guess(self, digit: int) -> str:
        """Guess the digit.

        Args:
            digit: your guess
        """
        if self.won or self.num_left == 0:
            return "over"
        self.num_left -= 1
        self.won = digit == self.secret
        if self.won:
            return "right"
        if self.num_left == 0:
            return "over"
        return "higher" if digit < self.secret else "lower"
