"""Token ids of a corpus: in memory, or in a token store, whose files are mapped into memory.

A store is a folder of plain arrays for `numpy.memmap`: nothing is copied, a row is found by its
start, and no further package is needed, such as Arrow or ArrayRecord.
"""

import dataclasses
import functools
import hashlib
import json
import pathlib
import shutil
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from keras_transformer.atomic_file import atomic_folder, named_errors
from keras_transformer.cores import usable_cores
from keras_transformer.data.corpora import as_pairs, hash_of
from keras_transformer.data.encoding import Chunk, encode_chunks
from keras_transformer.data.pairs import Pairs
from keras_transformer.data.report import Sample
from keras_transformer.data.tokenizer_like import TokenizerLike
from keras_transformer.lock import file_lock
from keras_transformer.texts import pair_chunks
from keras_transformer.types import Path

FORMAT = 3  # part of the key; raise it when the same pairs and tokenizers give other files
HEADER = "store.json"
ENCODING = "utf-8", "surrogatepass"  # an example may hold half of a surrogate pair
FILES = "source.ids", "target.ids", "starts", "lengths"
ENCODED_AT_ONCE = 8192  # pairs
HASHED_AT_ONCE = 1 << 20  # elements of an array
STARTS, LENGTHS = "<i8", "<i4"
ROW_BYTES = 24  # starts and lengths of a pair


@dataclasses.dataclass(eq=False)
class TokenRows:
    """Token ids of both sides of pairs, END included.

    Args:
        ids: two int arrays, the ids of all sources and of all targets.
        starts: int64 array `(pairs, 2)`, where the rows begin in `ids`.
        lengths: int32 array `(pairs, 2)`.
        sample: some of the pairs: (source, target) texts, then the language tokens of both if
            these decide how text is split.
    """

    ids: Sequence[np.ndarray]
    starts: np.ndarray
    lengths: np.ndarray
    sample: Sequence[Sequence[Any]]

    def rows(self, side: int, pairs: np.ndarray) -> list[np.ndarray]:
        """Returns the token ids of one side of some pairs.

        Args:
            side: 0 for sources, 1 for targets.
            pairs: int array, the indices of the pairs.
        """
        ids = self.ids[side]
        starts = self.starts[pairs, side].tolist()
        lengths = self.lengths[pairs, side].tolist()
        return [ids[start : start + n] for start, n in zip(starts, lengths, strict=True)]

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hash of the token ids in their order, the same for a store and in memory."""
        digest = hashlib.sha256()
        for side, ids in enumerate(self.ids):
            for numbers, dtype in ((self.lengths[:, side], "<i8"), (ids, "<i4")):
                for start in range(0, len(numbers), HASHED_AT_ONCE):
                    digest.update(numbers[start : start + HASHED_AT_ONCE].astype(dtype).data)
        return digest.hexdigest()


def token_rows(
    pairs: Iterable[tuple[str, str]],
    tokenizers: Sequence[TokenizerLike],
    store: Path | None = None,
    advance: Callable[[int], object] = lambda number: None,
    languages: Sequence[Sequence[int]] = (),
) -> TokenRows:
    """Returns the token ids of pairs, from a store if one is given; builds a missing store.

    Args:
        pairs: iterable of (source, target) strings. For a store they must be `Pairs` with a
            `fingerprint()`; without one, the ids stay in memory, and a warning says so.
        tokenizers: those of source and target. For a store, each needs a `fingerprint()` too.
        store: folder of the stores; each key has its own folder in it. Optional.
        advance: called after each chunk of a store with the number of its pairs. Optional.
        languages: the language tokens of source and target of each part of the pairs, if these
            decide how text is split, see `splits_by_language`. Defaults to none.

    Raises:
        OSError: if the store can neither be read nor written.
        ValueError: if the files change while they are read.
    """
    pairs = as_pairs(pairs)
    key = None if store is None else store_key(pairs, tokenizers, languages)
    if store is None or key is None:
        return _in_memory(pairs, tokenizers, languages)
    path = pathlib.Path(store, key)
    return _open(path, pairs) or _build(path, pairs, tokenizers, advance, languages)


def store_key(
    pairs: Pairs, tokenizers: Sequence[TokenizerLike], languages: Sequence[Sequence[int]] = ()
) -> str | None:
    """Returns the name of a store's folder; `None`, with a warning, if a fingerprint is missing."""
    facts: list[Any] = [FORMAT, *languages]
    fingerprints = [(pairs.kind, pairs.fingerprint)]
    fingerprints += [(type(tokenizer).__name__, tokenizer.fingerprint) for tokenizer in tokenizers]
    for kind, fingerprint in fingerprints:
        facts.append(fingerprint())
        if facts[-1] is None:
            warnings.warn(
                "The token ids stay in memory, without a store: there is no `fingerprint()` of "
                f"{kind}.",
                stacklevel=2,
            )
            return None
    return hash_of(facts)[:32]


