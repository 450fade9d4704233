"""Nsight Systems' SQLite exports: files with its published schema, of a known timeline."""

import sqlite3

import numpy as np
import pytest

import traces
from simulator.job import Plan
from simulator.schedule import Kind
from simulator.simulate import simulate_uniform
from tests.recordings import Setting, documents
from traces.measured.findings import report_of
from traces.measured.imported import bring_in
from traces.measured.nsys import PROCESS, read_nsys

# https://docs.nvidia.com/nsight-systems/nsys-exporter/exported_data.html
SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
CREATE TABLE ENUM_NSYS_EVENT_TYPE (id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL,
    rangeId INTEGER, category INTEGER, color INTEGER, text TEXT, globalTid INTEGER,
    endGlobalTid INTEGER, textId INTEGER, domainId INTEGER, uint64Value INTEGER,
    int64Value INTEGER, doubleValue REAL, uint32Value INTEGER, int32Value INTEGER,
    floatValue REAL, jsonTextId INTEGER, jsonText TEXT, binaryData TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL,
    eventClass INTEGER NOT NULL, globalTid INTEGER, correlationId INTEGER,
    nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL, callchainId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL,
    deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, greenContextId INTEGER,
    streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
    demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER,
    launchType INTEGER, cacheConfig INTEGER, registersPerThread INTEGER NOT NULL,
    gridX INTEGER NOT NULL, gridY INTEGER NOT NULL, gridZ INTEGER NOT NULL,
    blockX INTEGER NOT NULL, blockY INTEGER NOT NULL, blockZ INTEGER NOT NULL);
