"""Record batches: decoded as other implementations write them, encoded as they read them."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from lakebed.kafka import codes
from lakebed.kafka.batches import HEAD, build_batch, read_head
from lakebed.kafka.codecs import decompress
from lakebed.kafka.codes import Refusal
from lakebed.kafka.decoding import Columns, decode
from lakebed.kafka.encoding import empty_batch, encode_rows
from lakebed.kafka.headers import escape_headers, restore_headers

Row = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]

blobs = st.none() | st.binary(max_size=40)
names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=5)
rows = st.tuples(st.integers(0, 2**40), blobs, blobs, st.lists(st.tuples(names, blobs), max_size=4))
plain_rows: st.SearchStrategy[Row] = st.tuples(st.integers(0, 2**40), blobs, blobs, st.just([]))
batches = st.lists(rows, min_size=1, max_size=20) | st.builds(
    lambda few, times: few * times,
    st.lists(plain_rows, min_size=1, max_size=6),
    st.sampled_from([30, 100]),
)


def built(records: list[Row]) -> bytes:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 30,
    )
    for number, (time_ms, key, value, headers) in enumerate(records):
        builder.append(number, time_ms, key, value, headers)
    return bytes(builder.build())


def decoded(batch: bytes) -> Columns:
    head = read_head(batch)
    return decode(head, decompress(head.codec, batch[HEAD.size :], 1 << 30))


def listed(column: object, count: int) -> list[bytes | None]:
    if column is None:
        return [None] * count
    return column if isinstance(column, list) else column.to_pylist()  # type: ignore[attr-defined]


@settings(max_examples=60)
@given(batches)
def test_a_batch_is_decoded_and_encoded_as_others_do_it(records: list[Row]) -> None:
    columns, count = decoded(built(records)), len(records)
    keys, values = listed(columns.keys, count), listed(columns.values, count)
    headers = columns.headers or [None] * count
    found = [
        (time_us // 1000, key, value, restore_headers((pairs or {}).items()))
        for time_us, key, value, pairs in zip(
            columns.times_us.tolist(), keys, values, headers, strict=True
        )
    ]
    assert found == records
    table = pa.RecordBatch.from_arrays(
        [
            pa.array(range(7, 7 + count)),
            pa.array(columns.times_us).view(pa.timestamp("us", "UTC")),
            pa.array(keys, pa.binary()),
            pa.array(
                [None if each is None else list(each.items()) for each in headers],
                pa.map_(pa.string(), pa.binary()),
            ),
            pa.array(values, pa.binary()),
        ],
        names=["offset", "timestamp", "key", "headers", "value"],
    )
    batch = DefaultRecordBatch(bytearray(encode_rows(table, 7 + count)))
    assert batch.validate_crc()
    assert [(each.timestamp, each.key, each.value, each.headers) for each in batch] == records


@settings(max_examples=300)
@given(st.data())
def test_a_damaged_batch_is_refused_and_never_fails_otherwise(data: st.DataObject) -> None:
    """The checksum is made right again: what is behind it must not be trusted either."""
    count = data.draw(st.sampled_from([1, 3, 100]))
    batch = bytearray(built([(5, b"k", b"value", [])] * count))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(HEAD.size - 4, len(batch) - 1))
        batch[at] = data.draw(st.integers(0, 255))
    again = (
        build_batch(
            bytes(batch[HEAD.size :]),
            count=struct.unpack_from(">i", batch, HEAD.size - 4)[0],
            base_offset=0,
            last_offset_delta=struct.unpack_from(">i", batch, HEAD.size - 4)[0] - 1,
            base_time_ms=5,
            max_time_ms=5,
        )
        if struct.unpack_from(">i", batch, HEAD.size - 4)[0] > -(2**31)
        else bytes(batch)
    )
    try:
        decoded(again)
    except Refusal as error:
        assert error.code in (
            codes.INVALID_RECORD,
            codes.INVALID_TIMESTAMP,
            codes.CORRUPT_MESSAGE,
        )


@given(st.binary(max_size=120))
def test_bytes_that_are_no_batch_are_refused(data: bytes) -> None:
    with pytest.raises(Refusal):
        read_head(data)


def test_what_a_client_may_not_write_is_refused() -> None:
    good = built([(5, None, b"v", [])])
    cases = {
        codes.CORRUPT_MESSAGE: good[:-1] + b"x",
        codes.UNSUPPORTED_FOR_MESSAGE_FORMAT: good[:16] + b"\1" + good[17:],
        codes.INVALID_RECORD: good + good,
    }
    for code, batch in cases.items():
        with pytest.raises(Refusal) as caught:
            read_head(batch)
        assert caught.value.code == code


@pytest.mark.parametrize(("number", "codec"), [(1, "gzip"), (3, "lz4"), (4, "zstd")])
def test_a_compressed_bomb_is_stopped_at_the_bound(number: int, codec: str) -> None:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        for _ in range(64):
            stream.write(bytes(1 << 20))
    packed = sink.getvalue().to_pybytes()
    assert len(packed) < 1 << 20
    with pytest.raises(Refusal) as caught:
        decompress(number, packed, 1 << 20)
    assert caught.value.code == codes.MESSAGE_TOO_LARGE


def test_snappy_is_read_in_both_framings_and_is_bounded() -> None:
    packed = pa.compress(bytes(1000), "snappy", asbytes=True)
    assert decompress(2, packed, 1000) == bytes(1000)
    framed = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + struct.pack(">i", len(packed)) + packed
    assert decompress(2, framed, 1000) == bytes(1000)
    for data in (packed, framed):
        with pytest.raises(Refusal) as caught:
            decompress(2, data, 999)
        assert caught.value.code == codes.MESSAGE_TOO_LARGE
    with pytest.raises(Refusal):
        decompress(2, framed[:-1], 1000)


@given(st.lists(st.tuples(names, blobs), max_size=8))
def test_headers_are_unique_inside_and_come_back(headers: list[tuple[str, bytes | None]]) -> None:
    assert restore_headers(escape_headers(headers).items()) == headers


def test_a_header_name_with_a_zero_byte_is_refused() -> None:
    with pytest.raises(Refusal):
        escape_headers([("a\0b", b"")])


def test_an_empty_batch_leads_over_a_hole() -> None:
    batch = DefaultRecordBatch(bytearray(empty_batch(10, 15)))
    assert batch.validate_crc()
    assert list(batch) == []
    assert batch.next_offset == 15
