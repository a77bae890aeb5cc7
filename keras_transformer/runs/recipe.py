"""Recipes: the YAML configuration of a run.

Pure Python, so that errors in a recipe appear before TensorFlow is imported.
"""

import contextlib
import glob
import os
import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Self

from keras_transformer import types
from keras_transformer.data.cleaning import CleaningSettings
from keras_transformer.data.corpora import Corpora, Corpus
from keras_transformer.data.corpus import CorpusError, read_parallel
from keras_transformer.data.language_codes import codes_of_files
from keras_transformer.data.number_corpus import EMBEDDED, SPLITS
from keras_transformer.data.readers import ReadOptions
from keras_transformer.decoding.search_settings import SearchSettings
from keras_transformer.decoding.text_settings import TextSettings, divided
from keras_transformer.models.config import TransformerConfig
from keras_transformer.runs.recipe_changes import apply_change
from keras_transformer.runs.training_settings import TrainingSettings
from keras_transformer.runs.vocabulary_settings import VocabularySettings
from keras_transformer.settings import Settings, may_change, read_yaml, setting, yaml_line

PRESETS = ("tiny", "base", "big")
TAG = re.compile(r"<(?!/?s>|unk>|pad>|0x)[^\s<>]+>")
# Keys of `search` that earlier versions had -> what holds without them.
GONE_SETTINGS = {
    "protect_by": "the vocabulary decides: with symbols the model copies protected text, without "
    "them the text is cut around it",
    "copied_tokens": "symbols of protected text are always checked",
}
_ABSENT = object()  # the value of a key that is not set


@dataclass(frozen=True, kw_only=True)
class CorpusSettings(ReadOptions):
    """One corpus of a split: `file`, or `source` and `target`, or an embedded corpus.

    Args:
        file: path or glob of files that hold both sides, relative to the data folder.
        source, target: paths or globs of line-aligned files.
        number_names, roman_numerals: `"train"` or `"held_out"`: an embedded corpus, see
            `keras_transformer.number_names` and `keras_transformer.roman_numerals`.
        size, seed: number of pairs and seed of an embedded corpus.
        columns, languages, accelerator, delimiter, allow_empty: as for `read_parallel`.
            `languages` also states the languages of the corpus. By default they are those of the
            files' suffixes or, for a model such as NLLB, those in `search`.
        weight: int. How often an epoch of training passes over the corpus; `0` leaves it out.
            Defaults to `1`.
        tag: the first token of every source of this corpus in training, such as `"<subtitles>"`:
            one token of the vocabulary. Optional.
    """

    file: str | None = None
    source: str | None = None
    target: str | None = None
    number_names: str | None = None
    roman_numerals: str | None = None
    size: int | None = None
    seed: int = 0
    weight: int | float = 1
    tag: str | None = None

    def __post_init__(self):
        super().__post_init__()
        names = "file", "source", "target", *EMBEDDED, "size"
        keys = [name for name in names if getattr(self, name) is not None]
        if keys not in (["file"], ["source", "target"], *([name, "size"] for name in EMBEDDED)):
            raise ValueError(
                "A corpus must have `file`, or `source` and `target`, or `size` and one of "
                f"{', '.join(EMBEDDED)}. Received: {', '.join(keys) or 'none'}"
            )
        for name in EMBEDDED:
            if getattr(self, name) is not None:
                self._require_choice(name, SPLITS)
        is_whole = isinstance(self.weight, int) and self.weight >= 0
        self._require(
            "weight", is_whole, "a whole number: for half a pass, give the other corpora 2"
        )
        is_valid = self.tag is None or TAG.fullmatch(self.tag)
        self._require("tag", is_valid, "a name in angle brackets, such as <subtitles>")

    def codes(self) -> Sequence[str | None]:
        """Returns the codes of both languages; `None` if unknown."""
        if self.languages or self.number_names:
            return self.languages or ("en", "de")
        return codes_of_files(self.source, self.target)

    def read(self, folder: types.Path) -> Corpus:
        """Returns the corpus, whose paths are relative to `folder`."""
        for name, draw in EMBEDDED.items():
            if split := getattr(self, name):
                pairs = draw(split, self.size or 0, self.seed)
                return Corpus(split, pairs, int(self.weight), self.tag, self.languages)
        names = [n for n in (self.file, self.source, self.target) if n is not None]
        paths = [_pattern(folder, name) for name in names]
        options = {option.name: getattr(self, option.name) for option in fields(ReadOptions)}
        files = read_parallel(*paths, **options)
        return Corpus(repr(files), files, int(self.weight), self.tag, self.languages)


