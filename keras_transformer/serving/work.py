"""`Work`: what a batch asks of a translator. Rows of equal work share a batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from keras_transformer.decoding.batches import pad_rows
from keras_transformer.decoding.search_settings import SearchSettings
from keras_transformer.decoding.translator import Translator


class Work:
    """Base class of what a batch computes. Instances must be hashable.

    Attributes:
        name: str, its label in the metrics.
    """

    name: ClassVar[str]

    def run(self, translator: Translator, rows: Sequence[tuple]) -> list[Any]:
        """Returns the answer for each row.

        Args:
            translator: `Translator`.
            rows: for each row a tuple of int arrays: the ids of the source and, if the work needs
                them, the ids of the target.
        """
        pad_token_id = translator.engine.config.pad_token_id
        columns = [pad_rows(column, pad_token_id) for column in zip(*rows, strict=True)]
        return self._run(translator, rows, *columns)

    def _run(self, translator, rows, *columns):
        """Returns the answers; `columns` are the padded arrays of `rows`."""
        raise NotImplementedError


@dataclass(frozen=True)
class Search(Work):
    """Finds translations.

    Args:
        settings, n_best, distinct_texts: as in `Translator.search_rows`.
        has_prefixes: whether rows have forced first tokens.
    """

    name = "search"
    settings: SearchSettings
    n_best: int
    distinct_texts: bool
    has_prefixes: bool

    def _run(self, translator, rows, *columns):
        return translator.search_rows(
            *columns,
            settings=self.settings,
            n_best=self.n_best,
            distinct_texts=self.distinct_texts,
        )


@dataclass(frozen=True)
class Score(Work):
    """Scores given translations."""

    name = "score"

    def _run(self, translator, rows, *columns):
        return translator.score_rows(*columns)


class Attend(Work):
    """Computes the attention of given translations. Rows of two requests share no batch."""

    name = "attend"

    def _run(self, translator, rows, *columns):
        blocks = translator.engine.attend(*columns)["encoder_decoder"]
        means = np.mean([block.mean(axis=1) for block in blocks], axis=0)
        return [
            mean[: len(target), : len(source)]
            for mean, (source, target) in zip(means, rows, strict=True)
        ]


class Trees(Work):
    """Returns the tree of each search. Rows of two requests share no batch."""

    name = "search_tree"

    def _run(self, translator, rows, *columns):
        return translator.engine.search_tree(*columns, translator.settings)
