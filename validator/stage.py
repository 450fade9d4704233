"""A model's pipeline stages in PyTorch: real layers, sizes from the Model, weights from a seed.

Every layer's weights depend on its place in the model alone, so any cut of the model over stages
trains the same model, and one unpipelined run gives the gradients that all of them must have.
Dropout and tied embeddings are left out: the one would make gradients random, the other would put
one weight on two ranks.
"""

from collections.abc import Iterable

import torch
from torch import nn

from simulator.model import Model

__all__ = ["Stage", "cut", "loss_of", "tokens_of"]

EMBEDDING, HEAD = 1_000_001, 1_000_002  # seeds of what is no layer
ROTARY_BASE = 10000.0  # Su et al., "RoFormer", 2021, section 3.2.2


class Attention(nn.Module):
    """Causal self-attention with grouped keys and values, rotated unless positions are learned."""

    def __init__(self, model: Model, dtype: torch.dtype) -> None:
        super().__init__()
        self.heads, self.groups = model.num_attention_heads, model.num_key_value_heads
        self.width = model.head_dim
        columns = (self.heads + 2 * self.groups) * self.width
        bias = model.bias or model.qkv_bias
        self.qkv = nn.Linear(model.hidden_size, columns, bias=bias, dtype=dtype)
        self.out = nn.Linear(
            self.heads * self.width, model.hidden_size, bias=model.bias, dtype=dtype
        )
        self.q_norm = nn.RMSNorm(self.width, dtype=dtype) if model.qk_norm else nn.Identity()
        self.k_norm = nn.RMSNorm(self.width, dtype=dtype) if model.qk_norm else nn.Identity()
        self.rotates = not model.learned_positions
        if self.rotates:
            angle = _angles(model.seq_len, self.width)
            self.register_buffer("cosine", angle.cos().to(dtype), persistent=False)
            self.register_buffer("sine", angle.sin().to(dtype), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shape (samples, tokens, hidden_size), in and out."""
        samples, tokens, _ = x.shape
        parts = self.qkv(x).view(samples, tokens, -1, self.width).transpose(1, 2)
        q, k, v = parts.split([self.heads, self.groups, self.groups], dim=1)
        q, k = self.q_norm(q), self.k_norm(k)
        if self.rotates:
            q, k = self._rotated(q), self._rotated(k)
        attended = nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=self.groups != self.heads
        )
        result: torch.Tensor = self.out(attended.transpose(1, 2).reshape(samples, tokens, -1))
        return result

    def _rotated(self, x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, dim=-1)
        turned = torch.cat((-second, first), dim=-1)
        tokens = x.shape[-2]
        return x * self.get_buffer("cosine")[:tokens] + turned * self.get_buffer("sine")[:tokens]


class FeedForward(nn.Module):
    """Up, a nonlinearity, down: GELU, or SwiGLU with a gate."""

    def __init__(self, model: Model, dtype: torch.dtype) -> None:
        super().__init__()
        ups = 2 if model.gated_mlp else 1
        wide = model.intermediate_size
        self.up = nn.Linear(model.hidden_size, ups * wide, bias=model.bias, dtype=dtype)
        self.down = nn.Linear(wide, model.hidden_size, bias=model.bias, dtype=dtype)
        self.gated = model.gated_mlp

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shape (samples, tokens, hidden_size), in and out."""
        wide = self.up(x)
        if self.gated:
            gate, value = wide.chunk(2, dim=-1)
            active = nn.functional.silu(gate) * value
        else:
            active = nn.functional.gelu(wide)
        result: torch.Tensor = self.down(active)
        return result


class Layer(nn.Module):
    """A pre-norm transformer layer."""

    def __init__(self, model: Model, dtype: torch.dtype) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = _norm(model, dtype), _norm(model, dtype)
        self.attention = Attention(model, dtype)
        self.feed_forward = FeedForward(model, dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shape (samples, tokens, hidden_size), in and out."""
        x = x + self.attention(self.norm_1(x))
        result: torch.Tensor = x + self.feed_forward(self.norm_2(x))
        return result


class Stage(nn.Module):
    """Some layers; the first stage embeds tokens, the last norms and makes logits."""

    def __init__(self, model: Model, layers: range, dtype: torch.dtype) -> None:
        super().__init__()
        first, last = layers.start == 0, layers.stop == model.num_hidden_layers
        self.embedding = self.positions = self.norm = self.head = None
        if first:
            torch.manual_seed(EMBEDDING)
            self.embedding = nn.Embedding(model.vocab_size, model.hidden_size, dtype=dtype)
            if model.learned_positions:
                self.positions = nn.Embedding(model.seq_len, model.hidden_size, dtype=dtype)
        self.layers = nn.ModuleDict()  # named by their place in the model
        for place in layers:
            torch.manual_seed(place)
            self.layers[str(place)] = Layer(model, dtype)
        if last:
            torch.manual_seed(HEAD)
            self.norm = _norm(model, dtype)
            self.head = nn.Linear(model.hidden_size, model.vocab_size, bias=False, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Tokens of shape (samples, tokens), or hidden states with a third axis."""
        if self.embedding is not None:
            tokens = x.shape[1]
            x = self.embedding(x)
            if self.positions is not None:
                x = x + self.positions.weight[:tokens]
        for layer in self.layers.values():
            x = layer(x)
        if self.norm is not None and self.head is not None:
            x = self.head(self.norm(x))
        return x


def cut(
    model: Model,
    layers_per_stage: Iterable[int],
    held: Iterable[int],
    dtype: torch.dtype,
    device: torch.device,
) -> dict[int, Stage]:
    """The stages that a rank holds, by index, on its device."""
    ranges, start = [], 0
    for count in layers_per_stage:
        ranges.append(range(start, start + count))
        start += count
    assert start == model.num_hidden_layers
    with device:
        return {stage: Stage(model, ranges[stage], dtype) for stage in held}


def tokens_of(model: Model, samples: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    """A batch: input tokens and the tokens to predict, each of shape (samples, seq_len)."""
    generator = torch.Generator().manual_seed(0)
    shape = (samples, model.seq_len + 1)
    tokens = torch.randint(model.vocab_size, shape, generator=generator).to(device)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def loss_of(logits: torch.Tensor, target: torch.Tensor, share: float) -> torch.Tensor:
    """Mean cross entropy of a microbatch, times its share of the batch."""
    flat = logits.flatten(0, 1).float() if logits.dtype.itemsize < 4 else logits.flatten(0, 1)
    return share * nn.functional.cross_entropy(flat, target.flatten())


def _norm(model: Model, dtype: torch.dtype) -> nn.Module:
    kind = nn.LayerNorm if model.norm == "layernorm" else nn.RMSNorm
    return kind(model.hidden_size, dtype=dtype)


def _angles(tokens: int, width: int) -> torch.Tensor:
    """Angle of each token and channel, both halves of the channels alike, (tokens, width)."""
    channel = torch.arange(0, width, 2, dtype=torch.float64) / width
    turns = torch.arange(tokens, dtype=torch.float64)[:, None] / ROTARY_BASE**channel
    return torch.cat((turns, turns), dim=-1)
