"""Readers of files that hold both sides of a corpus: one table, by the endings of their names.

A reader takes a binary stream of the uncompressed file, so that every format may be compressed.
"""

import csv
import gettext
import io
import itertools
import json
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from keras_transformer.settings import Settings
from keras_transformer.texts import (
    COMPRESSED,
    EXAMPLES,
    CorpusError,
    decode_lines,
    import_extra,
    is_language,
    language_tag,
    open_bytes,
    suffix_of,
)
from keras_transformer.types import Path

ROWS_AT_ONCE = 4096  # of parquet
# A word that is no label: a file name, an address, an entity of HTML.
_NO_LABEL = re.compile(r"\.\w|[/\\@=]|&\w+;")
_XML_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
_INLINE_CODES = {"bpt", "ept", "it", "ph", "ut"}  # elements of TMX


@dataclass(frozen=True, kw_only=True)
class ReadOptions(Settings):
    """How files of a corpus are read, see `read_parallel`."""

    columns: list | tuple | None = None
    languages: list | tuple | None = None
    accelerator: str | None = None
    allow_empty: bool = False

    def __post_init__(self):
        super().__post_init__()
        is_pair = len(self.columns or (1, 2)) == 2
        kinds = {type(column) for column in self.columns or ()}
        is_counted = kinds == {int} and min(self.columns or ()) >= 1
        is_valid = not kinds or kinds == {str} or is_counted
        self._require("columns", is_pair and is_valid, "two names, or two numbers from 1")
        is_pair = len(self.languages or (1, 2)) == 2
        is_valid = is_pair and all(isinstance(code, str) for code in self.languages or ())
        self._require("languages", is_valid, "[source, target]")
        self._require("accelerator", self.accelerator in (None, *"&_~"), "one of &, _, ~")

    def fields(self) -> Sequence[Any]:
        """Returns the names of the two columns."""
        return self.columns or self.languages or ("source", "target")


class ReadLog:
    """What a reader says about a corpus besides its pairs.

    Attributes:
        left_out: {reason: [number of entries that are no pairs, examples]}.
        read_as: {what the two sides are, if the file decided it: [number of pairs, examples]}.
    """

    def __init__(self) -> None:
        self.left_out: dict[str, list[Any]] = {}
        self.read_as: dict[str, list[Any]] = {}

    def skip(self, reason: str, source: str, target: str) -> None:
        """Counts an entry that is left out."""
        _count(self.left_out, reason, source, target)

    def note(self, sides: str, source: str, target: str) -> None:
        """Counts a pair by what its sides are."""
        _count(self.read_as, sides, source, target)


def _count(counts, name, source, target):
    entry = counts.setdefault(name, [0, []])
    entry[0] += 1
    entry[1] += [[source, target]] * (entry[0] <= EXAMPLES)


def read_pairs(path: Path, options: ReadOptions, log: ReadLog) -> Iterator[tuple[str, str]]:
    """Yields the (source, target) pairs of a file by the reader of its ending, else as TSV.

    Raises:
        CorpusError: if the file is damaged or of another kind; one line that names the file.
        ImportError: if the format needs a package that is not installed.
    """
    ending = suffix_of(path)
    with open_bytes(path) as stream:
        try:
            yield from READERS.get(ending, _tsv)(stream, str(path), options, log)
        except CorpusError as error:
            if ending in READERS:
                raise
            raise CorpusError(
                f"{error} A name with another ending than {', '.join(READERS)} (and behind it "
                f"{', '.join(COMPRESSED)}) is read as TSV."
            ) from None
        except (ValueError, OSError, SyntaxError, csv.Error, struct.error) as error:
            if getattr(error, "errno", None):  # of the disk
                raise
            reason = " ".join(str(error).split())
            raise CorpusError(f"{path}: this is no whole {ending} file ({reason}).") from None


def _tsv(stream, name, options, log):
    rows = ((n, line.split("\t")) for n, line in enumerate(decode_lines(stream, name), 1))
    yield from pairs_of_cells(rows, name, options.columns or (1, 2), "a tab", log)


def _csv(stream, name, options, log):
    reader = csv.reader((f"{line}\n" for line in decode_lines(stream, name)), strict=True)
    rows = ((reader.line_num, row) for row in reader if row)
    yield from pairs_of_cells(rows, name, options.fields(), "a comma", log)


def pairs_of_cells(rows, name, columns, separator, log):
    """Yields two cells of each of some (line number, row); the log says which, if it is unclear."""
    is_named = isinstance(columns[0], str)
    if is_named:
        _, header = next(rows, (1, []))
        columns = [1 + header.index(_present(each, header, f"{name}, line 1")) for each in columns]
    source, target = (column - 1 for column in columns)
    for number, row in rows:
        if len(row) <= max(source, target):
            raise CorpusError(
                f"{name}, line {number}: no column {len(row) + 1}. A line is the columns of a "
                f"pair, {separator} between them."
            )
        if len(row) > 2 and not is_named:
            sides = f"columns {source + 1} and {target + 1} of {len(row)}"
            log.note(sides, row[source], row[target])
        yield row[source], row[target]


def _json_lines(stream, name, options, log):
    for number, line in enumerate(decode_lines(stream, name), 1):
        if line.strip():
            yield _fields(json.loads(line), f"{name}, line {number}", options)


def _parquet(stream, name, options, log):
    parquet = import_extra(["pyarrow.parquet"], f"{name} needs", "'pyarrow>=17.0,<27'")
    file = parquet.ParquetFile(stream)
    names = file.schema_arrow.names
    wanted = ["translation"] if "translation" in names else list(options.fields())
    columns = wanted if {*wanted} <= {*names} else None  # an error then names all
    batches = file.iter_batches(ROWS_AT_ONCE, columns=columns)
    rows = itertools.chain.from_iterable(batch.to_pylist() for batch in batches)
    for number, row in enumerate(rows, 1):
        yield _fields(row, f"{name}, row {number}", options)


