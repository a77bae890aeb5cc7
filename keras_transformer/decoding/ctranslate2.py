"""`CTranslate2Translator`: an exported folder that translates in CTranslate2, an engine in C++.

Imports neither Keras nor a backend. https://github.com/OpenNMT/CTranslate2, extra `ct2`.
"""

import collections
import ctypes
import json
import math
import os
import weakref
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from keras_transformer import types
from keras_transformer.cores import usable_cores
from keras_transformer.data.piece_tokenizer import SETTINGS_FILE, FolderTokenizer
from keras_transformer.decoding.hypothesis import Hypothesis
from keras_transformer.decoding.line_translator import LineTranslator
from keras_transformer.decoding.lines import longest_target
from keras_transformer.decoding.scores import IMPOSSIBLE, penalties_up_to
from keras_transformer.decoding.search_settings import SearchSettings

ENGINE = "ctranslate2"  # `engine` in the model card
# A log-probability below this holds that of a forbidden token, about -1e9, or of an empty slot.
LEAST_LOG_PROB = -1e8
_translators: Any = weakref.WeakSet()
# CTranslate2 stops earlier without a length penalty, and finds fewer hypotheses. n^1e-30 is 1.
NO_PENALTY = 1e-30
# A call is one batch, and no line is cut off.
WHOLE = {"max_batch_size": 0, "max_input_length": 0}


def engine_settings(settings: SearchSettings) -> SearchSettings:
    """Returns the settings by which CTranslate2 searches in place of others."""
    return replace(
        settings,
        length_penalty=settings.length_penalty and "mean",
        stopping="first_beams",
        processors=(),
        copied_tokens=(),
        force_end=False,
        sampler=None,
        distinct_texts=False,
        protect_by="copy" if settings.protect_by == "force" else settings.protect_by,
    )


def require_held(names: Iterable[str], settings: SearchSettings, held: SearchSettings) -> None:
    """Raises a `ValueError` if one of the named settings is not what a model of CTranslate2 has."""
    for name in names:
        if (value := getattr(settings, name)) != (has := getattr(held, name)):
            raise ValueError(f"`{name}` must be {has!r} in CTranslate2. Received: {name}={value!r}")


