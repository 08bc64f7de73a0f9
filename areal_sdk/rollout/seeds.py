"""Seeds that mean the same in every process and every year: hashes of names, never `hash()`."""

from hashlib import blake2b

SEED_BITS = 63


def stable_seed(*parts: int | str) -> int:
    """A 63-bit seed for whatever `parts` name, such as (run seed, task id, epoch, sibling, turn).

    >>> stable_seed(0, "task-1", 0, 2)
    6893916561925302899
    >>> stable_seed("ab", "c") == stable_seed("a", "bc")
    False
    """
    digest = blake2b(digest_size=8)
    for part in parts:
        encoded = f"{type(part).__name__}:{part}".encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(4, "big") + encoded)
    return int.from_bytes(digest.digest(), "big") >> (64 - SEED_BITS)
