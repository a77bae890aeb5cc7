"""Tokenizers and translators can be copied, and sent to other processes."""

import copy
import multiprocessing
import pickle

import pytest

from keras_transformer import Tokenizer, Transformer, TransformerConfig, Translator
from keras_transformer.data.number_corpus import number_names
from tests.builders import randomize
from tests.data import test_keras_hub_tokenizer as keras_hub

pytestmark = [
    *(pytest.mark.tensorflow_only, pytest.mark.long),
    # KerasHub opens its vocabulary file without closing it.
    pytest.mark.filterwarnings("ignore:.*vocabulary.spm:pytest.PytestUnraisableExceptionWarning"),
]

LINES = ["seven hundred and one", "", " \t two\u2028Ωμέγα 😀", "a cat", ">>fra<< one"]


NAMES = [
    *("identity", "nfkc", "of a file", "SentencePiece", "vocabulary", "Marian"),
    *("KerasHub SentencePiece", "KerasHub WordPiece", "KerasHub byte pairs"),
    *("translator", "frozen", "bfloat16"),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """{name: tokenizer or translator}. Their files are gone when they are copied."""
    path = tmp_path_factory.mktemp("tokenizer") / "numbers.model"
    lines = [line for pair in number_names("train", 500) for line in pair]
    identity = Tokenizer.train_on_lines(lines, 340, path, normalization="identity")
    nfkc = Tokenizer.train_on_lines(lines, 340, path)
    loaded = Tokenizer.load(path)
    path.unlink()
    model = nfkc.model_bytes
    pieces = nfkc.vocabulary
    marian = {piece: i for i, piece in enumerate([*pieces, ">>fra<<", ">>deu<<"])}
    tokenizers = [
        *(identity, nfkc, loaded),
        Tokenizer.from_sentencepiece(model, start_token_id=345, vocabulary_size=350),
        Tokenizer.from_sentencepiece(model, vocabulary=[*pieces[:4], *pieces[:3:-1], "other"]),
        Tokenizer.from_marian(model, marian),
        keras_hub.hub_sentencepiece()[1],
        keras_hub.word_piece()[1],
        keras_hub.byte_pair()[1],
    ]
    return dict(zip(NAMES, [*tokenizers, *translators(nfkc)], strict=True))


def translators(tokenizer):
    sizes = {"num_layers": 1, "hidden_dim": 32, "num_heads": 2}
    config = TransformerConfig.tiny(tokenizer.vocabulary_size, **sizes)
    model = randomize(Transformer(config), seed=3)
    rules = {"extra_length": 6, "beam_size": 2}
    kinds = {}, {"frozen": True}, {"dtype": "bfloat16"}
    found = [Translator(model, tokenizer, **rules, **kind) for kind in kinds]
    randomize(model, seed=4)  # the frozen ones keep the weights of before
    return found


def outputs(one):
    """What a tokenizer or translator gives."""
    if isinstance(one, Translator):
        return [(best[0].text, best[0].score) for best in one(LINES, n_best=1)]
    token_ids = one.encode(LINES)
    attributes = one.fingerprint(), one.vocabulary, one.tag_ids, one.languages, one.normalization
    in_graph = one.graph.tokenize(LINES).to_list()
    return repr(one), token_ids, in_graph, one.decode(token_ids), attributes


@pytest.fixture(scope="module")
def in_new_process(made):
    """{name: outputs}: all are unpickled by one process that was spawned."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.map(unpickled_outputs, map(pickle.dumps, made.values()))
    return dict(zip(made, found, strict=True))


def unpickled_outputs(pickled):
    return outputs(pickle.loads(pickled))


@pytest.mark.parametrize("name", NAMES)
def test_copies_in_this_process_and_in_a_new_one_give_the_same(made, in_new_process, name):
    original = made[name]
    expected = outputs(original)
    assert in_new_process[name] == expected
    copied = copy.copy(copy.deepcopy(original))
    assert copied is not original and outputs(copied) == expected


def test_frozen_copy_keeps_the_weights_of_then(made):
    assert outputs(made["frozen"]) != outputs(made["translator"])
