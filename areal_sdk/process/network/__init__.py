"""Children that somebody else started, perhaps on another machine: they connect over TCP.

The main process listens (`listen`), a child joins (`join`), and both prove that they know the run's
token (`handshake`).
"""
