"""Readers of files that hold both sides of a corpus; `READERS` has one for each file ending.

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

LONGEST_CELL = 2**31 - 1  # of CSV, in characters
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
    delimiter: str = ","
    allow_empty: bool = False

    def __post_init__(self):
        super().__post_init__()
        columns = self.columns or ()
        kinds = {type(column) for column in columns}
        are_columns = kinds == {str} or kinds == {int} and min(columns) >= 1
        is_valid = not columns or len(columns) == 2 and are_columns
        self._require("columns", is_valid, "two names, or two numbers from 1")
        languages = self.languages or ()
        is_valid = len(languages) in (0, 2) and all(isinstance(code, str) for code in languages)
        self._require("languages", is_valid, "[source, target]")
        self._require("accelerator", self.accelerator in (None, *"&_~"), "one of &, _, ~")
        is_valid = len(self.delimiter) == 1 and self.delimiter not in '"\r\n'
        self._require("delimiter", is_valid, "one character, no quotation mark or end of a line")

    def fields(self) -> Sequence[Any]:
        """Returns the names of the two columns."""
        return self.columns or self.languages or ("source", "target")


class ReadLog:
    """Counts what a reader leaves out, and what it reads as source and target.

    Attributes:
        left_out: {reason: [number of entries that are no pairs, examples]}.
        read_as: {columns or languages of the two sides: [number of pairs, examples]}, for TMX, and
            for tables of more than two columns that are read by number.
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
    if entry[0] <= EXAMPLES:
        entry[1].append([source, target])


