"""What `h5cache inspect` tells of datasets, foreign files and files that somebody changed."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from h5cache import Writer
from h5cache.errors import SchemaError
from h5cache.inspect import main
from h5cache.tools.inspect import PT_FILE_NBYTES, PT_TENSOR_NBYTES, inspect_dataset, to_json
from h5cache.tools.inspect_text import format_inspection

from .conftest import NUM_SAMPLES, SHAPE, Shell, command, environment

SAMPLE_NBYTES = int(np.prod(SHAPE))

TOP_KEYS = {
    *("path", "kind", "format_version", "num_samples", "num_shards", "disk_nbytes", "raw_nbytes", "pt_nbytes"),
    *("fields", "classes", "index", "shards", "provenance", "conversion", "codecs"),
}
FIELD_KEYS = {
    *("name", "dtype", "shape", "layout", "stored_dtype", "exact_codes", "codec", "codec_words", "stored_nbytes"),
    *("raw_nbytes", "ratio", "chunk_samples", "block_samples", "num_chunks", "num_chunks_through_hdf5", "changed"),
}


def test_file_is_described_with_sizes_fields_classes_keys_and_provenance(dataset: Path) -> None:
    found = inspect_dataset(dataset)
    assert (found.kind, found.format_version, found.num_samples, len(found.shards)) == ("file", 1, NUM_SAMPLES, 1)
    assert found.disk_nbytes == dataset.stat().st_size
    assert found.raw_nbytes == NUM_SAMPLES * (SAMPLE_NBYTES + 8)
    image, label = found.fields
    assert (image.name, image.dtype, image.shape, image.layout) == ("image", "uint8", SHAPE, "CHW")
    assert (image.chunk_samples, image.block_samples, image.num_chunks) == (16, 1, 7)
    assert image.ratio == pytest.approx(NUM_SAMPLES * SAMPLE_NBYTES / image.stored_nbytes)
    assert (label.chunk_samples, label.ratio) == (None, 1.0)
    assert [(one.name, one.count) for one in found.classes] == [("cat", 50), ("dog", 30), ("owl", 20)]
    assert found.index.first[0]["key"] == "cat/0000.jpg"
    assert found.provenance["transform"] == "none"


def test_text_names_everything_a_person_asks_for(dataset: Path) -> None:
    text = format_inspection(inspect_dataset(dataset))
    for word in ("image", "uint8", "3x96x96", "CHW", "zstd level 1", "cat/0000.jpg", "owl", "h5cache 0.", "smaller"):
        assert word in text
    assert "\x1b" not in text


def test_exact_codes_are_told_and_counted_against_floats(normalised: Path) -> None:
    image = inspect_dataset(normalised).fields[0]
    assert image.exact_codes
    assert image.raw_nbytes == NUM_SAMPLES * SAMPLE_NBYTES * 4
    assert "exact 8-bit codes" in format_inspection(inspect_dataset(normalised))


def test_folder_counts_its_shards_and_manifest(folder: Path) -> None:
    found = inspect_dataset(folder)
    assert found.kind == "folder"
    assert [shard.num_samples for shard in found.shards] == [32, 32, 32, 4]
    assert found.disk_nbytes == sum(path.stat().st_size for path in folder.iterdir())
    assert all(field.num_chunks_through_hdf5 == 0 for field in found.fields)
    assert "4 shards" in format_inspection(found)


def test_foreign_file_says_so_and_what_converting_would_give(foreign: Path) -> None:
    found = inspect_dataset(foreign)
    assert (found.kind, found.format_version) == ("foreign", None)
    assert found.fields[0].codec_words == "shuffle, gzip"
    assert [one.count for one in found.classes] == [50, 30, 20]
    assert found.conversion[0].ratio > 1
    assert 0 < found.converted_nbytes < found.raw_nbytes
    text = format_inspection(found)
    assert "did not write" in text
    assert "h5cache convert" in text


def test_changed_field_is_told_with_its_cause(dataset: Path) -> None:
    import h5py
    import hdf5plugin  # noqa: F401  writes the chunk again

    with h5py.File(dataset, "r+") as file:
        file["image"][5] = 7
    image = inspect_dataset(dataset).fields[0]
    assert image.num_chunks_through_hdf5 == 1
    assert "1 of its 7 chunks" in image.changed
    assert "libhdf5" in format_inspection(inspect_dataset(dataset))


def test_field_with_another_filter_is_told_by_name(dataset: Path) -> None:
    import h5py
    import hdf5plugin  # noqa: F401  reads the old chunks

    with h5py.File(dataset, "r+") as file:
        rows = file["image"][:]
        del file["image"]
        file.create_dataset("image", data=rows, chunks=(16, *SHAPE), compression="gzip")
    assert inspect_dataset(dataset).fields[0].changed == "its codec is now gzip"


def test_unknown_field_is_refused_with_the_known_ones(dataset: Path) -> None:
    with pytest.raises(SchemaError, match="image, label"):
        inspect_dataset(dataset, ["picture"])


def test_fields_choose_and_order_rows_but_not_the_totals(dataset: Path) -> None:
    found = inspect_dataset(dataset, ["label"])
    assert [field.name for field in found.fields] == ["label"]
    assert found.raw_nbytes == inspect_dataset(dataset).raw_nbytes


@pytest.mark.parametrize("count", [0, 3])
def test_number_of_index_rows_is_chosen(dataset: Path, count: int) -> None:
    assert len(inspect_dataset(dataset, num_rows=count).index.first) == count


def test_dataset_without_samples_is_no_problem(tmp_path: Path) -> None:
    from h5cache import Field

    with Writer(tmp_path / "empty.h5", {"image": Field("uint8", SHAPE), "label": Field("int64")}):
        pass
    found = inspect_dataset(tmp_path / "empty.h5", codecs=True)
    assert (found.num_samples, found.raw_nbytes) == (0, 0)
    assert "samples" in format_inspection(found)


def test_many_classes_show_the_largest_and_count_the_rest(tmp_path: Path) -> None:
    names = [f"class {number}" for number in range(50)]
    with Writer(tmp_path / "many.h5", classes=names) as writer:
        writer.append(x=np.zeros(1275, np.float32), label=np.repeat(np.arange(50), np.arange(1, 51)))
    text = format_inspection(inspect_dataset(tmp_path / "many.h5"))
    assert "50 classes, 1 to 50 samples each" in text
    assert "and 40 smaller ones with 820 samples" in text
    assert "no keys" in text


def test_names_out_of_a_file_cannot_steer_the_terminal(tmp_path: Path) -> None:
    evil = "\x1b[2Jboo"
    with Writer(tmp_path / "evil.h5", classes=[evil], provenance={"source": evil}) as writer:
        writer.append(label=np.zeros(1, np.int64), key=[evil])
    assert "\x1b" not in format_inspection(inspect_dataset(tmp_path / "evil.h5"))


def test_skipped_samples_are_listed(tmp_path: Path) -> None:
    skipped = [{"key": f"cat/{number}.jpg", "reason": "truncated"} for number in range(7)]
    with Writer(tmp_path / "a.h5", provenance={"skipped": skipped}) as writer:
        writer.append(label=np.zeros(1, np.int64))
    text = format_inspection(inspect_dataset(tmp_path / "a.h5"))
    assert "7 samples of the source could not be read" in text
    assert "cat/4.jpg" in text
    assert "and 2 more" in text


@pytest.mark.parametrize("name", ["dataset", "normalised", "folder", "foreign"])
def test_codec_table_marks_one_choice_with_measured_speeds(name: str, request: pytest.FixtureRequest) -> None:
    found = inspect_dataset(request.getfixturevalue(name), codecs=True)
    assert found.choices is not None
    assert list(found.choices) == [found.fields[0].name]
    rows = next(iter(found.choices.values())).rows
    assert sum(row.chosen for row in rows) == 1
    assert all(row.decode_mb_s for row in rows)
    assert "decode MB/s" in format_inspection(found)


def test_codec_table_shows_the_codec_that_the_file_has(dataset: Path) -> None:
    found = inspect_dataset(dataset, codecs=True)
    assert found.choices is not None
    assert found.choices["image"].codec.to_config() == found.fields[0].codec


@pytest.mark.parametrize("name", ["dataset", "folder", "foreign"])
def test_json_has_the_same_keys_for_every_kind(name: str, request: pytest.FixtureRequest) -> None:
    document = json.loads(json.dumps(to_json(inspect_dataset(request.getfixturevalue(name), codecs=True))))
    assert set(document) == TOP_KEYS
    assert all(set(field) == FIELD_KEYS for field in document["fields"])
    assert set(document["index"]) == {"columns", "first", "has_keys"}
    assert all(set(one) == {"label", "name", "count"} for one in document["classes"])
    assert (document["conversion"] is None) == (name != "foreign")


def test_estimate_of_pt_files_is_within_a_hundredth_of_the_real_ones(tmp_path: Path) -> None:
    import torch

    sample = (torch.zeros(SHAPE, dtype=torch.uint8), torch.tensor(3))
    torch.save(sample, tmp_path / "sample.pt")
    estimate = SAMPLE_NBYTES + 8 + PT_FILE_NBYTES + 2 * PT_TENSOR_NBYTES
    assert estimate == pytest.approx((tmp_path / "sample.pt").stat().st_size, rel=0.01)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "no such dataset"),
        (lambda path: path.write_bytes(b""), "empty"),
        (lambda path: path.write_text("hello"), "not an HDF5 file"),
        (lambda path: path.mkdir(), "no manifest.h5"),
    ],
)
def test_unreadable_dataset_is_one_line_and_exit_2(
    make: object, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "x.h5")  # type: ignore[operator]
    assert main([str(tmp_path / "x.h5")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert words in captured.err


def test_negative_number_of_samples_is_wrong_usage(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(dataset), "--samples", "-1"]) == 2
    assert "--samples" in capsys.readouterr().err


# As a shell runs it.


def test_door_prints_json_and_loads_neither_torch_nor_cv2(dataset: Path, tmp_path: Path) -> None:
    code = (
        "import runpy, sys; sys.argv = ['inspect', sys.argv[1], '--json', '--codecs']\n"
        "try: runpy.run_module('h5cache.inspect', run_name='__main__')\n"
        "finally: print(*sorted({'torch', 'cv2'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(dataset)],
        check=False,
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr.split() == []
    assert json.loads(done.stdout)["num_samples"] == NUM_SAMPLES


def test_door_run_by_its_path_does_not_hide_the_standard_inspect(dataset: Path) -> None:
    import h5cache.inspect

    door = Path(h5cache.inspect.__file__)
    for argv, cwd in (([str(door)], dataset.parent), ([door.name], door.parent)):
        done = subprocess.run(
            [sys.executable, *argv, str(dataset)],
            check=False,
            cwd=cwd,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (0, "")


def test_piped_output_has_no_colour(dataset: Path, shell: Shell) -> None:
    done = shell("h5cache.inspect", dataset)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize(("env", "colour"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_terminal_has_colour_unless_the_user_objects(dataset: Path, env: dict[str, str], colour: bool) -> None:
    leader, follower = pty.openpty()
    with subprocess.Popen(
        command("h5cache.inspect", [dataset]), stdout=follower, stderr=subprocess.PIPE, env=environment(env)
    ) as process:
        os.close(follower)
        output = read_all(leader)
        assert process.stderr is not None
        assert process.stderr.read() == b""
    os.close(leader)
    assert (b"\x1b[" in output) is colour
    assert b"image" in output


def read_all(descriptor: int) -> bytes:
    parts = []
    while True:
        try:
            part = os.read(descriptor, 65536)
        except OSError:  # Linux: the other end was closed
            break
        if not part:
            break
        parts.append(part)
    return b"".join(parts)


def test_reader_that_stops_early_is_no_error(dataset: Path) -> None:
    # Closed before the command has started to print: what `| head -0` does.
    with subprocess.Popen(
        command("h5cache.inspect", [dataset, "--json", "--samples", "100"]),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141
