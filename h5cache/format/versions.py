"""The versions of what wrote a file, for its provenance."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

__all__ = ["library_versions"]

#: What decides over the bytes of a file.
LIBRARIES = ("h5cache", "numpy", "h5py", "blosc2", "numcodecs")


def library_versions() -> dict[str, str]:
    """Return name -> version; nothing of the machine, the clock or the user."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "unknown"
    return found