"""
PUSH_POP, DOMAIN = 59, 75


def export(path, parts, inline=False):
    """One file of several processes: (process id, device, trace-event document)."""
    database = sqlite3.connect(path)
    database.executescript(SCHEMA)
    strings = {}

    def text(value):
        return strings.setdefault(value, len(strings) + 1)

    database.execute(
        "INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (?, '', '')", (1_790_000_000 * 10**9,)
    )
    for process, device, document in parts:
        for event in document["traceEvents"]:
            start = round(event["ts"] * 1e3)
            end = start + round(event["dur"] * 1e3)
            thread = (process * PROCESS) | event["tid"]
            number = event["args"].get("correlation")
            name = event["name"]
            if event["cat"] == "user_annotation":
                words = (name, None) if inline else (None, text(name))
                database.execute(
                    "INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, textId, "
                    "domainId) VALUES (?, ?, ?, ?, ?, ?, 0)",
                    (start, end, PUSH_POP, words[0], thread, words[1]),
                )
            elif event["cat"] == "cuda_runtime":
                database.execute(
                    "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, 0, ?, ?, ?, 0, NULL)",
                    (start, end, thread, number, text(name)),
                )
            elif event["cat"] == "kernel":
                database.execute(
                    "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, 1, NULL, ?, ?, ?, ?, "
                    "?, NULL, 1, 0, 32, 1, 1, 1, 128, 1, 1)",
                    (start, end, device, event["tid"], number, process * PROCESS,
                     text(name + "(void)"), text(name)),
                )  # fmt: skip
        database.execute(
            "INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid) VALUES "
            "(0, NULL, ?, 'NCCL', ?)",
            (DOMAIN, process * PROCESS),
        )
    database.executemany(
        "INSERT INTO StringIds VALUES (?, ?)", [(i, v) for v, i in strings.items()]
    )
    database.commit()
    database.close()


@pytest.fixture(scope="module")
def run():
    return simulate_uniform(Plan(pp=4, num_microbatches=8), 1e-3, 2e-3, latency=1e-4)


def same_compute(back, run, within):
    ours, theirs = (t.where(t.kind <= Kind.OPTIMIZER) for t in (back.timeline, run.timeline))
    assert np.array_equal(ours.rank, theirs.rank)
    for name in ("stage", "kind", "microbatch"):
        assert np.array_equal(getattr(ours, name), getattr(theirs, name))
    assert ours.start == pytest.approx(theirs.start, abs=within)
    assert ours.end == pytest.approx(theirs.end, abs=within)


@pytest.mark.parametrize("names", ["PP", "megatron"])
def test_one_file_of_four_processes_gives_the_timeline(names, run, tmp_path):
    how = Setting(offsets=(2.0,) * 4, names=names)
    made, _ = documents(run.timeline, how)
    parts = [(9000 - rank, rank, one) for rank, one in enumerate(made)]  # pids against devices
    export(tmp_path / "node.sqlite", parts)
    back = bring_in([tmp_path / "node.sqlite"])
    same_compute(back, run, 1e-8)
    assert back.timeline.num_spans == run.timeline.num_spans
    assert not back.clocks.offset.any()  # one machine, one clock
    report = report_of(back, "x")
    assert report.bubble_fraction == pytest.approx(run.report.bubble_fraction, abs=1e-6)
    assert traces.read(tmp_path / "node.sqlite") == back.timeline


def test_a_file_a_node_has_its_clock_aligned(run, tmp_path):
    made, _ = documents(run.timeline, Setting(offsets=(0.0, 0.0, 3.5, 3.5), jitter=1e-6))
    parts = [(100 + rank, rank % 2, one) for rank, one in enumerate(made)]
    export(tmp_path / "node0.sqlite", parts[:2], inline=True)
    export(tmp_path / "node1.sqlite", parts[2:])
    back = bring_in([tmp_path / "node0.sqlite", tmp_path / "node1.sqlite"])
    assert back.clocks.offset == pytest.approx([0.0, 0.0, -3.5, -3.5], abs=6e-6)
    same_compute(back, run, 1e-5)


def test_without_kernels_the_ranges_times_count(tmp_path):
    database = sqlite3.connect(tmp_path / "t.sqlite")
    database.executescript(SCHEMA)
    for name, start, end in (("0F0", 0, 10**6), ("0B0", 10**6, 3 * 10**6)):
        database.execute(
            "INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid) "
            "VALUES (?, ?, 60, ?, ?)",
            (start, end, name, PROCESS),
        )
    database.commit()
    database.close()
    timeline = traces.read(tmp_path / "t.sqlite")
    assert timeline.end.tolist() == pytest.approx([1e-3, 3e-3])


def test_a_kernel_belongs_to_the_process_that_launched_it(run, tmp_path):
    """Correlation ids repeat between processes; only process and id together are one launch."""
    made, _ = documents(run.timeline, Setting(offsets=(0.0,) * 4))
    export(tmp_path / "t.sqlite", [(50 + rank, rank, one) for rank, one in enumerate(made)])
    for rank, one in enumerate(read_nsys(tmp_path / "t.sqlite")):
        kernels = sum(event["cat"] == "kernel" for event in made[rank]["traceEvents"])
        assert len(one.kernels.name) == kernels


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("CREATE TABLE a (b)", "no table NVTX_EVENTS; record with nsys profile --trace=cuda,nvtx"),
        (SCHEMA, "it holds no NVTX ranges: 0 events that last"),
    ],
)
def test_an_export_without_ranges_is_refused(schema, reason, tmp_path):
    with sqlite3.connect(tmp_path / "t.sqlite") as database:
        database.executescript(schema)
    database.close()
    with pytest.raises(ValueError, match=reason):
        bring_in([tmp_path / "t.sqlite"])


def test_what_is_no_database_or_missing_is_refused(tmp_path):
    (tmp_path / "t.sqlite").write_bytes(b"no database at all, but long enough to be read as one")
    with pytest.raises(ValueError, match="is no SQLite export of Nsight Systems"):
        bring_in([tmp_path / "t.sqlite"])
    with pytest.raises(ValueError, match=r"cannot read .*none\.sqlite: No such file"):
        bring_in([tmp_path / "none.sqlite"])
    assert not (tmp_path / "none.sqlite").exists()
