"""Time of one kernel on one GPU: matrix products by shape, streams by bytes, flash attention.

A product runs in waves of output tiles over the streaming multiprocessors (SMs), ramps up along
its inner size, and never beats the memory; dense work that lasts is slowed by the power limit. The
GPU's constants are fitted on measured kernels by `benchmarks/fit_kernels.py`; the constants here
are shared by all GPUs.
"""

from math import ceil

from simulator.hardware import GPU

__all__ = [
    "ACCUMULATE_BYTES",
    "BYTES",
    "ELEMENT_BYTES",
    "FLASH_1_SHARE",
    "FLASH_BACKWARD_SHARE",
    "LOOSE_NORM_SHARE",
    "NORM_SHARE",
    "NUM_CHANNELS",
    "TILES",
    "attention_product_seconds",
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

# The same of the backward of a kernel that does not keep its rows on the chip: A100 rows.
LOOSE_NORM_SHARE = 0.3

# Products of eager attention whose head's width is no multiple of 8 elements, 16 bytes, run without
# tensor cores, at the rate of fp32: 19.5 of 312 TFLOP/s on A100, 67 of 989 on H100. Source: NVIDIA,
# "Matrix Multiplication Background User's Guide" (alignment); NVIDIA A100 and H100 datasheets.
UNALIGNED_SHARE = 1 / 16

# FLOP/s of the flash backward over those of its forward, at equal sizes: 0.555 and 0.624 of the
# peak on A100. Source: SimuMax (MooreThreads), sdp_fwd and sdp_bwd rows of a100_pcie;
# benchmarks/fit_kernels.py.
FLASH_BACKWARD_SHARE = 0.89

# The longest row of blocks of a causal kernel ends alone: the part of its time that shows.
# Source: SimuMax, 4 to 128 heads of 4096 tokens on A100: 0.85 forward, 0.44 backward.
FLASH_TAIL = 0.6

# Speed of FlashAttention in Triton over FlashAttention-2's, which is 1.3 to 2.5 times as fast: 1.8,
# the geometric mean. Source: T. Dao, "FlashAttention-2", ICLR 2024, section 4.1.
FLASH_1_SHARE = 1 / 1.8

BYTES = 2  # of one fp16 or bf16 element

# Of one element of a product's narrow operands; of nvfp4 with its share of a scale of 8 bits for
# 16. Source: NVIDIA et al., "Pretraining Large Language Models with NVFP4", 2025 (arXiv
# 2509.25149), section 2.
ELEMENT_BYTES = {"fp8": 1.0, "nvfp4": 0.5 + 1 / 16}


def gemm_seconds(
    m: float,
    n: float,
    k: float,
    gpu: GPU,
    *,
    dtype: str = "bf16",
    batch: float = 1.0,
    share: float = 1.0,
) -> float:
    """Time of `batch` products of an m x k by a k x n matrix, at a `share` of the speed. [s]

    Tiles are dealt to the SMs in waves; kernels that split the last wave along k (split-K,
    stream-K) halve what the quantisation costs. A tile's time is that of k + gemm_half_k columns.
    Sources: NVIDIA, "Matrix Multiplication Background User's Guide" (tile and wave quantisation);
    S. Williams et al., "Roofline", CACM 52(4), 2009 (memory bound); fit: benchmarks/fit_kernels.py.

    108 SMs hold 108 tiles of 128 x 256: one wave of 2 * 108 * 128 * 256 * 1000 FLOP here takes
    7.078e9 / 312e12 s at full efficiency.

    >>> from simulator.hardware import GPU
    >>> ideal = GPU(name="ideal", peak_flops={"bf16": 312e12}, memory=80e9, memory_bandwidth=1e15,
    ...     num_sms=108, gemm_efficiency=1, gemm_half_k=0, memory_efficiency=1, launch_overhead=0,
    ...     sustained_share=1, source="")
    >>> round(gemm_seconds(108 * 128, 256, 1000, ideal) * 1e6, 2)
    22.69
    """
    best = float("inf")
    for rows, columns, speed in TILES:
        waves = batch * ceil(m / rows) * ceil(n / columns) / gpu.num_sms
        waves = 0.5 * (max(waves, 1.0) + ceil(waves))
        best = min(best, waves * rows * columns / speed)
    width, efficiency, half_k = float(BYTES), gpu.gemm_efficiency, gpu.gemm_half_k
    if dtype in ELEMENT_BYTES:
        # faster along k, at the same cost of filling and writing a tile
        faster = round(gpu.peak_flops[dtype] / gpu.peak_flops["bf16"])
        width, efficiency, half_k = ELEMENT_BYTES[dtype], gpu.fp8_efficiency, faster * half_k
    flops = 2.0 * best * gpu.num_sms * (k + half_k)
    nbytes = batch * (width * (m * k + k * n) + BYTES * m * n)
    return gpu.launch_overhead + max(
        flops / (gpu.peak_flops[dtype] * efficiency * gpu.sustained_share * share),
        nbytes / (gpu.memory_bandwidth * gpu.memory_efficiency),
    )


def attention_product_seconds(
    m: float,
    n: float,
    k: float,
    gpu: GPU,
    *,
    dtype: str = "bf16",
    batch: float = 1.0,
    share: float = 1.0,
) -> float:
    """Time of the batched products of eager attention, of which n or k is a head's width. [s]

    A tile's few columns are done before its output is written, so that the two add up: reading
    overlaps with the products, writing does not. Widths fill tiles of 64, or of 128 and more, and
    need multiples of 8 for tensor cores.
    Source: batched products of A100 and GH200 in estimate-train-time (arXiv 2509.22832); fit:
    benchmarks/fit_kernels.py.

    >>> from simulator.hardware import GPU
    >>> ideal = GPU(name="ideal", peak_flops={"bf16": 1e12}, memory=1e9, memory_bandwidth=1e12,
    ...     num_sms=1, gemm_efficiency=1, gemm_half_k=0, memory_efficiency=1, launch_overhead=0,
    ...     source="", batched_gemm_share=1, sustained_share=1)
    >>> attention_product_seconds(1000, 1000, 64, ideal)  # 2 * 64e6 / 1e12 + 2e6 / 1e12
    0.00013
    """
    narrow = min(n, k)
    padded = 64 if narrow <= 64 else 128 * ceil(narrow / 128)
    speed = gpu.peak_flops[dtype] * gpu.gemm_efficiency * gpu.sustained_share * share
    if narrow % 8:
        speed *= UNALIGNED_SHARE
    products = 2.0 * batch * m * max(n, k) * padded / (speed * gpu.batched_gemm_share)
    bandwidth = gpu.memory_bandwidth * gpu.memory_efficiency
    reads = BYTES * batch * (m * k + k * n) / bandwidth
    return gpu.launch_overhead + max(products, reads) + BYTES * batch * m * n / bandwidth


def stream_seconds(nbytes: float, gpu: GPU, *, share: float = 1.0) -> float:
    """Time of a kernel that reads and writes `nbytes` once, at a `share` of streaming speed. [s]

    Source: S. Williams et al., "Roofline", CACM 52(4), 2009; fit: benchmarks/fit_kernels.py.

    >>> from simulator.hardware import GPU
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
    num_heads: float,
    queries: float,
    gpu: GPU,
    *,
    head_dim: float,
    keys: float | None = None,
    version: int = 3,
    dtype: str = "bf16",
    exponentials: int = 1,
) -> float:
    """Forward time of causal flash attention over `num_heads` heads of one or more sequences. [s]

    `queries` rows of a sequence look at half of `keys` on average, all of their own sequence when
    left out: 4 q k d / 2 FLOP a head. Besides the products each element takes an exponential, so
    that narrow heads are slower; and the longest row of blocks ends alone. `head_dim` is the mean
    width of keys and values. [1] `version` 3 is the GPU's fastest kernel, 2 FlashAttention-2,
    written for Ampere, and 1 FlashAttention in Triton. A soft cap takes a tanh besides the
    exponential of each element, at the same rate: two `exponentials`.
    Sources: T. Dao, "FlashAttention-2", ICLR 2024, section 3; J. Shah et al., "FlashAttention-3",
    2024, section 2.2 (throughput of exponentials); fit: benchmarks/fit_kernels.py.

    >>> from simulator.hardware import GPU
    >>> ideal = GPU(name="ideal", peak_flops={"bf16": 1e12}, memory=1e9, memory_bandwidth=1e15,
    ...     num_sms=1, gemm_efficiency=1, gemm_half_k=0, memory_efficiency=1, launch_overhead=0,
    ...     source="", flash_efficiency=0.5, flash_half_seq=0, flash_half_dim=0)
    >>> flash_seconds(8, 1024, ideal, head_dim=128)  # 2 (8 * 1024 + 0.6 * 256) 1024 * 128 / 0.5e12
    0.0043754979328
    """
    keys = queries if keys is None else keys
    # blocks of the longest row, in keys of one head: it is twice as long as the mean
    work = num_heads * queries + 2 * FLASH_TAIL * gpu.flash_rows * gpu.num_sms
    ramp = keys / (keys + gpu.flash_half_seq)
    half = gpu.flash_half_dim
    width = head_dim / (head_dim + exponentials * half) * (128 + half) / 128
    share = (gpu.flash2_share * FLASH_1_SHARE, gpu.flash2_share, 1.0)[version - 1]
    speed = gpu.peak_flops[dtype] * gpu.flash_efficiency * ramp * width * share
    nbytes = 4 * BYTES * num_heads * queries * head_dim
    memory = nbytes / (gpu.memory_bandwidth * gpu.memory_efficiency)
    return gpu.launch_overhead + max(2.0 * work * keys * head_dim / speed, memory)
