"""Worker processes that play the agents of many episodes, and the main process's side of them."""
