"""Batches that somebody holds, in whatever form, keep their values; the memory of the others is used again."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from load_cases import content, run_script

from h5cache import H5TensorDataset
from h5cache.load.memory import ALIGNMENT, FreshMemory, RecycledMemory
from h5cache.load.shared import SharedMemory

HOLDS: dict[str, Callable[[torch.Tensor], Any]] = {
    "the tensor": lambda batch: batch,
    "a slice": lambda batch: batch[2:5],
    "one sample": lambda batch: batch[3],
    "a permuted view": lambda batch: batch.transpose(1, 2),
    "detach": lambda batch: batch.detach(),
    "data": lambda batch: batch.data,
    "a view as other dtype": lambda batch: batch.view(torch.int8),
    "untyped storage": lambda batch: batch.untyped_storage(),
    "a numpy view": lambda batch: batch.numpy(),
    "a slice of a numpy view": lambda batch: batch.numpy()[1:, 0],
    "a dlpack export": lambda batch: batch.__dlpack__(),
    "a tensor from dlpack": torch.from_dlpack,
    "a numpy array from dlpack": np.from_dlpack,
    "a memoryview": lambda batch: memoryview(batch.numpy()),
    "unbind": lambda batch: batch.unbind(0)[1],
    "a parameter": lambda batch: torch.nn.Parameter(batch, requires_grad=False),
}


def value_of(held: Any) -> torch.Tensor:
    if isinstance(held, torch.UntypedStorage):
        return torch.empty(0, dtype=torch.uint8).set_(held).clone()
    if type(held).__name__ == "PyCapsule":
        return torch.utils.dlpack.from_dlpack(held).clone()
    return torch.tensor(np.asarray(held)) if not isinstance(held, torch.Tensor) else held.detach().clone()


@pytest.mark.parametrize("hold", HOLDS)
def test_a_held_batch_keeps_its_values_over_epochs(one: H5TensorDataset, hold: str) -> None:
    with one.loader(8, "full", threads=2, fields=["big", "number"], as_dict=False) as loader:
        held, expected = [], []
        for number, (big, numbers) in enumerate(loader):
            if number in (0, 1, 4):
                held.append(HOLDS[hold](big))
                expected.append(value_of(HOLDS[hold](content()["big"][numbers])))
        del big
        for _ in range(3):
            for big, _ in loader:
                del big
            gc.collect()
        for found, wanted in zip(held, expected, strict=True):
            assert torch.equal(value_of(found), wanted)


def test_a_tensor_in_a_running_autograd_graph_is_held(one: H5TensorDataset) -> None:
    weight = torch.ones(3, 80, 72, requires_grad=True)
    with one.loader(8, "full", threads=2, fields=["big_codes", "number"], as_dict=False) as loader:
        batches = iter(loader)
        pictures, numbers = next(batches)
        loss = (pictures * weight).sum()
        del pictures
        for _ in batches:
            pass
        loss.backward()
    assert torch.allclose(weight.grad, content()["big_codes"][numbers].sum(0), atol=1e-4)


def test_memory_is_lent_again_only_when_all_views_are_gone() -> None:
    memory = RecycledMemory(max_idle=2)
    array, tensor = memory.take((4, 3), np.dtype(np.float32))
    place = array.ctypes.data
    assert place % ALIGNMENT == 0
    view = tensor[1:2].detach()
    del array, tensor
    assert memory.take((4, 3), np.dtype(np.float32))[1].data_ptr() != place
    del view
    found = [memory.take((4, 3), np.dtype(np.float32)) for _ in range(2)]
    assert place in [tensor.data_ptr() for _, tensor in found]


def test_idle_memory_is_bounded() -> None:
    memory = RecycledMemory(max_idle=2)
    lent = [memory.take((1000,), np.dtype(np.uint8)) for _ in range(10)]
    lent.clear()
    assert [queue.qsize() for queue in memory._idle.values()] == [2]


@pytest.mark.parametrize(
    "kind", [RecycledMemory(1), FreshMemory(), SharedMemory()], ids=lambda kind: type(kind).__name__
)
@pytest.mark.parametrize("shape", [(5,), (2, 3, 4), (0, 3), (3, 1), (7, 0, 2)])
@pytest.mark.parametrize("dtype", ["uint8", "bool", "float32", "uint16", "int64"])
def test_array_and_tensor_are_the_same_contiguous_memory(kind: Any, shape: tuple[int, ...], dtype: str) -> None:
    array, tensor = kind.take(shape, np.dtype(dtype))
    assert array.shape == tuple(tensor.shape) == shape
    assert array.flags.c_contiguous
    assert tensor.is_contiguous()
    assert tensor.is_shared() == isinstance(kind, SharedMemory)
    array[...] = 1
    assert bool((tensor == 1).all())


def test_memory_of_20_epochs_is_flat(file: str) -> None:
    script = """
        import itertools, sys
        import torch
        torch.set_num_threads(1)
        from h5cache import H5TensorDataset
        def rss():
            with open("/proc/self/statm") as file:
                return int(file.read().split()[1])
        for field, shuffle in itertools.product(["big", "small", "big_codes"], ["chunk", "full"]):
            loader = H5TensorDataset(sys.argv[1], [field]).loader(8, shuffle, threads=2, dtype="float32")
            found = []
            for epoch in range(20):
                for batch in loader:
                    pass
                found.append(rss())
            assert found[-1] <= 1.05 * found[1], (field, shuffle, found)
    """
    done = run_script(script, file)
    assert (done.returncode, done.stderr) == (0, "")
