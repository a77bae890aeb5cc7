"""Files with both sides: every format, plain and compressed, gives the pairs that were written.

A new case is a new row of a table.
"""

import sys

import pytest

from keras_transformer.data.corpus import CorpusError, read_lines, read_parallel
from keras_transformer.data.readers import ReadLog
from keras_transformer.runs.recipe import DataSettings
from tests.data.corpus_files import (
    COMPRESSIONS,
    FORMATS,
    NAMES,
    inner,
    packed,
    parquet,
    po,
    tmx,
    write,
    zstd,
)

PAIRS = [("one", "eins"), ("two \u2028 x", "zwei"), ("", "leer"), ("\u00e4 'q'", "drei")]
PAIRS_OF_GETTEXT = [("one", "eins"), ("two", "zwei"), ("\u00e4 'q'", "drei"), ("two", "drei")]


def pairs_of(name):
    """What a format can hold, without empty sides where these are not translated."""
    if "gettext" in name:  # `polib` does not read U+2028
        return PAIRS_OF_GETTEXT
    return [pair for pair in PAIRS if all(pair) or "TMX" not in name]


def read(path, **options):
    """Returns the pairs, and what is said besides."""
    log = ReadLog()
    pairs = list(read_parallel(path, **options).read(log))
    return pairs, log


@pytest.mark.parametrize("compression", ["", *COMPRESSIONS])
@pytest.mark.parametrize("name", FORMATS)
def test_pairs_are_those_that_were_written(tmp_path, name, compression):
    ending, written, options = FORMATS[name]
    data = written(pairs_of(name))
    path = write(tmp_path / f"a{ending.upper()}{compression}",
                 packed(data, compression) if compression else data)  # fmt: skip
    assert sorted(read(path, **options)[0]) == sorted(pairs_of(name))


@pytest.mark.parametrize("compression", ["", *COMPRESSIONS])
@pytest.mark.parametrize("name", FORMATS)
def test_cut_file_is_an_error_that_names_it(tmp_path, name, compression):
    ending, written, options = FORMATS[name]
    data = written(pairs_of(name))
    end = data.rindex(b"\n") + 4 if ending == ".tsv" else -2  # in its first column
    data = packed(data, compression)[:-1] if compression else data[:end]
    path = write(tmp_path / f"a{ending}{compression}", data)
    with pytest.raises(CorpusError, match=f"^{path}[:,]") as caught:
        read(path, **options)
    assert "\n" not in str(caught.value)


def test_entries_of_gettext_that_are_no_pair_are_told(tmp_path):
    path = write(tmp_path / "a.po", str(po([("one", "eins")])))
    pairs, log = read(path)
    assert pairs == [("one", "eins")]
    assert log.left_out == {
        "header": [1, [["", ""]]],
        "fuzzy": [1, [["fuzzy", "unscharf"]]],
        "obsolete": [1, [["old", "alt"]]],
        "untranslated": [1, [["not translated", ""]]],
    }


@pytest.mark.parametrize(
    ("mark", "label", "expected"),
    [
        ("&", "&File", "File"),
        ("&", "E&xit", "Exit"),
        ("&", "R&D", "R&D"),
        ("&", "AT&T &Phone", "AT&T Phone"),
        ("&", "Tom && Jerry", "Tom && Jerry"),
        ("&", "a &amp; b", "a &amp; b"),
        ("&", "Black & White", "Black & White"),
        ("&", "\u6a94\u6848(&F)", "\u6a94\u6848"),
        ("_", "_Open", "Open"),
        ("_", "open my_file.txt", "open my_file.txt"),
        ("_", "__init__", "__init__"),
        ("_", "&File", "&File"),
        ("~", "~File", "File"),
        ("~", "~/texts", "~/texts"),
        (None, "&File _x", "&File _x"),
        ("_", "_Open file_name", "Open file_name"),
        ("_", "open file_name _now", "open file_name now"),
        ("&", "&Rock&roll", "Rock&roll"),
        ("_", "my_file_name", "my_file_name"),
    ],
)
def test_accelerator_is_removed_before_a_letter_only(tmp_path, mark, label, expected):
    path = write(tmp_path / "a.po", str(po([(label, label)])))
    assert read(path, accelerator=mark)[0] == [(expected, expected)]


