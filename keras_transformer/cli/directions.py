"""The lines that `evaluate` and `export` score, grouped by translation direction."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_transformer import evaluation
from keras_transformer.console import console
from keras_transformer.data.language_codes import LANGUAGES, find_language


@dataclass(frozen=True, kw_only=True)
class Part:
    """Lines that are read together.

    Attributes:
        sources: list of strings.
        references: lists of references, as `evaluation.score` takes them.
        languages: codes of source and target; `None` if it is not stated.
        is_of_recipe: whether the lines are of a split of the recipe. Then `languages` may be names
            that a file, such as TMX, has for them, not codes of the model.
        merges_sources: whether equal sources become one line with several references.
    """

    sources: list[str]
    references: list[list[Any]]
    languages: Sequence[str | None] = (None, None)
    is_of_recipe: bool = False
    merges_sources: bool = False


@dataclass(frozen=True, kw_only=True)
class Direction:
    """Lines to translate between two languages.

    Attributes:
        sources, references: as in `Part`.
        languages: dict of `source_language` and `target_language`, as a call of a translator takes
            them. It may lack a language that the translator's settings have.
    """

    sources: list[str]
    references: list[list[Any]]
    languages: dict[str, str]

    @property
    def name(self) -> str:
        """Both codes, such as `eng_Latn-deu_Latn`."""
        return "-".join(self.languages.values())


def read_parts(
    run: Path,
    data: Path,
    sources: list[str] | None,
    references: list[str] | None,
    settings: dict[str, Any],
    split: str = "test",
) -> list[Part]:
    """Reads the files that are given, or else a split of the recipe: a part for each corpus.

    Equal sources in two files of lines stay separate lines, because published scores count all.

    Args:
        run: path of the run.
        data: path of the folder of the recipe's data.
        sources, references: paths of the files. One file of sources may have several files of
            references; several files of sources have one each.
        settings: the translator's settings. With several files of sources, the codes of languages
            move from here to the parts.
        split: `"test"` or `"validation"`.
    """
    from keras_transformer.runs.folder import RunFolder

    if (not sources) != (not references):
        raise ValueError(
            "Give both `--source` and `--reference`, or none. Received: --source "
            f"{' '.join(sources or ['None'])}, --reference {' '.join(references or ['None'])}"
        )
    if sources:
        return _read_files(sources, references, settings)
    corpora = split_pairs(run, data, split, instead="`--source` and `--reference`").parts
    mappings = RunFolder(run).recipe().data.mappings(split)
    parts = []
    for corpus, mapping in zip(corpora, mappings, strict=True):
        pairs = list(corpus.pairs)
        parts.append(
            Part(
                sources=[source for source, _ in pairs],
                references=[[target for _, target in pairs]],
                languages=corpus.languages or (None, None),
                is_of_recipe=True,
                merges_sources="file" in mapping,
            )
        )
    return parts


def split_pairs(run: Path, data: Path, split: str, instead: str) -> Any:
    """Returns the `Corpora` of a split of the recipe.

    `instead` names the options that replace a missing split.
    """
    from keras_transformer.runs.folder import RunFolder

    settings = RunFolder.existing(run).recipe().data
    if not settings.mappings(split):
        raise ValueError(f"The run's recipe has no {split} split; give {instead}.")
    return settings.pairs(split, data)


def _read_files(sources, references, settings):
    """Returns a `Part` for each file of sources."""
    from keras_transformer.data.corpus import read_parallel

    if len(sources) == 1:
        references_of_sources, languages = [references], [(None, None)]
    elif len(sources) == len(references):
        references_of_sources = [[path] for path in references]
        codes = [_codes_of(settings, name, len(sources)) for name in LANGUAGES]
        languages = list(zip(*codes, strict=True))
    else:
        raise ValueError(
            "Several `--source` must have one `--reference` each. Received: "
            f"{len(sources)} --source, {len(references)} --reference"
        )
    parts = []
    for path, targets, codes in zip(sources, references_of_sources, languages, strict=True):
        corpora = [list(read_parallel(path, target, allow_empty=True)) for target in targets]
        if not corpora[0]:
            raise ValueError(f"`--source` must hold a line to translate. Received: {path}")
        columns = [[reference for _, reference in corpus] for corpus in corpora]
        lines = [line for line, _ in corpora[0]]
        parts.append(Part(sources=lines, references=columns, languages=codes))
    return parts


def _codes_of(settings, name, count):
    """Removes a language from the settings; returns its code for each of several files."""
    code = settings.pop(name, None)
    codes = code.split(",") if code else [None]
    if len(codes) not in (1, count):
        option = f"`--{name.replace('_', '-')}`"
        must = f"{option} must be one code, or {count} with commas, one for each `--source`."
        raise ValueError(f"{must} Received: {code}")
    return codes * count if len(codes) == 1 else codes


def directions_of(parts: list[Part], translator: Any) -> list[Direction]:
    """Returns the directions of parts, in their order; parts of equal languages are one direction.

    A part without a language has that of the translator's settings. If the model has no tokens of
    languages, all parts of a recipe are one direction.
    """
    groups: dict[tuple, list[Part]] = {}
    for part in parts:
        languages = _languages_of(part, translator)
        groups.setdefault(tuple(languages.items()), []).append(part)
    return [_direction_of(group, dict(languages)) for languages, group in groups.items()]


def _languages_of(part, translator):
    """Returns the `languages` of the `Direction` of a part.

    A model with tokens of languages gets those of the part or else of the translator, as its own
    codes. A model without them gets only languages that the user named.
    """
    language_ids = translator.source_tokenizer.language_ids
    if part.is_of_recipe and not language_ids:
        return {}
    languages = dict(zip(LANGUAGES, part.languages, strict=True))
    if language_ids:
        settings = vars(translator.text_settings)
        for name, code in languages.items():
            code = code or settings[name]
            languages[name] = code and find_language(code, name, language_ids)
    return {name: code for name, code in languages.items() if code}


def _direction_of(parts, languages):
    """Returns the `Direction` of the lines of some parts, one part after the other."""
    sources = [line for part in parts for line in part.sources]
    # List n of the direction joins the lists n of all parts.
    lists_of_parts = zip(*(part.references for part in parts), strict=True)
    references = [list(itertools.chain.from_iterable(lists)) for lists in lists_of_parts]
    if all(part.merges_sources for part in parts):
        pairs = list(zip(sources, *references, strict=True))
        sources, references = evaluation.merge_references(pairs)
        if repeated := len(pairs) - len(sources):
            console.print(
                f"{repeated:,} of {len(pairs):,} lines repeat an earlier source: their targets are "
                "further references of it."
            )
    return Direction(sources=sources, references=references, languages=languages)
