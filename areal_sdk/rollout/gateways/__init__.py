"""Gateway processes of `areal-sdk serve`: what they tell the main process, and how it keeps them running."""
