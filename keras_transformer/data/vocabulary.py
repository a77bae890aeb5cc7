"""`Vocabulary`: pieces <-> token ids, with the ids of the special tokens. Pure Python."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

SPECIAL = "pad_token_id", "start_token_id", "end_token_id", "unk_token_id"


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Pieces <-> token ids.

    Args:
        tokens: list of the pieces in the order of their ids; an id without a piece has `""`.
        pad_token_id, start_token_id, end_token_id: ids of the special tokens. Default to 0, 1, 2.
        unk_token_id: id of what is not in the vocabulary; `None` if it has none. Defaults to 3.
        languages: codes of the target languages whose tags, such as `>>fra<<`, are tokens that a
            text may begin with. Defaults to none.
        learned_from: str, describes the sample of lines that it was learned from; empty if it was
            learned from all lines.
        language_ids: the id of each language's token, by its code, for M2M-100 and NLLB; see
            `TokenizerLike`. Text is never split into these tokens, and decoding leaves them out.
            Defaults to none.

    Raises:
        ValueError: if the id of a special token or of a language is not in the vocabulary, or a
            language has no tag.
    """

    tokens: list[str]
    pad_token_id: int = 0
    start_token_id: int = 1
    end_token_id: int = 2
    unk_token_id: int | None = 3
    languages: Sequence[str] = ()
    learned_from: str = ""
    language_ids: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in SPECIAL:
            token_id = getattr(self, name)
            if token_id is not None and not 0 <= token_id < len(self.tokens):
                must = f"`{name}` must be an id of the vocabulary, from 0 to {len(self.tokens) - 1}"
                raise ValueError(f"{must}. Received: {token_id}")
        if missing := [code for code in self.languages if f">>{code}<<" not in self.ids]:
            raise ValueError(f"`languages` must have tags. Received: {missing[0]!r} without a tag")
        for code, token_id in self.language_ids.items():
            if not 0 <= token_id < len(self.tokens):
                must = f"`language_ids` must be ids of the vocabulary, 0 to {len(self.tokens) - 1}"
                raise ValueError(f"{must}. Received: {token_id} of {code!r}")

    def with_language(self, code: str, token: str, pieces: Sequence[str]) -> "Vocabulary":
        """Returns the vocabulary with more tokens at its end: that of a language, then pieces."""
        language_ids = {**self.language_ids, code: len(self.tokens)}
        return replace(self, tokens=[*self.tokens, token, *pieces], language_ids=language_ids)

    @functools.cached_property
    def ids(self) -> dict[str, int]:
        """The id of each piece."""
        return {token: token_id for token_id, token in enumerate(self.tokens) if token}

    @functools.cached_property
    def text_ids(self) -> dict[str, int]:
        """The id of each piece that a text may be split into: all but the tokens of languages."""
        languages = {*self.language_ids.values()}
        return {token: i for token, i in self.ids.items() if i not in languages}

    @property
    def ids_without_text(self) -> list[int]:
        """Ids of padding, start and end, and of the tokens of languages."""
        return [*self.special_ids, *self.language_ids.values()]

    @property
    def special_ids(self) -> tuple[int, int, int]:
        """Ids of the tokens that stand for no text: padding, start and end."""
        return self.pad_token_id, self.start_token_id, self.end_token_id

    def tag_ids(self, tag: str | None) -> list[int]:
        """Returns the ids of the tags of all languages, and of one more tag."""
        tags = [f">>{code}<<" for code in self.languages]
        return [self.ids[name] for name in ([*tags, tag] if tag is not None else tags)]