@pytest.mark.parametrize(
    ("mark", "pair", "expected"),
    [
        ("_", ("set file_name", "file_name setzen"), ("set file_name", "file_name setzen")),
        ("&", ("like Rock&roll", "mag Rock&roll"), ("like Rock&roll", "mag Rock&roll")),
        ("&", ("&Foo one", "&Foo zwei"), ("Foo one", "Foo zwei")),
        ("&", ("E&xit", "B&eenden"), ("Exit", "Beenden")),
    ],
)
def test_word_of_both_sides_is_a_name_and_not_an_accelerator(tmp_path, mark, pair, expected):
    path = write(tmp_path / "a.po", str(po([pair])))
    assert read(path, accelerator=mark)[0] == [expected]


TWO = tmx([("one", "eins")])
THREE = TWO.replace(b"</body>", b'<tu><tuv lang="fr"><seg>un</seg></tuv></tu></body>')
NAMED = TWO.replace(b"<tmx ", b'<tmx xmlns="http://www.lisa.org/tmx14" ')
BARE = TWO.replace(b"<body>", b"").replace(b"</body>", b"")
FLAT = {"columns": ["source", "translation"]}
LATIN = 'msgid ""\nmsgstr "Content-Type: charset=utf-8\\n"\n\nmsgid "a"\nmsgstr "\u00e4"\n'.encode(
    "latin-1"
)
COMPRESSOR = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 31})
LONG_WINDOW = COMPRESSOR.compress(b"a\tb\n") + COMPRESSOR.flush()  # as by `zstd --long=31`
CODES = "a <bpt i='1'>&lt;b&gt;<sub>x</sub></bpt>b<ept i='1'>&lt;/b&gt;</ept> <hi>c</hi><ph/> d"
BOMB = "".join(f'<!ENTITY {"a" * n} "{("&" + "a" * (n - 1) + ";") * 50}">' for n in range(2, 9))


