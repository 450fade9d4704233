"""Time of one kernel on one GPU: matrix products by shape, streams by bytes, flash attention.

A product runs in waves of output tiles over the streaming multiprocessors (SMs), ramps up along
its inner size, and never beats the memory. The GPU's constants are fitted on measured kernels by
`benchmarks/fit_kernels.py`; the constants here are shared by all GPUs.
"""

from math import ceil

from simulator.job import GPU

__all__ = [
    "ACCUMULATE_BYTES",
    "FLASH_BACKWARD_SHARE",
    "NORM_SHARE",
    "NUM_CHANNELS",
    "TILES",
    "flash_seconds",
    "gemm_seconds",
    "stream_seconds",
]

# rows, columns and relative speed of an output tile, as cuBLAS and CUTLASS offer them
TILES = ((128, 256, 1.0), (128, 128, 0.93), (64, 64, 0.7))

# What a weight-gradient product pays beyond a forward product for adding into its fp32 gradient, in
# bytes of one parameter at streaming speed. The 8 bytes that it reads and writes are half hidden:
# medians 3.0 on A100 and 2.9 and 3.0 on B200. Source: SimuMax (MooreThreads), system files, layout
# NT against TN and NN at 2048 and 4096 tokens; benchmarks/fit_kernels.py.
ACCUMULATE_BYTES = 3.0

# Thread blocks, one an SM, that a collective takes from the product it overlaps with: 24 channels
# of NCCL's ring on nodes of 8 A100 with NVSwitch ("24 coll channels" in its log). [1]
NUM_CHANNELS = 24

# Bandwidth of a normalisation kernel over that of an elementwise one: geometric mean of the
# LayerNorm rows of A100 (forward) and GH200 (forward, backward). Source: benchmarks/fit_kernels.py.
NORM_SHARE = 0.7

# FLOP/s of the flash backward over those of its forward: 0.75 to 0.86 on A100, 0.84 on B200.
# Source: SimuMax (MooreThreads), sdp_fwd and sdp_bwd rows of system files a100_pcie and b200.
FLASH_BACKWARD_SHARE = 0.85

BYTES = 2  # of one fp16 or bf16 element


def gemm_seconds(
    m: float, n: float, k: float, gpu: GPU, *, dtype: str = "bf16", batch: float = 1.0
) -> float:
    """Time of `batch` products of an m x k by a k x n matrix. [s]

    Tiles are dealt to the SMs in waves; kernels that split the last wave along k (split-K,
    stream-K) halve what the quantisation costs. A tile's time is that of k + gemm_half_k columns.
    Sources: NVIDIA, "Matrix Multiplication Background User's Guide" (tile and wave quantisation);
    S. Williams et al., "Roofline", CACM 52(4), 2009 (memory bound); fit: benchmarks/fit_kernels.py.

    108 SMs hold 108 tiles of 128 x 256: one wave of 2 * 108 * 128 * 256 * 1000 FLOP here takes
    7.078e9 / 312e12 s at full efficiency.

    >>> from simulator.job import GPU
    >>> ideal = GPU(name="ideal", peak_flops={"bf16": 312e12}, memory=80e9, memory_bandwidth=1e15,
    ...     num_sms=108, gemm_efficiency=1, gemm_half_k=0, memory_efficiency=1, launch_overhead=0,
    ...     source="")
    >>> round(gemm_seconds(108 * 128, 256, 1000, ideal) * 1e6, 2)
    22.69
    """
    best = float("inf")
    for rows, columns, speed in TILES:
        waves = batch * ceil(m / rows) * ceil(n / columns) / gpu.num_sms
        waves = 0.5 * (max(waves, 1.0) + ceil(waves))
        best = min(best, waves * rows * columns / speed)
    flops = 2.0 * best * gpu.num_sms * (k + gpu.gemm_half_k)
    nbytes = BYTES * batch * (m * k + k * n + m * n)
    return gpu.launch_overhead + max(
        flops / (gpu.peak_flops[dtype] * gpu.gemm_efficiency),
        nbytes / (gpu.memory_bandwidth * gpu.memory_efficiency),
    )


def stream_seconds(nbytes: float, gpu: GPU, *, share: float = 1.0) -> float:
    """Time of a kernel that reads and writes `nbytes` once, at a `share` of streaming speed. [s]

    Source: S. Williams et al., "Roofline", CACM 52(4), 2009; fit: benchmarks/fit_kernels.py.

    >>> from simulator.job import GPU
    >>> gpu = GPU(name="x", peak_flops={"bf16": 1e12}, memory=1e9, memory_bandwidth=2e12,
    ...     num_sms=1, gemm_efficiency=1, gemm_half_k=0, memory_efficiency=0.5,
    ...     launch_overhead=5e-6, source="")
    >>> stream_seconds(1e6, gpu)
    6e-06
    """
    if nbytes <= 0:
        return 0.0
    return gpu.launch_overhead + nbytes / (gpu.memory_bandwidth * gpu.memory_efficiency * share)


def flash_seconds(
    num_heads: float, seq_len: int, head_dim: int, gpu: GPU, *, dtype: str = "bf16"
) -> float:
    """Forward time of causal flash attention over `num_heads` heads of one or more sequences. [s]

    4 s^2 d FLOP a head, half of it masked away and skipped; the efficiency ramps with the sequence
    as s / (s + flash_half_seq), and blocks of 128 queries fill the SMs.
    Source: T. Dao, "FlashAttention-2", ICLR 2024, section 3.1; fit: benchmarks/fit_kernels.py.

    >>> from simulator.job import GPU
    >>> ideal = GPU(name="ideal", peak_flops={"bf16": 1e12}, memory=1e9, memory_bandwidth=1e15,
    ...     num_sms=1, gemm_efficiency=1, gemm_half_k=0, memory_efficiency=1, launch_overhead=0,
    ...     source="", flash_efficiency=0.5, flash_half_seq=0)
    >>> flash_seconds(8, 1024, 128, ideal)  # 8 * 2 * 1024^2 * 128 / 0.5e12
    0.004294967296
    """
    flops = 2.0 * num_heads * seq_len * seq_len * head_dim
    blocks = num_heads * ceil(seq_len / 128)
    full = min(1.0, blocks / gpu.num_sms)
    ramp = seq_len / (seq_len + gpu.flash_half_seq)
    speed = gpu.peak_flops[dtype] * gpu.flash_efficiency * ramp * full
    nbytes = 4 * BYTES * num_heads * seq_len * head_dim
    memory = nbytes / (gpu.memory_bandwidth * gpu.memory_efficiency)
    return gpu.launch_overhead + max(flops / speed, memory)
