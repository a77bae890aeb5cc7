"""Files beside every exported model, for people, servers and `keras-transformer verify`.

- `model_card.json`: what the model is, and how it searches.
- `examples.jsonl`: lines with their translations and scores.
"""

import datetime
import importlib.metadata
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from keras_transformer import __version__
from keras_transformer.data.pieces import SPACE_SYMBOL
from keras_transformer.decoding.lines import to_lines
from keras_transformer.decoding.model_card import FILE, FORMAT
from keras_transformer.decoding.translator import Translator


def write_model_card(
    folder: Path,
    translator: Translator,
    packages: Iterable[str],
    card: dict[str, Any] | None,
    settings: dict[str, Any] | None = None,
    **entries: Any,
) -> None:
    """Writes `model_card.json`.

    Args:
        folder: that of the model.
        translator: `Translator`.
        packages: names of the distributions whose versions the card has.
        card: entries to add, or to replace others with. Optional.
        settings: those of the exported model. Defaults to those of the translator.
        **entries: entries of the kind of export, such as `engine`.
    """
    search = settings or translator.all_settings
    content = {
        "name": "translator",
        "source_language": None,
        "target_language": None,
        "bleu": None,
        "architecture": translator.model.config.to_dict(),
        "vocabulary": {
            "source": translator.source_tokenizer.vocabulary_size,
            "target": translator.target_tokenizer.vocabulary_size,
        },
        "target_languages": translator.languages,
        "source_languages": [*translator.source_tokenizer.language_ids],
        "search": {n: v for n, v in search.items() if n not in ("processors", "sampler")},
        **entries,
        "format": FORMAT,
        "versions": {"keras_transformer": __version__}
        | {name: importlib.metadata.version(name) for name in packages},
        "created": datetime.date.today().isoformat(),
    }
    (folder / FILE).write_text(_json(content | (card or {}), indent=2) + "\n", "utf-8")


def write_examples(folder: Path, rows: Iterable[tuple[str, str, float]]) -> None:
    """Writes `examples.jsonl`: lines with their translations and scores."""
    examples = (
        {"text": line, "translation": text, "score": score if math.isfinite(score) else None}
        for line, text, score in rows
    )
    (folder / "examples.jsonl").write_text("".join(_json(e) + "\n" for e in examples), "utf-8")


def example_lines(translator: Translator, examples: Iterable[str] | None) -> list[str]:
    """Returns the lines of `examples.jsonl`: the given ones, or some words of the vocabulary."""
    if examples is not None:
        return to_lines(examples, "examples")
    vocabulary = translator.source_tokenizer.vocabulary
    words = [t.removeprefix(SPACE_SYMBOL) for t in vocabulary if t.startswith(SPACE_SYMBOL)]
    words = [word for word in words if len(word) > 1 and word.isalpha()] or ["a"]
    return [" ".join(words[:8]), " ".join(words[8:12]), ""]


def _json(value, **options):
    return json.dumps(value, ensure_ascii=False, **options)
