"""The trainer: FSDP2 ranks in processes of their own, and the light client that drives them."""
