"""What the package promises as a whole: a light import, layers that only look down, docstrings, one version.

The layers are checked from the source text (`ast`), so nothing is imported and optional libraries may be missing.
The checker's own tests, on small synthetic sources, are at the end.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "h5cache"

#: Doors for `python -m h5cache.<door>` and the console script. They form one group: cli may import the others.
DOORS = frozenset({"inspect", "verify", "bench", "report", "doctor", "demo", "cli"})

#: The layer of each module or package directly under h5cache. A module imports only from layers below its own.
LAYERS: dict[str, int] = {
    "errors": 0,
    "codecs": 1,
    "deal": 1,
    "grid": 1,
    "limits": 1,
    "markup": 1,
    "terminal": 1,
    "schema": 2,
    "value_table": 1,
    "quantise": 2,
    "store": 2,
    "format": 3,
    "convert": 4,
    "load": 4,
    "tools": 5,
    **dict.fromkeys(DOORS, 6),
}

#: The only modules that may import h5py, wherever the import stands.
ALLOWED_H5PY = frozenset({"h5cache.format.hdf5"})

#: Units whose modules must be importable without torch; inside a function they may still import it.
NO_TORCH_AT_IMPORT = frozenset(
    {"codecs", "grid", "limits", "markup", "schema", "quantise", "value_table", "store", "format"}
)

#: What `import h5cache` must not load: each costs tens to hundreds of milliseconds, or starts threads.
HEAVY = ("torch", "cv2", "h5py", "blosc2", "hdf5plugin", "numcodecs")


@dataclass(frozen=True)
class Module:
    """One source file of the package; `name` is dotted, without `.__init__`."""

    name: str
    is_package: bool
    source: str

    @property
    def unit(self) -> str:
        """Name the direct child of h5cache that holds this module; empty for h5cache itself."""
        return unit_of(self.name)


@dataclass(frozen=True)
class Import:
    """One imported name: `from h5cache.codecs import CODECS` has the target `h5cache.codecs.CODECS`."""

    target: str
    line: int
    at_import_time: bool

    @property
    def library(self) -> str:
        return self.target.partition(".")[0]


def unit_of(dotted: str) -> str:
    return dotted.partition(".")[2].partition(".")[0]


def group_of(unit: str) -> str:
    return "doors" if unit in DOORS else unit


def read_modules(root: Path) -> list[Module]:
    """Read every module of the package, sorted by path."""
    modules = []
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        modules.append(Module(name, is_package, path.read_text(encoding="utf-8")))
    return modules


def is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def is_import_module(func: ast.expr) -> bool:
    """Say whether a call is `importlib.import_module(...)`, `import_module(...)` or `__import__(...)`."""
    name = func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
    return name in {"import_module", "__import__"}


def resolve_from(module: Module, node: ast.ImportFrom) -> str:
    """Make the module named in a `from ... import` absolute."""
    if node.level == 0:
        return node.module or ""
    # One dot is the module's own package: for a package that is itself, for a module its parent.
    strip = node.level - 1 if module.is_package else node.level
    parts = module.name.split(".")
    return ".".join([*parts[: len(parts) - strip], *([node.module] if node.module else [])])


def find_imports(module: Module) -> list[Import]:
    """List what a module imports when it runs, in order of lines; `if TYPE_CHECKING:` blocks do not count."""

    def walk(node: ast.AST, at_import_time: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, at_import_time)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield Import(f"{resolve_from(module, node)}.{alias.name}", node.lineno, at_import_time)
        elif isinstance(node, ast.Call) and is_import_module(node.func) and node.args:
            name = node.args[0]
            if isinstance(name, ast.Constant) and isinstance(name.value, str) and not name.value.startswith("."):
                yield Import(name.value, node.lineno, at_import_time)
        if isinstance(node, ast.If) and is_type_checking(node.test):
            children: list[ast.AST] = list(node.orelse)
        else:
            children = list(ast.iter_child_nodes(node))
        inside = at_import_time and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in children:
            yield from walk(child, inside)

    return list(walk(ast.parse(module.source), at_import_time=True))


def check_layers(module: Module) -> list[str]:
    """List what a module imports against the rules, a sentence each. h5cache/__init__.py is free (and lazy)."""
    if not module.unit:
        return []
    if module.unit not in LAYERS:
        return [f"{PACKAGE}.{module.unit} has no layer: add it to LAYERS in tests/test_package.py"]
    problems = []
    for imported in find_imports(module):
        where = f"{module.name}:{imported.line}"
        if imported.library == PACKAGE:
            problem = find_layer_problem(module.unit, imported.target)
            if problem:
                problems.append(f"{where} imports {imported.target}: {problem}")
        if imported.library == "h5py" and module.name not in ALLOWED_H5PY:
            problems.append(f"{where} imports h5py: only {', '.join(sorted(ALLOWED_H5PY))} may")
        if imported.library == "torch" and imported.at_import_time and module.unit in NO_TORCH_AT_IMPORT:
            problems.append(f"{where} imports torch when it is imported: do it inside the function that needs it")
    return problems


def find_layer_problem(unit: str, target: str) -> str:
    """Say why a module of `unit` may not import `target`, a dotted name in h5cache; empty if it may."""
    other = unit_of(target)
    if other == "__version__" or group_of(other) == group_of(unit):
        return ""
    if other not in LAYERS and target.count(".") > 1:
        return f"{PACKAGE}.{other} has no layer: add it to LAYERS in tests/test_package.py"
    if other not in LAYERS:
        # A name of h5cache/__init__.py comes from any layer, so it would hide an import upwards.
        return "" if unit in DOORS else "import it from the module that defines it"
    if LAYERS[other] < LAYERS[unit]:
        return ""
    return f"{unit} is in layer {LAYERS[unit]}, {other} in layer {LAYERS[other]}, and imports only go down"


def find_path(graph: Mapping[str, set[str]], start: str, goal: str) -> list[str]:
    """Find a chain of imports from one unit to another; empty if there is none."""
    paths, seen = [[start]], {start}
    while paths:
        path = paths.pop()
        for unit in sorted(graph.get(path[-1], set()) - seen):
            if unit == goal:
                return [*path, goal]
            seen.add(unit)
            paths.append([*path, unit])
    return []


def build_graph(modules: list[Module]) -> dict[str, set[str]]:
    """Map each unit to the units it imports. h5cache/__init__.py is left out: it may name everything, lazily."""
    graph: dict[str, set[str]] = {}
    for module in modules:
        if module.unit:
            targets = {unit_of(i.target) for i in find_imports(module) if i.library == PACKAGE}
            graph.setdefault(module.unit, set()).update(targets & LAYERS.keys())
    return graph


MODULES = read_modules(ROOT)
every_module = pytest.mark.parametrize("module", MODULES, ids=lambda module: module.name)


def test_import_h5cache_loads_nothing_heavy() -> None:
    code = f"import sys, {PACKAGE}; print(*sorted(sys.modules.keys() & set({HEAVY!r})))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


@every_module
def test_module_imports_only_from_layers_below(module: Module) -> None:
    assert check_layers(module) == []


@pytest.mark.parametrize(("start", "goal"), [("convert", "load"), ("load", "convert")])
def test_convert_and_load_never_reach_each_other(start: str, goal: str) -> None:
    assert find_path(build_graph(MODULES), start, goal) == []


@every_module
def test_module_has_a_docstring(module: Module) -> None:
    assert ast.get_docstring(ast.parse(module.source)), f"{module.name} does not say what lives there"


def test_version_equals_the_version_installed() -> None:
    import h5cache

    try:
        installed = metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        pytest.skip("h5cache is not installed: python -m pip install -c constraints.txt -e '.[test]'")
    assert h5cache.__version__ == installed


# The checker itself, which must be able to fail.


def check_source(name: str, source: str, is_package: bool = False) -> list[str]:
    return check_layers(Module(name, is_package, source))


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("h5cache.codecs.zstd", "from h5cache.errors import CodecError"),
        ("h5cache.codecs.zstd", "from h5cache.codecs.codec import Codec"),
        ("h5cache.codecs.zstd", "from .codec import Codec"),
        ("h5cache.codecs.zstd", "from . import codec"),
        ("h5cache.codecs.zstd", "from .. import errors"),
        ("h5cache.codecs.blosc2", "import blosc2"),
        ("h5cache.format.hdf5", "import h5py"),
        ("h5cache.format.layout", "def f():\n    import torch"),
        ("h5cache.load.dataset", "import torch"),
        ("h5cache.convert.run", "from h5cache import __version__"),
        ("h5cache.tools.bench", "from h5cache.load.loader import Loader\nfrom h5cache.convert import run"),
        ("h5cache.cli", "from h5cache import inspect, verify, H5TensorDataset"),
        ("h5cache.demo", "import h5cache"),
    ],
)
def test_checker_accepts_imports_from_below(name: str, source: str) -> None:
    assert check_source(name, source) == []


@pytest.mark.parametrize(
    ("name", "source", "problem"),
    [
        ("h5cache.errors", "import h5cache.codecs", "errors is in layer 0, codecs in layer 1"),
        ("h5cache.codecs.zstd", "from h5cache.schema import Field", "codecs is in layer 1, schema in layer 2"),
        ("h5cache.codecs.zstd", "from ..schema import Field", "codecs is in layer 1, schema in layer 2"),
        ("h5cache.codecs.zstd", "from .. import schema", "codecs is in layer 1, schema in layer 2"),
        ("h5cache.convert.sources.folder", "from ...load import order", "convert is in layer 4, load in layer 4"),
        ("h5cache.schema", "from h5cache import quantise", "schema is in layer 2, quantise in layer 2"),
        ("h5cache.convert.run", "def f():\n    import h5cache.load.order", "convert is in layer 4, load in layer 4"),
        ("h5cache.load.order", "import h5cache.convert.plan as plan", "load is in layer 4, convert in layer 4"),
        ("h5cache.load.order", "from h5cache.tools import bench", "load is in layer 4, tools in layer 5"),
        ("h5cache.load.order", "import_module('h5cache.convert')", "load is in layer 4, convert in layer 4"),
        ("h5cache.tools.bench", "from h5cache.cli import main", "tools is in layer 5, cli in layer 6"),
        ("h5cache.load.order", "from h5cache import convert_dataset", "import it from the module that defines it"),
        ("h5cache.load.order", "from h5cache.utils import x", "h5cache.utils has no layer"),
        ("h5cache.load.order", "from h5cache import *", "import it from the module that defines it"),
        ("h5cache.load.order", "import h5cache", "import it from the module that defines it"),
        ("h5cache.load.read", "import h5py", "only h5cache.format.hdf5 may"),
        ("h5cache.format.index", "def f():\n    from h5py import File", "only h5cache.format.hdf5 may"),
        ("h5cache.cli", "import h5py.h5d", "only h5cache.format.hdf5 may"),
        ("h5cache.schema", "import torch", "imports torch when it is imported"),
        ("h5cache.store.local", "try:\n    from torch import Tensor\nexcept ImportError:\n    pass", "imports torch"),
        ("h5cache.format.index", "class A:\n    import torch.utils", "imports torch when it is imported"),
        ("h5cache.utils", "", "h5cache.utils has no layer: add it to LAYERS in tests/test_package.py"),
        ("h5cache.utils.x", "", "h5cache.utils has no layer: add it to LAYERS in tests/test_package.py"),
    ],
)
def test_checker_names_the_broken_rule(name: str, source: str, problem: str) -> None:
    problems = check_source(name, source)
    assert len(problems) == 1
    assert problem in problems[0]


def test_checker_resolves_relative_imports_of_a_package_from_itself() -> None:
    assert check_source("h5cache.codecs", "from .codec import Codec", is_package=True) == []
    assert check_source("h5cache.codecs", "from ..load import order", is_package=True) != []
    assert check_source("h5cache.load", "from . import order", is_package=True) == []


def test_checker_names_module_and_line() -> None:
    assert check_source("h5cache.load.read", '"""Doc."""\n\nimport h5py\n')[0].startswith("h5cache.load.read:3 imports")


@pytest.mark.parametrize("guard", ["TYPE_CHECKING", "typing.TYPE_CHECKING"])
def test_checker_ignores_type_checking_blocks_but_not_their_else(guard: str) -> None:
    assert check_source("h5cache.schema", f"if {guard}:\n    import torch\n    import h5py") == []
    assert check_source("h5cache.schema", f"if {guard}:\n    import torch\nelse:\n    import h5py") != []


def test_checker_leaves_the_package_init_free() -> None:
    assert check_source("h5cache", "from h5cache.load import H5TensorDataset", is_package=True) == []


def test_path_through_a_third_unit_is_found() -> None:
    modules = [
        Module("h5cache.convert.run", False, "from h5cache.tools import bench"),
        Module("h5cache.tools.bench", False, "from h5cache.load import loader"),
    ]
    assert find_path(build_graph(modules), "convert", "load") == ["convert", "tools", "load"]
    assert find_path(build_graph(modules), "load", "convert") == []


def test_modules_of_the_package_are_found() -> None:
    assert {"h5cache.errors", "h5cache.codecs"} <= {module.name for module in MODULES}
