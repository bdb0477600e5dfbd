"""The notebooks run from top to bottom as they are in git, and hold no outputs there."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))
#: What must not stand in the stderr of any cell.
BAD_WORDS = ("Traceback", "Error", "Warning")

nbformat = pytest.importorskip("nbformat", reason="notebooks are read with nbformat")


def by_name(path: Path) -> str:
    return path.stem


@pytest.mark.timeout(240)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=by_name)
def test_notebook_runs_from_top_to_bottom_without_errors(path: Path, tmp_path: Path) -> None:
    nbclient = pytest.importorskip("nbclient", reason="notebooks are run by nbclient")
    for needed in ("ipykernel", "ipywidgets", "matplotlib"):
        if find_spec(needed) is None:
            pytest.skip(f"notebooks need {needed}: pip install 'h5cache[test]'")
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )

    # Notebooks work in temporary folders: here in one that pytest removes.
    client.execute(env={**os.environ, "TMPDIR": str(tmp_path)})

    assert [line for line in stderr_lines(notebook) if any(word in line for word in BAD_WORDS)] == []
    assert count_outputs(notebook, "image/png") + count_outputs(notebook, "text/html") >= 4


@pytest.mark.parametrize("path", NOTEBOOKS, ids=by_name)
def test_notebook_is_stored_without_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)

    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.id for cell in code if cell.outputs or cell.execution_count is not None] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=by_name)
def test_notebook_says_in_one_marked_cell_how_to_use_own_data(path: Path) -> None:
    cells = nbformat.read(path, as_version=4).cells

    marks = [number for number, cell in enumerate(cells) if "<b>Your own data.</b>" in cell.source]
    assert len(marks) == 1
    assert " = None  # or " in cells[marks[0] + 1].source


def stderr_lines(notebook: Any) -> list[str]:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return [line for out in outputs if out.get("name") == "stderr" for line in out.text.splitlines()]


def count_outputs(notebook: Any, kind: str) -> int:
    return sum(kind in output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", ()))
