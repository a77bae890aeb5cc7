"""The contents of a model that was read, and the differences between families of models."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.models.config import TransformerConfig

# {option: (its value if it is missing, the values that this package supports)}.
Options = dict[str, tuple[Any, list[Any]]]


class ForeignModel(NamedTuple):
    """A model as its files hold it.

    Attributes:
        config: `TransformerConfig`.
        arrays: arrays by Marian's names, perhaps memory-mapped, with the dtypes and the order of
            hidden dimensions of the files. Kernels are `(in, out)`. Vocabularies include padding.
            `add_to` makes `Wemb` a list of arrays, whose rows follow each other.
        tokenizers: list of one `Tokenizer` for both sides, or of two, for source and target.
        search: settings of search and text, as in a recipe.
        notes: lines to print.
        origin: name, form, licence and languages, as JSON.
    """

    config: TransformerConfig
    arrays: dict[str, np.ndarray]
    tokenizers: list[Tokenizer]
    search: dict[str, Any]
    notes: list[str]
    origin: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family of models in the form of the Hub: a row of `FAMILIES`.

    Args:
        options: what `config.json` may say, see `Options`.
        equal: pairs of options of `config.json` that must be equal.
        read_tokenizers: function of the folder and `config.json` that returns the tokenizers, as in
            `ForeignModel`, and lines to print.
        fields: fields of `TransformerConfig` that the files do not state.
        arithmetics: `{program: further fields}`, if several programs trained such models. Optional.
        find_arithmetic: function of the name, `config.json`, `tokenizer_config.json` and
            `README.md` that returns the program and why, if there are several. Optional.
        search: settings of the search that replace those of the files. Optional.
        requested: options of the search that are ignored in the files, because each translation
            sets them. Optional.
        licenses: `{part of a name: licence}`, where the files say none. Optional.
    """

    options: Options
    equal: tuple[tuple[str, str], ...]
    read_tokenizers: Callable[[Path, dict[str, Any]], tuple[list[Tokenizer], list[str]]]
    fields: Mapping[str, Any]
    arithmetics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    find_arithmetic: Callable[..., tuple[str, str]] | None = None
    search: Mapping[str, Any] = field(default_factory=dict)
    requested: tuple[str, ...] = ()
    licenses: Mapping[str, str] = field(default_factory=dict)
