"""Recipes: everything a run is made of, as one YAML file.

Pure Python, so that a mistake in a recipe is told before TensorFlow is imported.
"""

import math
from dataclasses import dataclass, field, fields
from importlib.resources import files
from pathlib import Path

from keras_transformer.data.corpus import CorpusError, read_parallel
from keras_transformer.data.number_corpus import number_names
from keras_transformer.models.config import TransformerConfig
from keras_transformer.settings import Settings

PRESETS = ("tiny", "base", "big")
PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")
DISTRIBUTIONS = ("auto", "single", "mirrored", "multi_worker")
MONITORS = ("loss", "val_loss", "val_bleu", "val_chrf")
MAY_BE_ZERO = ("seed", "keep_best")
# What may change when a run goes on: all else would make it another run.
RESUMABLE = (
    *("epochs", "patience", "distribution", "devices", "accumulation_steps", "micro_batch_tokens"),
    *("checkpoint_updates", "keep_last", "keep_best"),
)


@dataclass(frozen=True, kw_only=True)
class DataSettings(Settings):
    """Where the sentence pairs come from.

    A split is a pair `[source, target]` of paths or globs, plain or `.gz`, relative to the data
    folder; or a list of one, a TSV file; or `{number_names: train | held_out, size: N}`, the
    embedded corpus.

    Args:
        train: the split to learn from.
        validation: the split to measure the loss on after each epoch. Optional.
        test: the split that `evaluate` translates. Optional.
        max_length: int, in tokens with the end token. Longer training pairs are dropped; those to
            validate with are not. At most `max_sequence_length` where positions are learned.
            Defaults to `256`.
        max_length_ratio: float. Training pairs whose sides differ more are dropped. Defaults to
            `9.0`.
    """

    train: list | dict
    validation: list | dict | None = None
    test: list | dict | None = None
    max_length: int = 256
    max_length_ratio: float = 9.0

    def __post_init__(self):
        super().__post_init__()
        for name in ("train", "validation", "test"):
            self._check_split(name, getattr(self, name))
        if self.max_length < 2:
            self._reject("max_length", "at least 2")
        if self.max_length_ratio < 1:
            self._reject("max_length_ratio", "at least 1")

    def pairs(self, name, folder):
        """Returns the sentence pairs of a split.

        Args:
            name: `"train"`, `"validation"` or `"test"`.
            folder: path that the split's files are relative to.

        Returns:
            iterable of `(source, target)` strings, which can be iterated more than once.

        Raises:
            CorpusError: if no pair has text on both sides.
        """
        split = getattr(self, name)
        if isinstance(split, dict):
            return number_names(split["number_names"], split["size"], split.get("seed", 0))
        paths = [str(Path(folder) / path) for path in split]
        pairs = read_parallel(*paths)
        if not any(source.strip() and target.strip() for source, target in pairs):
            raise CorpusError(
                f"`{name}` must hold a pair with text on both sides. Received: {', '.join(paths)}"
            )
        return pairs

    def _check_split(self, name, split):
        if isinstance(split, list):
            if len(split) not in (1, 2) or not all(isinstance(path, str) for path in split):
                self._reject(name, "[source, target] or [one.tsv]")
        elif isinstance(split, dict):
            if (
                set(split) - {"seed"} != {"number_names", "size"}
                or split["number_names"] not in ("train", "held_out")
                or not all(isinstance(split.get(key, 0), int) for key in ("size", "seed"))
            ):
                self._reject(name, "{number_names: train or held_out, size: N}")


@dataclass(frozen=True, kw_only=True)
class VocabularySettings(Settings):
    """The subwords to learn from the training split.

    Args:
        size: int. Number of tokens, special ones and bytes included. Defaults to `8000`.
        joint: bool. One vocabulary for both sides. Defaults to `True`.
        model_type: `"unigram"` or `"bpe"`. Defaults to `"bpe"`, as in the paper.
        normalization: `"nfkc"` or `"identity"`. Defaults to `"nfkc"`.
        character_coverage: float. Rarer characters are spelt in bytes. Defaults to `1.0`.
        files: list of `.model` files learned before, relative to the data folder: one, or two if
            not joint, source first. Nothing is learned then. Optional.
    """

    size: int = 8000
    joint: bool = True
    model_type: str = "bpe"
    normalization: str = "nfkc"
    character_coverage: float = 1.0
    files: list | None = None

    def __post_init__(self):
        super().__post_init__()
        if self.size < 8:
            self._reject("size", "at least 8")
        if self.model_type not in ("unigram", "bpe"):
            self._reject("model_type", '"unigram" or "bpe"')
        if self.normalization not in ("nfkc", "identity"):
            self._reject("normalization", '"nfkc" or "identity"')
        if not 0 < self.character_coverage <= 1:
            self._reject("character_coverage", "more than 0 and at most 1")
        if self.files is not None and (
            len(self.files) != (1 if self.joint else 2)
            or not all(isinstance(path, str) for path in self.files)
        ):
            self._reject("files", "one file, or two if not joint")


