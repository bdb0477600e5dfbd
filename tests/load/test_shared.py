"""Batches of DataLoader workers lie in memory that is used again, and never while somebody holds them."""

from __future__ import annotations

import copy
import gc
import io
import os
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from load_cases import NUM, content, run_script
from test_memory import HOLDS, value_of
from torch.utils.data import DataLoader, default_collate

from h5cache import H5TensorDataset
from h5cache.load.shared import SharedMemory, SharedTensor, worker_memory

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="segments without a name need Linux")

UINT8 = np.dtype(np.uint8)


def send(tensor: torch.Tensor) -> torch.Tensor:
    """Pass a tensor on as DataLoader's queue does, within this process."""
    from multiprocessing.reduction import ForkingPickler

    return pickle.loads(ForkingPickler.dumps(tensor))


def take(memory: SharedMemory, value: int, count: int = 1000) -> torch.Tensor:
    array, tensor = memory.take((count,), UINT8)
    array[:] = value
    return tensor


def count_descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("held", HOLDS)
@pytest.mark.parametrize("door", ["DataLoader", "batches"])
def test_a_received_batch_that_is_held_in_any_form_keeps_its_values(file: str, held: str, door: str) -> None:
    ds = H5TensorDataset(file, ["big", "number"])
    loader: DataLoader[Any] = (
        DataLoader(ds, batch_size=5, shuffle=True, num_workers=1, persistent_workers=True)
        if door == "DataLoader"
        else DataLoader(ds.batches(5, "full"), batch_size=None, num_workers=1, persistent_workers=True)
    )
    kept = []
    for epoch in range(2):
        for number, (big, _) in enumerate(loader):
            if number % 4 == epoch:
                kept.append((HOLDS[held](big), value_of(HOLDS[held](big.clone()))))
            del big
    assert len(kept) > 4
    for value, expected in kept:
        assert torch.equal(value_of(value), expected)


def test_a_worker_fills_the_same_few_segments_again(file: str) -> None:
    ds = H5TensorDataset(file, ["big", "number"])
    loader = DataLoader(ds, batch_size=5, num_workers=1, persistent_workers=True, collate_fn=with_segments)
    for _ in range(4):
        seen = [segments for _, segments in loader]
    # Those of two fields: one with the consumer, prefetch_factor of them under way, one being filled.
    assert max(seen) <= 2 * 5


def with_segments(rows: Any) -> Any:
    return default_collate(rows), len(worker_memory()._segments)


def test_a_segment_is_lent_again_only_when_all_who_hold_it_have_let_go() -> None:
    memory = SharedMemory()
    tensor = take(memory, 1)
    place = tensor.data_ptr()
    first, second = send(tensor), send(tensor)
    del tensor
    assert take(memory, 2).data_ptr() != place
    del first
    assert take(memory, 3).data_ptr() != place
    assert bool((second == 1).all())
    view = second[10:20].numpy()
    del second
    assert take(memory, 4).data_ptr() != place
    del view
    send(torch.zeros(1))  # not by us
    assert take(memory, 5).data_ptr() != place
    send(take(memory, 6))  # what ended is noticed when something comes
    assert any(one.data_ptr() == place for one in [take(memory, 5) for _ in range(3)])


def test_a_batch_that_is_never_sent_is_used_again() -> None:
    memory = SharedMemory()
    assert len({take(memory, 1).data_ptr() for _ in range(5)}) == 1


def test_a_segment_of_which_torch_sent_a_view_is_not_used_again() -> None:
    memory = SharedMemory()
    tensor = take(memory, 7)
    row = send(tensor[:10])  # an ordinary tensor: torch sends its storage, and nobody hears of its end
    whole = send(tensor)
    del tensor
    others = [take(memory, 9) for _ in range(3)]
    assert bool((whole == 7).all())
    assert bool((row == 7).all())
    assert all(bool((one == 9).all()) for one in others)


def test_a_storage_that_is_held_in_the_worker_is_not_filled_again() -> None:
    memory = SharedMemory()
    storage = take(memory, 7).untyped_storage()
    take(memory, 8)
    assert bytes(storage[:3]) == b"\x07\x07\x07"


@pytest.mark.parametrize("share", ["share_memory_", "queue"])
def test_arrays_over_a_received_batch_survive_its_being_shared(share: str) -> None:
    received = send(take(SharedMemory(), 5))
    assert received.is_shared()
    array = received.numpy()
    if share == "queue":
        again = send(received)
        assert bool((again == 5).all())
    else:
        received.share_memory_()
    del received
    gc.collect()
    assert (array == 5).all()


def test_a_batch_that_a_forked_child_has_too_is_never_released(file: str) -> None:
    script = """
        import os, sys
        from torch.utils.data import DataLoader
        from h5cache import H5TensorDataset
        loader = DataLoader(H5TensorDataset(sys.argv[1], ["big"]), batch_size=4, num_workers=1, persistent_workers=True)
        batches = iter(loader)
        (batch,) = next(batches)
        expected = batch.clone()
        ready, go = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(go)
            os.read(ready, 1)  # until the parent has gone on
            os._exit(0 if (batch.numpy() == expected.numpy()).all() else 1)  # torch's threads are not here
        del batch
        for _ in range(2):
            for _ in loader:
                pass
        os.close(go)
        print(os.waitpid(child, 0)[1])
    """
    done = run_script(script, file)
    assert done.stdout.split() == ["0"], done.stderr


