"""Several gateway processes behind one address: each session has an owner, and requests reach it."""
