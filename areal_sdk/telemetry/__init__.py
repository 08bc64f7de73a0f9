"""What a run says about itself: books, metrics, episodes, waits, and the directory they live in."""
