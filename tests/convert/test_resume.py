"""Going on with what is finished: without processes or signals, one behaviour at a time."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from convert_samples import RESIZE, SIZE, digest, key_at, leftovers, small, spoil

from h5cache import H5TensorDataset, Writer, convert_dataset
from h5cache.convert.guard import claim_tasks, hold_task_lock
from h5cache.convert.problems import BadInputsError, ConversionStopped, RunChangedError
from h5cache.errors import DatasetBusyError, DatasetExistsError
from h5cache.format import parts
from h5cache.format.publish import remove


@pytest.fixture
def interrupted(pictures: Path, keys: list[str], tmp_path: Path) -> tuple[Path, Path]:
    """A source with one bad file, and an output that waits for it to be skipped: all parts are finished."""
    source = tmp_path / "source"
    shutil.copytree(pictures, source)
    spoil(source, key_at(keys, 40))
    with pytest.raises(BadInputsError):
        small(source, tmp_path / "out.h5")
    return source, tmp_path / "out.h5"


def test_parts_left_by_a_kill_just_after_publishing_are_removed(interrupted: tuple[Path, Path], tmp_path: Path) -> None:
    source, out = interrupted
    shutil.copytree(tmp_path / "out.h5.parts", tmp_path / "kept")
    small(source, out, on_error="skip")
    (tmp_path / "kept").rename(tmp_path / "out.h5.parts")
    with pytest.raises(DatasetExistsError):
        small(source, out, on_error="skip")
    assert leftovers(out) == []


class Drifting(list[int]):
    """Samples that change behind h5cache's back, as a dataset's files may."""

    drift = 0

    def __getitem__(self, number: Any) -> Any:
        return np.full((3, 8, 8), super().__getitem__(number) + self.drift, np.int32)


def publish_and_die(monkeypatch: pytest.MonkeyPatch, samples: Any, out: Path, **options: Any) -> None:
    """Convert, and die just after the file got its name."""

    class Killed(BaseException):
        pass

    def die_at_the_parts(path: str) -> None:
        if path == f"{out}.parts":
            raise Killed
        remove(path)

    with monkeypatch.context() as patch:
        patch.setattr("h5cache.format.parts.remove", die_at_the_parts)
        # A process that is killed tidies nothing up.
        patch.setattr("h5cache.convert.run._Run.tidy_up", lambda _: "")
        patch.setattr("h5cache.convert.stream._Stream.abort", lambda _: None)
        with pytest.raises(Killed):
            convert_dataset(samples, out, workers=0, **options)
    assert out.exists()
    assert leftovers(out) == ["out.h5.parts"]


def test_overwrite_does_not_go_on_with_parts_left_by_a_kill_just_after_publishing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, samples = tmp_path / "out.h5", Drifting(range(100))
    publish_and_die(monkeypatch, samples, out, kind="dataset")
    samples.drift = 1000  # unseen: `overwrite` is the way to convert it again
    assert convert_dataset(samples, out, kind="dataset", overwrite=True, workers=0).num_converted == 100
    (values,) = H5TensorDataset(out)[:]
    assert values.min() == 1000
    assert leftovers(out) == []


def test_overwrite_that_was_interrupted_goes_on_although_the_old_file_is_of_the_same_run(
    pictures: Path, tmp_path: Path
) -> None:
    out, parts = tmp_path / "out.h5", tmp_path / "out.h5.parts"
    small(pictures, out)
    before = digest(out)

    def stop_after_two() -> None:
        if len(list(parts.glob("part-*.h5"))) >= 2:
            raise KeyboardInterrupt

    with pytest.raises(ConversionStopped):
        small(pictures, out, overwrite=True, check_stop=stop_after_two)
    with pytest.raises(DatasetExistsError):
        small(pictures, out)
    assert small(pictures, out, overwrite=True).num_converted <= 100 - 32
    assert (digest(out), leftovers(out)) == (before, [])


def test_parts_left_by_a_kill_while_they_were_removed_go_and_are_never_taken_for_another_runs(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, parts = tmp_path / "out.h5", tmp_path / "out.h5.parts"
    usual = {"resize": RESIZE, "size": SIZE, "part_samples": 16}
    publish_and_die(monkeypatch, pictures, out, **usual)
    (parts / ".h5cache-run.json").unlink()
    shutil.copytree(parts, tmp_path / "kept")
    with pytest.raises(DatasetExistsError):
        small(pictures, out)
    assert leftovers(out) == []
    # The same shape and keys, other pixels: nothing but the missing record tells.
    for name in ("out.h5", "new.h5"):
        shutil.copytree(tmp_path / "kept", tmp_path / f"{name}.parts")
        small(pictures, tmp_path / name, fit="pad", overwrite=True)
    small(pictures, tmp_path / "reference.h5", fit="pad")
    assert digest(out) == digest(tmp_path / "new.h5") == digest(tmp_path / "reference.h5")


def test_parts_of_an_iterable_left_by_a_kill_just_after_publishing_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def samples() -> Iterator[dict[str, float]]:
        return ({"x": float(number)} for number in range(50))

    publish_and_die(monkeypatch, samples(), tmp_path / "out.h5")
    with pytest.raises(DatasetExistsError):
        convert_dataset(samples(), tmp_path / "out.h5")
    assert leftovers(tmp_path / "out.h5") == []


def test_folder_of_somebody_else_that_is_called_like_our_parts_keeps_its_files(pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "out.h5.parts").mkdir()
    (tmp_path / "out.h5.parts" / "thesis.tex").write_text("precious")
    small(pictures, tmp_path / "other.h5")
    (tmp_path / "other.h5").rename(tmp_path / "out.h5")
    with pytest.raises(DatasetExistsError):
        small(pictures, tmp_path / "out.h5")
    assert (tmp_path / "out.h5.parts" / "thesis.tex").read_text() == "precious"


def test_missing_part_is_converted_and_the_others_are_not(interrupted: tuple[Path, Path], tmp_path: Path) -> None:
    source, out = interrupted
    small(source, tmp_path / "reference.h5", on_error="skip")
    (tmp_path / "out.h5.parts" / "part-00001.h5").unlink()
    assert small(source, out, on_error="skip").num_converted == 16
    assert digest(out) == digest(tmp_path / "reference.h5")


def test_damaged_part_is_converted_again(
    interrupted: tuple[Path, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, out = interrupted
    os.truncate(tmp_path / "out.h5.parts" / "part-00003.h5", 1000)
    assert small(source, out, on_error="skip").num_converted == 16
    assert "part-00003.h5" in caplog.text


def test_part_whose_samples_are_damaged_is_converted_again(
    interrupted: tuple[Path, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, out = interrupted
    part = tmp_path / "out.h5.parts" / "part-00003.h5"
    data = bytearray(part.read_bytes())
    place = int(H5TensorDataset(part)._reader.info.storage["image"].chunk_offsets[0]) + 2000
    data[place] ^= 0x55
    part.write_bytes(data)
    assert small(source, out, on_error="skip").num_converted == 16
    assert "damaged" in caplog.text
    expected = tmp_path / "expected.h5"
    small(source, expected, on_error="skip")
    assert digest(out) == digest(expected)


@pytest.mark.parametrize("split", [None, {"train": 0.5, "val": 0.5}])
def test_folder_whose_run_was_killed_as_it_published_is_resumed(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split: dict[str, float] | None
) -> None:
    class Killed(BaseException):
        pass

    def die(*arguments: Any) -> None:
        write_manifest(*arguments)
        raise Killed

    write_manifest = parts.write_manifest
    out, expected = tmp_path / "out", tmp_path / "expected"
    monkeypatch.setattr(parts, "write_manifest", die)
    # As by SIGKILL: nobody tidies up.
    monkeypatch.setattr("h5cache.convert.run._Run.tidy_up", lambda self: "")
    with pytest.raises(Killed):
        small(pictures, out, split=split)
    monkeypatch.undo()
    assert list(tmp_path.rglob("manifest.h5.partial"))
    small(pictures, out, split=split)
    small(pictures, expected, split=split)
    names = list(split) if split else ["."]
    assert [digest(out / name) for name in names] == [digest(expected / name) for name in names]


def test_what_a_kill_just_after_publishing_left_in_a_folder_is_removed(pictures: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(ConversionStopped):
        small(pictures, out, check_stop=stop_after(3))
    run_file = (out / parts.RUN_FILE).read_bytes()
    small(pictures, out)
    before = digest(out)
    (out / parts.RUN_FILE).write_bytes(run_file)
    with pytest.raises(DatasetExistsError):
        small(pictures, out)
    assert digest(out) == before


def stop_after(calls: int) -> Any:
    left = iter(range(calls))

    def check() -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt

    return check


def test_parts_of_another_seed_are_refused_or_replaced(interrupted: tuple[Path, Path]) -> None:
    source, out = interrupted
    with pytest.raises(RunChangedError, match="seed 0 -> 1"):
        small(source, out, seed=1, on_error="skip")
    assert small(source, out, seed=1, on_error="skip", overwrite=True).num_converted == 99


def test_parts_of_another_transform_are_refused(interrupted: tuple[Path, Path]) -> None:
    source, out = interrupted
    with pytest.raises(RunChangedError, match="the transform"):
        small(source, out, transform=lambda sample: sample["image"], on_error="skip")


def test_parts_of_other_samples_are_refused(interrupted: tuple[Path, Path], keys: list[str]) -> None:
    source, out = interrupted
    (source / keys[0]).unlink()
    with pytest.raises(RunChangedError, match="other samples"):
        small(source, out, on_error="skip")


def test_arrays_that_changed_are_noticed_although_they_have_no_files(tmp_path: Path) -> None:
    def fails_for(number: int) -> object:
        def check(sample: dict[str, object]) -> object:
            if int(np.asarray(sample["x"])[0]) == number:
                raise ValueError("bad")
            return sample

        return check

    rows = np.arange(400, dtype=np.int64).reshape(100, 4)
    check = fails_for(40)
    with pytest.raises(BadInputsError):
        convert_dataset({"x": rows}, tmp_path / "out.h5", transform=check, workers=0)
    with pytest.raises(RunChangedError, match="of the source"):
        convert_dataset({"x": rows + 1}, tmp_path / "out.h5", transform=check, workers=0)


def test_parts_of_a_writer_are_not_touched(pictures: Path, tmp_path: Path) -> None:
    writer = Writer(tmp_path / "out.h5", resume=True)
    writer.append(x=np.zeros((70_000, 3), np.float32))
    writer.abort()
    assert (tmp_path / "out.h5.parts").exists()
    with pytest.raises(RunChangedError, match="something else"):
        small(pictures, tmp_path / "out.h5")
    small(pictures, tmp_path / "out.h5", overwrite=True)
    assert leftovers(tmp_path / "out.h5") == []


def test_check_stop_ends_the_run_and_keeps_finished_parts(pictures: Path, tmp_path: Path) -> None:
    parts = tmp_path / "out.h5.parts"

    def stop_after_two() -> None:
        if len(list(parts.glob("part-*.h5"))) >= 2:
            raise KeyboardInterrupt

    with pytest.raises(ConversionStopped, match="run the same command again to go on"):
        small(pictures, tmp_path / "out.h5", check_stop=stop_after_two)
    assert not [name for name in os.listdir(parts) if "partial" in name]
    assert small(pictures, tmp_path / "out.h5").num_converted <= 100 - 32


def test_tasks_of_a_run_that_was_taken_over_do_nothing(tmp_path: Path) -> None:
    lock = str(tmp_path / "lock")
    claim_tasks(lock, "one")
    claim_tasks(lock, "two")
    with pytest.raises(DatasetBusyError), hold_task_lock(lock, "one"):
        pass


def test_new_run_waits_for_tasks_of_a_killed_one(tmp_path: Path) -> None:
    lock = str(tmp_path / "lock")
    claim_tasks(lock, "one")
    order = []

    def work() -> None:
        with hold_task_lock(lock, "one"):
            started.set()
            time.sleep(0.3)
            order.append("task")

    started = threading.Event()
    thread = threading.Thread(target=work)
    thread.start()
    started.wait()
    claim_tasks(lock, "two")
    order.append("claim")
    thread.join()
    assert order == ["task", "claim"]