class CTranslate2Translator(LineTranslator):
    """Translates lists of strings as `Translator` does, with an exported folder in CTranslate2.

    It is called like `Translator`, and has `score`. The folder's `model_card.json` has the settings
    of its search: `Translator(model, tokenizer, **card["search"])` finds the same translations, in
    float32 and but for ties. Two things differ: after a target prefix, CTranslate2 ends a
    translation at once only if that is the most probable continuation; and it shares the
    probability of suppressed tokens among the others.
    In a `Hypothesis`, `log_probs` is the sum alone, as a list of one float. A search has no
    processors, sampler or attention scores. In a forked process it loads the model again when it is
    first called.

    Args:
        folder: path of a folder that `export_ctranslate2` wrote, with tokenizers.
        workers: int. Batches that are translated at once, each on one core. Defaults to the cores
            that this process may use.
        device: `"cpu"`, or `"cuda"`, which has not been tried. Defaults to `"cpu"`.
        **settings: settings of the search that differ from the folder's.

    Attributes:
        card: dict, the model card.
        settings: `SearchSettings`, those of a call without others.

    Raises:
        ImportError: if `ctranslate2` is not installed.
        FileNotFoundError: if there is no model of CTranslate2 with model card and tokenizers.
        ValueError: if CTranslate2 has no such setting.

    Example:

        translator = keras_transformer.decoding.CTranslate2Translator("ct2")
        translator(["twenty-one", "two"])
    """

    def __init__(
        self,
        folder: types.Path,
        *,
        workers: int | None = None,
        device: str = "cpu",
        **settings: Any,
    ) -> None:
        folder, workers = Path(folder), usable_cores() if workers is None else workers
        card = folder / "model_card.json"
        if not (card.is_file() and (folder / SETTINGS_FILE).is_file()):
            raise FileNotFoundError(
                f"`folder` must hold a model of CTranslate2, {card.name} and {SETTINGS_FILE}. "
                f"Received: {str(folder)!r}. Export it again: `export --format ctranslate2`"
            )
        self.card = json.loads(card.read_text("utf-8-sig"))
        # CTranslate2 has a table of positions, as if they were learned.
        bounds = {"positions": "learned", "max_sequence_length": self.card["max_tokens"]}
        config = SimpleNamespace(**self.card["architecture"] | bounds)
        config.languages = self.card["target_languages"]
        tokenizers = _Tokenizer(folder, "source", config), _Tokenizer(folder, "target", config)
        self._ends = [each.vocabulary[config.end_token_id] for each in tokenizers]
        super().__init__(tokenizers, config, SearchSettings.from_dict(self.card["search"]))
        self._options = {"device": device, "inter_threads": workers, "intra_threads": 1}
        self._folder = folder.resolve()
        self.settings = self._settings_of_call(settings, 1)
        self._start()
        _translators.add(self)

    def _start(self):
        import ctranslate2

        self._engine = ctranslate2.Translator(str(self._folder), **self._options)
        # One more, so that no core waits for Python between two batches.
        self._run_all = ThreadPoolExecutor(self._options["inter_threads"] + 1, "batch").map

    def _map_rows(self, *arguments):
        if self._engine is None:  # this process was forked
            self._start()
        return super()._map_rows(*arguments)

    def _settings_of_call(self, changes, n_best):
        settings = super()._settings_of_call(changes, n_best)
        held = engine_settings(settings)
        suppressed = self.settings.suppressed_tokens
        require_held(changes, settings, replace(held, suppressed_tokens=suppressed))
        return settings

    def _search(self, source, prefix=None, *, settings, n_best, return_attention):
        if return_attention:
            raise ValueError("`return_attention` needs `Translator`. Received: CTranslate2")
        sources = self._tokens(source, 0)
        prefixes = [[]] * len(sources) if prefix is None else self._tokens(prefix, 1)
        return self._hypotheses(sources, self._ranked(sources, prefixes, settings, n_best))

    def _tokens(self, ids, side):
        """Returns the tokens of padded ids without end tokens, which CTranslate2 adds."""
        vocabulary, config = self._vocabularies[side], self._config
        left_out = config.pad_token_id, config.end_token_id
        return [[vocabulary[i] for i in row if i not in left_out] for row in ids.tolist()]

    def _ranked(self, sources, prefixes, settings, n_best):
        """Returns the tokens, scores and log-probs of the best hypotheses of each source."""
        prefixed = [line for line, prefix in enumerate(prefixes) if prefix and sources[line]]
        given = dict.fromkeys(range(len(sources)), 0.0)
        if prefixed:  # CTranslate2 leaves their log-probs out of its scores, and so of its ranks
            pairs = ([each[line] for line in prefixed] for each in (sources, prefixes))
            for line, one in zip(prefixed, self._engine.score_batch(*pairs, **WHOLE), strict=True):
                given[line] = math.fsum(one.log_probs[: len(prefixes[line])])
        kept, penalties, found = None if prefixed else n_best, self._penalties(settings), []
        for line, (hypotheses, scores) in self._searched(sources, prefixes, settings).items():
            ranked = []
            for tokens, score in zip(hypotheses[:kept], scores[:kept], strict=True):
                penalty = penalties[len(tokens)]
                total = score * penalty + given[line]
                if total > LEAST_LOG_PROB:
                    ranked.append((tokens, total / penalty, [total][: len(tokens)]))
            ranked.sort(key=lambda each: -each[1])
            found.append(ranked[:n_best] or [([], IMPOSSIBLE, [])])
        return found

    def _penalties(self, settings):
        return penalties_up_to(self._config.max_sequence_length, settings).tolist()

    def _hypotheses(self, sources, found):
        rows = [tokens for ranks in found for tokens, *_ in ranks]
        texts = iter(self.target_tokenizer.pieces.decode(rows))
        source_end, end = self._ends
        return [
            [
                Hypothesis(
                    text=next(texts),
                    score=score,
                    source_tokens=[*source, source_end],
                    tokens=tokens,
                    log_probs=log_probs,
                    unfinished=tokens[-1:] not in ([], [end]),
                )
                for tokens, score, log_probs in ranks
            ]
            for source, ranks in zip(sources, found, strict=True)
        ]

    def _searched(self, sources, prefixes, settings):
        """Returns the hypotheses and the scores of each source.

        A call of CTranslate2 has one maximum length. Where a hypothesis reaches that of its line
        before, the line is searched again with it.
        """
        bounds = [longest_target(len(each) + 1, settings, self._config) for each in sources]
        found = dict.fromkeys(range(len(sources)), ([[]], [0.0]))
        # Apart, because beside prefixes CTranslate2 treats the first tokens of other lines as such.
        groups = [
            [line for line in found if sources[line] and bool(prefixes[line]) is has_prefix]
            for has_prefix in (False, True)
        ]
        while groups:
            if not (group := groups.pop()):
                continue
            longest, again = max(bounds[line] for line in group), collections.defaultdict(list)
            results = self._engine.translate_batch(
                [sources[line] for line in group],
                [prefixes[line] for line in group],
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
                hypotheses, _ = found[line] = result.hypotheses, result.scores
                if bounds[line] < longest and max(map(len, hypotheses)) >= bounds[line]:
                    again[bounds[line]].append(line)
            groups += again.values()
        return found

    def _score(self, source, target):
        sources, targets = self._tokens(source, 0), self._tokens(target, 1)
        penalties = self._penalties(self.settings)
        scored, found = self._engine.score_batch(sources, targets, **WHOLE), []
        for tokens, one in zip(sources, scored, strict=True):
            # Without any token to see, CTranslate2 says 0.
            is_seen = tokens or getattr(self._config, "source_end_token", True)
            log_probs = [each if is_seen else math.nan for each in one.log_probs]
            score = math.fsum(log_probs) / penalties[len(one.tokens)]
            found.append([(one.tokens, score, log_probs)])
        return [one for (one,) in self._hypotheses(sources, found)]


def _leave_engines():
    """In a forked process: an engine has no threads there, and its destructor would wait for them.

    So the engine gets one more reference, which nobody drops.
    """
    for translator in list(_translators):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(translator._engine))
        translator._engine = None


