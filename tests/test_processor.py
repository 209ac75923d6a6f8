"""Numpy's slow sort is switched off on the one kind of processor that has it, and only there."""

import os
import subprocess
import sys

import pytest

from pico import processor

ZEN4 = "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nflags\t\t: fpu avx2 avx512f\n"


@pytest.fixture
def switch(monkeypatch, tmp_path):
    """Decide on a machine that tells so of itself, before numpy is loaded; return the switch."""

    def decide(told, **env):
        (tmp_path / "cpuinfo").write_text(told)
        monkeypatch.setattr(processor, "_CPUINFO", str(tmp_path / "cpuinfo"))
        monkeypatch.delitem(sys.modules, "numpy", raising=False)
        monkeypatch.setattr(os, "environ", env)
        processor.prefer_fast_sorts()
        return env.get("NPY_DISABLE_CPU_FEATURES")

    return decide


def test_it_is_switched_off_on_zen_4(switch):
    assert switch(ZEN4 + "\n" + ZEN4) == "X86_V4"


@pytest.mark.parametrize(
    "told",
    [
        ZEN4.replace("avx512f", ""),
        ZEN4.replace("25", "26"),
        ZEN4.replace("AuthenticAMD", "GenuineIntel"),
        "",
    ],
)
def test_other_processors_are_left_alone(switch, told):
    assert switch(told) is None


def test_what_the_user_decided_stays(switch):
    assert switch(ZEN4, NPY_DISABLE_CPU_FEATURES="") == ""


def test_once_numpy_is_loaded_nothing_is_changed(switch, monkeypatch):
    import numpy as np

    monkeypatch.setattr(processor, "sys", type("Sys", (), {"modules": {"numpy": np}}))
    assert switch(ZEN4) is None


def test_a_machine_without_that_file_is_left_alone(monkeypatch):
    monkeypatch.setattr(processor, "_CPUINFO", "/nowhere")
    assert processor._first_processor() == {}


def test_numpy_of_a_command_sees_the_switch_without_a_warning():
    code = (
        "import os; from pico import processor; processor._is_zen4 = lambda told: True\n"
        "import pico.cli, numpy; print(os.environ['NPY_DISABLE_CPU_FEATURES'])"
    )
    env = {key: value for key, value in os.environ.items() if "DISABLE_CPU" not in key}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout == "X86_V4\n"
    assert done.stderr == ""
