"""What a measurement was made on."""

import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import torch

__all__ = ["about"]

ASK_DRIVER = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")


def about(device: torch.device) -> dict[str, Any]:
    """Hardware and software that a measurement is worth nothing without."""
    found: dict[str, Any] = {
        "torch": str(torch.__version__),
        "date": time.strftime("%Y-%m-%d"),
        "host": socket.gethostname(),
        "device": device.type,
    }
    if device.type == "cuda":
        found["gpu"] = torch.cuda.get_device_name()
        found["capability"] = ".".join(map(str, torch.cuda.get_device_capability()))
        found["memory"] = torch.cuda.get_device_properties(0).total_memory
        found["cuda"] = torch.version.cuda
        found["driver"] = _driver()
    else:
        found["cpu"] = _cpu()
    return found


def _driver() -> str:
    """The NVIDIA driver's version, which torch does not tell; containers may hide one of both."""
    try:
        return Path("/sys/module/nvidia/version").read_text().strip()
    except OSError:
        pass
    try:
        asked = subprocess.run(ASK_DRIVER, capture_output=True, text=True, timeout=20, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return next(iter(asked.stdout.split()), "unknown")


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "unknown"
    return next(
        (x.split(":", 1)[1].strip() for x in lines if x.startswith("model name")), "unknown"
    )
