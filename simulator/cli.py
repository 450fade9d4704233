"""The command: parses words, calls the library, prints. Heavy imports happen inside the verbs."""

import argparse
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

__all__ = ["main"]

PACKAGES = ("simulator", "traces", "dashboard", "validator")
EXTRAS = {
    "dash": "dashboard",
    "dash_ag_grid": "dashboard",
    "dash_mantine_components": "dashboard",
    "flask_compress": "dashboard",
    "plotly": "dashboard",
    "torch": "validator",
    "highspy": "optimal",
    "distributed": "search",
}
VERBS = {  # each a file in simulator/commands/
    "simulate": "Simulate one training step: report and Gantt chart.",
    "compare": "Put jobs, saved runs or schedules side by side, differences first.",
    "explain": "Say why a rank idles: what it waits for, and what made that late.",
    "search": "Judge every plan of a model on a cluster, and rank those that fit.",
    "sensitivity": "Say which knob or link is worth what.",
    "optimize": "Search the best schedule for given times and a memory limit.",
    "trace": "Say where the step of a measured run went.",
    "validate": "Run the same schedule with torch.distributed, compare and calibrate.",
    "calibrate": "Measured costs from a trace.",
    "export": "Write a run's timeline or a schedule's rows in another format.",
    "accuracy": "Score predictions against published measurements.",
    "dashboard": "Explore, compare, search, design, measure and learn in the browser.",
    "presets": "List the models, clusters, GPUs and schedules that have a name.",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit code: 2 after an error that the user can mend."""
    words = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without our glyphs shows "?"
    try:
        _check_names()
        arguments = _parser(words).parse_args(words)
        arguments.verb(arguments)
        sys.stdout.flush()
    except (ValueError, ModuleNotFoundError) as error:
        print(f"bubblescope: error: {_one_line(error)}", file=sys.stderr)
        if rows := getattr(error, "grid", ""):  # of a Deadlock: where each rank is stuck
            print(rows, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("bubblescope: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        sys.stderr.close()
    except OSError as error:
        print(f"bubblescope: error: cannot print: {error.strerror}", file=sys.stderr)
        os._exit(2)  # what is still buffered cannot be written either
    return 0


def _one_line(error: Exception) -> str:
    """The message; for a missing extra, the line that installs it."""
    if isinstance(error, ModuleNotFoundError):
        extra = EXTRAS.get(error.name or "")
        if extra is None:
            raise error
        return f"this needs {error.name}; install it with: pip install 'bubblescope[{extra}]'"
    return str(error)


def _check_names() -> None:
    """Our packages have plain names; make sure that no other distribution's stand in for them."""
    from importlib.util import find_spec

    home = Path(__file__).resolve().parent.parent
    for name in PACKAGES:
        spec = find_spec(name)
        origin = spec.origin if spec else None
        if origin is None or Path(origin).resolve().parent.parent != home:
            raise ValueError(
                f"the package {name} comes from {origin}, not from bubblescope; another installed "
                "distribution owns that name: install bubblescope in an environment of its own"
            )


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, as all of ours. A class because argparse wants one."""

    def error(self, message: str) -> NoReturn:
        """Refuse the words."""
        raise ValueError(f"{message}; see {self.prog} --help")


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """The parser; a verb's own options are added only when that verb is asked for."""
    parser = Parser(
        prog="bubblescope",
        description="See, predict and verify how a large language model is cut over GPUs.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, help="print the version and exit")
    verbs = parser.add_subparsers(required=True, metavar="VERB", title="verbs")
    for name, text in VERBS.items():
        child = verbs.add_parser(name, help=text, description=text, allow_abbrev=False)
        if name in words:
            command = import_module(f"simulator.commands.{name}")
            command.add(child)
            child.set_defaults(verb=command.run)
    return parser


class _Version(argparse.Action):
    """Prints the version. A class because argparse wants one; its own reads it in every run."""

    def __init__(self, option_strings: Sequence[str], dest: str, **settings: Any) -> None:  # noqa: ANN401
        del dest
        nowhere = argparse.SUPPRESS
        super().__init__(option_strings, dest=nowhere, default=nowhere, nargs=0, **settings)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        """Print it and stop."""
        from importlib.metadata import version

        print(f"bubblescope {version('bubblescope')}")
        parser.exit()
