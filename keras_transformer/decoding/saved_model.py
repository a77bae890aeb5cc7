"""`SavedModelEngine`: an exported SavedModel, whose graph TensorFlow runs.

Imports `tensorflow` and `tensorflow_text` when a folder is loaded, and never Keras.
"""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from keras_transformer import types
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.data.tokenizer_file import (
    IN_GRAPH,
    exported_paths,
    read_entries,
    vocabulary_of,
)
from keras_transformer.decoding.engine import (
    TENSORFLOW_VARIABLES,
    Engine,
    SearchResult,
    SearchTree,
    require_workers,
)
from keras_transformer.decoding.lines import longest_target
from keras_transformer.decoding.model_card import read_card
from keras_transformer.decoding.scores import NOT_FINITE
from keras_transformer.decoding.search_settings import GRAPH_SETTINGS, SearchSettings

ENGINE = "saved_model"  # `engine` in the model card
OTHER_REWRITES = (  # TensorFlow's graph optimizers, except the arithmetic one
    "constant_folding",
    "dependency_optimization",
    "function_optimization",
    "implementation_selector",
    "layout_optimizer",
    "loop_optimization",
    "remapping",
    "scoped_allocator_optimization",
    "shape_optimization",
)


class SavedModelEngine(Engine):
    """Searches with a folder that `export_saved_model` wrote.

    The folder's `model_card.json` has the settings of its search. The beam, the rules of the length
    penalty and of stopping, processors, suppressed tokens and the sampler are in the graph; other
    settings may differ in each call.

    If a tokenizer is a user's or KerasHub's, only the graph has it. The graph tokenizes source
    lines. It tokenizes target text, for `score` and prefixes, only if both sides share a tokenizer.

    Args:
        folder: path of the folder.
        workers: int. Number of batches that are translated at once, each on one core. It holds for
            the whole process, see `use_threads`. Defaults to one batch at a time, on all cores.

    Attributes:
        card: dict, the model card.

    Raises:
        ImportError: if `tensorflow` or `tensorflow_text` is not installed.
        FileNotFoundError: if there is no SavedModel with a model card.
        ValueError: if another version exported the SavedModel, in another format; or if
            `workers` is not a positive integer.
        RuntimeError: if `workers` is given and TensorFlow has started; or, in a call, in a process
            that was forked from the one that loaded the folder.
    """

    name = "a SavedModel"
    libraries = ("tensorflow", "tensorflow_text")
    variables = TENSORFLOW_VARIABLES

    def __init__(self, folder: types.Path, *, workers: int | None = None) -> None:
        require_workers(workers)
        folder = Path(folder)
        self.card = read_card(folder, "TensorFlow", "saved_model.pb")
        # The current folder may change before the engine is pickled.
        self._folder, self._workers, self._process = folder.resolve(), workers, os.getpid()
        if workers is not None:
            use_threads(workers)
            self.has_threads = True
            self._threads = ThreadPoolExecutor(workers, "batch")
        self._loaded = _load(self._folder)  # kept, because a signature does not keep the variables
        self._signatures = self._loaded.signatures
        self.config: Any = SimpleNamespace(**self.card["architecture"])
        self.tokenizers = self._tokenizers()
        self.defaults = self.card["search"]
        self.held = {
            name: (self.defaults[name],) for name in GRAPH_SETTINGS if name in self.defaults
        }
        self.held["suppressed_tokens"] = (tuple(self.defaults["suppressed_tokens"]),)
        self.held |= {"processors": ((),), "sampler": (None,)}  # none besides those in the graph
        self.has_search_tree = "search_tree" in self._signatures
        if "attend" not in self._signatures:
            self.held["return_attention"] = (False,)

    def __reduce__(self):
        return partial(type(self), workers=self._workers), (self._folder,)

    def search(
        self,
        source_ids: np.ndarray,
        prefix_ids: np.ndarray | None,
        settings: SearchSettings,
        n_best: int,
        language_ids: np.ndarray | None = None,
    ) -> SearchResult:
        """Finds the best translations of each row; see `Engine`."""
        no_prefix = np.zeros((len(source_ids), 0), "int32")
        languages = {} if language_ids is None else {"language_ids": language_ids}
        num_languages = 0 if language_ids is None else 1  # tokens that do not count as text
        lengths = np.count_nonzero(source_ids != self.config.pad_token_id, axis=1) - num_languages
        outputs = self._call(
            "search",
            token_ids=source_ids,
            prefix_ids=no_prefix if prefix_ids is None else prefix_ids,
            n_best=[n_best],
            alpha=[settings.alpha],
            max_length=[longest_target(n, settings, self.config, num_languages) for n in lengths],
            **languages,
        )
        result = SearchResult(*(outputs[name][:, :n_best] for name in SearchResult._fields))
        if np.isnan(result.scores).any():
            raise ValueError(NOT_FINITE)
        return result

    def score(
        self,
        source_ids: np.ndarray,
        target_ids: np.ndarray,
        language_ids: np.ndarray | None = None,
    ) -> np.ndarray:
        """Returns the log-prob of each token of given translations; see `Engine`."""
        languages = {} if language_ids is None else {"language_ids": language_ids}
        inputs = {"token_ids": source_ids, "target_ids": target_ids} | languages
        return self._call("score_ids", **inputs)["log_probs"]

    def attend(
        self,
        source_ids: np.ndarray,
        target_ids: np.ndarray,
        language_ids: np.ndarray | None = None,
    ) -> dict[str, list[np.ndarray]]:
        """Returns the attention scores of given translations; see `Engine`.

        Raises a `ValueError` if the SavedModel was exported without `inspect=True`. A model with
        tokens of languages cannot be exported with it.
        """
        languages = {} if language_ids is None else {"language_ids": language_ids}
        inputs = {"token_ids": source_ids, "target_ids": target_ids} | languages
        outputs = self._call("attend", **inputs)
        return {name: [*np.moveaxis(scores, 1, 0)] for name, scores in outputs.items()}

    def search_tree(self, source_ids: np.ndarray, settings: SearchSettings) -> list[SearchTree]:
        """Returns what the search of the model card does with each row; see `Engine`."""
        outputs = self._call("search_tree", token_ids=source_ids)
        columns = [outputs[name] for name in SearchTree._fields]
        return [SearchTree(*row) for row in zip(*columns, strict=True)]

    def run_all(self, function: Callable[[Any], Any], batches: Iterable[Any]) -> Iterable[Any]:
        """Runs batches in threads, if there are `workers`; see `Engine`."""
        run = self._threads.map if self.has_threads else map
        return run(function, batches)

    def _call(self, name, **inputs):
        """Calls a signature with arrays of its dtypes; returns its outputs as arrays."""
        import tensorflow as tf

        if os.getpid() != self._process:
            raise RuntimeError(
                "A SavedModel must be loaded and used in one process, because the threads of "
                "TensorFlow do not outlive a fork. Load it after the fork"
            )
        if name not in self._signatures:
            must = f"`{name}` needs a SavedModel that was exported with `inspect=True`"
            raise ValueError(f"{must} (`export --inspect`). Received: {str(self._folder)!r}")
        signature = self._signatures[name]
        _, specs = signature.structured_input_signature
        tensors = {key: tf.constant(array, specs[key].dtype) for key, array in inputs.items()}
        try:
            return {key: tensor.numpy() for key, tensor in signature(**tensors).items()}
        except tf.errors.ResourceExhaustedError as error:
            raise MemoryError(tensorflow_reason(error)) from error
        except tf.errors.OpError as error:
            raise RuntimeError(tensorflow_reason(error)) from error

    def _tokenizers(self):
        paths = exported_paths(self._folder)
        sides = [self._tokenizer(path, path is paths[0]) for path in paths]
        return sides[0], sides[-1]

    def _tokenizer(self, path, reads_text):
        """Returns the tokenizer of a file; if only the graph has it, one that calls the graph.

        Args:
            path: path of the file.
            reads_text: whether the graph has a function that tokenizes the texts of this side.
        """
        entries = read_entries(path)
        if entries["kind"] != IN_GRAPH:
            return Tokenizer.load(path)
        import tensorflow as tf

        from keras_transformer.data.function_pieces import FunctionPieces

        vocabulary = vocabulary_of(entries)

        def tokenize(text):
            if not reads_text:
                raise ValueError(
                    "Target text (`target_prefix`, `score`) needs a plain tokenizer, or one of "
                    "both sides: the SavedModel reads source text."
                )
            outputs = self._call("tokenize", text=text)
            return tf.RaggedTensor.from_tensor(outputs["token_ids"], outputs["lengths"])

        def detokenize(token_ids):
            padded = token_ids.to_tensor(vocabulary.pad_token_id)
            return tf.constant(self._call("detokenize", token_ids=padded)["text"], tf.string)

        tokenizer = Tokenizer(FunctionPieces(tokenize, detokenize), vocabulary)
        # Set here: with `tag`, `encode` would put a second tag in front. Old folders lack them.
        tokenizer.joiner = entries.get("joiner", tokenizer.joiner)
        tokenizer.tag_ids = entries.get("tag_ids", tokenizer.tag_ids)
        return tokenizer


def use_threads(workers: int) -> None:
    """Sets how many calls TensorFlow runs at once, each on one core.

    Raises a `RuntimeError` if TensorFlow has started.
    """
    import tensorflow as tf

    # The operations of small models are too short to be shared by several threads.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    # One pool of threads starts the operations of all calls.
    tf.config.threading.set_inter_op_parallelism_threads(workers)


def use_one_rewrite() -> None:
    """Makes TensorFlow rewrite graphs by its arithmetic optimizer alone, for the whole process.

    Each graph is rewritten before its first call. The other optimizers change no bit of an exported
    graph's results, and not its speed, but delay the first answer of a tiny model by half a second.
    TensorFlow has no such option for a single SavedModel, so only servers call this function.
    """
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options(dict.fromkeys(OTHER_REWRITES, False))


def tensorflow_reason(error: Any) -> str:
    """Returns what is wrong: a TensorFlow error's last line without a node of the graph ("[[")."""
    lines = [line.strip() for line in error.message.splitlines() if "[[" not in line]
    return next(filter(None, reversed(lines)), type(error).__name__)


def _load(folder):
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  # registers the tokenizer's operations

    return tf.saved_model.load(str(folder))