def read_pairs(path: Path, options: ReadOptions, log: ReadLog) -> Iterator[tuple[str, str]]:
    """Yields the (source, target) pairs of a file by the reader of its ending, else as TSV.

    Raises:
        CorpusError: if the file is damaged or of another kind. The message is one line and names
            the file.
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
        except (ValueError, OSError, LookupError, SyntaxError, struct.error) as error:
            if isinstance(error, OSError) and error.errno:  # of the disk
                raise
            reason = str(error)
            if isinstance(error, struct.error):
                reason = "it is cut"
            elif isinstance(error, OSError):
                reason = error.strerror or reason
            reason = " ".join(reason.split())
            raise CorpusError(f"{path}: this is no whole {ending} file ({reason}).") from None


def _tsv(stream, name, options, log):
    rows = ((n, line.split("\t")) for n, line in enumerate(decode_lines(stream, name), 1))
    yield from pairs_of_cells(rows, name, options.columns or (1, 2), "a tab", log)


def _csv(stream, name, options, log):
    csv.field_size_limit(LONGEST_CELL)  # of the whole process; 131,072 by default
    lines = (f"{line}\n" for line in decode_lines(stream, name))
    rows = _csv_rows(csv.reader(lines, delimiter=options.delimiter, strict=True), name)
    separator = f"the `delimiter` {options.delimiter!r}"
    yield from pairs_of_cells(rows, name, options.fields(), separator, log)


def _csv_rows(reader, name):
    """Yields each row, and the line in which it begins."""
    first = 1
    try:
        for row in reader:
            if row:
                yield first, row
            first = reader.line_num + 1
    except csv.Error as error:
        raise CorpusError(
            f"{name}, line {first}: the row that begins here is not CSV ({error}). A cell that "
            "begins with a quotation mark must end with one, and each one inside it is doubled."
        ) from None


def pairs_of_cells(rows, name, columns, separator, log):
    """Yields the cells of two columns of each row.

    Args:
        rows: iterator of (line number, list of cells).
        name: name of the file, for errors.
        columns: two names, which the first row must have, or two numbers from 1.
        separator: what stands between two columns, for errors.
        log: if `columns` are numbers, notes them for rows of more than two columns.
    """
    is_named = isinstance(columns[0], str)
    if is_named:
        _, header = next(rows, (1, None))
        if header is None:
            return
        where = f"{name}, line 1, with {separator} between two columns"
        columns = [1 + header.index(_present(column, header, where)) for column in columns]
    source, target = (column - 1 for column in columns)
    for number, row in rows:
        if len(row) <= max(source, target):
            raise CorpusError(
                f"{name}, line {number}: no column {len(row) + 1}. Each line must hold the columns "
                f"of a pair, with {separator} between them."
            )
        if len(row) > 2 and not is_named:
            sides = f"columns {source + 1} and {target + 1} of {len(row)}"
            log.note(sides, row[source], row[target])
        yield row[source], row[target]


def _json_lines(stream, name, options, log):
    for number, line in enumerate(decode_lines(stream, name), 1):
        if line.strip():
            try:
                row = json.loads(line)
            except (json.JSONDecodeError, RecursionError) as error:
                reason = error.msg if isinstance(error, json.JSONDecodeError) else "too deep"
                raise CorpusError(f"{name}, line {number}: this is not JSON ({reason}).") from None
            yield _fields(row, f"{name}, line {number}", options)


def _parquet(stream, name, options, log):
    parquet = import_extra(["pyarrow.parquet"], f"{name} needs", "'pyarrow>=17.0,<27'")
    file = parquet.ParquetFile(stream)
    schema, columns = file.schema_arrow, list(options.fields())
    if not {*columns} <= {*schema.names}:
        is_inner = "translation" in schema.names and schema.field("translation").type.num_fields
        columns = ["translation"] if is_inner else schema.names  # all, for the error to name them
    batches = file.iter_batches(ROWS_AT_ONCE, columns=columns)
    rows = itertools.chain.from_iterable(batch.to_pylist() for batch in batches)
    for number, row in enumerate(rows, 1):
        yield _fields(row, f"{name}, row {number}", options)


def _fields(row, where, options):
    """Returns the texts of source and target of a row, a dict; null is an empty text.

    If the row lacks these fields, they are read from the dict in its field `translation`, as in
    data sets on the Hub of Hugging Face.
    """
    names = options.fields()
    row = row if isinstance(row, dict) else {}
    has_inner = "translation" in row and isinstance(row["translation"], dict | None)
    if has_inner and not {*names} <= row.keys():
        row = row["translation"] or dict.fromkeys(names)
    values = (row[_present(field, row, where)] for field in names)
    texts = tuple("" if value is None else value for value in values)
    if not all(isinstance(text, str) for text in texts):
        raise CorpusError(f"{where}: both fields must be text. Received: {texts}")
    return texts


def _present(name, names, where):
    """Returns the name of a column; raises if it is not one of `names`."""
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
        text = _decoded(data, polib.detect_encoding(data), name)
        last = text.rstrip().rpartition("\n")[2]
        if not re.fullmatch(r'|#(?!~).*|.*"', last):
            raise CorpusError(f"{name}: the last line is cut. Received: {last!r}")
        catalog = polib.pofile(text)
    if catalog.metadata:
        log.skip("header", "", "")
    for entry in catalog:
        defect = "fuzzy" if "fuzzy" in getattr(entry, "flags", ()) else None
        defect = "obsolete" if entry.obsolete else defect
        forms = entry.msgstr_plural or {0: entry.msgstr}
        for form, target in sorted(forms.items()):
            source = entry.msgid_plural if form else entry.msgid
            if source and target and defect is None:
                mark = options.accelerator
                yield _label(source, target, mark), _label(target, source, mark)
            else:
                log.skip(defect or "untranslated", source, target)


def _decoded(data, encoding, name):
    """Returns the text of a catalogue."""
    try:
        return data.decode(encoding).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        *lines, begin = data[: error.start].split(b"\n")
        raise CorpusError(
            f"{name}, line {len(lines) + 1}: byte {len(begin) + 1} of the line is not valid "
            f"{encoding}. Correct `charset` in the header, or convert the text."
        ) from None


def _label(text, other, mark):
    """Returns a label without the mark of its accelerator; at most one mark is removed.

    Args:
        text: the label.
        other: the label of the other side.
        mark: character in front of the accelerator key, or `None`.
    """
    if not mark:
        return text
    # A word that both sides have, such as `file_name`, is a name.
    names = set() if text == other else {*text.split()} & {*other.split()}
    words = re.finditer(r"\S+", text)
    marks = [start for word in words for start in _marks(word, mark, word[0] in names)]
    if marks:
        # Prefer a mark that begins a word: `_Open file_name`.
        start = min(marks, key=lambda start: text[start - 1 : start].isalnum())
        before, after = text[:start], text[start + 1 :]
        # `(&O)` stands behind a text without a letter that can be the key: remove it whole.
        if before.endswith("(") and after[1:2] == ")":
            before, after = before[:-1], after[2:]
        text = before + after
    return text.strip()


def _marks(word, mark, is_name):
    """Yields the positions in the label where a mark in a word may be that of an accelerator.

    Args:
        word: match of the word in the label.
        mark: the character.
        is_name: whether the word is a name, such as `file_name`.
    """
    text = word[0]
    if mark * 2 in text or _NO_LABEL.search(text):
        return
    for match in re.finditer(re.escape(mark), text):
        before, after = text[: match.start()], text[match.end() :]
        is_inside = before[-1:].isalnum()
        # Inside a word, as in `E&xit`; not as in `R&D`.
        may_be_inside = after[:1].islower() and text.count(mark) == 1 and not is_name
        if after[:1].isalpha() and (may_be_inside or not is_inside):
            yield word.start() + match.start()


def _tmx(stream, name, options, log):
    """Yields the pairs of two languages: those of the options, else by `_sides`."""
    chosen = [language_tag(language) for language in options.languages or ()]
    source, codes, body = "", {}, None  # `codes` is a set in the order of the file
    for event, element in ElementTree.iterparse(stream, ("start", "end")):
        tag = _local_name(element)
        if tag == "header":
            source = language_tag(element.get("srclang", ""))
        elif tag == "body":
            body = element
        elif tag == "tu" and event == "end":
            unit = list(map(_variant, element.iterfind("{*}tuv")))
            codes.update((code, None) for code, _ in unit)
            yield from _pairs_of_unit(unit, chosen or _sides(codes, source), log)
            (element if body is None else body).clear()  # frees the units that were read
    sides = chosen or _sides(codes, source)
    is_known = sides and all(any(is_language(code, side) for code in codes) for side in sides)
    is_ambiguous = not chosen and len(codes) > 2
    if codes and (not is_known or is_ambiguous):
        raise CorpusError(
            f"{name}: choose two of its languages with `languages`: {', '.join(codes)}. "
            f"Received: languages={options.languages}"
        )


def _sides(codes, source):
    """Returns the code of the header's source and the first other code, if there is one.

    Empty if the header's source is none of the codes.
    """
    matching = [c for c in codes if is_language(c, source) or is_language(source, c)]
    if not matching:
        return []
    return [matching[0], *(code for code in codes if code != matching[0])][:2]


def _variant(element):
    """Returns the language and the text of an element of a unit."""
    language = element.get(_XML_LANGUAGE) or element.get("lang", "")
    return language_tag(language), "".join(_text(element.find("{*}seg")))


def _pairs_of_unit(unit, sides, log):
    """Yields the pair of a unit, if there is one: of several variants of a language, the first.

    Args:
        unit: list of (code, text).
        sides: codes of source and target; fewer if they are not known.
        log: counts what is left out.
    """
    variants = [[v for v in unit if v[1] and is_language(v[0], side)] for side in sides]
    if len(variants) < 2 or not all(variants):
        texts = [side[0][1] if side else "" for side in variants]
        source, target = [*texts, "", ""][:2]
        log.skip("untranslated", source, target)
        return
    sources, targets = variants
    (source_code, source), (target_code, target) = sources[0], targets[0]
    for code, text in sources[1:]:
        log.skip(f"another variant, {code}", text, target)
    for code, text in targets[1:]:
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


# {ending: reader}. A reader yields the pairs of a stream, and counts other entries in the log.
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
BOTH_SIDES = READERS.keys() - {".tsv"}  # endings of files that cannot be read as lines of text
