"""Odd files of models: what is read, and what is refused in one line that says what it is.

A row of a table is a change of a folder, and either a part of the error or a check of what is read.
"""

import gzip
import json
import shutil
import stat
import tracemalloc
import zipfile

import numpy as np
import pytest
from tokenizer_agreement import train_sentencepiece

import keras_transformer as kt
from keras_transformer.data.sentencepiece_parts import read_model
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.importing.importer import read_model_folder
from tests.importing import multilingual_models, opus_models
from tests.importing.multilingual_models import stated_ids
from tests.importing.opus_models import assert_same_weights, weights_of

pytestmark = [opus_models.needs_torch, pytest.mark.tensorflow_only, pytest.mark.slow]

CONFIG, VOCABULARY, WEIGHTS = "config.json", "vocab.json", "model.safetensors"
FFN, SHARED, HEAD = "model.decoder.layers.0.fc1.weight", "model.shared.weight", "lm_head.weight"
POSITIONS = "model.encoder.embed_positions.weight"
LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 297928209\n"
HUGE = 10_000_000
INDEX, PART = "model.safetensors.index.json", "model-00002-of-00002.safetensors"
SPM = "sentencepiece.bpe.model"


# Changes of a folder. One that returns a folder has made another, which is read in its place.


def text(name, content):
    return lambda folder: (folder / name).write_text(content, "utf-8")


def change_json(name, **values):
    def change(folder):
        content = json.loads((folder / name).read_text("utf-8"))
        (folder / name).write_text(json.dumps(content | values), "utf-8")

    return change


def rename(old, new):
    return lambda folder: (folder / old).rename(folder / new) and None


def remove(name):
    return lambda folder: (folder / name).unlink()


def cut(name, part=0.5):
    def change(folder):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: int(len(content) * part)])

    return change


def replace(name, old, new):
    def change(folder):
        content = (folder / name).read_text("utf-8")
        assert old in content
        (folder / name).write_text(content.replace(old, new), "utf-8")

    return change


def link(name):
    """The file is outside of the folder."""

    def change(folder):
        (folder / name).rename(folder.parent / "outside")
        (folder / name).symlink_to(folder.parent / "outside")

    return change


def all_of(*changes):
    def change(folder):
        for each in changes:
            each(folder)

    return change


def hub_cache(folder):
    """The Hub's cache holds links to files that are named by their hashes."""
    model = folder.parent / "models--Helsinki-NLP--opus-mt-en-de"
    (model / "snapshots" / "0a1b").mkdir(parents=True)
    folder.rename(model / "blobs")
    for number, path in enumerate(sorted((model / "blobs").iterdir())):
        blob = path.rename(path.with_name(str(number)))
        (model / "snapshots" / "0a1b" / path.name).symlink_to(f"../../blobs/{blob.name}")
    return model / "snapshots" / "0a1b"


def swap_sides(folder):
    content = [(folder / name).read_bytes() for name in ("source.spm", "target.spm")]
    for name, other in zip(("target.spm", "source.spm"), content, strict=True):
        (folder / name).write_bytes(other)


def other_pieces(folder):
    lines = ("".join(chr(9216 + (i * j) % 300) for j in range(9)) for i in range(300))
    (folder / "source.spm").write_bytes(train_sentencepiece(lines, 310))


def tensors(change):
    """Changes the dict of tensors, those of PyTorch, in place."""

    def change_file(folder):
        from safetensors.torch import load_file, save_file

        stored = load_file(folder / WEIGHTS)
        change(stored)
        save_file({name: tensor.contiguous() for name, tensor in stored.items()}, folder / WEIGHTS)

    return change_file


def cast(dtype, *names):
    def change(stored):
        import torch

        for name in names or list(stored):
            stored[name] = stored[name].to(getattr(torch, dtype))

    return tensors(change)


