"""Loading of plugins: files, entry points of packages, and what a failure leaves behind."""

import sys
from pathlib import Path

import pytest

import pico
from pico.errors import MetricError
from pico.metrics import components, names, plugins, registry

pytestmark = pytest.mark.usefixtures("fresh")

GOOD = """
from dataclasses import dataclass

import pico

@dataclass
class Settings:
    scale: float = 2.0

@pico.metric
def twice_max(tensor):
    return Settings().scale * tensor.max()

@pico.component
def halved(tensor):
    return tensor / 2
"""


def written(folder: Path, text: str, name: str = "mine.py") -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def test_a_file_is_loaded_once(tmp_path):
    file = written(tmp_path, GOOD)
    assert pico.load_plugin(file) == ("halved", "twice_max")
    assert pico.load_plugin(str(tmp_path / "." / "mine.py")) == ("halved", "twice_max")
    assert pico.metrics.compute([1.0, 4.0], ["twice_max"]) == {"twice_max": 8.0}
    assert "halved" in components.names()
    assert plugins.loaded_files() == (str(file),)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.py"]  # no bytecode


def test_two_files_of_one_name(tmp_path):
    (tmp_path / "other").mkdir()
    pico.load_plugin(written(tmp_path, GOOD))
    other = "import pico\n@pico.metric\ndef another(tensor):\n    return 0\n"
    assert pico.load_plugin(written(tmp_path / "other", other)) == ("another",)
    assert pico.metrics.compute([1.0, 4.0], ["twice_max"]) == {"twice_max": 8.0}


@pytest.mark.parametrize(
    ("end", "message"),
    [
        ("1 / 0", r"^plugin mine.py, line 17: ZeroDivisionError: division by zero$"),
        ("def broken(:", r"^plugin mine.py, line 17: SyntaxError: "),
        ("raise SystemExit(0)", r"^plugin mine.py, line 17: SystemExit: 0$"),
        ("import no_such_module_here", r"line 17: ModuleNotFoundError: No module named 'no_such"),
        ("pico.metric(halved)", r"line 17: metric 'halved' is registered already; choose another"),
        ("@pico.metric\ndef gini(x): return 0", r"'gini' is registered already; choose another"),
        ("@pico.metric\ndef mean(x): return 0", r"'mean' has a name that DuckDB's SQL has"),
    ],
)
def test_a_failure_is_one_line_and_leaves_nothing(tmp_path, end, message):
    before, modules = (names(), components.names()), set(sys.modules)
    file = written(tmp_path, GOOD + end + "\n")
    for _ in range(2):
        with pytest.raises(MetricError, match=message) as caught:
            pico.load_plugin(file)
        assert "\n" not in str(caught.value)
        assert (names(), components.names()) == before
        assert not {name for name in set(sys.modules) - modules if "mine" in name}
    written(tmp_path, GOOD)  # corrected, it loads in the same process
    assert pico.load_plugin(file) == ("halved", "twice_max")


@pytest.mark.parametrize("name", ["absent.py", "mine.txt", "."])
def test_what_is_no_file_is_told(tmp_path, name):
    written(tmp_path, GOOD, "mine.txt")
    with pytest.raises(MetricError, match=r"there is no plugin '.*'; name a Python file, FILE.py"):
        pico.load_plugin(tmp_path / name)


def installed(folder: Path, monkeypatch, entries: str, code: str, module: str) -> None:
    """Install a package: a module and the metadata of its distribution, on the import path."""
    written(folder, code, f"{module}.py")
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entries)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, module, raising=False)
    registry._WAITING[:] = [plugins._load_installed]


def test_entry_points_are_loaded_before_the_first_lookup(tmp_path, monkeypatch):
    entries = (
        "[pico.metrics]\ntwice_max = fake_good:twice_max\n[pico.components]\nall = fake_good\n"
    )
    installed(tmp_path, monkeypatch, entries, GOOD, "fake_good")
    assert not registry.knows("twice_max") and "fake_good" not in sys.modules
    assert registry.get("twice_max").version == 1
    assert components.get("halved").tensors == ("tensor",)
    assert registry._WAITING == []


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero; correct it or uninstall"),
        (GOOD + "def plain(x): return 0\n", "it is decorated neither with @pico.metric nor"),
        ("import pico\n@pico.metric\ndef gini(x): return 0", "'gini' is registered already"),
        ("", "AttributeError: .*plain"),
    ],
)
def test_a_broken_entry_point_names_its_package_until_it_is_gone(
    tmp_path, monkeypatch, code, message
):
    entries = "[pico.metrics]\nplain = fake_bad:plain\n"
    installed(tmp_path, monkeypatch, entries, code, "fake_bad")
    for _ in range(2):
        with pytest.raises(
            MetricError, match=r"^entry point 'plain' of fake_bad cannot be"
        ) as caught:
            registry.names()
        assert caught.match(message) and "\n" not in str(caught.value)
    (tmp_path / "fake_bad-1.0.dist-info" / "entry_points.txt").write_text("")
    assert "gini" in registry.names() and "twice_max" not in registry.names()


def test_nothing_is_loaded_once_it_is_forbidden(tmp_path, monkeypatch):
    installed(tmp_path, monkeypatch, "[pico.metrics]\nall = fake_off\n", GOOD, "fake_off")
    plugins.forbid()
    assert "twice_max" not in registry.names() and "fake_off" not in sys.modules
    with pytest.raises(MetricError, match=r"mine.py is not loaded for untrusted SQL"):
        pico.load_plugin(written(tmp_path, GOOD))