@pytest.mark.parametrize(
    ("name", "data", "options", "expected"),
    [
        ("a.tmx", TWO, {}, [("one", "eins")]),
        ("a.tmx", TWO, {"languages": ["de", "EN"]}, [("eins", "one")]),
        ("a.tmx", THREE, {"languages": ["en_US", "de"]}, [("one", "eins")]),
        ("a.tmx", THREE, {}, "choose two .*: de, en-us, fr. Received: languages=None"),
        ("a.tmx", TWO, {"languages": ["en-GB", "de"]}, "choose two .*: de, en-us. Received"),
        ("a.tmx", NAMED, {}, [("one", "eins")]),
        ("a.tmx", NAMED.replace(b"one", b"o<ph xmlns='x'>code</ph>ne"), {}, [("one", "eins")]),
        ("a.tmx", TWO.replace(b'"en"', b'"en-US"'), {}, [("one", "eins")]),
        ("a.tmx", TWO.replace(b'"en-US"', b'"EN"').replace(b'"en"', b'"en-US"'), {},
         [("one", "eins")]),
        *(("a.tmx", TWO.replace(b'srclang="en"', head), {}, "choose two .*: de, en-us. Received")
          for head in (b'srclang="*all*"', b'srclang="fr"', b"")),
        ("a.tmx", BARE, {}, [("one", "eins")]),
        ("a.tmx", tmx([(CODES, CODES)]), {}, [("a b c d",) * 2]),
        (
            "a.tmx",
            f'<!DOCTYPE tmx [<!ENTITY a "{"b" * 50}">{BOMB}]>'.encode()
            + TWO.partition(b"?>")[2].replace(b"eins", b"&aaaaaaaa;"),
            {},
            "no whole .tmx file .*amplification",
        ),
        ("a.tsv", '"one\t"eins"\n', {}, [('"one', '"eins"')]),
        ("a.tsv", "1\teins\tone\n", {"columns": [3, 2]}, [("one", "eins")]),
        ("a.tsv", "", {"columns": ["en", "de"]}, "must hold a pair. Received: none"),
        ("a.tsv", "", {"columns": ["en", "de"], "allow_empty": True}, []),
        ("a.tsv", "x\n", {"columns": ["en", "de"]}, "line 1, with a tab .*: there is no 'en'"),
        ("a.tsv", "en\tx\n", {"columns": ["en", "de"]}, "line 1, .*no 'de'.* two of en, x"),
        ("a.csv", 'source,target\n"a ""b"", c\nd",e\n\n', {}, [('a "b", c\nd', "e")]),
        ("a.csv", "source,target\na\n", {}, "line 2: no column 2"),
        ("a.csv", "en,de\na,b\n", {}, "there is no 'source'.*two of en, de"),
        ("a.csv", f"source,target\na,{'b' * 140_000}\n", {}, [("a", "b" * 140_000)]),
        ("a.csv", 'source,target\n"a\nb",c\n"d\n,e\nf,g\n', {}, "line 4: the row that begins here"),
        ("a.csv", 'source,target\n"a\nb",c\n"d"e,f\n', {}, "line 4: the row .*not CSV"),
        ("a.csv", 'source,target\na,b\n"c\nd"\n', {}, "line 3: no column 2"),
        ("a.csv", "en;de\na,b;c\n", {"columns": ["en", "de"], "delimiter": ";"}, [("a,b", "c")]),
        ("a.csv", "en;de\na;b\n", {"languages": ["en", "de"]}, "the `delimiter` ',' between"),
        ("a.csv", "a;b\n", {"columns": [1, 2]}, "line 1: no column 2.*the `delimiter` ','"),
        ("a.jsonl", '{"source": "a", "target": null}\n', {}, [("a", "")]),
        ("a.jsonl", '{"source": "a", "target": 3}\n', {}, r"line 1: .*text.*\('a', 3\)"),
        ("a.jsonl", '{"translation": null}\n', {}, [("", "")]),
        ("a.jsonl", '{"source": "a", "target": "b"}\n{"source":\n', {}, "line 2: this is not JSON"),
        ("a.jsonl", f"\n{'[' * 200_000}\n", {}, "line 2: this is not JSON"),
        ("a.jsonl", '{"source": "a", "translation": "b"}\n', FLAT, [("a", "b")]),
        ("a.parquet", parquet([{"source": "a", "translation": "b"}]), FLAT, [("a", "b")]),
        ("a.parquet", parquet([{"source": "a", "translation": "b"}]), {},
         "no 'target'.* two of source, translation"),
        ("a.parquet", parquet([{"source": "x", **inner([("a", "b")])[0]}, {"translation": None}]),
         NAMES, [("a", "b"), ("", "")]),
        ("a.jsonl", '["a", "b"]\n', {}, "line 1: there is no 'source'"),
        ("a.parquet", parquet([{"source": "a", "target": None}]), {}, [("a", "")]),
        ("a.parquet", parquet([{"source": "a", "target": 3}]), {}, "row 1: both fields must"),
        ("a.xlsx", b"PK\3\4\xff\n", {}, "line 1: .* another ending than .tsv, .*.tmx .* as TSV"),
        ("a.xlf", "<xliff>\n", {}, "line 1: no column 2.* another ending than .tsv"),
        ("a.po", "\ufeffmsgid \"a\"\r\nmsgstr \"b\"\r\n", {}, [("a", "b")]),
        ("a.po", 'msgid "%d file"\nmsgid_plural "%d files"\n'
         'msgstr[0] "a"\nmsgstr[1] "b"\nmsgstr[2] "c"\n', {},
         [("%d file", "a"), ("%d files", "b"), ("%d files", "c")]),
        ("a.po", LATIN, {}, "line 5: byte 9 of the line is not valid utf-8. Correct `charset`"),
        ("a.mo", po([("a", "b")]).to_binary()[:30], {}, "no whole .mo file .it is cut"),
        ("a.mo", po([("a", "b")]).to_binary()[:-4], {}, "no whole .mo file .File is corrupt"),
        ("a.mo", po([]).to_binary().replace(b"utf-8", b"utf-x"), {}, "unknown encoding: utf-x"),
        ("a.tsv.zst", LONG_WINDOW, {}, [("a", "b")]),
        ("a.po", "what is this?\n", {}, "the last line is cut"),
    ],
)  # fmt: skip
def test_contents_and_options_decide(tmp_path, name, data, options, expected):
    path = write(tmp_path / name, data)
    if isinstance(expected, list):
        assert read(path, **options)[0] == expected
        return
    with pytest.raises(CorpusError, match=expected) as caught:
        read(path, **options)
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)


