"""The house rules of CONTRIBUTING.md that a program can see."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = {path: path.read_text(encoding="utf-8") for path in sorted((ROOT / "pico").rglob("*.py"))}
TREES = {path: ast.parse(text) for path, text in SOURCES.items()}
MAX_FILE_LINES = 350
MAX_FUNCTION_LINES = 60
NAMELESS = {"utils", "util", "helpers", "helper", "base", "manager", "common", "misc"}
EXECUTING_MODULES = {
    "pickle", "cPickle", "_pickle", "pickletools", "cloudpickle", "dill", "joblib", "shelve",
    "marshal", "code", "codeop", "runpy", "torch.distributed.checkpoint", "torch.package",
    "multiprocessing.managers", "xmlrpc",
}  # fmt: skip
"""Modules whose reading runs what is read."""
EXECUTING_CALLS = {
    "eval", "exec", "compile", "__import__", "os.system", "os.popen", "torch.load",
    "torch.jit.load", "torch.hub.load", "torch.export.load", "yaml.load", "yaml.load_all",
    "yaml.unsafe_load", "yaml.unsafe_load_all", "yaml.full_load", "yaml.full_load_all",
}  # fmt: skip
EXECUTING_NAMES = {
    "read_pickle", "to_pickle", "deserialize_pandas", "UnsafeLoader", "FullLoader", "Unpickler",
    "PyExtensionType", "deserialize", "load_module", "exec_module",
}  # fmt: skip
"""Names that have one meaning wherever they stand."""
EXECUTING_WORDS = {
    "allow_pickle": False,
    "trust_remote_code": False,
    "shell": False,
    "weights_only": True,
}
"""Keyword → the only value that it may have."""
ALLOWED = {ROOT / "pico" / "importers" / "ptchild.py": "torch.load"}
"""The one exception: files of pico-train are pickles, which a child process without power opens."""
USERS_OWN = {ROOT / "pico" / "metrics" / "plugins.py": "loader.exec_module"}
"""Where a Python file runs that the user names for that: `--plugin FILE.py`."""
FOLDERS_OF_A_MACHINE = re.compile(
    r"(?<![\w.-])/(?:work|root|opt|home/\w+|Users/\w+|private/tmp)/|[A-Z]:\\\\?Users"
)


def where(path: Path, node: ast.AST | None = None) -> str:
    line = getattr(node, "lineno", None)
    return f"{path.relative_to(ROOT)}" + (f":{line}" if line else "")


def nodes() -> Iterator[tuple[Path, ast.AST]]:
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            yield path, node


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return a function's length; its docstring does not count, it is asked to be thorough."""
    length = (function.end_lineno or 0) - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function) is not None:
        length -= (first.end_lineno or 0) - first.lineno + 1
    return length


def tracked_files() -> list[Path]:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: which files are tracked is unknown")
    command = ["git", "ls-files", "-z", "--cached"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def is_executing_module(name: str) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in EXECUTING_MODULES)