def expected_size(
    pairs: Iterable[tuple[str, str]], tokenizers: Sequence[TokenizerLike]
) -> tuple[int, int]:
    """Reads the pairs; returns their number, and an estimate of the bytes of their store."""
    sample = Sample(pairs)
    num_pairs = sum(1 for _ in sample)
    num_tokens = _in_memory(sample.items, tokenizers).lengths.sum(axis=0)
    id_bytes = num_tokens @ [_id_type(tokenizer).itemsize for tokenizer in tokenizers]
    return num_pairs, round(num_pairs * (ROW_BYTES + id_bytes / max(1, len(sample.items))))


def list_stores(folder: Path) -> Iterator[tuple[str, str]]:
    """Yields the name of each store in a folder, and a line of text on it."""
    for path in sorted(pathlib.Path(folder).glob(f"*/{HEADER}")):
        try:
            header = _read_header(path.parent)
            size = sum(file.stat().st_size for file in path.parent.iterdir())
            text = f"{header['pairs']:,} pairs, {size / 1e6:,.1f} MB, of {header['of']}"
        except (ValueError, LookupError, TypeError):
            text = "damaged"
        yield path.parent.name, text


def _read_header(path):
    """Returns the header of a store, without its hash; raises a `ValueError` if it is damaged."""
    header = json.loads((path / HEADER).read_text(*ENCODING))
    if not isinstance(header, dict) or header.pop("hash") != hash_of(header):
        raise ValueError(f"{HEADER} is not what was written")
    return header


def _id_type(tokenizer):
    """Returns the smallest dtype that holds all ids of a tokenizer."""
    return np.min_scalar_type(tokenizer.vocabulary_size - 1).newbyteorder("<")


def _in_memory(pairs, tokenizers, languages=()):
    """Returns the `TokenRows` of pairs as arrays in memory."""
    sample = Sample()
    no_pairs = [np.zeros(0, np.int32)] * 2, np.zeros((0, 2), np.int32)  # in case there are none
    encoded = encode_chunks(_chunks(pairs, sample, languages), tokenizers)
    ids_of_chunks, lengths_of_chunks = zip(no_pairs, *encoded, strict=True)
    ids = [np.concatenate(side) for side in zip(*ids_of_chunks, strict=True)]
    lengths = np.concatenate(lengths_of_chunks)
    starts = np.cumsum(lengths, axis=0, dtype=np.int64) - lengths
    return TokenRows(ids, starts, lengths, sample.items)


def _chunks(pairs, sample, languages):
    """Yields the pairs as `Chunk`s, with the language tokens of their parts; extends the sample.

    Args:
        pairs: `Pairs`, or any pairs if there are no `languages`.
        sample: `Sample`, to which the columns of each pair are added.
        languages: the language tokens of source and target of each part; empty: chunks have none.
    """
    parts: list[int] = []  # the part of each pair of the current chunk

    def record_parts():
        for pair in pairs:
            parts.append(pairs.part)
            yield pair

    for texts in pair_chunks(record_parts() if languages else pairs, ENCODED_AT_ONCE):
        columns = [*texts]  # of sources and of targets
        if languages:
            columns += zip(*(languages[part] for part in parts), strict=True)
            parts.clear()
        sample.extend(list(zip(*columns, strict=True)))
        yield Chunk(*columns)


