"""Settings for this machine's processor that numpy reads once, when it is imported.

Called by the command line and by benchmarks before numpy is loaded; processes that they start
inherit the settings. It promises to change no result, only how long one takes.
"""

from __future__ import annotations

import os
import sys

_SWITCH = "NPY_DISABLE_CPU_FEATURES"
_CPUINFO = "/proc/cpuinfo"


def prefer_fast_sorts() -> None:
    """Let numpy sort with AVX2 where its AVX-512 sort is slow.

    On Zen 4 processors the instruction that numpy's AVX-512 sort leans on (a compressing store)
    is microcode: 2.4 million float32 values take 84 ms, and 15 ms with AVX2. Does nothing on
    other processors, once numpy is loaded, or where the user has decided.
    """
    if "numpy" not in sys.modules and _SWITCH not in os.environ and _is_zen4(_first_processor()):
        os.environ[_SWITCH] = "X86_V4"


def _first_processor() -> dict[str, str]:
    """Return what Linux tells of the first processor; nothing elsewhere."""
    try:
        with open(_CPUINFO, encoding="utf-8", errors="replace") as lines:
            told = lines.read(16_384).split("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in told.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _is_zen4(told: dict[str, str]) -> bool:
    """Whether it is AMD's family 25 (Zen 3 and 4) with AVX-512 (not Zen 3)."""
    return (
        told.get("vendor_id") == "AuthenticAMD"
        and told.get("cpu family") == "25"
        and "avx512f" in told.get("flags", "").split()
    )
