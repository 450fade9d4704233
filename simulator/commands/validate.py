"""`bubblescope validate`: the same schedule with torch.distributed, compared and calibrated."""

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from validator.events import Measured
    from validator.session import Session

from simulator.job import Plan
from simulator.load import load_job, load_model

__all__ = ["add", "run"]

GPU_TOLERANCE, CPU_TOLERANCE = 0.05, 0.10  # of the step time [1]
GPU_WARMUP = 3  # steps: kernels are chosen, the allocator fills, clocks rise [1]
OUTPUT = ".html (a page) or .json.gz (raw events, to analyse again); may be given several times"


def add(parser: argparse.ArgumentParser) -> None:
    """Options of the verb."""
    parser.add_argument("job", nargs="?", metavar="JOB", help="a job's TOML file; a small model")
    parser.add_argument("--model", help="instead of a job: preset, config.json or TOML file")
    where = parser.add_argument_group("where").add_mutually_exclusive_group()
    where.add_argument(
        "--gpus", type=int, help="a pipeline rank each, over NCCL; 1 plays ranks alone"
    )
    where.add_argument("--cpus", type=int, help="processes, a core each, over gloo; 1 likewise")
    where.add_argument("--events", metavar="FILE", help="analyse raw events of an earlier run")
    what = parser.add_argument_group("what")
    what.add_argument("--schedules", help="names with commas; the first is calibrated on")
    what.add_argument("--pp", type=int, help="pipeline ranks, with --gpus 1 or --cpus 1 [1]")
    what.add_argument("--rank", type=int, help="play this rank alone; all in turn when left out")
    what.add_argument("--share", action="store_true", help="with --gpus 1: all ranks share it")
    what.add_argument("--microbatches", type=int, help="of one step [1]")
    what.add_argument("--micro-batch-size", type=int, help="sequences in one microbatch [1]")
    what.add_argument("--scale", type=float, default=1.0, help="of the model's width, 0 to 1 [1]")
    what.add_argument("--layers", type=int, help="of the model [1]")
    what.add_argument("--hidden", type=int, help="width of the model [1]")
    what.add_argument("--seq-len", type=int, help="tokens in one sequence [1]")
    what.add_argument("--vocab", type=int, help="tokens in the vocabulary [1]")
    dtypes = ("fp64", "fp32", "bf16", "fp16")
    what.add_argument("--dtype", choices=dtypes, help="the job's on GPUs, fp32 on CPUs")
    what.add_argument("--compile", action="store_true", help="layers go through torch.compile")
    how = parser.add_argument_group("how")
    how.add_argument("--rounds", type=int, help="repetitions of all schedules, interleaved; 5 [1]")
    how.add_argument("--steps", type=int, help="timed steps of a schedule in a round; 1 [1]")
    how.add_argument(
        "--warmup", type=int, help="steps before the first timed one; 3, on CPUs 1 [1]"
    )
    how.add_argument("--timeout", type=float, help="longest time without an op that ends; 120 [s]")
    how.add_argument("--tolerance", type=float, help="of the step time; 0.05, on CPUs 0.1 [1]")
    how.add_argument("--untested-torch", action="store_true", help="go on with any version")
    parser.add_argument("--keep", action="store_true", help="also among validator/measurements/")
    parser.add_argument("-o", "--output", action="append", default=[], metavar="FILE", help=OUTPUT)


def run(arguments: argparse.Namespace) -> None:
    """Run or read, compare, print, save; exit code 1 past the tolerance."""
    outputs = _outputs(arguments.output)
    _require_sense(arguments, outputs)
    if arguments.tolerance is not None and not 0 < arguments.tolerance < 10:
        raise ValueError(f"--tolerance is {arguments.tolerance:g}; it is a share, such as 0.05")
    from validator.events import load

    if arguments.events is not None:
        measured = load(Path(arguments.events))
        if measured.session.transfers == "looped":
            _refuse_pages(outputs)
    else:
        made = _measured(arguments, outputs)
        if made is None:
            return  # a rank of torchrun other than the first
        measured = made
    _save(measured, outputs)  # before what could fail
    if arguments.keep:
        from validator.measurements import keep

        print(f"wrote {keep(measured)}", file=sys.stderr)
    if not _told(measured, arguments, outputs):
        sys.stdout.flush()
        raise SystemExit(1)


def _told(measured: "Measured", arguments: argparse.Namespace, outputs: list[Path]) -> bool:
    """Print the report and write the files; whether all is within the tolerance."""
    on_gpu = measured.session.device == "cuda"
    default = GPU_TOLERANCE if on_gpu else CPU_TOLERANCE
    tolerance = default if arguments.tolerance is None else arguments.tolerance
    if measured.session.transfers == "looped":
        from validator.replay import analyse_ranks, ranks_pass, ranks_report

        ranks = analyse_ranks(measured)
        print(ranks_report(measured, ranks, tolerance))
        return ranks_pass(ranks, tolerance)
    from traces.replacing import replace_bytes
    from validator.analysis import analyse
    from validator.page import page
    from validator.table import passes, report

    runs = analyse(measured)
    print(report(measured, runs, tolerance))
    for path in outputs:
        if path.suffix == ".html":
            replace_bytes(path, page(measured, runs, tolerance).encode())
            print(f"wrote {path}", file=sys.stderr)
    return passes(runs, tolerance)


