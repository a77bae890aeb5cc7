"""Finds the languages of a model by the codes that people type, such as `de`. Pure Python."""

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from keras_transformer.texts import COMPRESSED

# The arguments and settings that hold such codes.
LANGUAGES = "source_language", "target_language"
SAME_LANGUAGE = 5  # codes that are at most this far apart, by `langcodes`, name one language
NO_TOKEN = -1  # in place of the language token of a corpus that is not read
# The code at the end of a file name, before a suffix of compression if there is one.
_CODE = re.compile(rf"\.([a-z]{{2,3}})({'|'.join(map(re.escape, COMPRESSED))})?$")
_NO_CODES = {".src", ".tgt", ".txt", ".tok", ".bpe", *COMPRESSED}


def find_language(code: str, name: str, language_ids: Mapping[str, int]) -> str:
    """Returns the model's own code for a language, such as `deu_Latn` for `de-DE`.

    Of a language in several scripts, the usual one is returned: `zho_Hans` for `zh`.

    Args:
        code: code of ISO 639-1 or 639-3, perhaps with a script or region: `de`, `deu`, `zh-Hant`.
        name: name of the argument, for errors.
        language_ids: the tokens of the model's languages, by their codes.

    Raises:
        ValueError: if the model does not have the language; the message names similar codes.
    """
    if (same := closest_language(code, language_ids, SAME_LANGUAGE)) is not None:
        return same
    nearest = difflib.get_close_matches(code, [*language_ids], 3) or [*language_ids][:3]
    raise ValueError(
        f"`{name}` must be a language of the model, such as {', '.join(nearest)}. Received: "
        f"{name}={code!r}"
    )


def closest_language(code: str, language_ids: Mapping[str, int], max_distance: int) -> str | None:
    """Returns the model's code for a language or for one near it; `None` if it has neither.

    Args:
        code, language_ids: as in `find_language`.
        max_distance: maximum distance of the two codes, by `langcodes`. 0: both name the same
            language.
    """
    if code in language_ids:
        return code
    import langcodes

    def parsed(text):
        # NLLB writes `deu_Latn`, M2M-100 `de`: compare them in one form.
        return langcodes.Language.get(text, normalize=True)

    try:
        wanted = parsed(code)
        if wanted.language is None:  # such as `und`, whose closest match is English
            return None
        codes = {parsed(known).to_tag(): known for known in language_ids}
        # Of equally close ones, the first is taken: `tw`, Twi, is as close to `ak`, Akan.
        tags = sorted(codes, key=lambda tag: parsed(tag).language != wanted.language)
        tag, _ = langcodes.closest_match(code, tags, max_distance=max_distance)
        # A script in the code must be that of the language; the distance alone may allow others.
        script = wanted.script
        if tag in codes and script in (None, parsed(tag).maximize().script):
            return codes[tag]
    except ValueError:  # `code` is not a language code
        pass
    return None


def codes_of_files(source: str | None, target: str | None) -> list[str | None]:
    """Returns the language codes at the ends of two file names, such as `train.en.gz`.

    `None` if a name is missing or ends otherwise, such as with `.txt`, or if both codes are equal.
    """
    matches = [_CODE.search(name or "") for name in (source, target)]
    codes = [match[1] if match and f".{match[1]}" not in _NO_CODES else None for match in matches]
    return [None, None] if codes[0] == codes[1] else codes


def ids_of_parts(
    language_ids: Mapping[str, int], parts: Sequence[Any], codes: Sequence[str | None]
) -> list[list[int]]:
    """Returns the ids of the language tokens of source and target of each part.

    `[]` if the tokenizer has no tokens of languages.

    Args:
        language_ids: those of the tokenizer.
        parts: the `Corpus` of each part. Empty: the pairs are one part, which states no languages.
            The languages of a part of weight 0 need not be those of the tokenizer.
        codes: codes of source and target for the parts that state none; `None` if not given.

    Raises:
        ValueError: if a language is missing, the tokenizer does not have it, or a code is given
            for a tokenizer without language tokens.
    """
    if not language_ids:
        for name, code in zip(LANGUAGES, codes, strict=True):
            if code is not None:
                must = "must not be given without tokens of languages in the tokenizer"
                raise ValueError(f"`{name}` {must}. Received: {name}={code!r}")
        return []

    def token_of(name, code):
        if code is None:
            raise ValueError(
                f"`{name}` must be given, because the tokenizer has tokens of languages: in a "
                f"recipe in `search`, or in `languages` of each corpus. Received: {name}=None"
            )
        return language_ids[find_language(code, name, language_ids)]

    def tokens_of(part):
        try:
            return list(map(token_of, LANGUAGES, part.languages or codes))
        except ValueError:
            if part.weight:
                raise
            return [NO_TOKEN, NO_TOKEN]

    return list(map(tokens_of, parts)) or [list(map(token_of, LANGUAGES, codes))]
