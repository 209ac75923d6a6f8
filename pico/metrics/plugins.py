"""Loads metrics and components of a user's own, from files and from installed packages.

`pico.load_plugin` and `--plugin FILE.py` load a file. The entry points `pico.metrics` and
`pico.components` of installed packages are loaded before the first name is looked up; a process for
somebody else's SQL calls `forbid` before that. What fails to load leaves nothing behind.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import traceback
from importlib import metadata
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType

from pico.errors import MetricError
from pico.metrics import own, registry

GROUPS = ("pico.metrics", "pico.components")
"""Groups of entry points: each names a module, or a decorated function in one."""

_files: dict[Path, tuple[str, ...]] = {}  # loaded, with the names that each has registered
_is_forbidden = False


class _Loader(SourceFileLoader):
    """Reads the source each time, and leaves no bytecode beside a user's file."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def load_plugin(path: str | Path) -> tuple[str, ...]:
    """Run a Python file that defines metrics and components, once.

    Args:
        path: The file.

    Returns:
        The names that it has registered.

    Raises:
        MetricError: There is no such file, it fails, or a name is taken; then none of its metrics
            and components is left.
    """
    file = Path(path).expanduser().resolve()
    if file in _files:
        return _files[file]
    if _is_forbidden:
        raise MetricError(f"plugin {file.name} is not loaded for untrusted SQL")
    if file.suffix != ".py" or not file.is_file():
        raise MetricError(f"there is no plugin {str(path)!r}; name a Python file, FILE.py")
    name = f"pico_plugin_{len(_files)}_{re.sub(r'[^0-9A-Za-z_]', '_', file.stem)}"
    loader = _Loader(name, str(file))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # as an import does; dataclasses look there
    before = own.names()
    try:
        loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        own.forget(own.names() - before)
        if isinstance(error, KeyboardInterrupt):
            raise
        raise MetricError(f"plugin {file.name}{_where(error, file)}: {own.told(error)}") from error
    _files[file] = tuple(sorted(own.names() - before))
    return _files[file]


def loaded_files() -> tuple[str, ...]:
    """Return the files that have been loaded, for a process that must load them too."""
    return tuple(str(file) for file in _files)


def forbid() -> None:
    """Load no plugin in this process from now on."""
    global _is_forbidden
    _is_forbidden = True
    registry.stop_waiting()


def _load_installed() -> None:
    """Load the entry points of installed packages."""
    for group in GROUPS:
        for entry in sorted(metadata.entry_points(group=group), key=lambda entry: entry.name):
            before = own.names()
            package = entry.dist.name if entry.dist is not None else "an unknown package"
            try:
                found = entry.load()
                if callable(found) and getattr(found, "__name__", "") not in own.names():
                    raise MetricError(
                        "it is decorated neither with @pico.metric nor @pico.component"
                    )
            except (Exception, SystemExit) as error:
                own.forget(own.names() - before)
                raise MetricError(
                    f"entry point {entry.name!r} of {package} cannot be loaded: {own.told(error)}; "
                    "correct it or uninstall the package"
                ) from error


registry.on_first_lookup(_load_installed)


def _where(error: BaseException, file: Path) -> str:
    """Return the line of a file that an error comes from, as `, line 7`."""
    if isinstance(error, SyntaxError):
        return f", line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(file)]
    return f", line {lines[-1]}" if lines else ""
