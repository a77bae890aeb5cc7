"""What a Transformer is made of, as one validated, immutable value.

Pure Python: it is read before any backend is imported. Paper, section 3 and Table 3.
"""

from dataclasses import dataclass

from keras_transformer.settings import Settings

SIZES = (
    "vocabulary_size",
    "source_vocabulary_size",
    "num_encoder_layers",
    "num_decoder_layers",
    "hidden_dim",
    "intermediate_dim",
    "num_heads",
    "key_dim",
    "value_dim",
    "max_sequence_length",
)
SPECIAL_TOKEN_IDS = ("pad_token_id", "start_token_id", "end_token_id", "unk_token_id")


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(Settings):
    """The sizes and choices of an encoder-decoder Transformer.

    Every column of the paper's Table 3 that shapes the model is a field; the defaults are its base
    model. (Label smoothing and training steps belong to the training.)

    Args:
        vocabulary_size: int. Number of token ids, of the target side if the sides differ.
        source_vocabulary_size: int. Defaults to `vocabulary_size`: one joint vocabulary.
        num_encoder_layers: int. Blocks of the encoder, the paper's `N`. Defaults to `6`.
        num_decoder_layers: int. Blocks of the decoder. Defaults to `6`.
        hidden_dim: int. Width of the model, `d_model`. Defaults to `512`.
        intermediate_dim: int. Width inside the feed-forward network, `d_ff`. Defaults to `2048`.
        num_heads: int. Attention heads, `h`. Defaults to `8`.
        key_dim: int. Width of each head's queries and keys, `d_k`. Defaults to
            `hidden_dim // num_heads`.
        value_dim: int. Width of each head's values, `d_v`. Defaults to `hidden_dim // num_heads`.
        dropout: float in [0, 1). Of sub-layer outputs and embedding sums, `P_drop`. Defaults to
            `0.1`.
        attention_dropout: float in [0, 1). Of attention scores. Defaults to `0.0`.
        activation_dropout: float in [0, 1). Inside the feed-forward network. Defaults to `0.0`.
        activation: str. Name of a Keras activation. Defaults to `"relu"`.
        normalize_first: bool. Pre-norm blocks and final norms. Defaults to `False`, as the paper.
        layer_norm_epsilon: float. Defaults to `1e-6`.
        use_bias: bool. Biases of all projections inside the blocks. Defaults to `True`.
        positions: `"sinusoidal"` or `"learned"`. Defaults to `"sinusoidal"`.
        max_sequence_length: int, in tokens. Size of the table of learned positions.
        tie_embeddings: `"all"` (both embeddings and the softmax share one matrix), `"decoder"`
            (target embedding and softmax) or `"none"`. Defaults to `"all"`.
        pad_token_id: int. Defaults to `0`.
        start_token_id: int. Defaults to `1`.
        end_token_id: int. Defaults to `2`.
        unk_token_id: int. Defaults to `3`.

    Raises:
        ValueError: naming the field, what it must be, and what was received.

    Example:

    >>> config = keras_transformer.TransformerConfig.base(vocabulary_size=37_000, dropout=0.3)
    >>> config.hidden_dim, config.key_dim, config.dropout
    (512, 64, 0.3)

    Reference:
        [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3 and Table 3.
    """

    vocabulary_size: int
    source_vocabulary_size: int | None = None
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    hidden_dim: int = 512
    intermediate_dim: int = 2048
    num_heads: int = 8
    key_dim: int | None = None
    value_dim: int | None = None
    dropout: float = 0.1
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    activation: str = "relu"
    normalize_first: bool = False
    layer_norm_epsilon: float = 1e-6
    use_bias: bool = True
    positions: str = "sinusoidal"
    max_sequence_length: int | None = None
    tie_embeddings: str = "all"
    pad_token_id: int = 0
    start_token_id: int = 1
    end_token_id: int = 2
    unk_token_id: int = 3

    @classmethod
    def tiny(cls, vocabulary_size, **overrides):
        """The smallest useful model: 4+4 layers of width 128, for corpora of some 30,000 pairs."""
        sizes = {
            "num_encoder_layers": 4,
            "num_decoder_layers": 4,
            "hidden_dim": 128,
            "intermediate_dim": 256,
            "num_heads": 4,
            "dropout": 0.3,
        }
        return cls(vocabulary_size=vocabulary_size, **sizes | overrides)

    @classmethod
    def base(cls, vocabulary_size, **overrides):
        """The paper's base model: 6+6 layers of width 512."""
        return cls(vocabulary_size=vocabulary_size, **overrides)

    @classmethod
    def big(cls, vocabulary_size, **overrides):
        """The paper's big model: 6+6 layers of width 1024, 16 heads, dropout 0.3."""
        sizes = {"hidden_dim": 1024, "intermediate_dim": 4096, "num_heads": 16, "dropout": 0.3}
        return cls(vocabulary_size=vocabulary_size, **sizes | overrides)

    def __post_init__(self):
        super().__post_init__()
        self._check_ranges()
        self._fill_defaults()
        self._check_choices()
        self._check_combinations()

    def _fill_defaults(self):
        if self.source_vocabulary_size is None:
            object.__setattr__(self, "source_vocabulary_size", self.vocabulary_size)
        for name in ("key_dim", "value_dim"):
            if getattr(self, name) is None:
                if self.hidden_dim % self.num_heads:
                    raise ValueError(
                        f"`num_heads` must divide `hidden_dim` unless `{name}` is given. "
                        f"Received: num_heads={self.num_heads}, hidden_dim={self.hidden_dim}"
                    )
                object.__setattr__(self, name, self.hidden_dim // self.num_heads)

    def _check_ranges(self):
        for name in SIZES:
            if getattr(self, name) is not None and getattr(self, name) < 1:
                self._reject(name, "at least 1")
        for name in ("dropout", "attention_dropout", "activation_dropout"):
            if not 0 <= getattr(self, name) < 1:
                self._reject(name, "at least 0 and less than 1")
        if not 0 < self.layer_norm_epsilon < float("inf"):
            self._reject("layer_norm_epsilon", "positive and finite")
        smallest = min(self.vocabulary_size, self.source_vocabulary_size or self.vocabulary_size)
        for name in SPECIAL_TOKEN_IDS:
            if not 0 <= getattr(self, name) < smallest:
                self._reject(name, f"an id of the vocabulary, 0 to {smallest - 1}")
        special = {name: getattr(self, name) for name in SPECIAL_TOKEN_IDS}
        if len(set(special.values())) < len(special):
            received = ", ".join(f"{name}={value}" for name, value in special.items())
            raise ValueError(f"The special tokens must have different ids. Received: {received}")

    def _check_choices(self):
        if self.positions not in ("sinusoidal", "learned"):
            self._reject("positions", '"sinusoidal" or "learned"')
        if self.tie_embeddings not in ("all", "decoder", "none"):
            self._reject("tie_embeddings", '"all", "decoder" or "none"')

    def _check_combinations(self):
        if self.positions == "sinusoidal" and self.hidden_dim % 2:
            self._reject("hidden_dim", "even for sinusoidal positions")
        if self.positions == "learned" and self.max_sequence_length is None:
            self._reject("max_sequence_length", "given for learned positions")
        if self.tie_embeddings == "all" and self.source_vocabulary_size != self.vocabulary_size:
            raise ValueError(
                '`tie_embeddings="all"` needs one joint vocabulary; use "decoder" or "none". '
                f"Received: vocabulary_size={self.vocabulary_size}, "
                f"source_vocabulary_size={self.source_vocabulary_size}"
            )