def unsafe(node: ast.AST) -> bool:
    """Whether a node can execute code that it reads."""
    if isinstance(node, ast.Import):
        return any(is_executing_module(alias.name) for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        names = [f"{node.module or ''}.{alias.name}" for alias in node.names]
        return is_executing_module(node.module or "") or any(
            is_executing_module(name)
            or name in EXECUTING_CALLS
            or name.rpartition(".")[2] in EXECUTING_NAMES
            for name in names
        )
    if isinstance(node, ast.Attribute):
        dotted = ast.unparse(node)
        is_reference = dotted in EXECUTING_CALLS
        return is_reference or node.attr in EXECUTING_NAMES or is_executing_module(dotted)
    if isinstance(node, ast.Call):
        words = [word for word in node.keywords if word.arg in EXECUTING_WORDS]
        return ast.unparse(node.func) in EXECUTING_CALLS or not all(
            isinstance(word.value, ast.Constant)
            and word.value.value is EXECUTING_WORDS[word.arg or ""]
            for word in words
        )
    return False


def test_there_is_something_to_check() -> None:
    assert len(SOURCES) > 30


def test_files_are_short() -> None:
    lengths = {where(path): len(text.splitlines()) for path, text in SOURCES.items()}
    assert not {name: n for name, n in lengths.items() if n > MAX_FILE_LINES}


def test_functions_are_short() -> None:
    functions = {
        where(path, node): code_lines(node)
        for path, node in nodes()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert not {name: n for name, n in functions.items() if n > MAX_FUNCTION_LINES}


def test_files_are_named_for_what_they_hold() -> None:
    assert not [where(path) for path in SOURCES if path.stem in NAMELESS]


def test_every_file_says_what_it_is_for() -> None:
    assert not [where(path) for path, module in TREES.items() if not ast.get_docstring(module)]


def is_allowed(path: Path, node: ast.AST) -> bool:
    """Whether a node is an exception: the name or its call, that of torch with `weights_only`."""
    if path in USERS_OWN:
        return ast.unparse(getattr(node, "func", node)) == USERS_OWN[path]
    if isinstance(node, ast.Call):
        words = {word.arg: ast.unparse(word.value) for word in node.keywords}
        return is_allowed(path, node.func) and words.get("weights_only") == "True"
    return ast.unparse(node) == ALLOWED.get(path)


def test_nothing_read_is_executed() -> None:
    found = [(path, node) for path, node in nodes() if unsafe(node)]
    assert not [where(path, node) for path, node in found if not is_allowed(path, node)]


def test_the_exception_for_torch_load_is_one_call_with_weights_only() -> None:
    (path,) = ALLOWED
    calls = [node for node in ast.walk(TREES[path]) if isinstance(node, ast.Call)]
    (call,) = [node for node in calls if ast.unparse(node.func) == "torch.load"]
    assert is_allowed(path, call)
    for text in ("torch.load(path)", "torch.load(path, weights_only=False)"):
        assert not is_allowed(path, ast.parse(text, mode="eval").body)
    assert not is_allowed(ROOT / "pico" / "api.py", call)


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "import torch.distributed.checkpoint as dcp",
        "from dill import loads",
        "from torch import load",
        "from torch.distributed import checkpoint",
        "from torch.distributed.checkpoint import FileSystemReader",
        "from yaml import load",
        "torch.load(path, weights_only=True)",
        "read = torch.load",
        "torch.distributed.checkpoint.load(state, reader)",
        "loader(path, weights_only=False)",
        "import joblib",
        "from marshal import loads",
        "import shelve",
        "pd.read_pickle(path)",
        "frame.to_pickle(path)",
        "pa.deserialize_pandas(data)",
        "yaml.load(text, Loader=yaml.SafeLoader)",
        "yaml.full_load(text)",
        "reader.get(text, Loader=yaml.UnsafeLoader)",
        "eval(text)",
        "exec(text)",
        "subprocess.run(command, shell=True)",
        "os.system(command)",
        "np.load(path, allow_pickle=True)",
        "AutoModel.from_pretrained(name, trust_remote_code=flag)",
    ],
)
def test_execution_of_input_is_recognised(line: str) -> None:
    assert any(unsafe(node) for node in ast.walk(ast.parse(line)))


@pytest.mark.parametrize(
    "line",
    [
        "np.load(path, allow_pickle=False)",
        "np.load(path)",
        "yaml.safe_load(text)",
        "re.compile(text)",
        "model.eval()",
        "subprocess.run(command, shell=False)",
        "safetensors.torch.load_file(path)",
    ],
)
def test_plain_reading_is_allowed(line: str) -> None:
    assert not any(unsafe(node) for node in ast.walk(ast.parse(line)))


def test_no_file_names_a_folder_of_one_machine() -> None:
    found = []
    for path in tracked_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{where(path)}: {match[0]}" for match in FOLDERS_OF_A_MACHINE.finditer(text)]
    assert not found
