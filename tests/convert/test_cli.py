"""The command line as a new user meets it: one clear line for every mistake, no traceback, the right exit code."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from convert_samples import digest, leftovers, run_command, small

from h5cache.convert.__main__ import main


def check_one_line(code: int, captured: str, *words: str, expected: int = 2) -> None:
    lines = captured.strip().splitlines()
    assert code == expected, captured
    assert len(lines) == 1, captured
    for word in words:
        assert word in lines[0]
    assert "Traceback" not in captured


def test_wrong_arguments_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, word in (
        ([], "SRC"),
        (["a", "b.h5", "--fit", "squeeze"], "squeeze"),
        (["a", "b.h5", "--size", "-4"], "-4"),
        (["a", "b.h5", "--nonsense"], "nonsense"),
        (["a", "b.h5", "--workers", "many"], "many"),
    ):
        check_one_line(main(arguments), capsys.readouterr().err, word)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--split", "train=0.5"], "add up to 1"),
        (["--shard-size", "12 parsecs"], "12 parsecs"),
        (["--seed", "-1"], "seed"),
        (["--workers", "-1"], "workers"),
        (["--transform", "nothing"], "package.module:function"),
        (["--transform", "no_such_module:f"], "no_such_module"),
        (["--normalize", "imagenet"], "float"),
        (["--size", "300"], "300"),
        (["--transform", "os:getcwd", "--batch-transform", "os:getcwd"], "not both"),
    ],
)
def test_options_that_make_no_sense_are_one_line(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], word: str
) -> None:
    code = main([str(pictures), str(tmp_path / "out.h5"), *options])
    check_one_line(code, capsys.readouterr().err, word)
    assert os.listdir(tmp_path) == []


def test_source_that_is_missing_empty_or_without_pictures_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "readme.txt").write_text("no picture")
    (tmp_path / "note.bin").write_text("a file where a folder is expected")
    out = str(tmp_path / "out.h5")
    for source in ("missing", "empty", "texts", "note.bin"):
        check_one_line(main([str(tmp_path / source), out]), capsys.readouterr().err, source)
    check_one_line(main([str(tmp_path / "note.bin"), out, "--source", "class-folders"]), capsys.readouterr().err)
    assert leftovers(tmp_path / "out.h5") == []


def test_existing_output_is_one_line_and_stays(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out.h5").write_text("precious")
    check_one_line(main([str(pictures), str(tmp_path / "out.h5")]), capsys.readouterr().err, "exists", "--overwrite")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.tex").write_text("precious")
    check_one_line(main([str(pictures), str(tmp_path / "folder")]), capsys.readouterr().err, "thesis.tex")
    (tmp_path / "dir.h5").mkdir()
    check_one_line(main([str(pictures), str(tmp_path / "dir.h5"), "--overwrite"]), capsys.readouterr().err, "a folder")
    assert (tmp_path / "out.h5").read_text() == "precious"


def test_overwrite_replaces_at_the_end(pictures: Path, tmp_path: Path) -> None:
    small(pictures, tmp_path / "reference.h5")
    for name in ("out.h5", "out"):
        small(pictures, tmp_path / name, seed=5)
        small(pictures, tmp_path / name, overwrite=True)
    assert digest(tmp_path / "out.h5") == digest(tmp_path / "reference.h5")
    assert len(list((tmp_path / "out").glob("shard-*"))) == 7


def test_output_in_a_missing_folder_is_one_line(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main([str(pictures), str(tmp_path / "nowhere" / "out.h5")])
    check_one_line(code, capsys.readouterr().err, "nowhere", "does not exist")


@pytest.mark.skipif(os.geteuid() == 0 and not shutil.which("setpriv"), reason="root may write anywhere")
def test_read_only_place_is_one_line(pictures: Path, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        # Root ignores permissions, but nobody writes into /proc.
        done = run_command(pictures, "/proc/out.h5")
    else:
        tmp_path.chmod(0o500)
        done = run_command(pictures, tmp_path / "out.h5")
    check_one_line(done.returncode, done.stderr, "out.h5")


def test_help_shows_groups_examples_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for word in (
        "pictures:",
        "storage:",
        "running:",
        "examples:",
        "exit codes",
        "--on-error",
        "Run the same command again",
    ):
        assert word in text


def test_result_is_printed_for_people_and_as_json(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = ["--resize", "36", "--size", "32", "--workers", "0"]
    assert main([str(pictures), str(tmp_path / "a.h5"), *usual]) == 0
    assert "100 samples" in capsys.readouterr().out
    assert main([str(pictures), str(tmp_path / "b.h5"), *usual, "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["num_samples"] == 100
    assert shown.err == ""  # quiet when not a terminal


def test_transform_is_found_in_the_current_folder(pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def half(sample):\n    return sample['image'] // 2\n")
    done = run_command(pictures, tmp_path / "out.h5", "--transform", "mine:half", "--workers", 2, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_sources_and_options_of_another_run_are_noticed(pictures: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(pictures, source)
    first = sorted(source.rglob("*.png"))[0]
    kept = first.read_bytes()
    first.write_bytes(b"bad")
    assert run_command(source, tmp_path / "out.h5", "--workers", 0).returncode == 1
    done = run_command(source, tmp_path / "out.h5", "--workers", 0, "--seed", 1)
    check_one_line(done.returncode, done.stderr, "seed 0 -> 1", "--overwrite")
    # The same shape, other pixels: nothing but the options tells.
    done = run_command(source, tmp_path / "out.h5", "--workers", 0, "--fit", "pad")
    check_one_line(done.returncode, done.stderr, "fit crop -> pad", "--overwrite")
    first.write_bytes(kept)
    done = run_command(source, tmp_path / "out.h5", "--workers", 0)
    assert done.returncode == 0
    assert "files of the source have changed" in done.stderr
    assert (tmp_path / "out.h5").exists()


def test_console_door_and_module_are_the_same(pictures: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from h5cache.convert.__main__ import main; sys.exit(main(['--version-not']))",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
