"""The model to train: sizes of a decoder-only transformer, and what they add up to."""

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import Field, model_validator

from simulator.checks import Count, Positive, Value, Whole, require_divides
from simulator.model_rules import check_experts, check_latent, check_limit, check_window

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
    post_norm: bool = Field(
        False, description="what attention and feed-forward layer give is normalised too"
    )
    attention_sinks: bool = Field(False, description="a trained score a head beside the tokens'")
    attn_logit_softcapping: Positive | None = Field(
        None, description="bound of the scores of attention, by a tanh; none when left out [1]"
    )
    final_logit_softcapping: Positive | None = Field(
        None, description="bound of the logits, by a tanh; none when left out [1]"
    )
    swiglu_limit: Positive | None = Field(
        None, description="bound of what the gated activation reads; none when left out [1]"
    )
    norm: Literal["layernorm", "rmsnorm"] = Field("rmsnorm", description="normalisation")
    dropout: bool = Field(False, description="trained with dropout, which keeps one-byte masks")
    num_experts: Count = Field(1, description="routed experts of a layer; 1 = a dense model [1]")
    num_experts_per_tok: Count = Field(1, description="routed experts that a token takes [1]")
    num_shared_experts: Whole = Field(0, description="experts of a layer that all tokens take [1]")
    moe_intermediate_size: Count | None = Field(
        None, description="width of one expert; intermediate_size when left out [1]"
    )
    topk_group: Count | None = Field(
        None, description="nodes that a token's experts lie on at most; no limit when left out [1]"
    )
    num_dense_layers: Whole = Field(0, description="first layers, which have no experts [1]")
    num_nextn_predict_layers: Whole = Field(
        0, description="modules of multi-token prediction, a layer each, behind the last layer [1]"
    )
    q_lora_rank: Count | None = Field(
        None, description="width of the compressed queries of latent attention [1]"
    )
    kv_lora_rank: Count | None = Field(
        None, description="width of the compressed keys and values: makes attention latent [1]"
    )
    qk_rope_head_dim: Whole = Field(
        0, description="part of a latent head's query and key that carries positions [1]"
    )
    v_head_dim: Count | None = Field(
        None, description="width of a latent head's value; head_dim when left out [1]"
    )
    sliding_window: Count | None = Field(
        None,
        description="tokens that a token looks back on, itself included; all when left out [1]",
    )
    num_full_attention_layers: Whole = Field(
        0, description="layers that look at the whole sequence beside those with a window [1]"
    )
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
        check_experts(self)
        check_limit(self)
        check_latent(self)
        check_window(self)
        return self

    @property
    def window_reach(self) -> float:
        """Scores that a layer with a window computes, over those of causal attention. [1]

        Of s tokens the first w look back on all before them, the others on w: w s - w^2 / 2 pairs
        instead of s^2 / 2. Source: Beltagy et al., "Longformer", 2020 (arXiv 2004.05150), section
        3.1; Jiang et al., "Mistral 7B", 2023 (arXiv 2310.06825), section 2.

        >>> Model(name="x", num_hidden_layers=1, hidden_size=4, num_attention_heads=2,
        ...     vocab_size=8, seq_len=8, sliding_window=4).window_reach  # (4 x 8 - 8) / 32
        0.75
        """
        part = min(1.0, (self.sliding_window or self.seq_len) / self.seq_len)
        return part * (2.0 - part)

    @property
    def attention_reach(self) -> float:
        """The same, mean over all layers. [1]"""
        windowed = 1.0 - self.num_full_attention_layers / self.num_hidden_layers
        return 1.0 - windowed * (1.0 - self.window_reach)

    @property
    def is_sparse(self) -> bool:
        """Whether layers have experts."""
        return self.num_experts > 1

    @property
    def is_latent(self) -> bool:
        """Whether keys and values are compressed: DeepSeek's multi-head latent attention."""
        return self.kv_lora_rank is not None

    @property
    def query_width(self) -> int:
        """Elements of a token's queries: those of its keys too, but for grouped heads. [1]

        A latent head's `head_dim` has no positions; its query and key carry them beside it.
        """
        return self.num_attention_heads * (self.head_dim + self.qk_rope_head_dim)

    @property
    def value_width(self) -> int:
        """Elements that attention hands to its projection for a token. [1]"""
        return self.num_attention_heads * (self.v_head_dim or self.head_dim)

    @property
    def expert_width(self) -> int:
        """Width of one expert's feed-forward layer. [1]"""
        return self.moe_intermediate_size or self.intermediate_size

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
        rest = (embeddings + positions + norm) * self.hidden_size
        return self.layers_parameters + rest + self.multi_token_parameters

    @property
    def layers_parameters(self) -> int:
        """Trained parameters of all layers. [1]"""
        sparse = self.num_hidden_layers - self.num_dense_layers
        return self.num_dense_layers * self.dense_layer_parameters + sparse * (
            self.parameters_per_layer
        )

    @property
    def multi_token_parameters(self) -> int:
        """Trained parameters of multi-token prediction: a layer, a projection, three norms. [1]

        Source: DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024 (arXiv 2412.19437), section 2.2.
        """
        norm = (2 if self.norm == "layernorm" else 1) * self.hidden_size
        one = self.parameters_per_layer + 2 * self.hidden_size**2 + 3 * norm
        return self.num_nextn_predict_layers * one

    @property
    def num_active_parameters(self) -> int:
        """Parameters that one token meets: all but the experts that it is not sent to. [1]"""
        idle = (self.num_experts - self.num_experts_per_tok) * self.expert_parameters
        layers = self.num_hidden_layers - self.num_dense_layers + self.num_nextn_predict_layers
        return self.num_parameters - layers * idle

    @property
    def expert_parameters(self) -> int:
        """Parameters of one routed expert; 0 in a dense model. [1]"""
        return self._mlp_parameters(self.expert_width) if self.is_sparse else 0

    @property
    def parameters_per_layer(self) -> int:
        """Trained parameters of one layer, with all of its experts if it has any. [1]"""
        if not self.is_sparse:
            return self.dense_layer_parameters
        experts = (self.num_experts + self.num_shared_experts) * self.expert_parameters
        return self._attention_parameters + experts + self.router_parameters

    @property
    def router_parameters(self) -> int:
        """Trained parameters of one layer's router. [1]"""
        return self.num_experts * (self.hidden_size + self.bias)

    @property
    def dense_layer_parameters(self) -> int:
        """Trained parameters of one layer without experts. [1]"""
        return self._attention_parameters + self._mlp_parameters(self.intermediate_size)

    def _mlp_parameters(self, width: int) -> int:
        """A feed-forward layer of this width. [1]"""
        ups = 2 if self.gated_mlp else 1
        biases = self.hidden_size + ups * width if self.bias else 0
        return self.hidden_size * width * (ups + 1) + biases

    @property
    def _attention_parameters(self) -> int:
        """Attention and the norms of a layer. [1]

        Latent attention: queries and keys with values come down to a narrow vector, are normalised
        and go up again, and the position part of the key is made beside that. Source: DeepSeek-AI,
        "DeepSeek-V3 Technical Report", 2024 (arXiv 2412.19437), section 2.1.1.
        """
        hidden = self.hidden_size
        norms = (4 if self.post_norm else 2) * (2 if self.norm == "layernorm" else 1) * hidden
        norms += 2 * self.head_dim if self.qk_norm else 0
        norms += self.num_attention_heads if self.attention_sinks else 0
        bias = hidden if self.bias else 0
        out = self.value_width * hidden + bias
        if self.kv_lora_rank is None:
            qkv = self.query_width + 2 * self.num_key_value_heads * self.head_dim
            qkv_biases = qkv if self.bias or self.qkv_bias else 0
            return hidden * qkv + qkv_biases + out + norms
        rank = self.q_lora_rank
        query = hidden * self.query_width
        if rank is not None:
            query = rank * (hidden + self.query_width + 1)
        up = self.num_attention_heads * self.head_dim + self.value_width
        key_value = hidden * (self.kv_lora_rank + self.qk_rope_head_dim)
        key_value += self.kv_lora_rank * (up + 1)
        return query + key_value + out + norms
