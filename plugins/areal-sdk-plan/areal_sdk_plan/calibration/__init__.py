"""Recorded runs read for the speeds of their parts."""
