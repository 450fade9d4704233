"""Every example of the README and of docs/ runs, and prints what the page says."""

import doctest
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from simulator.cli import main
from simulator.load import load_job
from simulator.simulate import simulate

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```console\n\$ (.+?)\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = [(p.name, *match) for p in PAGES for match in BLOCK.findall(p.read_text())]


@pytest.mark.parametrize(("page", "command", "printed"), BLOCKS, ids=[b[1][:60] for b in BLOCKS])
def test_a_command_prints_what_the_page_says(page, command, printed, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    program, *words = shlex.split(command)
    if program == "python":
        run = subprocess.run(
            [sys.executable, *words], capture_output=True, text=True, check=True, cwd=ROOT
        )
        out = run.stdout
    else:
        assert program == "bubblescope", page
        assert main(words) == 0
        out = capsys.readouterr().out
    assert out.rstrip() == printed.rstrip()


def test_the_readme_has_commands_to_run():
    assert sum(page == "README.md" for page, *_ in BLOCKS) >= 3


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_python_on_a_page_gives_what_it_says(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    failed, _ = doctest.testfile(str(page), module_relative=False, encoding="utf-8")
    assert failed == 0


LINK = re.compile(r"\]\((?!http)([^)#]+)")
LINKS = [(page, target) for page in PAGES for target in LINK.findall(page.read_text())]


@pytest.mark.parametrize(("page", "target"), LINKS, ids=[target for _, target in LINKS])
def test_a_link_leads_somewhere(page, target):
    assert (page.parent / target).exists()


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.toml")), ids=lambda p: p.stem)
def test_every_example_simulates_and_its_split_adds_up(path):
    report = simulate(load_job(path)).report
    assert report.split.total == pytest.approx(report.step_time, rel=1e-9)
    assert 0 < report.mfu <= report.hfu < 1
    assert report.fits is not None
