"""Where measurements of GPUs are kept: files named by what they were measured on.

`validator/measurements/` holds raw events, which `bubblescope validate --events` analyses again.
"""

import re
from pathlib import Path

from validator.events import Measured, save

__all__ = ["FOLDER", "keep", "name_of"]

FOLDER = Path(__file__).parent / "measurements"


def keep(measured: Measured, folder: Path = FOLDER) -> Path:
    """Save a GPU measurement under its name.

    Raises:
        ValueError: it is of CPU processes, or there is one of that name.
    """
    if measured.session.device != "cuda":
        raise ValueError(
            "--keep is for measurements of GPUs, and this run was on CPUs; save it with -o"
        )
    path = folder / name_of(measured)
    if path.exists():
        raise ValueError(f"{path} exists; move it away to keep another of the same day")
    folder.mkdir(exist_ok=True)
    save(measured, path)
    return path


def name_of(measured: Measured) -> str:
    """GPU, ranks, transfers, dtype, driver, torch and date."""
    about, session = measured.about, measured.session
    parts = (
        about.get("gpu", "gpu"),
        f"{session.num_ranks}ranks",
        session.transfers,
        session.dtype,
        f"driver{about.get('driver', 'unknown')}",
        f"torch{about.get('torch', 'unknown')}",
        about.get("date", "undated"),
    )
    words = (re.sub(r"[^A-Za-z0-9.+-]+", "-", str(part)).strip("-").lower() for part in parts)
    return "_".join(words) + ".json.gz"
