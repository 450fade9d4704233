"""How long 1 GB of PyTorch profiler traces takes to read, and how much memory.

Writes eight ranks' files of 125 MB, as the profiler writes them on GPUs with several steps of a
pipeline, and reads them in a process of its own: python benchmarks/read_traces.py [FOLDER] [MB].
"""

import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from simulator.job import Plan
from simulator.simulate import simulate_uniform

RANKS, MICROBATCHES = 8, 32
LAYERS, KERNELS = 8, 12  # of an op
CALL = '["", "", "", "", "", ""]'


def write_rank(path, rows, rank, megabytes, period):
    """One rank's file: steps until it is as large as asked."""
    shuffled = random.Random(rank)
    with path.open("w") as file:
        head = {"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": rank}}
        file.write(json.dumps(head)[:-1] + ',"host_name":"node0","traceEvents":[\n')
        size, step, number, begin = 0, 0, 0, 0.0
        while size < megabytes * 1e6:
            for kind, stage, microbatch, start, end in rows:
                number, text = op_events(
                    number, f"PP:{stage}{kind}{microbatch}", begin + start, begin + end, shuffled
                )
                size += file.write(text)
            size += file.write(
                f'{{"ph":"X","cat":"user_annotation","name":"ProfilerStep#{step}","pid":1,"tid":1,'
                f'"ts":{begin:.3f},"dur":{period - 1:.3f},"args":{{"External id":0}}}},\n'
            )
            step += 1
            begin += period
        file.write('{"ph":"M","name":"process_name","pid":1,"tid":0,"args":{"name":"python"}}\n]}')


def op_events(number, name, start, end, shuffled):
    """The events of one op: its range, operators, launches and kernels."""
    lines = [
        f'{{"ph":"X","cat":"user_annotation","name":"{name}","pid":1,"tid":1,"ts":{start:.3f},'
        f'"dur":{end - start:.3f},"args":{{"External id":{number}}}}}'
    ]
    count = LAYERS * KERNELS if "SEND" not in name and "RECV" not in name else 1
    width = (end - start) / count
    for place in range(count):
        number += 1
        at, duration = start + place * width, width * shuffled.uniform(0.8, 0.99)
        kernel = "ncclDevKernel_SendRecv" if count == 1 else "sm90_xmma_gemm_bf16bf16_bf16f32_tn"
        lines += [
            f'{{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":{at:.3f},"dur":'
            f'{width / 4:.3f},"args":{{"External id":{number},"Sequence number":{number},"Fwd '
            f'thread id":0,"Record function id":0,"Concrete Inputs":{CALL},"Input type":{CALL},'
            f'"Input Strides":[[8192,1],[1,8192]],"Input Dims":[[4096,8192],[8192,8192]],'
            f'"Ev Idx":{number}}}}}',
            f'{{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":1,"tid":1,"ts":'
            f'{at + width / 8:.3f},"dur":3.1,"args":{{"External id":{number},"cbid":211,'
            f'"correlation":{number}}}}}',
            f'{{"ph":"X","cat":"kernel","name":"{kernel}","pid":0,"tid":7,"ts":{at:.3f},"dur":'
            f'{duration:.3f},"args":{{"External id":{number},"queued":0,"device":0,"context":1,'
            f'"stream":7,"correlation":{number},"registers per thread":168,"shared memory":214016,'
            f'"blocks per SM":1.0,"warps per SM":8.0,"grid":[132,1,1],"block":[384,1,1],'
            f'"est. achieved occupancy %":13}}}}',
            f'{{"ph":"s","id":{number},"pid":1,"tid":1,"ts":{at:.3f},"cat":"ac2g","name":"ac2g"}}',
            f'{{"ph":"f","id":{number},"pid":0,"tid":7,"ts":{at:.3f},"cat":"ac2g","name":"ac2g",'
            f'"bp":"e"}}',
        ]
    return number, "".join(line + ",\n" for line in lines)


def rows_of(timeline, rank):
    """A rank's spans with a kind name, in us."""
    mine = timeline.where(timeline.rank == rank)
    from simulator.schedule import Kind

    columns = (mine.kind, mine.stage, mine.microbatch, mine.start * 1e6, mine.end * 1e6)
    return [
        (Kind(kind).name, stage, microbatch, start + 10, max(end, start + 5) + 10)
        for kind, stage, microbatch, start, end in zip(*(c.tolist() for c in columns), strict=True)
    ]


def read(paths):
    """Read the files and print seconds and peak memory, in this process."""
    from traces.measured.findings import report_of
    from traces.measured.imported import bring_in

    began = time.perf_counter()
    run = bring_in(paths)
    report = report_of(run, "benchmark")
    taken = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    size = sum(path.stat().st_size for path in paths)
    print(
        f"{size / 1e9:.2f} GB, {len(paths)} files: {taken:.1f} s, {size / 1e6 / taken:.0f} MB/s, "
        f"peak {peak / 1e9:.2f} GB; {len(run.steps)} steps of {run.timeline.num_spans} spans, "
        f"bubble {report.bubble_fraction:.3f}"
    )


def main(words):
    if words[:1] == ["--read"]:
        read([Path(word) for word in words[1:]])
        return
    megabytes = float(words[1]) if len(words) > 1 else 125.0
    with tempfile.TemporaryDirectory(dir=words[0] if words else None) as folder:
        run = simulate_uniform(
            Plan(pp=RANKS, num_microbatches=MICROBATCHES), 2e-3, 4e-3, latency=50e-6
        )
        paths = [Path(folder, f"rank{rank}.json") for rank in range(RANKS)]
        for rank, path in enumerate(paths):
            write_rank(
                path, rows_of(run.timeline, rank), rank, megabytes, run.timeline.makespan * 1.05e6
            )
        command = [sys.executable, __file__, "--read", *map(str, paths)]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
