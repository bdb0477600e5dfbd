"""What goes wrong in threads and workers reaches the consumer, soon; and nothing is left behind, however it ends."""

from __future__ import annotations

import gc
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from load_cases import NUM, content, expected_batches, flat, numbers_of, open_files, open_numbers, run_script
from torch.utils.data import DataLoader

from h5cache import H5TensorDataset
from h5cache.errors import ChecksumError, LoaderClosedError

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork"),
]
#: Every way to iterate in one process.
THREADS = [0, 1, 3]


def our_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("h5cache-")]


@pytest.fixture(autouse=True)
def _leaves_no_thread_and_no_shared_memory() -> Any:
    gc.collect()
    before = set(os.listdir("/dev/shm"))
    yield
    gc.collect()
    deadline = time.monotonic() + 5
    while our_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert our_threads() == []
    assert {name for name in os.listdir("/dev/shm") if str(os.getpid()) in name} <= before


# Errors


class Broken(Exception):
    """What a user's function raises."""


def consume(loader: Any, use: Callable[[Any], None]) -> None:
    for batch in loader:
        use(batch)


def check_field(batch: dict[str, torch.Tensor], field: str) -> None:
    assert torch.equal(batch[field], content()[field][batch["number"]])


def fail_at(number: int) -> Any:
    def transform(batch: dict[str, torch.Tensor]) -> Any:
        if number in batch["number"]:
            raise Broken("no such luck")
        return batch

    return transform


@pytest.mark.parametrize("threads", THREADS)
def test_an_error_in_a_transform_reaches_the_consumer_with_its_origin(file: str, threads: int) -> None:
    with open_numbers(file).loader(8, threads=threads, transform=fail_at(30)) as loader:
        seen: list[list[int]] = []
        with pytest.raises(Broken, match="no such luck") as caught:
            consume(loader, lambda batch: seen.append(batch["number"].tolist()))
        assert seen == expected_batches(loader, 0)[:3]
        names = [entry.name for entry in caught.traceback]
        assert names[-1] == "transform"
        if sys.version_info >= (3, 11):
            assert "batch 3 of epoch 0" in caught.value.__notes__[0]
        assert loader.state_dict()["next_batch"] == 3
        # and it can be used again
        with pytest.raises(Broken):
            list(loader)


@pytest.mark.parametrize("threads", THREADS)
def test_a_stop_iteration_from_a_transform_does_not_end_the_epoch_quietly(file: str, threads: int) -> None:
    def transform(batch: Any) -> Any:
        raise StopIteration

    with open_numbers(file).loader(8, threads=threads, transform=transform) as loader:
        with pytest.raises(RuntimeError, match="StopIteration"):
            list(loader)
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(open_numbers(file).batches(8, transform=transform))


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("shuffle", [False, "chunk", "full"])
@pytest.mark.parametrize("field", ["big", "small", "codes", "raw"])
def test_a_damaged_sample_is_named_and_the_loader_lives_on(
    file: str, tmp_path: pathlib.Path, field: str, shuffle: Any, threads: int
) -> None:
    damaged = damage(file, str(tmp_path / "damaged.h5"), field)
    ds = H5TensorDataset(damaged, [field, "number"], as_dict=True)
    with ds.loader(8, shuffle, threads=threads) as loader:
        for _ in range(2):
            with pytest.raises(ChecksumError, match=f"field '{field}'.*sample.*k"):
                consume(loader, lambda batch: check_field(batch, field))
    ds.close()


def damage(file: str, target: str, field: str) -> str:
    """Change one stored byte of a field, in the middle of the dataset."""
    shutil.copy(file, target)
    storage = H5TensorDataset(file)._reader.info.storage[field]
    place = len(storage.chunk_offsets) // 2
    offset = int(storage.chunk_offsets[place]) + int(storage.chunk_nbytes[place]) // 2
    with open(target, "r+b") as opened:
        opened.seek(offset)
        byte = opened.read(1)[0]
        opened.seek(offset)
        opened.write(bytes([byte ^ 0x55]))
    return target


