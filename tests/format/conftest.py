"""Datasets of every kind of storage, fresh copies for each test."""

from __future__ import annotations

import os
import shutil

import pytest
from format_samples import write_mixed


@pytest.fixture(scope="session")
def mixed_original(tmp_path_factory):
    path = tmp_path_factory.mktemp("mixed") / "mixed.h5"
    return path, write_mixed(path)


@pytest.fixture
def mixed(mixed_original, tmp_path):
    """A file of every kind of storage, to be damaged, and its samples."""
    original, samples = mixed_original
    path = tmp_path / "mixed.h5"
    shutil.copyfile(original, path)
    return path, samples


@pytest.fixture(scope="session")
def folder_original(tmp_path_factory):
    path = tmp_path_factory.mktemp("folder") / "shards"
    return path, write_mixed(path, count=20, shard_samples=8)


@pytest.fixture
def folder(folder_original, tmp_path):
    """A folder of three shards, and its samples."""
    original, samples = folder_original
    path = tmp_path / "shards"
    shutil.copytree(original, path)
    return path, samples


@pytest.fixture
def plugin_environment():
    """The environment in which HDF5's own tools find the filters."""
    import hdf5plugin

    return {**os.environ, "HDF5_PLUGIN_PATH": hdf5plugin.PLUGINS_PATH}
