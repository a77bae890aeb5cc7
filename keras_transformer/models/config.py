"""The sizes and options of a Transformer: a validated, frozen dataclass.

Pure Python: importing it imports no backend. Paper, section 3 and Table 3.
"""

from dataclasses import InitVar, dataclass, fields
from typing import Any, Self

from keras_transformer.settings import Settings


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(Settings):
    """The sizes and options of an encoder-decoder Transformer.

    Every column of the paper's Table 3 that shapes the model is a field; the defaults are the
    paper's base model. (Label smoothing and training steps are training settings.)

    Args:
        vocabulary_size: number of token ids of the target, or of both sides if they share one
            vocabulary.
        source_vocabulary_size: number of token ids of the source. Defaults to `vocabulary_size`:
            one joint vocabulary.
        num_encoder_layers: blocks of the encoder, the paper's `N`. Defaults to `6`.
        num_decoder_layers: blocks of the decoder. Defaults to `6`.
        hidden_dim: width of the model, `d_model`. Defaults to `512`.
        intermediate_dim: width inside the feed-forward network, `d_ff`. Defaults to `2048`.
        num_heads: attention heads, `h`. Defaults to `8`.
        key_dim: width of each head's queries and keys, `d_k`. Defaults to
            `hidden_dim // num_heads`.
        value_dim: width of each head's values, `d_v`. Defaults to `hidden_dim // num_heads`.
        dropout: dropout rate of sub-layer outputs and embedding sums, `P_drop`, in [0, 1). Defaults
            to `0.1`.
        attention_dropout: dropout rate of attention scores. Defaults to `0.0`.
        activation_dropout: dropout rate inside the feed-forward network. Defaults to `0.0`.
        activation: name of a Keras activation. Defaults to `"relu"`.
        normalize_first: use pre-norm blocks, with a final layer norm in encoder and decoder.
            Defaults to `False`, the paper's post-norm.
        layer_norm_epsilon: added to the variance. Defaults to `1e-6`.
        use_bias: whether the projections inside the blocks add a bias. Defaults to `True`.
        attention_gain: factor on the initial kernels of query, key and value. Defaults to `1.0`.
            fairseq's is `2**-0.5`.
        positions: `"sinusoidal"`, `"tensor2tensor"` (sinusoidal, with the wavelengths of
            Tensor2Tensor and Marian: `i` is divided by `D/2 - 1`, not by `D/2`), `"learned"` or
            `"relative"` (self-attention compares the distances of tokens, as in Shaw et al., 2018,
            and the embeddings have no positions). Defaults to `"sinusoidal"`, as in the paper.
        max_relative_position: with relative positions, the largest distance that differs from
            larger ones, in tokens. Defaults to `16` with relative positions, else to none.
        first_position: the sinusoidal position of the first token. Defaults to `0`.
        max_sequence_length: in tokens. Number of learned positions.
        tie_embeddings: `"all"` (both embeddings and the softmax share one matrix), `"decoder"`
            (target embedding and softmax) or `"none"`. Defaults to `"all"`.
        output_bias: whether the logits have a bias. Defaults to `False`, as in the paper.
        predict_padding: whether the padding token has a share of the softmax. `False`, as in
            Marian's models, needs `output_bias`: the logit of padding is then about -1e9, and
            training does not change it. Defaults to `True`.
        source_end_token: whether the model sees the end token of the source. `False`, as in models
            of OpenNMT: it is masked as padding is. Defaults to `True`.
        pad_token_id: defaults to `0`.
        start_token_id: defaults to `1`. It may be the id of padding, as in Marian's models; a
            search then never generates that token.
        end_token_id: defaults to `2`.
        unk_token_id: defaults to `3`.
        num_layers: sets `num_encoder_layers` and `num_decoder_layers`, if they are not given. Not a
            field itself.

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

    vocabulary_size: int
    source_vocabulary_size: int | None = None
    num_encoder_layers: int | None = None
    num_decoder_layers: int | None = None
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
    attention_gain: float = 1.0
    positions: str = "sinusoidal"
    max_relative_position: int | None = None
    first_position: int = 0
    max_sequence_length: int | None = None
    tie_embeddings: str = "all"
    output_bias: bool = False
    predict_padding: bool = True
    source_end_token: bool = True
    pad_token_id: int = 0
    start_token_id: int = 1
    end_token_id: int = 2
    unk_token_id: int = 3
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
        self._check_each_field()
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

    def _check_each_field(self):
        smallest = min(self.vocabulary_size, self.source_vocabulary_size or self.vocabulary_size)
        for field in fields(self):
            name, value = field.name, getattr(self, field.name)
            if name.endswith("_token_id"):
                expected = f"an id of the vocabulary, 0 to {smallest - 1}"
                self._require(name, 0 <= value < smallest, expected)
            elif name == "first_position":
                self._require(name, value >= 0, "at least 0")
            elif field.type in (int, int | None):  # a size
                self._require(name, value is None or value >= 1, "at least 1")
            elif name.endswith("dropout"):
                self._require(name, 0 <= value < 1, "at least 0 and less than 1")
        for name in ("layer_norm_epsilon", "attention_gain"):
            self._require(name, getattr(self, name) > 0, "positive")
        self._require_choice("positions", ("sinusoidal", "tensor2tensor", "learned", "relative"))
        self._require_choice("tie_embeddings", ("all", "decoder", "none"))

    def _check_combinations(self):
        ids = {name: value for name, value in vars(self).items() if name.endswith("_token_id")}
        differing = [value for name, value in ids.items() if name != "start_token_id"]
        if len(set(differing)) < len(differing) or self.start_token_id in differing[1:]:
            received = ", ".join(f"{name}={value}" for name, value in ids.items())
            raise ValueError(
                "The special tokens must have different ids, but `start_token_id` may be "
                f"`pad_token_id`. Received: {received}"
            )
        if self.positions == "learned" and self.max_sequence_length is None:
            self._reject("max_sequence_length", "given for learned positions")
        if self.positions in ("learned", "relative") and self.first_position:
            self._reject("first_position", "0 for learned and relative positions")
        if self.positions != "relative" and self.max_relative_position is not None:
            self._reject("max_relative_position", 'None unless `positions` is "relative"')
        if not (self.predict_padding or self.output_bias):
            self._reject("output_bias", "True with `predict_padding=False`")
        if self.tie_embeddings == "all" and self.source_vocabulary_size != self.vocabulary_size:
            raise ValueError(
                '`tie_embeddings="all"` needs one joint vocabulary; use "decoder" or "none". '
                f"Received: vocabulary_size={self.vocabulary_size}, "
                f"source_vocabulary_size={self.source_vocabulary_size}"
            )
