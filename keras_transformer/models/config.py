"""The sizes and options of a Transformer: a validated, frozen dataclass.

Pure Python: importing it imports no backend. Paper, section 3 and Table 3.
"""

from dataclasses import MISSING, InitVar, dataclass
from typing import Any, Self

from keras_transformer.settings import Settings, setting


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(Settings):
    """The sizes and options of an encoder-decoder Transformer.

    Every column of the paper's Table 3 that shapes the model is a field; the defaults are the
    paper's base model. (Label smoothing and training steps are training settings.) `num_layers`
    sets `num_encoder_layers` and `num_decoder_layers`, if they are not given; it is not a field.

    Raises:
        ValueError: if a field is invalid. The message says which field, what it must be, and what
            was received.

    Example:

    >>> config = keras_transformer.TransformerConfig.base(vocabulary_size=37_000, dropout=0.3)
    >>> config.hidden_dim, config.key_dim, config.dropout
    (512, 64, 0.3)

    Reference:
        [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3 and Table 3.
    """

    vocabulary_size: int = setting(
        MISSING,
        "Number of token ids of the target, or of both sides if they share one vocabulary.",
        at_least=1,
    )
    source_vocabulary_size: int | None = setting(
        None,
        "Number of token ids of the source.",
        at_least=1,
        default_text="`vocabulary_size`, one joint vocabulary",
    )
    num_encoder_layers: int | None = setting(
        None, "Blocks of the encoder, the paper's `N`.", at_least=1, default_text="`6`"
    )
    num_decoder_layers: int | None = setting(
        None, "Blocks of the decoder.", at_least=1, default_text="`6`"
    )
    hidden_dim: int = setting(512, "Width of the model, `d_model`.", at_least=1)
    intermediate_dim: int = setting(
        2048, "Width inside the feed-forward network, `d_ff`.", at_least=1
    )
    num_heads: int = setting(8, "Attention heads, `h`.", at_least=1)
    key_dim: int | None = setting(
        None,
        "Width of each head's queries and keys, `d_k`.",
        at_least=1,
        default_text="`hidden_dim // num_heads`",
    )
    value_dim: int | None = setting(
        None,
        "Width of each head's values, `d_v`.",
        at_least=1,
        default_text="`hidden_dim // num_heads`",
    )
    dropout: float = setting(
        0.1,
        "Dropout rate of sub-layer outputs and embedding sums, `P_drop`.",
        at_least=0,
        below=1,
    )
    attention_dropout: float = setting(
        0.0, "Dropout rate of attention scores.", at_least=0, below=1
    )
    activation_dropout: float = setting(
        0.0, "Dropout rate inside the feed-forward network.", at_least=0, below=1
    )
    activation: str = setting("relu", "Name of a Keras activation.")
    normalize_first: bool = setting(
        False,
        "Whether blocks are pre-norm, with a final layer norm in encoder and decoder.",
        default_text="`False`, the paper's post-norm",
    )
    layer_norm_epsilon: float = setting(1e-6, "Added to the variance.", above=0)
    use_bias: bool = setting(True, "Whether the projections inside the blocks add a bias.")
    attention_gain: float = setting(
        1.0,
        "Factor on the initial kernels of query, key and value; fairseq's is `2**-0.5`.",
        above=0,
    )
    positions: str = setting(
        "sinusoidal",
        "How the model knows positions: sinusoids, as in the paper; sinusoids with the wavelengths "
        "of Tensor2Tensor and Marian, where `i` is divided by `D/2 - 1`, not by `D/2`; learned "
        "vectors; or, with `relative`, self-attention knows the distances of tokens, as in Shaw "
        "et al., 2018, and embeddings have no positions.",
        choices=("sinusoidal", "tensor2tensor", "learned", "relative"),
    )
    max_relative_position: int | None = setting(
        None,
        "With relative positions: distances of more tokens than this count as equal to it.",
        at_least=1,
        default_text="`16` with relative positions, else to none",
    )
    first_position: int = setting(0, "The sinusoidal position of the first token.", at_least=0)
    max_sequence_length: int | None = setting(
        None, "In tokens: the number of learned positions.", at_least=1
    )
    tie_embeddings: str = setting(
        "all",
        "What shares one matrix: both embeddings and the softmax, the target embedding and the "
        "softmax, or nothing.",
        choices=("all", "decoder", "none"),
    )
    output_bias: bool = setting(
        False, "Whether the logits have a bias.", default_text="`False`, as in the paper"
    )
    predict_padding: bool = setting(
        True,
        "Whether the padding token has a share of the softmax. `False`, as in Marian's models, "
        "needs `output_bias`: the logit of padding is then about -1e9, and training does not "
        "change it.",
    )
    added_tokens: int = setting(
        0,
        "Number of tokens that were added to a trained model: the last ids of the vocabulary. "
        "Needs `output_bias`, which is about -1e9 at each of them until it is trained.",
        at_least=0,
    )
    source_end_token: bool = setting(
        True,
        "Whether the model sees the end token of the source. `False`, as in models of OpenNMT: it "
        "is masked as padding is.",
    )
    pad_token_id: int = setting(0, "The id of padding.")
    start_token_id: int = setting(
        1,
        "The id that the decoder starts with. It may be that of padding, as in Marian's models; a "
        "search then never generates it. It may be that of the end, as in M2M-100.",
    )
    end_token_id: int = setting(2, "The id that ends a sequence.")
    unk_token_id: int = setting(3, "The id of unknown text.")
    num_layers: InitVar[int | None] = None

    @classmethod
    def tiny(cls, vocabulary_size: int, **overrides: Any) -> Self:
        """A small model: 4+4 layers of width 128, for corpora of about 30,000 pairs."""
        sizes = {"hidden_dim": 128, "intermediate_dim": 256, "num_heads": 4, "dropout": 0.3}
        if "num_layers" not in overrides:
            sizes |= {"num_encoder_layers": 4, "num_decoder_layers": 4}
        return cls(vocabulary_size=vocabulary_size, **sizes | overrides)

    @classmethod
    def base(cls, vocabulary_size: int, **overrides: Any) -> Self:
        """The paper's base model: 6+6 layers of width 512."""
        return cls(vocabulary_size=vocabulary_size, **overrides)

    @classmethod
    def big(cls, vocabulary_size: int, **overrides: Any) -> Self:
        """The paper's big model: 6+6 layers of width 1024, 16 heads, dropout 0.3."""
        sizes = {"hidden_dim": 1024, "intermediate_dim": 4096, "num_heads": 16, "dropout": 0.3}
        return cls(vocabulary_size=vocabulary_size, **sizes | overrides)

    def __post_init__(self, num_layers):
        names = ("num_encoder_layers", "num_decoder_layers")
        missing = [name for name in names if getattr(self, name) is None]
        if num_layers is not None and not missing:
            raise ValueError(
                "`num_layers` sets `num_encoder_layers` and `num_decoder_layers`, which are both "
                f"given. Received: num_layers={num_layers}. Change these two instead."
            )
        for name in missing:
            object.__setattr__(self, name, 6 if num_layers is None else num_layers)
        super().__post_init__()
        self._check_token_ids()
        self._fill_defaults()
        self._check_combinations()

    @property
    def forbidden_token_id(self) -> int | None:
        """The token that no search generates: padding, if it starts the decoder or is excluded."""
        starts = self.pad_token_id == self.start_token_id
        return self.pad_token_id if starts else self.excluded_token_id

    @property
    def excluded_token_id(self) -> int | None:
        """The token that has no share of the softmax: padding, with `predict_padding=False`."""
        return None if self.predict_padding else self.pad_token_id

    def check_length(self, max_length: int) -> None:
        """Raises a `ValueError` if `max_length` tokens exceed the learned positions."""
        positions = self.max_sequence_length
        if self.positions == "learned" and positions is not None and max_length > positions:
            raise ValueError(
                "`max_length` must be at most `max_sequence_length` if positions are learned. "
                f"Received: max_length={max_length}, max_sequence_length={positions}. Lower "
                "`max_length`."
            )

    def _fill_defaults(self):
        if self.source_vocabulary_size is None:
            object.__setattr__(self, "source_vocabulary_size", self.vocabulary_size)
        if self.max_relative_position is None and self.positions == "relative":
            object.__setattr__(self, "max_relative_position", 16)
        for name in ("key_dim", "value_dim"):
            if getattr(self, name) is None:
                if self.hidden_dim % self.num_heads:
                    raise ValueError(
                        f"`num_heads` must divide `hidden_dim` unless `{name}` is given. "
                        f"Received: num_heads={self.num_heads}, hidden_dim={self.hidden_dim}"
                    )
                object.__setattr__(self, name, self.hidden_dim // self.num_heads)

    def _check_token_ids(self):
        num_ids = min(self.vocabulary_size, self.source_vocabulary_size or self.vocabulary_size)
        for name, value in vars(self).items():
            if name.endswith("_token_id"):
                expected = f"an id of the vocabulary, 0 to {num_ids - 1}"
                self._require(name, 0 <= value < num_ids, expected)

    def _check_combinations(self):
        ids = {name: value for name, value in vars(self).items() if name.endswith("_token_id")}
        others = [value for name, value in ids.items() if name != "start_token_id"]
        if len(set(others)) < len(others) or self.start_token_id == self.unk_token_id:
            received = ", ".join(f"{name}={value}" for name, value in ids.items())
            raise ValueError(
                "The special tokens must have different ids, but `start_token_id` may be "
                f"`pad_token_id` or `end_token_id`. Received: {received}"
            )
        if self.positions == "learned" and self.max_sequence_length is None:
            self._reject("max_sequence_length", "given for learned positions")
        if self.positions in ("learned", "relative") and self.first_position:
            self._reject("first_position", "0 for learned and relative positions")
        if self.positions != "relative" and self.max_relative_position is not None:
            self._reject("max_relative_position", 'None unless `positions` is "relative"')
        if not (self.predict_padding or self.output_bias):
            self._reject("output_bias", "True with `predict_padding=False`")
        if self.added_tokens >= self.vocabulary_size:
            self._reject("added_tokens", f"less than `vocabulary_size`, {self.vocabulary_size}")
        if self.added_tokens and not self.output_bias:
            self._reject("output_bias", "True with `added_tokens`")
        if self.tie_embeddings == "all" and self.source_vocabulary_size != self.vocabulary_size:
            raise ValueError(
                '`tie_embeddings="all"` needs one joint vocabulary; use "decoder" or "none". '
                f"Received: vocabulary_size={self.vocabulary_size}, "
                f"source_vocabulary_size={self.source_vocabulary_size}"
            )
