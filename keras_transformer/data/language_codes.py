"""Codes of languages: which token of a model a code that people type stands for."""

import difflib
from collections.abc import Mapping

# The arguments and settings that hold such codes.
LANGUAGES = "source_language", "target_language"
SAME_LANGUAGE = 5  # largest distance of two codes, by Unicode's table of languages that match


def find_language(code: str, name: str, language_ids: Mapping[str, int]) -> str:
    """Returns the code by which a model has a language, such as `deu_Latn` for `de-DE`.

    Args:
        code: of ISO 639-1 or 639-3, perhaps with a script or region: `de`, `deu`, `zh-Hant`.
        name: that of the argument, for errors.
        language_ids: the tokens of the model's languages, by their codes.

    Raises:
        ValueError: if the model does not have it, or has several: the nearest ones are named.
    """
    if code in language_ids:
        return code
    import langcodes

    def parsed(text):
        # Of NLLB's codes, such as `deu_Latn`, or M2M-100's, such as `de`.
        return langcodes.Language.get(text, normalize=True)

    try:
        codes = {parsed(known).to_tag(): known for known in language_ids}
        tag, _ = langcodes.closest_match(code, [*codes], max_distance=SAME_LANGUAGE)
        script = parsed(code).script
        if tag in codes and script in (None, parsed(tag).maximize().script):
            return codes[tag]
    except ValueError:  # no code
        pass
    nearest = difflib.get_close_matches(code, [*language_ids], 3) or [*language_ids][:3]
    raise ValueError(
        f"`{name}` must be a language of the model, such as {', '.join(nearest)}. Received: "
        f"{name}={code!r}"
    )
