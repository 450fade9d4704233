"""`bubblescope presets`: what has a name."""

import argparse

from simulator.load import preset_names
from simulator.schedules import schedules

__all__ = ["add", "run"]


def add(_parser: argparse.ArgumentParser) -> None:
    """The verb has no options."""


def run(_arguments: argparse.Namespace) -> None:
    """Print every name."""
    print(f"{'models':<10}{' '.join(preset_names('models'))}")
    print(f"{'clusters':<10}{' '.join(preset_names('clusters'))}")
    print(f"{'gpus':<10}{' '.join(preset_names('gpus'))}")
    print(f"{'schedules':<10}{' '.join(schedules())}")
