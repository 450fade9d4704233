"""The curve of a layer's time, the names of kept measurements, and what tracing notes."""

import itertools

import pytest
import torch

from simulator.job import Plan
from validator.asked import SMALL, scaled, session_of
from validator.curve import Curve, fit
from validator.events import Measured, load
from validator.links import message_sizes
from validator.measurements import keep, name_of
from validator.sweep import sweep

SIZES = list(itertools.product((1, 2, 4), (16, 32, 64)))


@pytest.mark.parametrize("parts", [(1e-3, 1e-5, 1e-7), (0.0, 1e-5, 1e-7), (1e-3, 1e-5, 0.0)])
def test_a_curve_is_found_from_nine_sizes_of_it(parts):
    curve = Curve(constant=parts[0], per_token=parts[1], per_pair=parts[2])
    found = fit(SIZES, [curve.seconds(*size) for size in SIZES])
    for size in [*SIZES, (8, 128)]:
        assert found.seconds(*size) == pytest.approx(curve.seconds(*size), rel=1e-6)


def test_no_part_of_a_curve_is_negative():
    found = fit(SIZES, [1e-3 / (n * s) for n, s in SIZES])
    assert min(found.constant, found.per_token, found.per_pair) >= 0


def test_two_sizes_make_no_curve():
    with pytest.raises(ValueError, match="at least 3"):
        fit([(1, 2), (2, 2)], [1.0, 2.0])


def test_every_size_and_dtype_of_a_sweep_is_timed():
    model = scaled(SMALL, 1.0, {"num_hidden_layers": 1, "hidden_size": 32})
    points = sweep(model, torch.device("cpu"), ("fp32", "bf16"), (1, 2), (8, 16))
    assert {(p.dtype, p.samples, p.seq_len) for p in points} == set(
        itertools.product(("fp32", "bf16"), (1, 2), (8, 16))
    )
    assert all(p.forward.median > 0 and p.backward.median > 0 for p in points)


def measured(device):
    asked = session_of(SMALL, Plan(num_microbatches=8), ["1f1b"], 2, device=device, dtype="bf16")
    about = {"part": "about", "rank": 0, "gpu": "NVIDIA X 1/2", "driver": "1.2", "torch": "2.13"}
    return Measured(asked, (about | {"date": "2026-01-02"},))


def test_a_kept_measurement_is_named_by_gpu_driver_torch_and_date(tmp_path):
    path = keep(measured("cuda"), tmp_path)
    assert path.name == "nvidia-x-1-2_2ranks_direct_bf16_driver1.2_torch2.13_2026-01-02.json.gz"
    assert load(path) == measured("cuda")
    with pytest.raises(ValueError, match="exists"):
        keep(measured("cuda"), tmp_path)


def test_a_cpu_run_is_never_kept_as_a_gpus(tmp_path):
    with pytest.raises(ValueError, match="this run was on CPUs"):
        keep(measured("cpu"), tmp_path)
    assert name_of(measured("cpu")).startswith("nvidia")


def test_link_sizes_hold_the_boundary_and_stay_near_it():
    sizes = message_sizes(196_608)
    assert 196_608 in sizes
    assert max(sizes) <= 4 * 196_608
    assert len(sizes) >= 5
