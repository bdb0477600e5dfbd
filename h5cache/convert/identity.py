"""Describe code and its settings as JSON values that stay the same from run to run and change when the code does.

Nothing here calls what it describes. Used for the identity of transforms and of users' datasets.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import math
import os
import sys
import sysconfig
import textwrap
import types
from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["describe", "digest_of", "name_of", "source_of"]

#: Deeper than any settings object; what lies below counts by its type alone.
MAX_DEPTH = 12


def digest_of(value: Any) -> str:
    """Return a digest of what `describe` says."""
    text = json.dumps(describe(value), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def describe(value: Any) -> Any:
    """Return JSON values for any object.

    A function is its source text (bytecode where there is none, as for lambdas, whose source line may hold other
    code), its defaults, the values it closes over, and the global constants, functions and classes of its own
    package that it names. An object is its class and its state, an array or tensor its elements. What has no state
    that Python shows (a lock, a file) counts by its type.
    """
    return _Describer().describe(value, 0)


def name_of(value: Any) -> str:
    """Return `package.module:name` of a function or class, of a partial's function or an object's class."""
    if isinstance(value, functools.partial):
        return name_of(value.func)
    if not hasattr(value, "__qualname__"):
        value = type(value)
    return f"{getattr(value, '__module__', None) or 'builtins'}:{value.__qualname__}"


def source_of(value: Any) -> str | None:
    """Return the source text of a function, of a partial's function or an object's class; None where there is none."""
    if isinstance(value, functools.partial):
        return source_of(value.func)
    if not (inspect.isroutine(value) or inspect.isclass(value)):
        value = type(value)
    try:
        return textwrap.dedent(inspect.getsource(value))
    except (OSError, TypeError):
        return None


class _Describer:
    def __init__(self) -> None:
        # Objects being described: one that holds itself is a cycle, not an endless description.
        self._open: list[int] = []
        # Functions and classes are described where they first occur, and named afterwards.
        self._known: set[str] = set()

    def describe(self, value: Any, depth: int) -> Any:
        if value is None or isinstance(value, bool | str):
            return value
        if isinstance(value, int):
            return {"int": str(int(value))}
        if isinstance(value, float):
            return {"float": value.hex() if math.isfinite(value) else repr(value)}
        if isinstance(value, bytes | bytearray):
            return {"bytes": hashlib.sha256(value).hexdigest()}
        if depth > MAX_DEPTH or id(value) in self._open:
            return {"type": name_of(type(value))}
        self._open.append(id(value))
        try:
            return self._compound(value, depth + 1)
        finally:
            self._open.pop()

    def _compound(self, value: Any, depth: int) -> Any:
        if isinstance(value, Mapping) and type(value).__module__ in ("builtins", "collections", "types"):
            return {"dict": [[self.describe(k, depth), self.describe(v, depth)] for k, v in value.items()]}
        if isinstance(value, list | tuple) and type(value) in (list, tuple):
            return {type(value).__name__: [self.describe(item, depth) for item in value]}
        if isinstance(value, set | frozenset):
            # The order of a set changes from process to process.
            return {"set": sorted(json.dumps(self.describe(item, depth), sort_keys=True) for item in value)}
        if isinstance(value, types.ModuleType):
            return {"module": value.__name__}
        if isinstance(value, types.FunctionType):
            return self._function(value, depth)
        if isinstance(value, types.MethodType):
            return {"method": self.describe(value.__func__, depth), "of": self.describe(value.__self__, depth)}
        if isinstance(value, types.CodeType):
            return self._code(value, depth)
        if isinstance(value, functools.partial):
            parts = (value.func, value.args, value.keywords)
            return {"partial": [self.describe(part, depth) for part in parts]}
        if inspect.isclass(value):
            return self._class(value)
        if inspect.isroutine(value):
            return {"builtin": name_of(value)}
        if isinstance(value, np.ndarray | np.generic) or hasattr(value, "detach"):
            return _describe_array(value)
        return self._object(value, depth)

    def _function(self, function: types.FunctionType, depth: int) -> Any:
        name = name_of(function)
        source = None if function.__name__ == "<lambda>" else source_of(function)
        body = source if source is not None else self._code(function.__code__, depth)
        if f"{name}{function.__code__.co_firstlineno}" in self._known:
            return {"function": name}
        self._known.add(f"{name}{function.__code__.co_firstlineno}")
        closed = {}
        for free, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                closed[free] = self.describe(cell.cell_contents, depth)
            except ValueError:  # not assigned yet
                closed[free] = None
        return {
            "function": name,
            "body": body,
            "defaults": self.describe((function.__defaults__, function.__kwdefaults__), depth),
            "closure": closed,
            "globals": self._globals(function, depth),
        }

    def _globals(self, function: types.FunctionType, depth: int) -> dict[str, Any]:
        """What the function names from its module: constants, and code of the same package.

        Of installed libraries only the code that is used directly counts: theirs would lead through all of torch.
        """
        if _is_library(function.__module__):
            return {}
        home = (function.__module__ or "").partition(".")[0]
        found = {}
        for name in sorted(_names_in(function.__code__)):
            if name not in function.__globals__:
                continue
            value = function.__globals__[name]
            module = (getattr(value, "__module__", None) or "").partition(".")[0]
            is_code = isinstance(value, types.FunctionType) or inspect.isclass(value)
            is_plain = isinstance(value, bool | int | float | str | bytes | list | tuple | dict | set | np.ndarray)
            if (is_code and module == home) or is_plain or value is None:
                found[name] = self.describe(value, depth)
        return found

    def _code(self, code: types.CodeType, depth: int) -> Any:
        """Bytecode, without the names of files and the numbers of lines."""
        constants = [self.describe(constant, depth) for constant in code.co_consts]
        names = [*code.co_names, *code.co_varnames, *code.co_freevars, *code.co_cellvars]
        return {"code": hashlib.sha256(code.co_code).hexdigest(), "constants": constants, "names": names}

    def _class(self, kind: type) -> Any:
        name = name_of(kind)
        if kind.__module__ == "builtins" or name in self._known:
            return {"class": name}
        self._known.add(name)
        source = source_of(kind)
        # Without source (typed into a terminal) the methods' bytecode serves.
        methods = {key: part for key, part in vars(kind).items() if isinstance(part, types.FunctionType)}
        body = source if source is not None else {key: self._code(part.__code__, 1) for key, part in methods.items()}
        bases = [self._class(base) for base in kind.__bases__ if base is not object]
        named = {key: self._globals(part, 1) for key, part in methods.items()}
        return {"class": name, "body": body, "bases": bases, "globals": named}

    def _object(self, value: Any, depth: int) -> Any:
        described = {"object": self._class(type(value))}
        try:
            reduced = value.__reduce_ex__(2)
        except Exception:  # any class may refuse, each in its own way; then its type and name must do
            return {**described, "name": getattr(value, "__name__", None)}
        if isinstance(reduced, str):  # a global name
            return {**described, "name": reduced}
        # Iterators over the items of list and dict subclasses come fourth and fifth.
        parts = [list(part) if place >= 3 and part is not None else part for place, part in enumerate(reduced)][1:]
        return {**described, "state": [self.describe(part, depth) for part in parts]}


@functools.cache
def _is_library(module: str | None) -> bool:
    """Say whether a module belongs to Python or to an installed package, not to the user."""
    path = getattr(sys.modules.get(module or ""), "__file__", None)
    if path is None:
        return module in sys.builtin_module_names
    folders = os.path.abspath(path).split(os.sep)
    installed = "site-packages" in folders or "dist-packages" in folders
    return installed or os.path.abspath(path).startswith(sysconfig.get_paths()["stdlib"] + os.sep)


def _names_in(code: types.CodeType) -> set[str]:
    inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return set(code.co_names).union(*(_names_in(part) for part in inner))


def _describe_array(value: Any) -> Any:
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        kind = str(value.dtype)
        if kind == "torch.bfloat16":
            value = value.float()  # exact: bfloat16 is float32 cut short
        value = value.contiguous().numpy()
    else:
        kind = value.dtype.str
    array = np.asarray(value)
    if array.dtype.hasobject:
        return {"array": kind, "shape": list(array.shape), "values": repr(array.tolist())}
    return {"array": kind, "shape": list(array.shape), "bytes": hashlib.sha256(array.tobytes()).hexdigest()}