def _measured(arguments: argparse.Namespace, outputs: list[Path]) -> "Measured | None":
    """Run the session here, in processes of our own or as a rank of torchrun."""
    from validator.asked import refuse_unplayable
    from validator.machine import check_gpus, check_torch, cores, ranks_here

    if arguments.gpus is None and arguments.cpus is None:
        raise ValueError("say where to run: --gpus N, or --cpus N for CPU processes over gloo")
    check_torch(untested=arguments.untested_torch)
    count = arguments.cpus if arguments.gpus is None else arguments.gpus
    if count < 1:
        raise ValueError(f"--gpus or --cpus is {count}; use 1 or more")
    if arguments.gpus is not None:
        check_gpus(count, nccl=not arguments.share)
    elif ranks_here(count) > cores() and ranks_here(count) > 4:
        raise ValueError(
            f"--cpus asks for {ranks_here(count)} processes here, but there are {cores()} cores; "
            "use at most that many"
        )
    session, note = _session(arguments, count)
    refuse_unplayable(session)
    if note:
        print(note, file=sys.stderr)
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        from validator.elastic import run_as_rank

        return run_as_rank(session, [path for path in outputs if path.suffix == ".gz"])
    from validator.launch import Failed, run_ranks
    from validator.replay import run_each_rank

    try:
        if session.transfers == "looped":
            return run_each_rank(session, arguments.rank)
        return run_ranks(session)
    except Failed as failed:
        kept = _save(failed.measured, outputs)
        hint = "" if kept else "; with -o EVENTS.json.gz what was measured is kept"
        if failed.exit_code != 2:
            print(f"bubblescope: {failed}{hint}", file=sys.stderr)
            raise SystemExit(failed.exit_code) from None
        raise ValueError(f"{failed}{hint}") from None


def _session(arguments: argparse.Namespace, count: int) -> "tuple[Session, str]":
    """What to run, and what of the job is left out."""
    from validator.asked import SCHEDULES, SMALL, refuse, scaled, session_of

    on_gpu, note = arguments.gpus is not None, ""
    plan = Plan(num_microbatches=8, micro_batch_size=2 if not on_gpu else 1)
    model = load_model("gpt-1-7b") if on_gpu else SMALL
    if arguments.job is not None:
        if arguments.model is not None:
            raise ValueError("--model takes the place of a job; leave one of the two out")
        job = load_job(arguments.job)
        model, plan, note = job.model, job.plan, refuse(job)
    elif arguments.model is not None:
        model = load_model(arguments.model)
    names = {"layers": "num_hidden_layers", "hidden": "hidden_size", "seq_len": "seq_len"}
    names["vocab"] = "vocab_size"
    sizes = {
        field: getattr(arguments, name)
        for name, field in names.items()
        if getattr(arguments, name) is not None
    }
    changes = {
        "num_microbatches": arguments.microbatches,
        "micro_batch_size": arguments.micro_batch_size,
    }
    plan = plan.model_copy(update={k: v for k, v in changes.items() if v is not None})
    alone = count == 1 and not arguments.share
    if arguments.share and arguments.gpus != 1:
        raise ValueError("--share puts all ranks on one GPU; it goes with --gpus 1")
    for name in ("pp", "rank"):
        if getattr(arguments, name) is not None and count > 1:
            raise ValueError(f"--{name} goes with --gpus 1 or --cpus 1, which play ranks alone")
    ranks = count if count > 1 else arguments.pp or (plan.pp if plan.pp > 1 else 4)
    options: dict[str, Any] = {
        "device": "cuda" if on_gpu else "cpu",
        "transfers": "looped" if alone else "staged" if arguments.share else "direct",
        "dtype": arguments.dtype or (plan.dtype if on_gpu else "fp32"),
        "compiled": arguments.compile,
    }
    for name in ("rounds", "steps", "warmup", "timeout"):
        if getattr(arguments, name) is not None:
            options[name] = getattr(arguments, name)
        elif name == "warmup" and on_gpu:
            options[name] = GPU_WARMUP
    if arguments.job is None and arguments.layers is None:  # whole stages, two on a rank
        pairs = 2 * ranks
        sizes["num_hidden_layers"] = pairs * max(1, round(model.num_hidden_layers / pairs))
    schedules = arguments.schedules.split(",") if arguments.schedules else list(SCHEDULES)
    if alone and not arguments.schedules:
        schedules.remove("zb-v")
    small = scaled(model, arguments.scale, sizes)
    return session_of(small, plan, schedules, ranks, **options), note


def _outputs(names: list[str]) -> list[Path]:
    """The files to write, once it is clear that they can be."""
    paths = [Path(name) for name in names]
    for path in paths:
        if path.suffix != ".html" and path.suffixes[-2:] != [".json", ".gz"]:
            raise ValueError(
                f"cannot write {path}; use a name that ends in .html (a page) or .json.gz (raw "
                "events)"
            )
        if not path.parent.is_dir():
            raise ValueError(f"cannot write {path}; use a folder that exists")
    return paths


def _require_sense(arguments: argparse.Namespace, outputs: list[Path]) -> None:
    """Refuse before the run what could not be done after it."""
    if 1 in (arguments.gpus, arguments.cpus) and not arguments.share:
        _refuse_pages(outputs)
    if arguments.keep and arguments.cpus is not None:
        raise ValueError("--keep is for measurements of GPUs; save runs on CPUs with -o")


def _refuse_pages(outputs: list[Path]) -> None:
    for path in outputs:
        if path.suffix == ".html":
            raise ValueError(
                f"cannot write {path}: ranks that are played alone have no page; use .json.gz"
            )


def _save(measured: "Measured", outputs: list[Path]) -> bool:
    """Write the raw events; whether they were asked for."""
    from validator.events import save

    paths = [path for path in outputs if path.suffix == ".gz"]
    for path in paths:
        save(measured, path)
        print(f"wrote {path}", file=sys.stderr)
    return bool(paths)
