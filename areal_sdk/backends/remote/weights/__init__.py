"""New weights on their way to the servers: sent, swapped in, and verified.

`distributor` brings a published version to every server; `swap` does it for one server while
requests are in flight, with a `transport` that moves the bytes and `verify` that checks them. The
`sender` is a child process (`sender_process`) that holds the bytes.
"""