def put(name, value, source=FFN):
    """Sets the first number of an array; one that is missing becomes a copy of another first."""

    def change(stored):
        stored[name] = stored.get(name, stored[source]).clone()
        stored[name].view(-1)[0] = value

    return tensors(change)


def positions(make):
    def change(stored):
        import torch

        angles = np.arange(64)[:, None] / 10000 ** (np.arange(0, 32, 2) / 32)
        table = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
        stored[POSITIONS] = make(torch.tensor(table, dtype=torch.float32))

    return tensors(change)


def add_tag(folder):
    """As `transformers` writes a model and its tokenizer after `add_tokens`."""
    size = len(opus_models.vocabulary())

    def grow(stored):
        import torch

        for name, axis in ((SHARED, 0), ("final_logits_bias", 1)):
            row = stored[name].narrow(axis, 0, 1)
            stored[name] = torch.cat([stored[name], row], axis)

    tensors(grow)(folder)
    change_json(CONFIG, vocab_size=size + 1, decoder_vocab_size=size + 1)(folder)
    (folder / "added_tokens.json").write_text(json.dumps({">>ita<<": size}), "utf-8")


def options(**values):
    """Changes options of Marian; its names have hyphens."""
    values = {name.replace("_", "-"): value for name, value in values.items()}

    def change(stored):
        given = json.loads(stored["special:model.yml"].tobytes().rstrip(b"\0"))
        content = json.dumps(given | values).encode() + b"\0"
        stored["special:model.yml"] = np.frombuffer(content, np.int8)

    return arrays(change)


def arrays(change):
    def change_file(folder):
        path = folder / "opus.model1.npz"
        with np.load(path) as file:
            stored = dict(file)
        change(stored)
        np.savez(path, **stored)

    return change_file


def cast_array(dtype, name):
    return arrays(lambda stored: stored.update({name: stored[name].astype(dtype)}))


# Checks of what is read, beside what is read of the folder as it was.


def same(read, before):
    assert_same_weights(weights_of(read), weights_of(before))
    assert opus_models.tokenizer_files(read) == opus_models.tokenizer_files(before)


def rounded(dtype, *paths):
    import ml_dtypes  # as Keras's bfloat16

    def check(read, before):
        kind, expected = getattr(ml_dtypes, dtype, dtype), weights_of(before)
        for path in paths or expected:
            expected[path] = expected[path].astype(kind).astype("float32")
        assert_same_weights(weights_of(read), expected)

    return check


def no_bias(read, before):
    bias = np.zeros_like(weights_of(before)["logits/bias"])
    assert_same_weights(weights_of(read), weights_of(before) | {"logits/bias": bias})


def own_output(read, before):
    """Both sides share their matrix, the output has another: an array of its own for each."""
    expected = weights_of(before)
    matrix = expected.pop("encoder/embedding/embeddings")
    kernel = matrix.T.copy()
    kernel[0, 0] = 7.0
    expected |= {"encoder/source_embedding/embeddings": matrix}
    expected |= {"decoder/target_embedding/embeddings": matrix, "output_projection/kernel": kernel}
    assert_same_weights(weights_of(read), expected)


def named_as_on_the_hub(read, before):
    same(read, before)
    assert read.origin["name"] == "Helsinki-NLP/opus-mt-en-de"
    assert [read.origin[f"{side}_language"] for side in ("source", "target")] == ["en", "de"]


def swapped(read, before):
    (source, target), files = before.tokenizers, opus_models.tokenizer_files(read)
    vocabulary = source.vocabulary
    assert files == [(vocabulary, target.model_bytes), (vocabulary, source.model_bytes)]


def has_piece(piece):
    return lambda read, before: read.tokenizers[1].vocabulary.index(piece) >= 0


