"""Small pictures for the tests of conversion."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert_samples import make_pictures


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 pictures of three classes. Not to be changed: copy them first."""
    root = tmp_path_factory.mktemp("pictures") / "source"
    make_pictures(root, 100)
    return root


@pytest.fixture(scope="session")
def keys(pictures: Path) -> list[str]:
    return sorted(str(path.relative_to(pictures)) for path in pictures.rglob("*.*"))