def _fields(row, where, options):
    """Returns two texts of a mapping, or of its inner one as the Hub of Hugging Face has it."""
    row = row if isinstance(row, dict) else {}
    row = row["translation"] if isinstance(row.get("translation"), dict) else row
    texts = tuple(row[_present(field, row, where)] for field in options.fields())
    if not all(isinstance(text, str) for text in texts):
        raise CorpusError(f"{where}: both fields must be text. Received: {texts}")
    return texts


def _present(name, names, where):
    if name not in names:
        raise CorpusError(
            f"{where}: there is no {name!r}. Name the columns of source and target with "
            f"`columns`, two of {', '.join(map(str, names))}."
        )
    return name


def _gettext(stream, name, options, log):
    polib = import_extra(["polib"], f"{name} needs", "'polib>=1.2,<2'")
    data = stream.read()
    if suffix_of(name) == ".mo":
        gettext.GNUTranslations(io.BytesIO(data))  # raises if it is cut; polib does not
        catalog = polib.mofile(data)
    else:
        text = data.decode(polib.detect_encoding(data)).removeprefix("\ufeff")
        last = text.rstrip().rpartition("\n")[2]
        if not re.fullmatch(r'|#(?!~).*|.*"', last):
            raise CorpusError(f"{name}: the last line is cut. Received: {last!r}")
        catalog = polib.pofile(text)
    if catalog.metadata:
        log.skip("header", "", "")
    for entry in catalog:
        forms = entry.msgstr_plural or {0: entry.msgstr}
        reason = "fuzzy" if "fuzzy" in getattr(entry, "flags", ()) else "untranslated"
        reason = "obsolete" if entry.obsolete else reason
        for form, target in sorted(forms.items()):
            source = entry.msgid_plural if form else entry.msgid
            if source and target and reason == "untranslated":
                yield _label(source, options.accelerator), _label(target, options.accelerator)
            else:
                log.skip(reason, source, target)


def _label(text, mark):
    """Returns the text of a label without its accelerator."""
    return re.sub(r"\S+", lambda word: _word(word[0], mark), text).strip() if mark else text


def _word(word, mark):
    before, _, after = word.partition(mark)
    is_inside = before[-1:].isalnum() and not after[:1].islower()  # as in R&D
    if not after[:1].isalpha() or mark in after or is_inside or _NO_LABEL.search(word):
        return word
    # In brackets where no letter of the text can be it.
    return word.replace(f"({mark}{after[0]})", "").replace(mark, "")


def _tmx(stream, name, options, log):
    asked = [language_tag(language) for language in options.languages or ()]
    source, codes, body = "", {}, None
    for event, element in ElementTree.iterparse(stream, ("start", "end")):
        tag = _local_name(element)
        if tag == "header":
            source = language_tag(element.get("srclang", ""))
        elif tag == "body":
            body = element
        elif tag == "tu" and event == "end":
            unit = list(map(_variant, element.iterfind("{*}tuv")))
            codes.update((code, None) for code, _ in unit)
            yield from _pairs_of_unit(unit, asked or _sides(codes, source), log)
            (element if body is None else body).clear()  # the units that were read
    sides = asked or _sides(codes, source)
    is_known = sides and all(any(is_language(code, side) for code in codes) for side in sides)
    if codes and (not is_known or not asked and len(codes) > 2):
        raise CorpusError(
            f"{name}: choose two of its languages with `languages`: {', '.join(codes)}. "
            f"Received: languages={options.languages}"
        )


def _sides(codes, source):
    """Returns the code of the header's source and another; none if the source is not known."""
    sources = [c for c in codes if is_language(c, source) or is_language(source, c)][:1]
    return [*sources, *(code for code in codes if code not in sources)][:2] if sources else []


def _variant(element):
    """Returns the language and the text of an element of a unit."""
    language = element.get(_XML_LANGUAGE) or element.get("lang", "")
    return language_tag(language), "".join(_text(element.find("{*}seg")))


def _pairs_of_unit(unit, sides, log):
    """Yields the pair of a unit, if there is one: of several variants of a language, the first."""
    variants = [[v for v in unit if v[1] and is_language(v[0], side)] for side in sides]
    if len(variants) < 2 or not all(variants):
        texts = [side[0][1] if side else "" for side in variants]
        log.skip("untranslated", *[*texts, "", ""][:2])
        return
    (source_code, source), (target_code, target) = (side[0] for side in variants)
    for code, text in variants[0][1:]:
        log.skip(f"another variant, {code}", text, target)
    for code, text in variants[1][1:]:
        log.skip(f"another variant, {code}", source, text)
    log.note(f"{source_code} and {target_code}", source, target)
    yield source, target


def _local_name(element):
    """Returns the name of an element without its namespace."""
    return element.tag.rpartition("}")[2]


def _text(element):
    """Yields the text of a segment, around inline codes and inside highlights."""
    if element is not None and _local_name(element) not in _INLINE_CODES:
        yield element.text or ""
        for part in element:
            yield from _text(part)
            yield part.tail or ""


# {ending: reader}. A reader yields the pairs of a stream, and tells the log of other entries.
READERS: dict[str, Callable[[Any, str, ReadOptions, ReadLog], Iterator[tuple[str, str]]]] = {
    ".tsv": _tsv,
    ".csv": _csv,
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".parquet": _parquet,
    ".po": _gettext,
    ".mo": _gettext,
    ".tmx": _tmx,
}
BOTH_SIDES = READERS.keys() - {".tsv"}  # endings of files that are no lines of text
