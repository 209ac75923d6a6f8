import shutil

import pytest

from pico import resources


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An empty installation beside which nothing lies."""
    folder = tmp_path / "site" / "pico"
    folder.mkdir(parents=True)
    monkeypatch.setattr(resources, "_PACKAGE", folder)
    resources.folder.cache_clear()
    yield folder
    resources.folder.cache_clear()


def test_the_source_tree_has_every_folder():
    assert (resources.folder("schemas") / "weights.json").is_file()
    assert resources.folder("queries").is_dir()


def test_a_wheel_has_them_inside_the_package(package):
    source = package / "_resources" / "schemas"
    source.mkdir(parents=True)
    (package.parent / "schemas").mkdir()  # somebody else's, beside the package
    assert resources.folder("schemas") == source
    shutil.rmtree(package / "_resources")
    resources.folder.cache_clear()
    assert resources.folder("schemas") == package.parent / "schemas"


def test_a_broken_installation_says_so(package):
    with pytest.raises(FileNotFoundError, match="has no schemas/ folder; install it again"):
        resources.folder("schemas")
    assert resources.config_names() == []


def test_shipped_configs():
    assert "nano" in resources.config_names()
    assert resources.config_names() == sorted(resources.config_names())
    for name in resources.config_names():
        assert resources.config_path(name).is_file()
    assert not resources.config_path("no-such-config").exists()
