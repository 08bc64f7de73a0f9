"""Accounts of callers: their keys, also those made while a server runs, and the quota of each."""
