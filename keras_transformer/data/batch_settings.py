"""The settings of `make_dataset` that decide what its batches hold."""

from dataclasses import dataclass

from keras_transformer.settings import Settings, setting

AUTO_SHAPES = {"jax": 8}  # {backend: maximum number of shapes}; others have no maximum


@dataclass(frozen=True, kw_only=True)
class BatchSettings(Settings):
    """The arguments of `make_dataset` that decide what the batches hold.

    Raises:
        ValueError: if a number is out of range, or not exactly one batch size is given.
    """

    batch_tokens: int | None = None
    batch_sentences: int | None = None
    max_length: int | None = 256
    max_length_ratio: float | None = 9.0
    shuffle: bool = True
    seed: int = setting(0, "Seed of the order and of the noise.", at_least=0)
    subword_regularization: float | None = setting(
        None,
        "BPE-dropout: the probability of leaving out a merge, see `make_dataset`. Words are split "
        "anew in each epoch.",
        above=0,
        at_most=1,
        default_text="always the same split",
    )
    word_dropout: float = setting(
        0.0,
        "Fraction of the tokens read that become the unknown token, see `make_dataset`.",
        at_least=0,
        below=1,
    )
    shapes: int | str | None = "auto"
    source_language: str | None = setting(
        None, "Code of the language of the sources, if the tokenizer has tokens of languages."
    )
    target_language: str | None = setting(
        None, "Code of the language of the targets, if the tokenizer has tokens of languages."
    )

    def __post_init__(self):
        if self.shapes == "auto":
            import keras  # not at the top: the class can be imported without a backend

            object.__setattr__(self, "shapes", AUTO_SHAPES.get(keras.config.backend()))
        super().__post_init__()
        sizes = [size for size in (self.batch_tokens, self.batch_sentences) if size is not None]
        if len(sizes) != 1 or sizes[0] < 1:
            raise ValueError(
                "Exactly one of `batch_tokens` and `batch_sentences` must be given, a positive "
                f"integer. Received: {self}"
            )
        is_number = isinstance(self.shapes, int) and self.shapes >= 1
        self._require("shapes", self.shapes is None or is_number, '"auto", None or at least 1')
