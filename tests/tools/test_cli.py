"""The console script `h5cache`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

import h5cache
from h5cache import cli
from h5cache.cli import COMMANDS, Command, available_commands, main

from .conftest import Shell


def test_every_command_that_is_there_is_listed_with_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for command in COMMANDS:
        there = command in available_commands()
        assert (f"  {command.word}  " in text or f"  {command.word} " in text) is there


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.word)
def test_command_is_available_exactly_if_its_module_is(command: Command) -> None:
    try:
        there = find_spec(command.module) is not None
    except ModuleNotFoundError:
        there = False
    assert (command in available_commands()) is there


def test_missing_module_is_neither_listed_nor_called(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = (Command("fly", "h5cache.fly", "no"), Command("dive", "h5cache.sea.__main__", "no"))
    monkeypatch.setattr(cli, "COMMANDS", (*COMMANDS, *absent))
    assert main([]) == 0
    assert "fly" not in capsys.readouterr().out
    assert main(["fly"]) == 2
    assert main(["dive"]) == 2


@pytest.mark.parametrize("command", available_commands(), ids=lambda command: command.word)
def test_help_of_every_command_has_examples_and_exit_codes(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command.word, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"usage: h5cache {command.word}" in text
    assert "examples:" in text
    assert "exit codes:" in text


def test_version_is_the_package_s(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"h5cache {h5cache.__version__}\n"


def test_unknown_word_suggests_the_one_that_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspet", "x.h5"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "error: no command 'inspet'; did you mean 'h5cache inspect'? (see h5cache --help)\n"


def test_word_like_no_other_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zzz"]) == 2
    assert "there are" in capsys.readouterr().err


def test_script_passes_arguments_and_exit_code_on(dataset: Path, shell: Shell) -> None:
    done = shell("h5cache.cli", "inspect", dataset, "--samples", 1)
    assert (done.returncode, done.stderr) == (0, "")
    assert "cat/0000.jpg" in done.stdout
    missing = shell("h5cache.cli", "inspect", "nothing.h5")
    assert missing.returncode == 2
    assert missing.stderr.count("\n") == 1