CHANGES: dict[str, Callable[[torch.Tensor], Any]] = {
    "shared first": lambda batch: batch.share_memory_().add_(1),
    "its storage shared first": lambda batch: (batch.untyped_storage().share_memory_(), batch.add_(1)),
    "other data": lambda batch: setattr(batch, "data", batch.data + 1),
    "data of another dtype": lambda batch: setattr(batch, "data", batch.data.float() / 2),
    "another storage": lambda batch: batch.set_(batch + 1),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_collate_fn_does_to_the_batch_arrives(file: str, change: str) -> None:
    ds = H5TensorDataset(file, ["big", "number"])

    def collate(rows: Any) -> Any:
        big, number = default_collate(rows)
        CHANGES[change](big)
        return big, number

    for big, number in DataLoader(ds, batch_size=8, num_workers=1, collate_fn=collate):
        expected = content()["big"][number]
        CHANGES[change](expected)
        assert torch.equal(big, expected)


def test_requires_grad_arrives() -> None:
    array, tensor = SharedMemory().take((5,), np.dtype(np.float32))
    array[:] = 2
    received = send(tensor.requires_grad_())
    assert received.requires_grad
    assert bool((received == 2).all())


def test_a_forked_child_that_drops_its_copy_releases_nothing() -> None:
    memory = SharedMemory()
    tensor = take(memory, 3)
    received = send(tensor)
    del tensor
    pid = os.fork()
    if pid == 0:
        del received
        gc.collect()
        os._exit(0)
    os.waitpid(pid, 0)
    take(memory, 4)
    assert bool((received == 3).all())


@pytest.mark.parametrize("dtype", ["uint8", "bool", "float32", "float16", "uint16", "int64"])
def test_dtypes_and_strides_arrive_as_they_were_sent(dtype: str) -> None:
    memory = SharedMemory()
    array, tensor = memory.take((4, 5, 6, 3), np.dtype(dtype))
    array[...] = np.random.default_rng(0).integers(0, 2, array.shape).astype(dtype)
    received = send(tensor)
    assert type(received) is torch.Tensor
    assert received.dtype == tensor.dtype
    assert torch.equal(received, tensor)


@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
def test_pictures_with_channels_last_and_bfloat16_are_sent_without_a_copy(file: str, memory_format: str) -> None:
    ds = H5TensorDataset(file, ["big", "half", "number"], as_dict=True)
    stream = ds.batches(8, memory_format=memory_format, transform=with_kinds)
    for batch, kinds in DataLoader(stream, batch_size=None, num_workers=1):
        assert kinds == {"big": True, "half": True, "number": True}
        numbers = batch["number"]
        assert torch.equal(batch["big"], content()["big"][numbers])
        assert batch["big"].is_contiguous(memory_format=getattr(torch, f"{memory_format}_format", torch.channels_last))
        assert torch.equal(batch["half"], content()["half"][numbers])


def with_kinds(batch: dict[str, torch.Tensor]) -> Any:
    return batch, {name: isinstance(tensor, SharedTensor) for name, tensor in batch.items()}


def test_what_is_computed_saved_or_copied_in_a_worker_is_an_ordinary_tensor() -> None:
    tensor = take(SharedMemory(), 5)
    saved = io.BytesIO()
    torch.save(tensor, saved)
    saved.seek(0)
    made = {
        "view": tensor[1:],
        "sum": tensor + 0,
        "deepcopy": copy.deepcopy(tensor),
        "pickle": pickle.loads(pickle.dumps(tensor)),
        "torch.save": torch.load(saved, weights_only=True),
    }
    assert {name: type(one) for name, one in made.items()} == dict.fromkeys(made, torch.Tensor)
    assert all(bool((one == 5).all()) for one in made.values())


def test_received_batches_leave_no_descriptor_behind(file: str) -> None:
    ds = H5TensorDataset(file, ["big", "number"])
    before = None
    for _ in range(4):
        loader = DataLoader(ds, batch_size=5, num_workers=1)
        assert sum(len(numbers) for _, numbers in loader) == NUM
        del loader
        before = before or count_descriptors()  # after the first: multiprocessing keeps some of its own
    assert count_descriptors() <= before


def test_a_consumer_that_keeps_every_batch_gets_them_all(file: str) -> None:
    memory = SharedMemory()
    kept = []
    for value in range(100):  # more than there are segments
        tensor = take(memory, value, count=50)
        kept.append(send(tensor))
    assert [int(one[0]) for one in kept] == list(range(100))
    assert all(bool((one == value).all()) for value, one in enumerate(kept))


def test_idle_segments_of_other_sizes_are_let_go() -> None:
    memory = SharedMemory()
    lent = [take(memory, 1, count=100 + number) for number in range(20)]
    lent.clear()
    for number in range(10):
        take(memory, 1, count=1000 + number)
    assert len(memory._segments) <= 9


def test_with_torchs_other_strategy_torch_serves(file: str) -> None:
    script = f"""
        import torch, torch.multiprocessing
        from torch.utils.data import DataLoader
        from h5cache import H5TensorDataset
        torch.multiprocessing.set_sharing_strategy("file_system")
        from h5cache.load.shared import SharedMemory, SharedTensor
        import numpy as np
        assert not isinstance(SharedMemory().take((5,), np.dtype(np.uint8))[1], SharedTensor)
        loader = DataLoader(H5TensorDataset({file!r}, ["big", "number"]), batch_size=8, num_workers=1)
        print(sum(len(numbers) for _, numbers in loader))
    """
    assert run_script(script).stdout.split() == [str(NUM)]
