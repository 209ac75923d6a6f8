"""The S3 tests once more, against a real Ceph instead of moto."""

import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PORT = 7480
TESTS = (
    "tests/lake/test_s3.py",
    "tests/lake/test_storage.py",
    "tests/lake/test_commit.py",
    "tests/lake/test_faults.py",
    "tests/stress/test_crash_s3.py",
)


@pytest.fixture(scope="module")
def ceph(shared, tmp_path_factory):
    """Start a Ceph of one node, and stop it afterwards; returns its URL."""
    missing = [name for name in ("ceph-mon", "ceph-osd", "radosgw") if not shutil.which(name)]
    if missing:
        pytest.skip(f"{', '.join(missing)} of Ceph is not installed")
    if os.geteuid():
        pytest.skip("Ceph's test cluster must be started by root")
    url = f"http://127.0.0.1:{PORT}"
    if _answers(url):
        pytest.skip(f"something listens on port {PORT} already")
    folder = tmp_path_factory.mktemp("ceph", numbered=True)
    env = os.environ | {"D": str(folder)}
    scripts = shared / "servers"
    log = folder.parent / "ceph-start.log"
    try:
        with log.open("wb") as output:  # a pipe would stay open with the daemons
            command = ["bash", str(scripts / "ceph.sh")]
            subprocess.run(command, env=env, stdout=output, stderr=output, check=True, timeout=300)
        yield url
    finally:
        subprocess.run(["bash", str(scripts / "ceph-stop.sh")], env=env, check=False, timeout=60)


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


@pytest.mark.parametrize("tests", TESTS)
def test_the_s3_tests_hold_on_ceph(ceph, tests):
    env = os.environ | {
        "PICO_TEST_S3": ceph,
        "PICO_TEST_S3_KEY": "picokey",
        "PICO_TEST_S3_SECRET": "picosecret",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-k", "s3 or world"]
    command = [*command, "-p", "no:cacheprovider", tests]
    if tests.endswith(("test_faults.py", "test_crash_s3.py")):
        command = [part for part in command if part not in ("-k", "s3 or world")]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    print(done.stdout.strip().rpartition("\n")[2])
    assert done.returncode == 0, done.stdout[-4000:]
