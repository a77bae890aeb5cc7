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
from typing import Any, NamedTuple
from xml.etree import ElementTree

from keras_transformer.texts import (
    COMPRESSED,
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
# Called with the reason, the source and the target of an entry that is not read.
Skip = Callable[[str, str, str], object]


class ReadOptions(NamedTuple):
    """How a file with both sides is read, see `read_parallel`."""

    columns: Sequence[str | int] | None = None
    languages: Sequence[str] | None = None
    accelerator: str | None = None

    def fields(self) -> Sequence[Any]:
        """Returns the names of the two columns."""
        return self.columns or self.languages or ("source", "target")


def read_pairs(path: Path, options: ReadOptions, skip: Skip) -> Iterator[tuple[str, str]]:
    """Yields the (source, target) pairs of a file by the reader of its ending, else as TSV.

    Raises:
        CorpusError: if the file is damaged or of another kind; one line that names the file.
        ImportError: if the format needs a package that is not installed.
    """
    ending = suffix_of(path)
    with open_bytes(path) as stream:
        try:
            yield from READERS.get(ending, _tsv)(stream, str(path), options, skip)
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


def _tsv(stream, name, options, skip):
    rows = ((n, line.split("\t")) for n, line in enumerate(decode_lines(stream, name), 1))
    yield from pairs_of_cells(rows, name, options.columns or (1, 2), "a tab")


def _csv(stream, name, options, skip):
    reader = csv.reader((f"{line}\n" for line in decode_lines(stream, name)), strict=True)
    rows = ((reader.line_num, row) for row in reader if row)
    yield from pairs_of_cells(rows, name, options.fields(), "a comma")


def pairs_of_cells(rows, name, columns, separator):
    """Yields two cells of each of some (line number, row)."""
    if isinstance(columns[0], str):
        _, header = next(rows, (1, []))
        columns = [1 + header.index(_present(each, header, f"{name}, line 1")) for each in columns]
    source, target = (column - 1 for column in columns)
    for number, row in rows:
        if len(row) <= max(source, target):
            raise CorpusError(
                f"{name}, line {number}: no column {len(row) + 1}. A line is the columns of a "
                f"pair, {separator} between them."
            )
        yield row[source], row[target]


def _json_lines(stream, name, options, skip):
    for number, line in enumerate(decode_lines(stream, name), 1):
        if line.strip():
            yield _fields(json.loads(line), f"{name}, line {number}", options)


def _parquet(stream, name, options, skip):
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


def _gettext(stream, name, options, skip):
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
        skip("header", "", "")
    for entry in catalog:
        forms = entry.msgstr_plural or {0: entry.msgstr}
        reason = "fuzzy" if "fuzzy" in getattr(entry, "flags", ()) else "untranslated"
        reason = "obsolete" if entry.obsolete else reason
        for form, target in sorted(forms.items()):
            source = entry.msgid_plural if form else entry.msgid
            if source and target and reason == "untranslated":
                yield _label(source, options.accelerator), _label(target, options.accelerator)
            else:
                skip(reason, source, target)


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


def _tmx(stream, name, options, skip):
    asked, languages = [language_tag(each) for each in options.languages or ()], {}
    source, body = "", None
    for event, element in ElementTree.iterparse(stream, ("start", "end")):
        if element.tag == "header":
            source = language_tag(element.get("srclang", ""))
        elif element.tag == "body":
            body = element
        elif element.tag == "tu" and event == "end":
            unit = {}
            for each in element.iter("tuv"):
                language = language_tag(each.get(_XML_LANGUAGE) or each.get("lang", ""))
                unit.setdefault(language, "".join(_text(each.find("seg"))))
            languages.update(dict.fromkeys(unit))
            if not options.languages:
                first = [each for each in languages if is_language(each, source)][:1]
                asked = list(dict.fromkeys([*first, *languages]))
            pair = [next((unit[each] for each in unit if is_language(each, wanted)), "")
                    for wanted in (*asked, "none")[:2]]  # fmt: skip
            if all(pair):
                yield tuple(pair)
            else:
                skip("untranslated", *pair)
            (element if body is None else body).clear()  # the units that were read
    is_known = all(any(is_language(each, wanted) for each in languages) for wanted in asked)
    if languages and not is_known or len(asked) > 2:
        raise CorpusError(
            f"{name}: choose two of its languages with `languages`: {', '.join(languages)}. "
            f"Received: languages={options.languages}"
        )


def _text(element):
    """Yields the text of a segment, around inline codes and inside highlights."""
    if element is not None and element.tag not in _INLINE_CODES:
        yield element.text or ""
        for part in element:
            yield from _text(part)
            yield part.tail or ""


# {ending: reader}. A reader yields the pairs of a stream, and calls `skip` for other entries.
READERS: dict[str, Callable[[Any, str, ReadOptions, Skip], Iterator[tuple[str, str]]]] = {
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