def unit(**texts):
    variants = (f'<tuv xml:lang="{code.replace("_", "-")}"><seg>{text}</seg></tuv>'
                for code, text in texts.items())  # fmt: skip
    return f"<tu>{''.join(variants)}</tu>"


def test_variants_of_a_language_are_told(tmp_path):
    units = (
        unit(en="one", de_AT="eins", de_CH="eis"), unit(de_CH="", de="zwei", en="two"),
        unit(de_CH="drei", en="three"), unit(en="four", en_GB="FOUR", fr="quatre"),
    )  # fmt: skip
    data = f'<tmx><header srclang="*all*"/><body>{"".join(units)}</body></tmx>'
    pairs, log = read(write(tmp_path / "a.tmx", data), languages=["en", "de"])
    assert pairs == [("one", "eins"), ("two", "zwei"), ("three", "drei")]
    assert log.read_as == {
        "en and de-at": [1, [["one", "eins"]]],
        "en and de": [1, [["two", "zwei"]]],
        "en and de-ch": [1, [["three", "drei"]]],
    }
    assert log.left_out == {
        "another variant, de-ch": [1, [["one", "eis"]]],
        "untranslated": [1, [["four", ""]]],
    }


def test_several_tmx_files_need_languages(tmp_path):
    """Their headers may name different sources."""
    files = [
        write(tmp_path / "1.tmx", TWO),
        write(tmp_path / "2.tmx", TWO.replace(b'"en"', b'"de"')),
    ]
    with pytest.raises(CorpusError, match="`languages` must name .*1.tmx, .*2.tmx"):
        read_parallel(files)
    assert list(read_parallel(files, languages=["en", "de"])) == [("one", "eins")] * 2


FOUR = "1\tone\t2\teins\n3\ttwo\t4\tzwei\n"


@pytest.mark.parametrize(
    ("name", "data", "options", "told"),
    [
        ("a.tsv", FOUR, {}, {"columns 1 and 2 of 4": [2, [["1", "one"], ["3", "two"]]]}),
        ("a.tsv", FOUR, {"columns": [2, 4]},
         {"columns 2 and 4 of 4": [2, [["one", "eins"], ["two", "zwei"]]]}),
        ("a.tsv", "a\tb\nc\td\te\n", {}, {"columns 1 and 2 of 3": [1, [["c", "d"]]]}),
        ("a.csv", "a,b,c\n", {"columns": [1, 3]}, {"columns 1 and 3 of 3": [1, [["a", "c"]]]}),
        ("a.tsv", "en\tde\tx\na\tb\tc\n", {"columns": ["en", "de"]}, {}),
        ("a.tsv", "a\tb\n", {}, {}),
    ],
)  # fmt: skip
def test_columns_without_a_name_are_told_if_there_are_others(tmp_path, name, data, options, told):
    path = write(tmp_path / name, data)
    assert read(path, **options)[1].read_as == told


