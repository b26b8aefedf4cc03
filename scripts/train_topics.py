"""Run topics/training in an environment of its own: scripts/train_topics.py --help.

Owns the pinned environment (topics-requirements.txt) under build/, so that neither the service nor
its development needs scikit-learn. Its rule: training uses one thread, so that sums have one order
and the parameters are the same, byte for byte.
"""

import hashlib
import os
import sys
from pathlib import Path

from make_protos import make_venv, run

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "scripts" / "topics-requirements.txt"
VENV = ROOT / "build" / "topics-venv"
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def python() -> Path:
    """Return the environment's Python, installing what it needs if the pins changed."""
    stamp = VENV / "requirements.sha256"
    wanted = hashlib.sha256(REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()
    found = VENV / ("Scripts" if os.name == "nt" else "bin") / "python"
    if not stamp.is_file() or stamp.read_text() != wanted:
        make_venv(VENV)
        run([str(found), "-m", "pip", "install", "-q", "-r", str(REQUIREMENTS)])
        # Written last, so that an interrupted installation starts again.
        stamp.write_text(wanted)
    return found


if __name__ == "__main__":
    interpreter = str(python())
    os.chdir(ROOT)
    command = [interpreter, "-m", "topics.training", *sys.argv[1:]]
    # The package is read from the tree.
    path = {"PYTHONPATH": str(ROOT / "topics")}
    os.execve(interpreter, command, os.environ | ONE_THREAD | path)  # noqa: S606 - no shell is wanted
