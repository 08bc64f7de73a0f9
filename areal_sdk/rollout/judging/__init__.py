"""The verdict on episodes: reward functions in processes of their own, and how their results add up."""