@pytest.mark.parametrize("field", ["big", "raw", "small"])
def test_a_loader_that_always_verifies_checks_what_others_have_checked(
    file: str, tmp_path: pathlib.Path, field: str
) -> None:
    path = str(tmp_path / "damaged.h5")
    shutil.copy(file, path)
    ds = H5TensorDataset(path, [field])
    before = ds.loader(8, verify="always")
    with ds.loader(8) as loader:
        consume(loader, lambda batch: None)
    damaged = pathlib.Path(damage(file, str(tmp_path / "other.h5"), field)).read_bytes()
    with open(path, "r+b") as opened:  # the same file, so that nobody notices by its identity
        opened.write(damaged)
    for loader in (before, ds.loader(8, verify="always")):
        with loader, pytest.raises(ChecksumError, match=f"field '{field}'"):
            consume(loader, lambda batch: None)


def test_a_damaged_sample_raises_out_of_a_worker(file: str, tmp_path: pathlib.Path) -> None:
    ds = H5TensorDataset(damage(file, str(tmp_path / "damaged.h5"), "big"), ["big"])
    for loader in (
        DataLoader(ds, batch_size=8, num_workers=1),
        DataLoader(ds.batches(8), batch_size=None, num_workers=1),
    ):
        with pytest.raises(ChecksumError, match="field 'big'"):
            list(loader)


def test_a_killed_worker_raises_in_the_consumer(file: str) -> None:
    script = """
        import multiprocessing, os, signal, sys
        from torch.utils.data import DataLoader
        from h5cache import H5TensorDataset
        ds = H5TensorDataset(sys.argv[1], ["number"])
        ways = DataLoader(ds, batch_size=1, num_workers=1), DataLoader(ds.batches(1), batch_size=None, num_workers=1)
        for loader in ways:
            try:
                for number, _ in enumerate(loader):
                    if number == 1:
                        for child in multiprocessing.active_children():
                            os.kill(child.pid, signal.SIGKILL)
            except (RuntimeError, ConnectionError, EOFError) as exc:  # or it was just handing over shared memory
                pass
            else:
                raise SystemExit("nothing was raised")
    """
    done = run_script(script, file)
    # torch itself may say, while it ends the workers, that one was killed.
    assert done.returncode == 0, done.stderr


# Endings


@pytest.mark.parametrize("threads", THREADS)
def test_breaking_out_and_dropping_leave_nothing(file: str, threads: int) -> None:
    before = open_files()
    ds = H5TensorDataset(file)
    for _ in ds.loader(4, "full", threads=threads):
        break
    loader = ds.loader(4, "full", threads=threads)
    batches = iter(loader)
    next(batches)
    del loader
    next(batches)  # an iterator keeps its loader
    del batches
    del ds
    gc.collect()
    assert open_files() == before


def test_a_thousand_loaders_in_a_row_leave_nothing(file: str) -> None:
    ds = H5TensorDataset(file, ["small", "number"])
    next(iter(ds.loader(8, threads=2)))
    gc.collect()
    before, threads = open_files(), threading.active_count()
    for number in range(1000):
        loader = ds.loader(8, "full", threads=2, prefetch=1)
        for _ in loader:
            break
        if number % 2:
            loader.close()
        del loader
    assert threading.active_count() == threads
    assert open_files() == before


def test_a_thousand_streams_in_a_row_leave_nothing(file: str) -> None:
    ds = H5TensorDataset(file, ["small", "number"])
    next(iter(ds.batches(8)))
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(1000):
        next(iter(ds.batches(8, "full")))
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before + 1


ENDINGS = {
    "end of the program": "",
    "sys.exit": "sys.exit(0)",
    "a batch in a global": "keep = [batch]",
    "an iterator in a global and a cycle": "keep = [batches]; keep.append(keep)",
    "slow transforms under way": "",
}


