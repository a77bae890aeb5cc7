"""`CTranslate2Engine`: searches with an exported folder in CTranslate2, an engine in C++.

Imports neither Keras nor a backend. https://github.com/OpenNMT/CTranslate2, extra `ct2`.
"""

import collections
import ctypes
import math
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from keras_transformer import types
from keras_transformer.cores import usable_cores
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.data.tokenizer_file import exported_paths
from keras_transformer.decoding.engine import Engine, SearchResult, require_workers
from keras_transformer.decoding.lines import longest_target
from keras_transformer.decoding.model_card import read_card
from keras_transformer.decoding.scores import IMPOSSIBLE, NOT_FINITE, penalties_up_to
from keras_transformer.decoding.search_settings import SearchSettings

ENGINE = "ctranslate2"  # `engine` in the model card
# A hypothesis with a lower log-prob has a forbidden token, of about -1e9, or is an empty slot.
LEAST_LOG_PROB = -1e8
_engines: Any = weakref.WeakSet()
# Exponent that stands for no length penalty, as n^1e-30 is 1: with 0, CTranslate2 stops earlier and
# finds fewer hypotheses.
NO_PENALTY = 1e-30
# A call is one batch, and no line is cut off.
WHOLE = {"max_batch_size": 0, "max_input_length": 0}