@dataclass(frozen=True, kw_only=True)
class TrainingSettings(Settings):
    """How the model is trained.

    Args:
        batch_tokens: int. Most token slots of an update on either side, over all devices. Defaults
            to `4096`.
        epochs: int. Most passes over the training split. Defaults to `20`.
        learning_rate: float. The rate at the end of the warm-up; `null` for the paper's, which
            follows from width and warm-up. Defaults to `null`.
        warmup_steps: int, in updates. Defaults to `4000`.
        label_smoothing: float in [0, 1). Defaults to `0.1`.
        clip_norm: float. Largest norm of the whole gradient; `null` for none, the paper's. Defaults
            to `null`.
        monitor: the logged value that the best epoch is told by: `loss`, `val_loss`, `val_bleu` or
            `val_chrf`. Defaults to `val_loss`, or `loss` if the recipe has no validation split.
        patience: int, in epochs. Stop when `monitor` has not become better for so long; `null` to
            train all epochs. Defaults to `null`.
        precision: `"float32"`, `"mixed_bfloat16"` or `"mixed_float16"`. Defaults to `"float32"`.
        seed: int. Of weights, dropout and the order of the data. Defaults to `1`.
        distribution: `"auto"`, `"single"`, `"mirrored"` or `"multi_worker"`, see `get_strategy`.
            Defaults to `"auto"`.
        devices: list of device names, see `get_strategy`. Defaults to `null`, all GPUs.
        accumulation_steps: int. Micro-batches that each device takes one after the other for one
            update, to save memory. Defaults to `1`.
        micro_batch_tokens: int. Instead: the token slots that a device takes at once; rounded up to
            whole sentences. Defaults to `null`.
        checkpoint_updates: int. A checkpoint is written after so many updates, and after every
            epoch. Defaults to `1000`.
        keep_last: int. How many of the last checkpoints are kept: so many after an epoch, and so
            many after every `checkpoint_updates`. Defaults to `5`.
        keep_best: int. How many of the best ones are kept besides. Defaults to `1`.
        average: int. At the end, the model becomes the average of so many last epochs, see
            `average_run`; `null` for the best epoch's. Defaults to `null`.
        ema_momentum: float in (0, 1). Keep an exponential moving average of the weights, and
            validate, translate and save that; `null` for none. Defaults to `null`.
        init_from: path of a run whose weights and vocabulary this one starts with. Defaults to
            `null`.
        translation_sample: int. Translate so many sentences of the validation split every
            `translation_epochs` and log `val_bleu` and `val_chrf`; `null` for none. Defaults to
            `null`.
        translation_epochs: int. Defaults to `1`.
    """

    batch_tokens: int = 4096
    epochs: int = 20
    learning_rate: float | None = None
    warmup_steps: int = 4000
    label_smoothing: float = 0.1
    clip_norm: float | None = None
    monitor: str | None = None
    patience: int | None = None
    precision: str = "float32"
    seed: int = 1
    distribution: str = "auto"
    devices: list | None = None
    accumulation_steps: int = 1
    micro_batch_tokens: int | None = None
    checkpoint_updates: int = 1000
    keep_last: int = 5
    keep_best: int = 1
    average: int | None = None
    ema_momentum: float | None = None
    init_from: str | None = None
    translation_sample: int | None = None
    translation_epochs: int = 1

    def __post_init__(self):
        super().__post_init__()
        for field_ in fields(self):
            name, value = field_.name, getattr(self, field_.name)
            least = 0 if name in MAY_BE_ZERO else 1
            if field_.type in (int, int | None) and value is not None and value < least:
                self._reject(name, f"at least {least}")
        for name in ("learning_rate", "clip_norm"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                self._reject(name, "positive")
        if not 0 <= self.label_smoothing < 1:
            self._reject("label_smoothing", "at least 0 and less than 1")
        if self.precision not in PRECISIONS:
            self._reject("precision", f"one of {', '.join(PRECISIONS)}")
        if self.monitor not in (None, *MONITORS):
            self._reject("monitor", f"one of {', '.join(MONITORS)}")
        if self.monitor in MONITORS[2:] and self.translation_sample is None:
            self._reject("monitor", "loss or val_loss where `translation_sample` is not given")
        if self.translation_epochs > self.epochs:
            self._reject("translation_epochs", f"at most `epochs`, {self.epochs}")
        if self.distribution not in DISTRIBUTIONS:
            self._reject("distribution", f"one of {', '.join(DISTRIBUTIONS)}")
        if self.devices is not None and not (
            self.devices and all(isinstance(name, str) for name in self.devices)
        ):
            self._reject("devices", 'a list of names such as "GPU:0"')
        if self.ema_momentum is not None and not 0 < self.ema_momentum < 1:
            self._reject("ema_momentum", "more than 0 and less than 1")
        if self.micro_batch_tokens is not None and self.accumulation_steps > 1:
            self._reject("micro_batch_tokens", "null where `accumulation_steps` is given")
        if self.average is not None and self.average > self.keep_last:
            self._reject("average", f"at most `keep_last`, {self.keep_last}")

    def micro_batches(self, replicas):
        """Returns how many micro-batches each of so many devices cuts its rows into."""
        if self.micro_batch_tokens is None:
            return self.accumulation_steps
        return math.ceil(self.batch_tokens / (replicas * self.micro_batch_tokens))


@dataclass(frozen=True, kw_only=True)
class Recipe(Settings):
    """Data, vocabulary, model and training of one run.

    Args:
        data: mapping, see `DataSettings`.
        vocabulary: mapping, see `VocabularySettings`.
        model: mapping: `preset` (`tiny`, `base` or `big`; defaults to `base`) and any field of
            `TransformerConfig`, except the vocabulary sizes, which follow from the vocabulary.
        training: mapping, see `TrainingSettings`.

    Example:

    >>> recipe = Recipe.load("number_names")
    >>> recipe.training.label_smoothing
    0.1
    """

    data: DataSettings
    vocabulary: VocabularySettings = field(default_factory=VocabularySettings)
    model: dict = field(default_factory=dict)
    training: TrainingSettings = field(default_factory=TrainingSettings)

    def __post_init__(self):
        super().__post_init__()
        for name in ("vocabulary_size", "source_vocabulary_size"):
            if name in self.model:
                raise ValueError(
                    f"`{name}` follows from the vocabulary that is learned; set `size` of "
                    f"`vocabulary`. Received: {name}={self.model[name]!r}"
                )
        if self.data.validation is None and (
            self.training.translation_sample or "val_" in (self.training.monitor or "")
        ):
            raise ValueError(
                "`monitor` and `translation_sample` of `training` need a `validation` split in "
                "`data`. Received: validation=None"
            )
        sizes = [self.vocabulary.size] * (1 if self.vocabulary.joint else 2)
        self.model_config(*sizes)  # tells of mistakes before the vocabulary is learned

    def check_lengths(self):
        """Raises a `ValueError` if `max_length` reaches beyond learned positions.

        To be called before training. Not part of the construction: runs of earlier versions have
        such recipes, and can still be translated with.
        """
        config = self.model_config(self.vocabulary.size)
        if config.positions == "learned" and self.data.max_length > config.max_sequence_length:
            raise ValueError(
                "`max_length` of `data` must be at most `max_sequence_length` of `model`, where "
                f"positions are learned. Received: max_length={self.data.max_length}, "
                f"max_sequence_length={config.max_sequence_length}. Lower `max_length` in the "
                "recipe, and begin a run of an earlier version anew with `--no-resume`"
            )

    @classmethod
    def from_dict(cls, values):
        sections = {
            "data": DataSettings,
            "vocabulary": VocabularySettings,
            "training": TrainingSettings,
        }
        if not isinstance(values, dict):
            received = {type(None): "nothing", str: "text"}.get(type(values), type(values).__name__)
            raise ValueError(
                "A recipe is a YAML mapping with the section `data`, and `vocabulary`, `model` and "
                "`training` where they differ from the defaults; `keras-transformer recipe` lists "
                f"some to start from. Received: {received}"
            )
        return super().from_dict(
            {
                key: sections[key].from_dict(value) if key in sections else value
                for key, value in values.items()
            }
        )

    @classmethod
    def load(cls, name):
        """Returns the recipe in a file, or the packaged one of that name."""
        return cls.from_yaml(recipe_text(name), name)

    def continues(self, other):
        """Returns whether a run by this recipe can go on with what one by `other` has done."""
        mine, theirs = self.to_dict(), other.to_dict()
        for name in RESUMABLE:
            del mine["training"][name], theirs["training"][name]
        return mine == theirs

    def model_config(self, vocabulary_size, source_vocabulary_size=None):
        """Returns the `TransformerConfig` for vocabularies of these sizes."""
        overrides = dict(self.model)
        preset = overrides.pop("preset", "base")
        if preset not in PRESETS:
            raise ValueError(
                f"`preset` must be one of {', '.join(PRESETS)}. Received: preset={preset!r}"
            )
        sizes = getattr(TransformerConfig, preset)(8).to_dict()
        # Derived from other fields unless they are given.
        for name in ("source_vocabulary_size", "key_dim", "value_dim"):
            del sizes[name]
        sizes |= overrides
        sizes["vocabulary_size"] = vocabulary_size
        sizes["source_vocabulary_size"] = source_vocabulary_size
        return TransformerConfig.from_dict(sizes)


def packaged_recipes():
    """Returns the names of the recipes that come with the package."""
    folder = files("keras_transformer") / "recipes"
    return sorted(path.name.removesuffix(".yaml") for path in folder.iterdir())


def recipe_text(name):
    """Returns the text of a recipe file, or of the packaged recipe of that name.

    Args:
        name: path of a YAML file, or one of `packaged_recipes()`.

    Returns:
        str.

    Raises:
        FileNotFoundError: if there is neither.
        ValueError: if the file is no text.
    """
    if name in packaged_recipes():
        return (files("keras_transformer") / "recipes" / f"{name}.yaml").read_text("utf-8")
    if not Path(name).is_file():
        raise FileNotFoundError(
            f"There is no recipe {name!r}: neither a file nor one of the packaged recipes "
            f"{', '.join(packaged_recipes())}."
        )
    try:
        return Path(name).read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: a recipe must be UTF-8 text. Received: {error}") from None
