"""Kernels: compiled when it pays, never for --help, the same numbers either way."""

import subprocess
import sys

import numpy as np
import pytest

from simulator import kernel
from simulator.kernel import Kernel
from simulator.simulate import simulate_uniform
from tests.plans import QUICK, nearest


def total(values):
    found = 0.0
    for value in values:
        found += value
    return found


def test_work_of_20000_elements_compiles_and_less_runs_as_python(monkeypatch):
    monkeypatch.setitem(kernel._state, "compiling", False)
    add = Kernel(total)
    assert add(np.ones(19_999)) == 19_999.0
    assert "compiled" not in vars(add)
    assert add(np.ones(20_000)) == 20_000.0
    assert vars(add)["compiled"].signatures
    assert kernel._state["compiling"]


def test_a_kernel_that_cannot_be_cached_compiles_all_the_same():
    namespace = {}
    exec(compile("def double(x):\n    return x + x\n", "<no file>", "exec"), namespace)
    double = Kernel(namespace["double"])
    assert double.compiled(21.0) == 42.0
    assert double.compiled.signatures


@pytest.mark.parametrize("name", QUICK)
def test_python_and_machine_code_give_the_same_bits(name, monkeypatch):
    runs = []
    for compiling in (False, True):
        monkeypatch.setitem(kernel._state, "compiling", compiling)
        runs.append(simulate_uniform(nearest(name, 4, 2, 2), 1.0, 2.0, latency=0.3))
    assert runs[0].timeline == runs[1].timeline
    assert runs[0].report.to_dict() == runs[1].report.to_dict()


@pytest.mark.parametrize(
    "words", [["--help"], ["simulate", "--uniform", "1,2", "--pp", "8", "--microbatches", "64"]]
)
def test_help_and_a_small_run_do_not_load_numba(words):
    code = f"""
import sys
from simulator.cli import main
try:
    main({words})
except SystemExit:
    pass
sys.exit("numba" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