class CTranslate2Engine(Engine):
    """Searches with an exported folder in CTranslate2.

    The folder's `model_card.json` has the settings of its search: in float32, `Translator(model,
    tokenizer, **card["search"])` finds the same translations, except for ties. Two things differ:
    a translation may end right behind a target prefix only if the end token is the most probable
    one there; and the probability of suppressed tokens is shared among the others, so one in a
    target prefix counts as 0 in the score, and one in a given translation has the log-prob NaN. A
    search returns only the sum of the log-probs of each hypothesis. In a forked process, the engine
    loads the model again when it is first used.

    Args:
        folder: path of a folder that `export_ctranslate2` wrote, with tokenizers.
        workers: int. Number of batches translated at once, each on one core. Defaults to the cores
            that this process may use.
        device: `"cpu"`, or `"cuda"`, which has not been tried. Defaults to `"cpu"`.

    Attributes:
        card: dict, the model card.

    Raises:
        ImportError: if `ctranslate2` is not installed.
        FileNotFoundError: if there is no model of CTranslate2 with model card and tokenizers.
        ValueError: if another version exported the folder, in another format; or if
            `workers` is not a positive integer.
    """

    name = "CTranslate2"
    has_threads = True
    libraries = ("ctranslate2",)
    variables = ("CT2_FORCE_CPU_ISA", "CT2_USE_MKL")
    held = {
        "length_penalty": ("mean", None),
        "stopping": ("first_beams",),
        "processors": ((),),
        "force_end": (False,),
        "sampler": (None,),
        "return_attention": (False,),
    }

    def __init__(
        self, folder: types.Path, *, workers: int | None = None, device: str = "cpu"
    ) -> None:
        require_workers(workers)
        folder = Path(folder)
        workers = usable_cores() if workers is None else workers
        self.card = read_card(folder, self.name, "model.bin")
        # CTranslate2 has a table of positions, as if they were learned.
        bounds = {"positions": "learned", "max_sequence_length": self.card["max_tokens"]}
        self.config = SimpleNamespace(**self.card["architecture"] | bounds)
        tokenizers = [Tokenizer.load(path) for path in exported_paths(folder)]
        source, target = tokenizers[0], tokenizers[-1]  # the same one, if they share it
        self.tokenizers = source, target
        self._names = [distinct_tokens(source.vocabulary), distinct_tokens(target.vocabulary)]
        self._target_ids = {name: token_id for token_id, name in enumerate(self._names[1])}
        self.defaults = self.card["search"]
        # The bias of the exported model suppresses these tokens, and no others.
        suppressed = tuple(self.defaults["suppressed_tokens"])
        self.held = self.held | {"suppressed_tokens": (suppressed,)}
        self._options = {"device": device, "inter_threads": workers, "intra_threads": 1}
        self._folder = folder.resolve()
        self._start()
        _engines.add(self)

    def __reduce__(self):
        options = {"workers": self._options["inter_threads"], "device": self._options["device"]}
        return partial(type(self), **options), (self._folder,)

    def search(
        self,
        source_ids: np.ndarray,
        prefix_ids: np.ndarray | None,
        settings: SearchSettings,
        n_best: int,
        language_ids: np.ndarray | None = None,
    ) -> SearchResult:
        """Finds the best translations of each row; see `Engine`."""
        sources = self._tokens(source_ids, 0)
        prefixes = [[]] * len(sources) if prefix_ids is None else self._tokens(prefix_ids, 1)
        languages = [[]] * len(sources) if language_ids is None else self._tokens(language_ids, 1)
        hypotheses = self._hypotheses(sources, languages, prefixes, settings, n_best)
        shape = len(hypotheses), n_best
        longest = max((len(tokens) for ranks in hypotheses for tokens, *_ in ranks), default=0)
        result = SearchResult(
            token_ids=np.full((*shape, longest), self.config.pad_token_id, "int32"),
            lengths=np.zeros(shape, "int32"),
            scores=np.full(shape, IMPOSSIBLE, "float32"),
            log_probs=np.zeros((*shape, 1), "float32"),
        )
        for row, ranks in enumerate(hypotheses):
            for rank, (tokens, score, total) in enumerate(ranks):
                ids = [self._target_ids.get(token, self.config.unk_token_id) for token in tokens]
                result.token_ids[row, rank, : len(tokens)] = ids
                result.lengths[row, rank] = len(tokens)
                result.scores[row, rank] = score
                result.log_probs[row, rank] = total
        return result

    def score(
        self,
        source_ids: np.ndarray,
        target_ids: np.ndarray,
        language_ids: np.ndarray | None = None,
    ) -> np.ndarray:
        """Returns the log-prob of each token of given translations; see `Engine`."""
        sources, targets = self._tokens(source_ids, 0), self._tokens(target_ids, 1)
        num_languages = 0
        if language_ids is not None:
            num_languages = 1
            languages = self._tokens(language_ids, 1)
            targets = [[*language, *row] for language, row in zip(languages, targets, strict=True)]
        log_probs = np.zeros(target_ids.shape, "float32")
        scored = self._translator().score_batch(sources, targets, **WHOLE)
        for row, (tokens, scores) in enumerate(zip(sources, scored, strict=True)):
            # Without a source token that the model sees, there is no score; CTranslate2 returns 0.
            has_source = tokens or self.config.source_end_token
            row_log_probs = scores.log_probs[num_languages:]
            log_probs[row, : len(row_log_probs)] = row_log_probs if has_source else math.nan
        suppressed = np.isin(target_ids, self.defaults["suppressed_tokens"])
        log_probs[suppressed & (target_ids != self.config.pad_token_id)] = math.nan
        return log_probs

    def run_all(self, function: Callable[[Any], Any], batches: Iterable[Any]) -> Iterable[Any]:
        """Runs batches in threads; see `Engine`."""
        self._translator()
        return self._threads.map(function, batches)

    def _translator(self):
        if self._loaded is None:  # this process was forked
            self._start()
        return self._loaded

    def _start(self):
        import ctranslate2

        self._loaded = ctranslate2.Translator(str(self._folder), **self._options)
        # One more thread than workers, so that no core waits for Python between two batches.
        self._threads = ThreadPoolExecutor(self._options["inter_threads"] + 1, "batch")

    def _tokens(self, ids, side):
        """Returns the tokens of padded ids without end tokens, which CTranslate2 adds."""
        names, config = self._names[side], self.config
        dropped_ids = config.pad_token_id, config.end_token_id
        return [[names[i] for i in row if i not in dropped_ids] for row in ids.tolist()]

    def _hypotheses(self, sources, languages, prefixes, settings, n_best):
        """Returns the tokens, the score and the log-prob of the best hypotheses of each source.

        CTranslate2 forces both languages and prefixes, but a language is no token of a translation.
        """
        num_languages = len(languages[0]) if languages else 0
        forced = [
            [*language, *prefix] for language, prefix in zip(languages, prefixes, strict=True)
        ]
        prefixed = [line for line, prefix in enumerate(prefixes) if prefix and sources[line]]
        prefix_totals = self._prefix_totals(prefixed, sources, forced, num_languages)
        # CTranslate2's own ranks hold only if nothing is forced.
        count = None if prefixed or num_languages else n_best
        penalties = penalties_up_to(self.config.max_sequence_length, settings).tolist()
        hypotheses = []
        results = self._search_in_groups(sources, forced, settings, num_languages)
        for line, (token_rows, scores) in results.items():
            if any(map(math.isnan, scores)):
                raise ValueError(NOT_FINITE)
            ranks = []
            for tokens, score in zip(token_rows[:count], scores[:count], strict=True):
                total = score * penalties[len(tokens)] + prefix_totals.get(line, 0.0)
                tokens = tokens[num_languages:]
                if total > LEAST_LOG_PROB:
                    ranks.append((tokens, total / penalties[len(tokens)], total))
            ranks.sort(key=lambda hypothesis: -hypothesis[1])
            hypotheses.append(ranks[:n_best] or [([], IMPOSSIBLE, 0.0)])
        return hypotheses

    def _prefix_totals(self, lines, sources, forced, num_languages):
        """Returns the log-prob of the prefix of each of `lines`, without the language's token.

        CTranslate2 leaves it out of the scores of a search. It does not know the log-prob of a
        suppressed token, which counts as 0.
        """
        if not lines:
            return {}
        scored = self._translator().score_batch(
            [sources[line] for line in lines], [forced[line] for line in lines], **WHOLE
        )
        totals = {}
        for line, scores in zip(lines, scored, strict=True):
            prefix_log_probs = scores.log_probs[num_languages : len(forced[line])]
            totals[line] = math.fsum(x for x in prefix_log_probs if x > LEAST_LOG_PROB)
        return totals

    def _search_in_groups(self, sources, forced, settings, num_languages):
        """Returns the hypotheses, with their languages, and the scores of each source.

        CTranslate2 takes one maximum length for a call: here the largest of its lines. A line whose
        own maximum is smaller is searched again with it, if a hypothesis reaches it.
        """
        bounds = [
            longest_target(len(source) + 1 - num_languages, settings, self.config, num_languages)
            + num_languages
            for source in sources
        ]
        # An empty source keeps one empty hypothesis; all others are searched.
        hypotheses_of = dict.fromkeys(range(len(sources)), ([[]], [0.0]))
        # Lines with forced tokens are searched apart from the others: in a common call, CTranslate2
        # would also treat the first tokens of the others as forced.
        groups = [
            [line for line in hypotheses_of if sources[line] and bool(forced[line]) is is_forced]
            for is_forced in (False, True)
        ]
        while groups:
            group = groups.pop()
            if not group:
                continue
            longest = max(bounds[line] for line in group)
            new_groups = collections.defaultdict(list)
            results = self._translator().translate_batch(
                [sources[line] for line in group],
                [forced[line] for line in group],
                beam_size=settings.beam_size,
                num_hypotheses=settings.beam_size,
                length_penalty=(settings.length_penalty and settings.alpha) or NO_PENALTY,
                min_decoding_length=0,
                max_decoding_length=longest,
                return_scores=True,
                return_end_token=True,
                **WHOLE,
            )
            for line, result in zip(group, results, strict=True):
                hypotheses_of[line] = result.hypotheses, result.scores
                length = max(map(len, result.hypotheses))
                if bounds[line] < longest and length >= bounds[line]:
                    new_groups[bounds[line]].append(line)
            groups += new_groups.values()
        return hypotheses_of


def distinct_tokens(vocabulary: Sequence[str]) -> list[str]:
    """Returns a different string for each token id, as CTranslate2 needs them."""
    counts = collections.Counter(vocabulary)
    tokens = enumerate(vocabulary)
    return [token if counts[token] == 1 else f"<id {index}>" for index, token in tokens]


def _keep_engines():
    """Adds a reference to each engine in a forked process, so that Python never frees the engine.

    Freeing it would wait for threads that only the parent process has.
    """
    for engine in list(_engines):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(engine._loaded))
        engine._loaded = None


if sys.platform != "win32":  # Windows cannot fork
    os.register_at_fork(after_in_child=_keep_engines)