@dataclass(frozen=True, kw_only=True)
class DataSettings(Settings):
    """Files of the sentence pairs, and limits for the training pairs.

    A split is one of:

    - `[source, target]`: paths or globs of line-aligned files, plain or compressed, relative to the
      data folder;
    - `[pairs.tsv]` or `pairs.tsv`: one file, or a glob of files, with both sides, see
      `read_parallel`;
    - `{number_names: train | held_out, size: N}`, or `roman_numerals`: an embedded corpus;
    - a mapping with options, see `CorpusSettings`, or a list of such mappings.
    """

    train: list | dict = setting(MISSING, "The split to train on.")
    validation: list | dict | None = setting(
        None, "The split for the validation loss after each epoch."
    )
    test: list | dict | None = setting(None, "The split that `evaluate` translates and scores.")
    max_length: int = setting(
        256,
        "Maximum length in tokens, the end token included. Longer training pairs are dropped; "
        "longer validation pairs are kept. At most `max_sequence_length` if positions are learned.",
        at_least=2,
    )
    max_length_ratio: float = setting(
        9.0,
        "A training pair is dropped if one side has more than `max_length_ratio` times as many "
        "tokens as the other.",
        at_least=1,
    )
    store: str | None = setting(
        None,
        "Folder for token stores, relative to the data folder, see `make_dataset`.",
        default_text="the folder `tokens` of the run if it exists or the split has more than "
        "100 MB; otherwise the tokens are in memory",
        may_change=True,
    )
    clean: dict | None = setting(None, "Which training pairs are left out, see `CleaningSettings`.")
    tag: str | None = setting(
        None,
        "The tag that `translate`, `evaluate` and `serve` put in front of every source, also in "
        "`validation`: one of the tags in `train`. Needed if every corpus with a `weight` above 0 "
        "has a tag.",
    )

    def __post_init__(self):
        self._make_lists("train", "validation", "test")
        super().__post_init__()
        parts = self._corpora("validation") + self._corpora("test")
        if any(part.tag or part.weight != 1 for part in parts):
            raise ValueError("Only corpora of `train` may have `weight` and `tag`.")
        tags = [part.tag for part in self._corpora("train") if part.tag or part.weight]
        # `None` is there if a corpus that is trained on has no tag.
        if self.tag not in (tags or [None]):
            self._reject("tag", f"one of {', '.join(self.tags()) or 'none: no corpus has a tag'}")
        self._cleaning()  # checks `clean`

    def languages(self) -> Sequence[str | None]:
        """Returns the language codes of the first training corpus; `None` if unknown."""
        return self._corpora("train")[0].codes()

    def pairs(self, name: str, folder: types.Path) -> Corpora:
        """Returns the sentence pairs of a split.

        Args:
            name: `"train"`, `"validation"` or `"test"`.
            folder: the data folder, which the split's paths are relative to.

        Returns:
            `(source, target)` strings. They can be iterated more than once.

        Raises:
            CorpusError: if no pair has text on both sides, or the first file cannot be read.
        """
        held_out = {}
        if name == "train":
            for split in ("validation", "test"):
                # A file that only `evaluate` needs may be missing.
                with contextlib.suppress(OSError, ValueError, ImportError):
                    held_out[split] = self.pairs(split, folder)
        parts = [corpus.read(folder) for corpus in self._corpora(name)]
        if name != "train":
            parts = [replace(part, tag=self.tag) for part in parts]
        pairs = Corpora(parts, self._cleaning() if name == "train" else None, held_out)
        texts = (pair for part in parts if part.weight for pair in part.pairs)
        try:
            has_text = any(source.strip() and target.strip() for source, target in texts)
        except CorpusError as error:
            raise CorpusError(f"`{name}`: {error}") from None
        if not has_text:
            raise CorpusError(
                f"`{name}` must hold a pair with text on both sides. Received: {pairs}"
            )
        return pairs

    def tags(self) -> list[str]:
        """Returns the tags of the training corpora."""
        return sorted({corpus.tag for corpus in self._corpora("train") if corpus.tag})

    def _cleaning(self):
        return self.clean and CleaningSettings.from_dict(self.clean)

    def mappings(self, name: str) -> list[dict[str, Any]]:
        """Returns the corpora of a split as mappings of `CorpusSettings`."""
        split = getattr(self, name)
        if isinstance(split, list) and all(isinstance(path, str) for path in split):
            self._require(name, len(split) in (1, 2), "[source, target], [one.tsv] or mappings")
            names = ["source", "target"] if len(split) == 2 else ["file"]
            return [dict(zip(names, split, strict=True))]
        return [split] if isinstance(split, dict) else split or []

    def _corpora(self, name):
        """Returns the `CorpusSettings` of a split."""
        parts = self.mappings(name)
        try:
            return list(map(CorpusSettings.from_dict, parts))
        except ValueError as error:
            raise ValueError(f"`{name}`: {error}") from None


