"""What holds for every test."""

import signal

# A shell makes its background jobs, and so what they start, deaf to Ctrl-C. Tests send it to processes.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