@pytest.mark.parametrize(("ending", "threads"), [("end of the program", 0), *((ending, 2) for ending in ENDINGS)])
def test_the_interpreter_ends_in_mid_epoch_quietly(file: str, ending: str, threads: int) -> None:
    script = f"""
        import sys, time
        from h5cache import H5TensorDataset
        slow = (lambda batch: (time.sleep(0.3), batch)[1]) if {"slow" in ending} else None
        loader = H5TensorDataset(sys.argv[1]).loader(4, "full", threads={threads}, transform=slow)
        batches = iter(loader)
        batch = next(batches)
        {ENDINGS[ending]}
    """
    done = run_script(script, file, timeout_s=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("door", ["loader", "DataLoader", "batches"])
def test_ctrl_c_ends_the_program_and_leaves_nothing(file: str, door: str) -> None:
    script = """
        import sys, time
        from torch.utils.data import DataLoader
        from h5cache import H5TensorDataset
        ds = H5TensorDataset(sys.argv[1])
        door = {
            "loader": lambda: ds.loader(4, "full", threads=2),
            "DataLoader": lambda: DataLoader(ds, batch_size=4, num_workers=2),
            "batches": lambda: DataLoader(ds.batches(4), batch_size=None, num_workers=2),
        }[sys.argv[2]]()
        try:
            while True:
                for batch in door:
                    print("on", flush=True)
                    time.sleep(0.01)
        except KeyboardInterrupt:
            del batch
            raise SystemExit(33)
    """
    before = set(os.listdir("/dev/shm"))
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), file, door],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        for _ in range(12):
            assert process.stdout is not None
            assert process.stdout.readline() == "on\n"
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=30)
        assert process.returncode == 33, errors
        with pytest.raises(ProcessLookupError):
            os.killpg(process.pid, 0)  # no process of the group is left
    finally:
        process.kill()
        process.wait()
    left = {name for name in set(os.listdir("/dev/shm")) - before if f"torch_{process.pid}_" in name}
    assert not left


def test_closing_while_a_consumer_waits_raises_there(file: str) -> None:
    gate, entered = threading.Event(), threading.Event()
    loader = open_numbers(file).loader(8, threads=1, transform=lambda _: (entered.set(), gate.wait(5)))
    caught: list[BaseException] = []

    def consume() -> None:
        try:
            list(loader)
        except LoaderClosedError as exc:
            caught.append(exc)

    consumer = threading.Thread(target=consume)
    consumer.start()
    entered.wait(5)
    threading.Timer(0.2, gate.set).start()
    loader.close()
    consumer.join(20)
    assert not consumer.is_alive()
    assert len(caught) == 1


# Forks


def in_fork(function: Any, timeout_s: float = 30) -> int:
    """Run a function in a forked child; return its exit code, 99 where it raised."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(int(timeout_s))
        code = 99
        try:
            code = function() or 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("shuffle", [False, "chunk", "full"])
def test_a_fork_while_a_loader_runs_harms_neither_side(file: str, shuffle: Any) -> None:
    ds = H5TensorDataset(file, as_dict=True)
    with ds.loader(4, shuffle, threads=2) as loader:
        batches = iter(loader)
        seen = numbers_of([next(batches)])

        def child() -> int:
            """The child's loader starts threads of its own; the parent's iterator says that it cannot go on."""
            whole = sorted(flat(numbers_of(loader))) == list(range(NUM))
            try:
                list(batches)
            except LoaderClosedError:
                return 0 if whole else 1
            return 2

        assert in_fork(child) == 0
        seen += numbers_of(batches)
        assert seen == expected_batches(loader, 0)


def test_forked_workers_read_right_while_a_loader_runs(one: H5TensorDataset) -> None:
    with one.loader(4, "full", threads=3) as loader:
        for number, _ in enumerate(loader):
            if number == 3:
                found = list(DataLoader(one, batch_size=8, num_workers=2))
                assert torch.equal(torch.cat([batch["big"] for batch in found]), content()["big"])


def test_cv2_in_forked_workers_does_not_hang_after_the_parent_used_it(tmp_path: pathlib.Path) -> None:
    """Its thread pool does not survive a fork."""
    from h5cache import Field, Writer
    from h5cache.load.augment import RandomResizedCrop

    path = str(tmp_path / "large.h5")
    pictures = np.random.default_rng(0).integers(0, 256, (8, 900, 800, 3), np.uint8)
    with Writer(path, {"image": Field("uint8", (900, 800, 3))}) as w:
        w.append(image=pictures)
    ds = H5TensorDataset(path)
    options: dict[str, Any] = {"augment": [RandomResizedCrop(640)], "seed": 1}
    with ds.loader(4, threads=2, **options) as loader:
        expected = [image for (image,) in loader]
    found = [image for (image,) in DataLoader(ds.batches(4, **options), batch_size=None, num_workers=2)]
    assert all(map(torch.equal, expected, found))
