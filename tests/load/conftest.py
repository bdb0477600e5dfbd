from __future__ import annotations

import load_cases
import pytest
import torch

from h5cache import H5TensorDataset


@pytest.fixture(scope="session", autouse=True)
def _one_torch_thread() -> None:
    """Comparing small tensors with a thread per core takes ten times as long where others use the cores."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session", params=["out.h5", "folder"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same samples as one file and as a folder of shards."""
    return load_cases.write(str(tmp_path_factory.mktemp("cases") / request.param))


@pytest.fixture(scope="session")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    return load_cases.write(str(tmp_path_factory.mktemp("case") / "out.h5"))


@pytest.fixture
def ds(path: str) -> H5TensorDataset:
    return H5TensorDataset(path, as_dict=True)


@pytest.fixture
def one(file: str) -> H5TensorDataset:
    return H5TensorDataset(file, as_dict=True)
