"""Writes the tables of settings into the pages, from the fields of the settings.

    python docs/settings_tables.py

A table stands between `<!-- settings: NAME -->` and `<!-- end of settings -->`.
"""

import dataclasses
import pathlib
import re

from keras_transformer.data.cleaning import CleaningSettings
from keras_transformer.decoding.search_settings import SearchSettings
from keras_transformer.decoding.text_settings import TextSettings
from keras_transformer.runs.recipe import DataSettings
from keras_transformer.runs.training_settings import TrainingSettings
from keras_transformer.runs.vocabulary_settings import VocabularySettings
from keras_transformer.settings import setting_of, type_text, yaml_line

PAGES = pathlib.Path(__file__).parent / "pages"
TABLES = {
    "data": (DataSettings,),
    "vocabulary": (VocabularySettings,),
    "training": (TrainingSettings,),
    "clean": (CleaningSettings,),
    "search": (SearchSettings, TextSettings),
}
# Where a page says more of a setting.
LINKS = {
    "store": "runs.md#large-corpora",
    "clean": "runs.md#cleaning",
    "tag": "runs.md#several-corpora",
    "source": "tokenizers.md#characters-and-words",
    "target": "tokenizers.md#characters-and-words",
    "normalization": "tokenizers.md#normalisation",
    "protected_symbols": "decoding.md#models-that-copy-it",
    "shapes": "speed.md#shapes",
    "r_drop": "runs.md#small-data",
    "subword_regularization": "runs.md#small-data",
    "word_dropout": "runs.md#small-data",
    "protected_text": "decoding.md#models-that-copy-it",
    "distribution": "devices.md",
    "length_penalty": "steering.md#what-a-score-is",
    "stopping": "decoding.md#how-the-search-works",
    "processors": "steering.md#constraints",
    "sampler": "steering.md#sampling",
    "max_source_tokens": "decoding.md#lines-that-are-too-long",
    "on_too_long": "decoding.md#lines-that-are-too-long",
    "split": "decoding.md#several-sentences-in-a-line",
    "protect": "decoding.md#text-that-must-survive",
    "distinct_texts": "steering.md#several-translations",
}
BLOCK = re.compile(r"(<!-- settings: (\w+) -->\n\n).*?(\n\n<!-- end of settings -->)", re.DOTALL)


def table(name: str, page: str) -> str:
    """Returns a table in Markdown.

    Args:
        name: a key of `TABLES`.
        page: the name of the page's file, whose own links have no name of a file.
    """
    fields = [field for kind in TABLES[name] for field in dataclasses.fields(kind)]
    can_change = any(setting_of(field).may_change for field in fields)
    titles = ["setting", "type", "default", "meaning", *["may change"] * can_change]
    rows = [titles, ["---"] * len(titles)]
    for field in fields:
        rule = setting_of(field)
        link = LINKS.get(field.name, "").removeprefix(page)
        kind = ", ".join(f"`{value}`".replace("None", "null") for value in rule.choices)
        kind = kind or ", ".join(filter(None, [type_text(field.type), rule.allowed]))
        default = "required"
        if field.default is not dataclasses.MISSING:
            default = f"`{yaml_line([] if field.default == () else field.default)}`"
        meaning = rule.text
        if rule.default_text:
            meaning += f" Defaults to {rule.default_text}."
        row = [f"[`{field.name}`]({link})" if link else f"`{field.name}`", kind, default]
        rows.append([*row, meaning, *["yes" if rule.may_change else ""] * can_change])
    return "\n".join(f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in rows)


def with_tables(text: str, page: str) -> str:
    """Returns the text of a page with its tables as they must be."""
    return BLOCK.sub(lambda block: block[1] + table(block[2], page) + block[3], text)


def main() -> None:
    for path in PAGES.glob("*.md"):
        text = path.read_text("utf-8")
        path.write_text(with_tables(text, path.name), "utf-8")


if __name__ == "__main__":
    main()