if hasattr(os, "register_at_fork"):  # Windows cannot fork
    os.register_at_fork(after_in_child=_leave_engines)


class _Tokenizer(FolderTokenizer):
    """`TokenizerLike` of one side of a folder, with the ids of its vocabulary."""

    def __init__(self, folder, side, config):
        super().__init__(folder, side)
        paths = (folder / f"{name}_vocabulary.json" for name in (side, "shared"))
        self.vocabulary = json.loads(next(filter(Path.is_file, paths)).read_text("utf-8"))
        self.vocabulary_size = len(self.vocabulary)
        self.languages = config.languages
        self._ids = {token: token_id for token_id, token in enumerate(self.vocabulary)}
        self._unk_token_id = config.unk_token_id
        special = config.pad_token_id, config.start_token_id, config.end_token_id
        self.pieces.dropped |= {self.vocabulary[token_id] for token_id in special}
        self.tag, self.unknown = self.pieces.tag, getattr(self.pieces, "unknown", None)
        self.joiner = getattr(self.pieces, "joiner", " ")
        tags = [f">>{code}<<" for code in self.languages] + [self.tag] * (self.tag is not None)
        self.is_tag = {self._ids[tag] for tag in tags}.__contains__

    def encode(self, texts):
        ids, unk = self._ids, self._unk_token_id
        return [[ids.get(token, unk) for token in row] for row in super().encode(texts)]

    def decode(self, rows):
        return self.pieces.decode([[self.vocabulary[i] for i in row] for row in rows])
