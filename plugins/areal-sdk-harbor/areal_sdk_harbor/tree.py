"""Directories of a task, as they travel into its sandbox."""

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

MAX_BYTES = 64 << 20
"""Largest size in bytes of a directory that is taken: it travels into each episode's sandbox."""


@dataclass(frozen=True, slots=True)
class Tree:
    """Files and folders below one directory, by relative name."""

    folders: tuple[str, ...] = ()
    files: tuple[tuple[str, int, bytes], ...] = ()
    """Name, mode and content."""
    links: tuple[tuple[str, str], ...] = ()
    """Name and target."""


class LeavesError(ValueError):
    """A directory holds what does not belong to it."""


def read_tree(root: Path, *, without: frozenset[str] = frozenset()) -> Tree:
    """The tree of a directory, or of one file. A link that leads out of it is refused, and no link is followed.

    `without`: names at the top that stay behind.
    """
    if root.is_symlink():
        raise LeavesError(f"{root.name} is a link: put the files themselves there")
    if root.is_file():
        return Tree(files=((root.name, root.stat().st_mode & 0o777, root.read_bytes()),))
    folders: list[str] = []
    files: list[tuple[str, int, bytes]] = []
    links: list[tuple[str, str]] = []
    left = MAX_BYTES
    for where, names, others in os.walk(root, followlinks=False):
        below = Path(where).relative_to(root)
        if below == Path():
            names[:] = [name for name in names if name not in without]
            others = [name for name in others if name not in without]
        for name in sorted((*names, *others)):
            path, inside = Path(where) / name, (below / name).as_posix()
            if path.is_symlink():
                links.append((inside, _checked_target(inside, os.readlink(path))))
            elif path.is_dir():
                folders.append(inside)
            elif path.is_file():
                if (left := left - path.stat().st_size) < 0:
                    raise LeavesError(f"{root.name} has more than {MAX_BYTES >> 20} MB")
                files.append((inside, path.stat().st_mode & 0o777, path.read_bytes()))
            else:
                raise LeavesError(f"{inside} is neither a file nor a directory")
    return Tree(tuple(sorted(folders)), tuple(sorted(files)), tuple(sorted(links)))


def _checked_target(name: str, target: str) -> str:
    """The target of a link; an error if it leads out of the tree.

    >>> _checked_target("data/latest", "../one.txt")
    '../one.txt'
    >>> _checked_target("data/latest", "../../secret")
    Traceback (most recent call last):
        ...
    areal_sdk_harbor.tree.LeavesError: link data/latest leads out of the directory, to ../../secret
    """
    place = PurePosixPath(os.path.normpath(PurePosixPath(name).parent / target))
    if PurePosixPath(target).is_absolute() or place.parts[:1] == ("..",):
        raise LeavesError(f"link {name} leads out of the directory, to {target}")
    return target