UNTIED = change_json(CONFIG, tie_word_embeddings=False)
HUB = {
    # Numbers.
    "float16": (cast("float16"), rounded("float16")),
    "bfloat16": (cast("bfloat16"), rounded("bfloat16")),
    "float64": (cast("float64"), same),
    "int8": (cast("int8", FFN), f"{FFN} must hold float32.*Received: I8$"),
    "NaN": (put(FFN, float("nan")), f"{FFN} must hold finite numbers"),
    "beyond float32": (all_of(cast("float64", FFN), put(FFN, 1e300)), "must hold finite numbers"),
    "positions": (positions(lambda table: table), same),
    "learned positions": (positions(lambda table: table + 0.1), "must be sinusoidal"),
    # Arrays.
    "no bias": (tensors(lambda stored: stored.pop("final_logits_bias")), no_bias),
    "equal output, said untied": (
        all_of(UNTIED, tensors(lambda stored: stored.update({HEAD: stored[SHARED].clone()}))),
        same,
    ),
    "own output": (all_of(UNTIED, put(HEAD, 7.0, SHARED)), own_output),
    "own output, said tied": (put(HEAD, 7.0, SHARED), f"{SHARED} and {HEAD} must be equal"),
    "no output, said untied": (UNTIED, f"lacks arrays.*{HEAD}"),
    "own encoder, said shared": (
        put("model.encoder.embed_tokens.weight", 7.0, SHARED),
        f"{SHARED} and model.encoder.embed_tokens.weight must be equal",
    ),
    "embeddings by the decoder's name": (
        tensors(lambda s: s.update({"model.decoder.embed_tokens.weight": s.pop(SHARED)})),
        same,
    ),
    "no embeddings but the output": (
        tensors(lambda stored: stored.update({HEAD: stored.pop(SHARED)})),
        f"lacks arrays.*{SHARED}",
    ),
    "lacking": (tensors(lambda stored: stored.pop(FFN)), f"lacks arrays.*{FFN}"),
    "another": (put("model.more.weight", 0.0), "has unknown arrays.*model.more.weight"),
    "truncated": (cut(WEIGHTS), "model.safetensors is damaged"),
    "empty": (text(WEIGHTS, ""), "model.safetensors is damaged"),
    # Files.
    "in the Hub's cache": (hub_cache, named_as_on_the_hub),
    "the Hub's cache": (lambda folder: hub_cache(folder).parents[1], named_as_on_the_hub),
    "a link": (link("source.spm"), same),
    "a broken link": (
        all_of(link("source.spm"), lambda folder: (folder.parent / "outside").unlink()),
        "source.spm', which is a link to a file that is missing",
    ),
    "no target.spm": (remove("target.spm"), "must hold the file 'target.spm'"),
    "pickle": (rename(WEIGHTS, "pytorch_model.bin"), "has no `model.safetensors`.*pickle.*save"),
    "a pointer beside the weights": (text("pytorch_model.bin", LFS), same),
    **{
        f"pointer, {name}": (text(name, LFS), f"{name} is a Git LFS pointer.*`git lfs pull`")
        for name in (CONFIG, VOCABULARY, WEIGHTS, "source.spm", "target.spm")
    },
    "pieces": (other_pieces, "source.spm must be of the same model as the vocabulary"),
    "text for target.spm": (text("target.spm", "a\nb\n"), "must be a whole SentencePiece model"),
    # Both sides share a vocabulary: nothing in the files says which model is which.
    "swapped sides": (swap_sides, swapped),
    # Vocabularies.
    "a mark at the beginning": (replace(VOCABULARY, "{", "\ufeff{"), same),
    "raw control character": (replace(VOCABULARY, '"one', '"\x01one'), has_piece("\x01one")),
    "text": (text(VOCABULARY, "</s>\n<unk>\na\n"), "vocab.json is damaged, or not JSON"),
    "list": (text(VOCABULARY, '["</s>", "a"]'), r"vocab.json must map each piece.*\['</s>', 'a'\]"),
    "too deep": (text(VOCABULARY, "[" * 100_000), "vocab.json is damaged"),
    "ids that are strings": (change_json(VOCABULARY, a="7"), "the ids must be 0, 1, 2"),
    "a piece twice": (change_json(VOCABULARY, more=3), "the ids must be 0, 1, 2"),
    "no end": (replace(VOCABULARY, '"</s>"', '"<end>"'), "vocab.json must have the pieces </s>"),
    "one more": (change_json(VOCABULARY, more=126), "must have the same number of tokens"),
    "half a character": (
        replace(VOCABULARY, '"one', '"\\ud800one'),
        "vocab.json must hold whole characters.*ud800",
    ),
    "added tag": (add_tag, has_piece(">>ita<<")),
    "added word": (
        all_of(add_tag, text("added_tokens.json", '{"<ent>": 126}')),
        r"added_tokens.json: only tags of languages.*'<ent>'",
    ),
    # Configurations.
    "no JSON": (cut(CONFIG), "config.json is damaged"),
    "a list": (text(CONFIG, "[]"), "config.json must hold a mapping. Received: list"),
    "other model": (change_json(CONFIG, model_type="bart"), "`model_type` must be 'marian'"),
    "config of M2M-100": (
        change_json(CONFIG, model_type="m2m_100"),
        "`pad_token_id` must be 1.*Received: 125",
    ),
    "scale": (change_json(CONFIG, scale_embedding=False), "`scale_embedding` must be True"),
    "tied by a word": (change_json(CONFIG, tie_word_embeddings="no"), "`tie_word_embeddings`"),
    "pad": (change_json(CONFIG, pad_token_id=3, decoder_start_token_id=3), "`pad_token_id`"),
    "dropout": (change_json(CONFIG, dropout="0.1"), "config.json: `dropout` must be"),
}
# Models of M2M-100 and NLLB-200, and of relatives with other parts.
NLLB = {
    "NaN in bfloat16": (all_of(put(FFN, float("nan")), cast("bfloat16")), "must hold finite"),
    "no tokenizer": (remove(SPM), f"must hold the file '{SPM}', which is missing"),
    "a tokenizer that is cut": (cut(SPM), "must be a whole SentencePiece model"),
    "pointer, the tokenizer": (text(SPM, LFS), f"{SPM} is a Git LFS pointer"),
    "id of a piece": (
        text("tokenizer_config.json", json.dumps(stated_ids({7: "eng_Latn"}))),
        "must have an id of its own.*'eng_Latn' with the id 7",
    ),
    "experts": (
        put("model.encoder.layers.1.ffn.experts.expert_0.fc1.weight", 0.0),
        "must be a model without a mixture of experts.*expert_0.fc1.weight",
    ),
    "a router": (
        put("model.encoder.layers.1.ffn.router.classifier.weight", 0.0),
        "must be a model without a mixture of experts.*router",
    ),
    "norms of embeddings": (
        put("model.encoder.layernorm_embedding.weight", 0.0),
        "must be a model without layer norms of embeddings, as BART and mBART",
    ),
    **{
        f"config of {kind}": (change_json(CONFIG, model_type=kind), "must be 'marian' or 'm2m_100'")
        for kind in ("nllb-moe", "mbart", "t5", None)
    },
    "config of Marian": (
        change_json(CONFIG, model_type="marian"),
        "`pad_token_id` and `decoder_start_token_id` must be equal",
    ),
    "scale": (change_json(CONFIG, scale_embedding=False), "`scale_embedding` must be True"),
    "layers": (change_json(CONFIG, encoder_layers=3), "number of layers of the encoder"),
    "vocabulary": (change_json(CONFIG, vocab_size=20), "must be more than the largest id"),
    "sides": (change_json(CONFIG, decoder_ffn_dim=64), "must be equal"),
}
# The files of NLLB, in several files with an index that names them.
PARTS = {
    "whole": (lambda folder: None, same),
    "cut": (cut(PART), f"{PART} is damaged"),
    "missing": (remove(PART), f"must hold the file '{PART}'"),
    "pointer": (text(PART, LFS), f"{PART} is a Git LFS pointer"),
    "pointer, the index": (text(INDEX, LFS), f"{INDEX} is a Git LFS pointer"),
    "an index that is cut": (cut(INDEX), f"{INDEX} is damaged"),
    "an index of more": (
        change_json(INDEX, weight_map={"more": PART}),
        f"{INDEX} names arrays that its files lack: more",
    ),
}
# Sizes that the arrays do not confirm, with the field that the error names.
SIZES = {
    "encoder_layers": "(encoder|`num_encoder_layers`)",
    "decoder_layers": "(decoder|`num_decoder_layers`)",
    "d_model": "(hidden_dim|shape)",
    "vocab_size": "number of tokens",
    "ffn_dim": "(intermediate_dim|shape)",
    "attention_heads": "num_heads",
}
WRONG_SIZES = (HUGE, 2**60, 3, 0, -2, 2.0, "2", True, None, [2])
BOTH_SIDES = ("ffn_dim", "attention_heads")


