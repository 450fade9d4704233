"""The hardware of a job: GPUs, links and the cluster that they make. SI units throughout."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from simulator.checks import Count, NotNegative, Positive, Share, Value

__all__ = ["GPU", "Cluster", "Link"]

LEAST_BANDWIDTH = 1e-3  # [bytes/s]


class GPU(Value):
    """One accelerator, from its datasheet, with the efficiency that its kernels reach."""

    name: str = Field(description="name of the GPU")
    peak_flops: dict[str, Positive] = Field(description="dense peak by dtype [FLOP/s]")
    memory: Positive = Field(description="capacity [bytes]")
    memory_bandwidth: Positive = Field(description="peak bandwidth [bytes/s]")
    num_sms: Count = Field(description="streaming multiprocessors [1]")
    gemm_efficiency: Share = Field(
        description="share of the peak that a very large GEMM reaches [1]"
    )
    gemm_half_k: NotNegative = Field(
        description="inner size at which a GEMM reaches half of that [1]"
    )
    memory_efficiency: Share = Field(
        description="share of the bandwidth that a streaming kernel reaches [1]"
    )
    launch_overhead: NotNegative = Field(description="least time of one kernel [s]")
    host_overhead: NotNegative = Field(
        62e-6, description="time of the host to issue one operator of an eager forward [s]"
    )
    batched_gemm_share: Share = Field(
        0.9,
        description="speed of the batched products of eager attention, of a single product's [1]",
    )
    flash_efficiency: Share = Field(
        0.5, description="share of the peak that flash attention reaches on long sequences [1]"
    )
    flash_half_seq: NotNegative = Field(
        1000.0, description="sequence length at which flash attention reaches half of that [1]"
    )
    sustained_share: Share = Field(
        0.9,
        description="speed of products in a long run, which power limits, over a short burst's [1]",
    )
    fp8_efficiency: Share = Field(
        0.7, description="share of the fp8 or nvfp4 peak that a very large GEMM reaches [1]"
    )
    flash2_share: Share = Field(
        1.0, description="speed of FlashAttention-2 over that of the GPU's own kernel [1]"
    )
    flash_rows: Count = Field(128, description="queries of one block of flash attention [1]")
    flash_half_dim: NotNegative = Field(
        32.0,
        description="head width at which the exponentials that show take as long as the products: "
        "half of peak FLOP/s over 64 times the rate of exponentials, 16 a clock and SM [1]",
    )
    source: str = Field(description="where the figures are published")

    __hash__ = None  # type: ignore[assignment]


class Link(Value):
    """One direction of a channel between two GPUs or of a NIC."""

    bandwidth: Positive = Field(description="line rate of one direction [bytes/s]")
    latency: NotNegative = Field(description="time before the first byte arrives [s]")
    efficiency: Share = Field(
        1.0, description="share of the line rate that large messages reach [1]"
    )
    low_latency: bool = Field(
        True, description="NCCL's low-latency protocols run over it, as they do not over EFA"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.bandwidth < LEAST_BANDWIDTH:
            raise ValueError(
                f"bandwidth is {self.bandwidth:g} bytes/s, too little to end a step; use at least "
                f"{LEAST_BANDWIDTH:g}"
            )
        return self


class Cluster(Value):
    """Nodes of equal GPUs. A node's NICs and its uplink into the fabric are shared by its GPUs."""

    name: str = Field(description="name of the cluster")
    gpu: GPU = Field(description="the GPU: a preset's name or a table")
    num_nodes: Count = Field(1, description="nodes [1]")
    gpus_per_node: Count = Field(description="GPUs in one node [1]")
    intra_node: Link = Field(description="one GPU's port to the others of its node")
    inter_node: Link = Field(description="one NIC")
    nics_per_node: Count = Field(description="NICs in one node, shared evenly by its GPUs [1]")
    oversubscription: Annotated[float, Field(ge=1, allow_inf_nan=False)] = Field(
        1.0, description="a node's NIC bandwidth over that of its uplink into the fabric [1]"
    )
    switch_reduces: bool = Field(
        False, description="the node's switch adds up all-reduces (NVLS on NVSwitch 3 and later)"
    )
    host_link: Link | None = Field(
        None, description="one GPU's link to the memory of its host, one direction"
    )
    host_memory_bandwidth: Positive = Field(
        200e9, description="bandwidth of one node's host memory, shared by its GPUs [bytes/s]"
    )
    nvme: Link | None = Field(
        None, description="one node's drives, shared by its GPUs, by reading and by writing"
    )
    stragglers: dict[int, Positive] = Field(
        default_factory=dict, description="slow-down of the compute of a pipeline rank [1]"
    )
    source: str = Field("", description="where the figures are published")

    @property
    def num_gpus(self) -> int:
        """GPUs in all nodes. [1]"""
        return self.num_nodes * self.gpus_per_node