@dataclass(frozen=True, kw_only=True)
class Recipe(Settings):
    """Settings of one run: data, vocabulary, model, training and search.

    Args:
        data: mapping, see `DataSettings`.
        vocabulary: mapping, see `VocabularySettings`.
        model: mapping: `preset` (`tiny`, `base` or `big`; defaults to `base`) and any field of
            `TransformerConfig` except the vocabulary sizes, which the vocabulary sets.
        training: mapping, see `TrainingSettings`.
        search: mapping of `SearchSettings`, except `processors` and `sampler`, and `TextSettings`:
            `{beam_size: 6, length_penalty: mean, alpha: 1.0}`. They are the defaults of `load_run`
            and of the commands for this run, and may differ on resume.

    Example:

    >>> recipe = Recipe.load("number_names")
    >>> recipe.training.label_smoothing
    0.1
    """

    data: DataSettings
    vocabulary: VocabularySettings = field(default_factory=VocabularySettings)
    model: dict = field(default_factory=dict)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    search: dict = field(default_factory=dict)

    def __post_init__(self):
        super().__post_init__()
        try:
            if keys := sorted(GONE_SETTINGS.keys() & self.search.keys()):
                raise ValueError(f"`{keys[0]}` has gone: {GONE_SETTINGS[keys[0]]}. Leave it out")
            search, text = divided(self.search)
            SearchSettings.from_dict(search, TextSettings.__dataclass_fields__)
            TextSettings.from_dict(text)
            if objects := self.search.keys() & {"processors", "sampler"}:
                raise ValueError(f"Give Python objects to `load_run`. Received: {min(objects)}")
        except ValueError as error:
            raise ValueError(f"section `search`: {error}") from None
        if self.training.init_from is not None:  # relative to the current working folder
            training = replace(self.training, init_from=os.path.abspath(self.training.init_from))
            object.__setattr__(self, "training", training)
        if sizes := sorted(self.model.keys() & {"vocabulary_size", "source_vocabulary_size"}):
            raise ValueError(
                f"`{sizes[0]}` is set by the trained vocabulary; set `size` of `vocabulary`. "
                f"Received: {sizes[0]}={self.model[sizes[0]]!r}"
            )
        if self.data.validation is None and (
            self.training.translation_sample or "val_" in (self.training.monitor or "")
        ):
            raise ValueError(
                "`monitor` and `translation_sample` of `training` need a `validation` split in "
                "`data`. Received: validation=None"
            )
        if self.vocabulary.source != "subwords" and (tags := self.data.tags()):
            raise ValueError(
                "`tag` of `data` needs `source: subwords` in `vocabulary`. For characters, begin "
                f"the lines with one of `symbols`. Received: tag={tags[0]}"
            )
        has_bpe_dropout = self.training.subword_regularization is not None
        trains_vocabulary = self.vocabulary.files is None and self.training.init_from is None
        if has_bpe_dropout and trains_vocabulary and self.vocabulary.model_type != "bpe":
            raise ValueError(
                "`subword_regularization` of `training` needs `model_type: bpe` in `vocabulary`. "
                f"Received: model_type={self.vocabulary.model_type}"
            )
        # Checked here, so that the error comes before the vocabulary is trained.
        # The size of an inherited vocabulary is not known yet: any int32 may be one of its ids.
        size = self.vocabulary.size if trains_vocabulary else 2**31
        self.model_config(size).check_length(self.data.max_length)

    @classmethod
    def from_dict(cls, values: dict[str, Any], others: Iterable[str] = ()) -> Self:
        kinds: dict[str, Any] = {f.name: f.type for f in fields(cls) if f.type is not dict}
        if not isinstance(values, dict):
            received = {type(None): "nothing", str: "text"}.get(type(values), type(values).__name__)
            raise ValueError(
                "A recipe is a YAML mapping with the section `data` and, if they differ from the "
                "defaults, `vocabulary`, `model`, `training` and `search`; `keras-transformer "
                f"recipe` lists recipes to start from. Received: {received}"
            )
        parsed = {k: kinds[k].from_dict(v) if k in kinds else v for k, v in values.items()}
        return super().from_dict(parsed, others)

    @classmethod
    def load(cls, name: str, changes: Sequence[str] = (), is_stored: bool = False) -> Self:
        """Loads a recipe by file path or packaged name.

        Args:
            name: path of a file, or a packaged name.
            changes: strings such as `"training.epochs=5"` or `"data.train.size=500"`. Each sets a
                key to a value, written in YAML, before the recipe is checked. Later ones win.
            is_stored: whether the file is the recipe of a run. Keys that this version no longer has
                are then ignored with a warning; otherwise they are errors. Defaults to `False`.

        Raises:
            FileNotFoundError: if there is no such recipe.
            ValueError: if the recipe, as changed, is not valid.
        """
        text = recipe_text(name)
        try:
            values = read_yaml(text)
            # `from_dict` reports a text that is not a mapping.
            for change in changes if isinstance(values, dict) else ():
                apply_change(change, values)
            if is_stored and isinstance(values, dict):
                _drop_gone(name, values)
            return cls.from_dict(values)
        except ValueError as error:
            source = f"{name} with {', '.join(changes)}" if changes else name
            raise ValueError(f"{source}: {error}") from None

    @property
    def monitor(self) -> str:
        """Logged metric that selects the best epoch."""
        return self.training.monitor or ("val_loss" if self.data.validation else "loss")

    def conflicts(self, other: "Recipe") -> list[str]:
        """Returns the differences that keep a run of `other` from resuming with this recipe.

        Returns:
            a list of strings such as `"training.seed is 1 there, 2 here"`; "there" is `other`.
        """
        here, there = self.to_dict(), other.to_dict()
        del here["search"]  # all of it may differ
        may_differ = {"data": may_change(DataSettings), "training": may_change(TrainingSettings)}
        differences = []
        for section, values in here.items():
            other_values = there[section]
            for key in dict.fromkeys((*values, *other_values)):
                value, other_value = values.get(key, _ABSENT), other_values.get(key, _ABSENT)
                if value != other_value and key not in may_differ.get(section, ()):
                    differences.append(
                        f"{section}.{key} is {_shown(other_value)} there, {_shown(value)} here"
                    )
        return differences

    def model_config(
        self, vocabulary_size: int, source_vocabulary_size: int | None = None
    ) -> TransformerConfig:
        """Returns the model's configuration for vocabularies of these sizes.

        Args:
            vocabulary_size: number of target tokens, and of source tokens if the vocabulary is
                joint.
            source_vocabulary_size: number of source tokens. Ignored if the vocabulary is joint;
                otherwise it defaults to `vocabulary_size`.
        """
        overrides = dict(self.model)
        preset = overrides.pop("preset", "base")
        if preset not in PRESETS:
            raise ValueError(
                f"`preset` must be one of {', '.join(PRESETS)}. Received: preset={preset!r}"
            )
        sizes = getattr(TransformerConfig, preset)(vocabulary_size).to_dict()
        # Derived from other fields unless the recipe sets them.
        derived = ["source_vocabulary_size", "key_dim", "value_dim"]
        if overrides.get("num_layers") is not None:
            derived += ["num_encoder_layers", "num_decoder_layers"]
        for name in derived:
            del sizes[name]
        if not self.vocabulary.joint:  # two vocabularies cannot share one matrix
            sizes["tie_embeddings"] = "decoder"
            sizes["source_vocabulary_size"] = source_vocabulary_size or vocabulary_size
        return TransformerConfig.from_dict(sizes | overrides)


