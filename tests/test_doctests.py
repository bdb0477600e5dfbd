"""The examples in docstrings run as they stand."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import h5cache

MODULES = sorted(
    module.name for module in pkgutil.walk_packages(h5cache.__path__, "h5cache.") if "__main__" not in module.name
)


def with_examples() -> list[str]:
    found = []
    for name in MODULES:
        module = importlib.import_module(name)
        if any(test.examples for test in doctest.DocTestFinder().find(module)):
            found.append(name)
    return found


@pytest.mark.parametrize("name", with_examples())
def test_examples_of_a_module_run_as_they_stand(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0


def test_the_public_classes_have_examples() -> None:
    assert {"h5cache.schema", "h5cache.format.writer", "h5cache.load.dataset"} <= set(with_examples())