def size_change(name, value):
    names = [f"{side}_{name}" for side in ("encoder", "decoder")] if name in BOTH_SIDES else [name]
    others = {"decoder_vocab_size": value} if name == "vocab_size" else {}
    return change_json(CONFIG, **dict.fromkeys(names, value), **others)


NAMED = "opus.vocab.yml\n  - opus.vocab.yml"
ONE_LINE = "opus.vocab.yml must have lines `piece: id`. Received: line"


def name_vocabulary(name):
    return replace("decoder.yml", NAMED, f"{name}\n  - {name}")


def as_text(folder):
    pieces = [piece for piece in opus_models.vocabulary() if piece != "<pad>"]
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces), "utf-8")


def as_json(folder):
    (folder / "vocab.json").write_text(json.dumps(opus_models.vocabulary()), "utf-8")


def as_gzip(folder):
    packed = gzip.compress((folder / "opus.vocab.yml").read_bytes())
    (folder / "opus.vocab.yml.gz").write_bytes(packed)
    (folder / "opus.vocab.yml").unlink()


KERNEL = "encoder_l1_ffn_W1"
NPZ = {
    "float16": (cast_array("float16", "Wemb"), rounded("float16", "encoder/embedding/embeddings")),
    "int8": (cast_array("int8", KERNEL), f"{KERNEL} must hold float32.*Received: int8"),
    "rank": (arrays(lambda s: s.update(Wemb=s["Wemb"][0])), "Wemb must have the shape"),
    "learned positions": (
        arrays(lambda s: s.update(Wpos=np.zeros((9, 32), "float32"))),
        "has unknown arrays, which the architecture lacks: Wpos",
    ),
    "no bias": (arrays(lambda s: s.pop("decoder_ff_logit_out_b")), no_bias),
    "truncated": (cut("opus.model1.npz"), "npz is damaged"),
    "no options": (arrays(lambda s: s.pop("special:model.yml")), "must hold `special:model.yml`"),
    **{
        f"pointer, {name}": (text(name, LFS), f"{name} is a Git LFS pointer")
        for name in ("opus.model1.npz", "decoder.yml", "opus.vocab.yml", "source.spm")
    },
    "no vocabulary": (remove("opus.vocab.yml"), "must hold the file 'opus.vocab.yml'"),
    "names": (
        replace("decoder.yml", "models:\n  - opus.model1.npz", "models: 1"),
        "`models` must be a list of file names",
    ),
    # Vocabularies.
    "lines of pieces": (all_of(as_text, name_vocabulary("vocab.txt")), same),
    "JSON": (all_of(as_json, name_vocabulary("vocab.json")), same),
    "gzip": (all_of(as_gzip, name_vocabulary("opus.vocab.yml.gz")), same),
    "gzip, not named": (all_of(as_gzip, remove("decoder.yml")), same),
    "cut gzip": (
        all_of(as_gzip, name_vocabulary("opus.vocab.yml.gz"), cut("opus.vocab.yml.gz")),
        "opus.vocab.yml.gz is damaged",
    ),
    "lines of pieces as YAML": (text("opus.vocab.yml", "</s>\n<unk>\n"), f"{ONE_LINE} 1, '</s>'"),
    "nothing": (text("opus.vocab.yml", ""), "opus.vocab.yml must have the pieces"),
    # Options.
    "layers": (options(enc_depth=HUGE), "number of layers of the encoder.* 2. Received: 10000000"),
    "vocabularies": (options(dim_vocabs=125), "`dim-vocabs` must be two numbers"),
    "RNN": (options(type="s2s"), "`type` must be 'transformer'.*Received: 's2s'"),
    "tied layers": (options(transformer_tied_layers=[1, 1]), "`transformer-tied-layers`"),
    "norms": (options(transformer_preprocess="n"), "`transformer-postprocess` must be 'da'"),
    "no norms at the top": (
        options(transformer_preprocess="n", transformer_postprocess="da"),
        "`transformer-postprocess-top` must be 'n'",
    ),
    "highways": (options(transformer_postprocess="dah"), "`transformer-postprocess` must be 'dan'"),
    "residuals": (options(transformer_preprocess="r"), "`transformer-preprocess` must be"),
    "no positions": (
        options(transformer_disable_position_embeddings=True),
        "`transformer-disable-position-embeddings` must be False",
    ),
    "mask": (
        options(transformer_attention_mask="alibi"),
        "`transformer-attention-mask` must be 'default'",
    ),
    "no affine": (options(transformer_no_affine=True), "`transformer-no-affine` must be False"),
    "tied by a word": (
        options(tied_embeddings="decoder"),
        "`tied-embeddings` must be False or True",
    ),
    "three vocabularies": (options(dim_vocabs=[125] * 3), "must have the same number of tokens"),
}


