"""Forms of Marian's models against a restatement of Marian in NumPy, float64."""

import numpy as np
import pytest
import sentencepiece

import keras_transformer as kt
from keras_transformer.data.number_corpus import number_names
from keras_transformer.importing.importer import build_model, read_model_folder
from tests.builders import to_numpy
from tests.importing import opus_models
from tests.importing.marian_numpy import MarianNumpy

pytestmark = pytest.mark.slow

SEPARATE, JOINT = (60, 80), (70,)
FORMS = {
    "post-norm": (SEPARATE, {}),
    "pre-norm": (SEPARATE, opus_models.PRE_NORM),
    "pre-norm, all tied": (JOINT, {**opus_models.PRE_NORM, "tied-embeddings-all": True}),
    "target tied": (SEPARATE, {"tied-embeddings": True}),
    "sources tied": (JOINT, {"tied-embeddings-src": True}),
    "joint, untied": (JOINT, {}),
    "source and target tied": (JOINT, {"tied-embeddings-src": True, "tied-embeddings": True}),
    "gelu": (JOINT, {"transformer-ffn-activation": "gelu"}),
    "gelu of 1.12.0": (JOINT, {"transformer-ffn-activation": "gelu", "version": "v1.12.0 a1b2"}),
    "swish": (SEPARATE, {"transformer-ffn-activation": "swish", "dim-emb": 6, "dec-depth": 3}),
    # Marian 1.12 reads this option under another name.
    "positions that are not learned": (JOINT, {"transformer-train-position-embeddings": True}),
}


def rows_of(pieces, side):
    return [
        [*pieces.encode(pair[side]), pieces.eos_id()] for pair in number_names("held_out", 3, 0)
    ]


# The others say with other numbers what these say.
DEFAULT = ("post-norm", "pre-norm, all tied", "target tied", "sources tied", "gelu of 1.12.0")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.long] * (n not in DEFAULT)) for n in FORMS]
)
def test_log_probs_are_those_of_marian_restated(name, tmp_path):
    sizes, changes = FORMS[name]
    arrays, options = opus_models.write_form(tmp_path, sizes, **changes)
    if name == "gelu of 1.12.0":
        options["transformer-ffn-activation"] = name
    marian = MarianNumpy(arrays, options)
    files = sorted(tmp_path.glob("*.spm"))
    pieces = [sentencepiece.SentencePieceProcessor(model_file=str(f)) for f in files]
    read = read_model_folder(tmp_path)
    model, config = build_model(read), read.config
    sizes = config.source_vocabulary_size, config.vocabulary_size
    assert sizes == tuple(count + 1 for count in options["dim-vocabs"])
    # The ids of our vocabularies, by the ids of SentencePiece.
    source_ids, target_ids = (
        [vocabulary.index(one.id_to_piece(i)) for i in range(one.get_piece_size())]
        for one, vocabulary in zip(
            (pieces[0], pieces[-1]), [t.vocabulary for t in read.tokenizers], strict=True
        )
    )
    for source, target in zip(rows_of(pieces[0], 0), rows_of(pieces[-1], 1), strict=True):
        expected = marian.log_probs(source, target)
        encoded = [source_ids[i] for i in source] + [config.pad_token_id] * 2
        given = [config.start_token_id, *(target_ids[i] for i in target[:-1])]
        logits = model([np.array([row], "int32") for row in (encoded, given)])
        logits = to_numpy(logits).astype("float64")[0]
        found = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        np.testing.assert_allclose(found[:, target_ids], expected, atol=2e-5, rtol=0)
        assert np.exp(found[:, config.pad_token_id]).max() == 0