def _pattern(folder, name):
    """Returns a path or glob relative to a folder, whose own name is no pattern."""
    path = Path(folder, name)
    return str(path if path.exists() else Path(glob.escape(str(folder)), name))


def _shown(value):
    """Returns a value of a recipe as one line of YAML."""
    return "not set" if value is _ABSENT else yaml_line(value)


def _drop_gone(name, values):
    """Removes the keys of `GONE_SETTINGS` from the mapping of a stored recipe; warns of them."""
    search = values.get("search") or {}
    if keys := sorted(GONE_SETTINGS.keys() & search.keys()):
        values["search"] = {key: value for key, value in search.items() if key not in keys}
        warnings.warn(f"{name}: {', '.join(keys)} of `search` has gone: ignored.", stacklevel=2)


def packaged_recipes() -> list[str]:
    """Returns the names of the packaged recipes."""
    folder = files("keras_transformer") / "recipes"
    return sorted(path.name.removesuffix(".yaml") for path in folder.iterdir())


def recipe_text(name: str) -> str:
    """Returns the YAML text of a recipe.

    Args:
        name: path of a UTF-8 file, or one of `packaged_recipes()`.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if the file is not UTF-8 text.
    """
    if name in packaged_recipes():
        return (files("keras_transformer") / "recipes" / f"{name}.yaml").read_text("utf-8")
    if not Path(name).is_file():
        raise FileNotFoundError(
            f"There is no recipe {name!r}: neither a file nor one of the packaged recipes "
            f"{', '.join(packaged_recipes())}."
        )
    try:
        return Path(name).read_text("utf-8-sig")  # editors may write a byte order mark
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: a recipe must be UTF-8 text. Received: {error}") from None