FORMS = {"hub": HUB, "npz": NPZ, "nllb": NLLB, "parts": PARTS}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder of each form, and what is read of it; of `parts`, what is read of one file."""
    model, path = opus_models.make_marian(), tmp_path_factory.mktemp("models")
    opus_models.write_hub(model, path / "hub"), opus_models.write_npz(model, path / "npz")
    model, _ = multilingual_models.make_model(path / "nllb", "nllb")
    shutil.copytree(path / "nllb", path / "parts")
    (path / "parts" / WEIGHTS).unlink()
    model.save_pretrained(path / "parts", max_shard_size="120KB")
    read = {form: read_model_folder(path / form) for form in ("hub", "npz", "nllb")}
    read["parts"] = read["nllb"]
    return {form: (path / form, read[form]) for form in FORMS}


@pytest.mark.parametrize(
    "form, name", [(form, name) for form, rows in FORMS.items() for name in rows]
)
def test_odd_folder_is_read_or_refused_in_one_line(form, name, folders, tmp_path):
    change, outcome = FORMS[form][name]
    folder, before = folders[form]
    copied = shutil.copytree(folder, tmp_path / "model")
    made = change(copied)
    copied = made if isinstance(made, type(copied)) else copied
    if not isinstance(outcome, str):
        outcome(read_model_folder(copied), before)
        return
    with pytest.raises((ValueError, FileNotFoundError), match=outcome) as caught:
        read_model_folder(copied)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("name", SIZES)
def test_size_that_the_arrays_do_not_confirm_is_refused_before_it_is_used(name, folders, tmp_path):
    folder = shutil.copytree(folders["hub"][0], tmp_path / "model")
    tracemalloc.start()
    try:
        for value in WRONG_SIZES:
            size_change(name, value)(folder)
            with pytest.raises(ValueError, match=f"{SIZES[name]}.*Received") as caught:
                read_model_folder(folder)
            assert "\n" not in str(caught.value)
        assert tracemalloc.get_traced_memory()[1] < 2**23, "as much as the files tell"
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "content", ['["</s>", "<unk>", "<pad>"]', "3", "null", '"</s>"', "{", "[["]
)
def test_vocabulary_of_a_run_that_is_another_is_refused(content, tmp_path):
    (tmp_path / "source.model").write_bytes(opus_models.sentencepiece_models()[0])
    (tmp_path / "source.vocabulary.json").write_text(content)
    with pytest.raises(ValueError, match="source.vocabulary.json (must map each piece|is damaged)"):
        Tokenizer.load(tmp_path / "source.model")


def test_sentencepiece_model_that_is_cut_anywhere_is_refused():
    (model, _) = opus_models.sentencepiece_models()
    read_model(model)
    # The last two bytes are an empty field.
    for length in [*range(0, 3000), *range(3000, len(model) - 2, 997), len(model) - 3]:
        with pytest.raises(ValueError, match="must be a whole SentencePiece model"):
            read_model(model[:length])


@pytest.mark.parametrize("form", ["hub", "npz", "nllb"])
def test_zip_file_is_imported_as_its_folder(form, folders, tmp_path):
    folder, before = folders[form]
    archive = shutil.make_archive(str(tmp_path / "model"), "zip", folder)
    made = kt.import_model(archive, print_fn=str, frozen=False)
    weights = {weight.path: np.array(weight) for weight in made.model.weights}
    assert_same_weights(weights, weights_of(before))
    found = [made.source_tokenizer.fingerprint(), made.target_tokenizer.fingerprint()]
    assert found == [before.tokenizers[side].fingerprint() for side in (0, -1)]


def test_hidden_files_of_macos_in_a_zip_file_are_left_out(folders, tmp_path):
    folder, before = folders["npz"]
    with zipfile.ZipFile(tmp_path / "model.ZIP", "w") as file:
        for path in folder.iterdir():
            if path.name != "decoder.yml":  # it names the other files
                file.write(path, path.name)
                file.writestr(f"__MACOSX/._{path.name}", b"")
    made = kt.import_model(tmp_path / "model.ZIP", print_fn=str)
    assert made.source_tokenizer.fingerprint() == before.tokenizers[0].fingerprint()


def test_damaged_zip_file_is_refused(folders, tmp_path):
    folder, _ = folders["npz"]
    archive = tmp_path / "two.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for path in folder.iterdir():
            file.write(path, path.name)
    content = archive.read_bytes()
    half = len(content) // 2
    (tmp_path / "flipped.zip").write_bytes(content[:half] + bytes(50) + content[half + 50 :])
    (tmp_path / "cut.zip").write_bytes(content[:-100])
    with zipfile.ZipFile(archive, "a") as file:
        file.write(folder / "source.spm", "other/source.spm")
    for name, message in (
        ("flipped", "flipped.zip is damaged"),
        ("cut", "cut.zip is damaged"),
        ("two", "two.zip must hold one model"),
    ):
        with pytest.raises(ValueError, match=message):
            kt.import_model(tmp_path / f"{name}.zip")


def test_zip_file_reads_nothing_outside_of_it(folders, tmp_path):
    folder, _ = folders["hub"]
    (tmp_path / "secret.json").write_text('{"secret": 1}')
    link = zipfile.ZipInfo("config.json")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "opus.zip", "w") as file:
        file.writestr(link, str(tmp_path / "secret.json"))
        file.writestr("../../outside.spm", b"")
        for path in folder.glob("*.s*"):
            file.write(path, path.name)
    with pytest.raises(ValueError, match="config.json is damaged"):
        kt.import_model(tmp_path / "opus.zip")
    assert not list(tmp_path.parent.rglob("outside.spm"))