def _build(path, pairs, tokenizers, advance, languages):
    """Builds a store, or waits for another process that builds it, and returns its rows.

    Deletes what a killed process left: a build starts over.
    """
    with named_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with file_lock(path.with_name(f".{path.name}.lock"), "building this store", waits=True):
        if rows := _open(path, pairs):
            return rows
        for leftover in path.parent.glob(f".{path.name}-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        with atomic_folder(path) as folder:
            _write(folder, pairs, tokenizers, advance, path, languages)
            if store_key(pairs, tokenizers, languages) != path.name:
                raise ValueError(f"The files must not change while they are read: {pairs!r}")
    if rows := _open(path, pairs):
        return rows
    raise OSError(f"{path} cannot be read after it was written. Check the disk.")


def _write(folder, pairs, tokenizers, advance, path, languages):
    """Writes the files of a store into a folder, the header last; errors name `path`."""
    sample = Sample()
    num_tokens = np.zeros(2, np.int64)  # of each side so far
    dtypes = [*(_id_type(tokenizer).str for tokenizer in tokenizers), STARTS, LENGTHS]
    checksums = [0] * len(FILES)
    for name in FILES:
        (folder / name).touch()
    chunks = _chunks(pairs, sample, languages)
    for ids, lengths in encode_chunks(chunks, tokenizers, usable_cores()):
        starts = num_tokens + lengths.cumsum(axis=0, dtype=np.int64) - lengths
        num_tokens += lengths.sum(axis=0)
        for index, array in enumerate((*ids, starts, lengths)):
            array = np.ascontiguousarray(array, dtypes[index])
            with named_errors(path), open(folder / FILES[index], "ab") as file:
                file.write(array)
            checksums[index] = zlib.crc32(array, checksums[index])
        advance(len(lengths))
    header = {"of": repr(pairs), "pairs": sample.number, "dtypes": dtypes, "crc32": checksums}
    header |= {"sample": sample.items, "counts": pairs.counts}
    header["fingerprint"] = _map(folder, header).fingerprint
    header["hash"] = hash_of(header)
    with named_errors(path):
        (folder / HEADER).write_text(json.dumps(header, ensure_ascii=False), *ENCODING)


def _open(path, pairs):
    """Returns the rows of a store, and sets the `counts` of the pairs, as if they had been read.

    Returns `None` if there is no store. Warns and returns `None` if it is damaged.
    """
    if not path.is_dir():
        return None
    try:
        header = _read_header(path)
        rows = _map(path, header)
        rows.fingerprint = header["fingerprint"]
        pairs.counts = header["counts"]
    except (FileNotFoundError, ValueError, LookupError, TypeError) as error:
        warnings.warn(f"{path} is damaged: {error}. The store is built again.", stacklevel=1)
        return None
    return rows


def _map(path, header):
    """Returns the rows of a store, mapped into memory; a `ValueError` if a file is damaged."""
    arrays = []
    for name, dtype, crc in zip(FILES, header["dtypes"], header["crc32"], strict=True):
        is_empty = not (path / name).stat().st_size
        # As a plain array: each slice of a `memmap` costs microseconds.
        array = np.zeros(0, dtype) if is_empty else np.asarray(np.memmap(path / name, dtype, "r"))
        if zlib.crc32(array) != crc:
            raise ValueError(f"{name} is not what was written")
        arrays.append(array)
    *ids, starts, lengths = arrays
    return TokenRows(ids, starts.reshape(-1, 2), lengths.reshape(-1, 2), header["sample"])
