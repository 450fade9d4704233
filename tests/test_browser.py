"""The interactive chart in a real browser: it draws, and the console stays free of errors."""

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dashboard.figures.gantt import write_html
from simulator.job import Plan
from simulator.schedule import Kind
from simulator.simulate import simulate_uniform
from traces.colors import color, rgb

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--window-size=1440,900",
    "--virtual-time-budget=10000",
    "--enable-logging=stderr",
    "--v=0",
]


@pytest.mark.skipif(CHROMIUM is None and "CI" not in os.environ, reason="needs chromium")
@pytest.mark.parametrize(("pp", "m"), [(4, 8), (64, 512)])
def test_the_html_chart_draws_without_an_error(tmp_path, pp, m):
    run = simulate_uniform(Plan(schedule="1f1b", pp=pp, num_microbatches=m), 1.0, 2.0)
    page, shot = tmp_path / "gantt.html", tmp_path / "gantt.png"
    write_html(run.timeline, page, title="1F1B", unit="t")
    ended = subprocess.run(
        [
            CHROMIUM,
            *FLAGS,
            f"--user-data-dir={tmp_path / 'profile'}",
            f"--screenshot={shot}",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    said = [line for line in ended.stderr.splitlines() if "CONSOLE" in line]
    assert not [line for line in said if "rror" in line], said
    pixels = np.asarray(Image.open(Path(shot)).convert("RGB")).reshape(-1, 3).astype(float)
    for kind in (Kind.F, Kind.B):
        near = np.abs(pixels - rgb(color(kind))).max(axis=1) < 40
        assert near.mean() > 0.01, f"hardly any pixel has the colour of {kind.name}"
