"""Processes that reach each other over TCP, perhaps on several machines.

The main process listens (`listen`) for children that somebody else started; a child joins (`join`). A
child may also let other processes ask it (`guests`). Both sides of a connection prove that they know the
token of its listener (`handshake`).
"""