@pytest.mark.parametrize(
    ("option", "said"),
    [
        *(({"columns": columns}, "`columns` must be two names, or two numbers from 1. Received")
          for columns in ([0, 1], [-1, 1], [1, "de"], ["en", 2], [True, 2], [1], [1.0, 2])),
        ({"columns": "en"}, "`columns` must be of type list"),
        ({"languages": ["en"]}, r"`languages` must be \[source, target\]. Received: .*'en'"),
        ({"languages": "en"}, "`languages` must be of type list"),
        *(({"delimiter": delimiter}, "`delimiter` must be one character")
          for delimiter in (";;", "", '"', "\n")),
        ({"accelerator": "@"}, "`accelerator` must be one of &, _, ~. Received: .*'@'"),
    ],
)  # fmt: skip
def test_wrong_option_is_named_before_the_file_is_read(tmp_path, option, said):
    """In Python, and in a recipe."""
    path = write(tmp_path / "a.tsv", "a\tb\n")
    for refuse in (
        lambda: read_parallel(path, **option),
        lambda: DataSettings(train={"file": "a.tsv", **option}),
    ):
        with pytest.raises(ValueError, match=said):
            refuse()


EMPTY = {
    ".tsv": "", ".csv": "source,target\n", "0.csv": "", ".jsonl": "\n", ".parquet": parquet([]),
    ".po": str(po([])), ".mo": po([]).to_binary(), ".tmx": "<html/>",
}  # fmt: skip


@pytest.mark.parametrize("ending", EMPTY)
def test_file_without_a_pair_is_an_error_unless_it_is_allowed(tmp_path, ending):
    full = write(tmp_path / "full.tsv", "a\tb\n")
    empty = write(tmp_path / f"empty{ending}", EMPTY[ending])
    with pytest.raises(
        CorpusError, match=f"^{empty} must hold a pair. Received: none.*`allow_empty`"
    ):
        list(read_parallel([full, empty]))
    assert list(read_parallel([empty, full], allow_empty=True)) == [("a", "b")]


def test_files_without_a_line_are_an_error_too(tmp_path):
    paths = [write(tmp_path / name, "") for name in "ab"]
    with pytest.raises(CorpusError, match=rf"^{paths[0]} \| {paths[1]} must .*Received: none"):
        list(read_parallel(*paths))
    assert list(read_parallel(*paths, allow_empty=True)) == []


@pytest.mark.parametrize(
    ("name", "data", "missing", "said"),
    [
        ("a.po", b"", ["polib"], "a.po needs .* pip install 'polib"),
        ("a.parquet", b"", ["pyarrow"], "a.parquet needs .* pip install 'pyarrow"),
        (
            "a.tsv.zst",
            packed(b"a\tb\n", ".zst"),
            ["compression.zstd", "backports.zstd"],
            "a.tsv.zst: zstd needs .* pip install 'backports.zstd",
        ),
    ],
)
def test_missing_package_is_told_in_one_line(tmp_path, monkeypatch, name, data, missing, said):
    for module in missing:
        for loaded in [*sys.modules]:
            if loaded == module or loaded.startswith(f"{module}."):
                monkeypatch.delitem(sys.modules, loaded)
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=said):
        read(write(tmp_path / name, data))


def test_lines_are_not_those_of_a_format(tmp_path):
    path = write(tmp_path / "a.po", "")
    for read_them in (lambda: read_parallel(path, path), lambda: read_lines([path])):
        with pytest.raises(CorpusError, match="holds both sides, not lines of text. Give it alone"):
            read_them()


def test_fingerprint_holds_contents_order_and_options(tmp_path):
    one, other = write(tmp_path / "1.tsv", "a\tb\n"), write(tmp_path / "2.tsv", "c\td\n")
    same = write(tmp_path / "3.tsv", "a\tb\n")
    prints = [
        read_parallel(source, target, columns=columns).fingerprint()
        for source, target, columns in (
            (one, None, None), (other, None, None), ([one, other], None, None),
            ([other, one], None, None), (one, other, None), (one, None, [2, 1]),
        )
    ]  # fmt: skip
    assert len({*prints}) == len(prints)
    assert read_parallel(same).fingerprint() == prints[0]
