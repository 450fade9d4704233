"""The model to train: sizes of a decoder-only transformer, and what they add up to."""

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import Field, model_validator

from simulator.checks import Count, Value, require_divides

__all__ = ["Model"]


class Model(Value):
    """A decoder-only transformer, in Hugging Face's names."""

    name: str = Field(description="name of the model")
    num_hidden_layers: Count = Field(description="transformer layers [1]")
    hidden_size: Count = Field(description="width of the residual stream [1]")
    num_attention_heads: Count = Field(description="query heads [1]")
    num_key_value_heads: Count = Field(description="key and value heads [1]")
    head_dim: Count = Field(description="width of one head [1]")
    intermediate_size: Count = Field(description="width of the feed-forward layer [1]")
    vocab_size: Count = Field(description="tokens in the vocabulary [1]")
    seq_len: Count = Field(description="tokens in one sequence [1]")
    gated_mlp: bool = Field(False, description="SwiGLU: a third feed-forward matrix")
    learned_positions: bool = Field(False, description="a trained position embedding")
    tie_word_embeddings: bool = Field(False, description="logits share the embedding's weights")
    bias: bool = Field(False, description="every linear layer but the logits has a bias")
    qkv_bias: bool = Field(False, description="the query, key, value projection alone has a bias")
    qk_norm: bool = Field(False, description="queries and keys are normalised, head by head")
    norm: Literal["layernorm", "rmsnorm"] = Field("rmsnorm", description="normalisation")
    dropout: bool = Field(False, description="trained with dropout, which keeps one-byte masks")
    source: str = Field("", description="where the sizes are published")

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, data: object) -> object:
        """Hugging Face's defaults: as many key-value as query heads, hidden / heads, 4 hidden."""
        if not isinstance(data, Mapping):
            return data
        filled = dict(data)
        heads, hidden = filled.get("num_attention_heads"), filled.get("hidden_size")
        if isinstance(heads, int) and isinstance(hidden, int) and heads > 0:
            filled.setdefault("num_key_value_heads", heads)
            if "head_dim" not in filled:
                require_divides("model.hidden_size", hidden, "model.num_attention_heads", heads)
                filled["head_dim"] = hidden // heads
            filled.setdefault("intermediate_size", 4 * hidden)
        return filled

    @model_validator(mode="after")
    def _check(self) -> Self:
        require_divides(
            "model.num_attention_heads",
            self.num_attention_heads,
            "model.num_key_value_heads",
            self.num_key_value_heads,
        )
        return self

    @property
    def num_parameters(self) -> int:
        """Trained parameters, every bias and norm counted. [1]

        Source: equation 2 of Narayanan et al., "Efficient Large-Scale Language Model Training on
        GPU Clusters Using Megatron-LM", SC'21, 12 l h^2 (1 + 13 / 12h + (V + s) / 12lh), to which
        this adds the final norm, 2h, and which it extends to grouped heads, gated feed-forward
        layers, RMSNorm and untied logits.

        >>> gpt2 = Model(name="GPT-2", num_hidden_layers=12, hidden_size=768,
        ...              num_attention_heads=12, vocab_size=50257, seq_len=1024, bias=True,
        ...              learned_positions=True, tie_word_embeddings=True, norm="layernorm")
        >>> gpt2.num_parameters  # 12 (12 x 768^2 + 13 x 768) + (50257 + 1024) 768 + 2 x 768
        124439808
        """
        norm = 2 if self.norm == "layernorm" else 1
        embeddings = self.vocab_size * (1 if self.tie_word_embeddings else 2)
        positions = self.seq_len if self.learned_positions else 0
        layers = self.num_hidden_layers * self.parameters_per_layer
        return layers + (embeddings + positions + norm) * self.hidden_size

    @property
    def parameters_per_layer(self) -> int:
        """Trained parameters of one layer. [1]"""
        norm = 2 if self.norm == "layernorm" else 1
        hidden, ffn = self.hidden_size, self.intermediate_size
        query = self.num_attention_heads * self.head_dim
        qkv = query + 2 * self.num_key_value_heads * self.head_dim
        ups = 2 if self.gated_mlp else 1
        matrices = hidden * (qkv + query) + hidden * ffn * (ups + 1)
        norms = 2 * norm * hidden + (2 * self.head_dim if self.qk_norm else 0)
        qkv_biases = qkv if self.bias or self.qkv_bias else 0
        other_biases = 2 * hidden + ups * ffn if self.bias else 0
        return matrices + norms + qkv_biases + other_biases
