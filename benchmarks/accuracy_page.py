"""Make again what the cost model's figures stand in: run it whenever the model changes.

Writes simulator/accuracy/errors.csv, the pictures of docs/accuracy.md and docs/findings.md, and
what the commands on those pages print. `python benchmarks/accuracy_page.py`.
"""

import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"(^```console\n\$ (.+?)\n)(.*?)(^```)", re.MULTILINE | re.DOTALL)


def printed(match):
    """A block with what its command prints today."""
    program, *words = shlex.split(match[2])
    start = [sys.executable] if program == "python" else [sys.executable, "-m", "simulator"]
    run = subprocess.run([*start, *words], capture_output=True, text=True, check=True, cwd=ROOT)
    return match[1] + run.stdout.rstrip() + "\n" + match[4]


python = [sys.executable]
images = ROOT / "docs" / "images"
for words in (
    ["benchmarks/learn_errors.py"],
    ["-m", "simulator", "accuracy", "--plot", str(images / "accuracy.svg")],
    ["examples/findings.py", str(images / "findings.svg")],
):
    subprocess.run(python + words, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
for page in (ROOT / "docs" / "accuracy.md", ROOT / "docs" / "findings.md"):
    page.write_text(BLOCK.sub(printed, page.read_text()))
    print(f"wrote {page.relative_to(ROOT)}")