@pytest.mark.parametrize("sizes", [pytest.param(JOINT, marks=pytest.mark.long), SEPARATE])
def test_tokens_are_those_of_sentencepiece(sizes, tmp_path):
    opus_models.write_form(tmp_path, sizes)
    kt.import_model(tmp_path, tmp_path / "run")
    translator = kt.load_run(tmp_path / "run")
    files = sorted(tmp_path.glob("*.spm"))
    lines = ["twenty-one", "  ein  Haus ", "ǽ?", ""]
    for side, tokenizer in zip((0, -1), translator.tokenizers, strict=True):
        theirs = sentencepiece.SentencePieceProcessor(model_file=str(files[side]))
        names = [[tokenizer.vocabulary[i] for i in row] for row in tokenizer.encode(lines)]
        expected = [[theirs.id_to_piece(i) for i in theirs.encode(line)] for line in lines]
        assert names == expected
    assert translator.settings.beam_size == 12


def test_decoder_yml_sets_the_search(tmp_path):
    """Marian's own defaults: `marian-decoder --help`."""
    opus_models.write_form(tmp_path, JOINT)
    path = tmp_path / "model.npz.decoder.yml"
    silent = path.read_text("utf-8")
    usual = {"beam_size": 12, "length_penalty": None, "length_ratio": 3, "extra_length": 3}
    usual["suppressed_tokens"] = (1,)
    rows = {
        "": (usual, None),
        "beam-size: 5\nnormalize: 0.6\nword-penalty: 0": (
            usual | {"beam_size": 5, "length_penalty": "mean", "alpha": 0.6},
            None,
        ),
        "max-length-factor: 1.5\nallow-unk: true": (
            usual | {"length_ratio": 1.5, "extra_length": 2, "suppressed_tokens": ()},
            None,
        ),
        "word-penalty: 0.5\nshortlist: [lex.gz, 50, 50]": (
            usual,
            "model.npz.decoder.yml: our search does not support word-penalty=0.5, "
            "shortlist=['lex.gz', 50, 50]",
        ),
        "max-length-factor: .nan": ("`max-length-factor` must be 0 to 1000", None),
    }
    for text, (expected, note) in rows.items():
        path.write_text(f"{silent[:-1]}, {', '.join(text.splitlines())}}}" if text else silent)
        if isinstance(expected, str):
            with pytest.raises(ValueError, match=expected):
                read_model_folder(tmp_path)
            continue
        read = read_model_folder(tmp_path)
        assert (read.search, read.notes) == (expected, [note] if note else [])


def test_one_of_several_models_is_named(tmp_path):
    opus_models.write_form(tmp_path, JOINT, **{"transformer-ffn-activation": "swish"})
    (tmp_path / "model.npz").rename(tmp_path / "model.npz.best-bleu.npz")
    decoder = (tmp_path / "model.npz.decoder.yml").read_text("utf-8")
    best = decoder.replace("model.npz", "model.npz.best-bleu.npz")[:-1] + ', "beam-size": 2}'
    (tmp_path / "model.npz.best-bleu.npz.decoder.yml").write_text(best, "utf-8")
    opus_models.write_form(tmp_path, JOINT)
    (tmp_path / "model.npz.optimizer.npz").write_bytes(b"")
    for weights, activation, beam_size in (
        ("model.npz", "relu", 12),
        ("model.npz.best-bleu.npz", "silu", 2),
    ):
        read = read_model_folder(tmp_path, weights=weights)
        assert (read.config.activation, read.search["beam_size"]) == (activation, beam_size)
        build_model(read)
    with pytest.raises(ValueError, match=r"must hold one `\*.decoder.yml`. Received: model.npz.be"):
        read_model_folder(tmp_path)
    both = decoder.replace('["/desk/model.npz"]', '["model.npz", "model.npz.best-bleu.npz"]')
    (tmp_path / "decoder.yml").write_text(both, "utf-8")
    for weights in (None, "model.npz.optimizer.npz"):
        with pytest.raises(ValueError, match="must name one of model.npz, model.npz.best-bleu.npz"):
            read_model_folder(tmp_path, weights=weights)


def test_tied_embeddings_of_two_vocabularies_are_refused(tmp_path):
    opus_models.write_form(tmp_path, (70, 70), **{"tied-embeddings-all": True})
    with pytest.raises(ValueError, match="needs one vocabulary for both sides"):
        read_model_folder(tmp_path)
