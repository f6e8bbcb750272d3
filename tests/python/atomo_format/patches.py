# SPDX-License-Identifier: Apache-2.0
"""Patches (FORMAT.md, "Patches"), read one word at a time, and the .safetensors files that they are made from."""
import json
import struct

from .bits import BitReader, ByteReader, body_checksum, require
from .sparse import read_marks

RECORD = struct.Struct("<QQQQQQHBBBBBB")
FIELDS = ("before", "after", "body", "bytes", "body_bytes", "changed", "name_bytes", "type_bytes", "dimensions", "element_bytes",
          "floating", "form", "zero")
BLOCK_WORDS, RICE_LIMIT = 1 << 18, 20
SAME, CHANGES, WHOLE = range(3)


def stored_tensors(content):
    """{name: (type, shape, bytes)} of a .safetensors file."""
    (length,) = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8:8 + length]), content[8 + length:]
    return {name: (e["dtype"], tuple(e["shape"]), data[slice(*e["data_offsets"])])
            for name, e in header.items() if name != "__metadata__"}


def _read_record(reader):
    record = dict(zip(FIELDS, RECORD.unpack(reader.take(RECORD.size))))
    record["shape"] = tuple(reader.field("Q") for _ in range(record["dimensions"]))
    record["name"] = reader.take(record["name_bytes"]).decode()
    record["type"] = reader.take(record["type_bytes"]).decode()
    reader.zeros_until_multiple_of(8)
    require(record["zero"] == 0 and record["form"] <= WHOLE and record["floating"] <= 1, "a record")
    return record


def _number(word, bits, floating):
    sign = 1 << (bits - 1)
    if not floating:
        return word
    return word ^ ((1 << bits) - 1) if word & sign else word | sign


def _word(number, bits, floating):
    sign = 1 << (bits - 1)
    if not floating:
        return number
    return number ^ sign if number & sign else number ^ ((1 << bits) - 1)


def _change_block(block, words, bits, floating):
    """`words` are changed in place. Returns how many were."""
    if not block:
        return 0
    reader = ByteReader(block)
    marks = read_marks(reader, len(words))
    k = reader.field("B")
    require(k < bits, "a parameter")
    stream = BitReader(reader.rest())
    for place in marks:
        high = stream.ones(RICE_LIMIT)
        value = stream.field(bits) if high == RICE_LIMIT else high << k | stream.field(k)
        require(high < RICE_LIMIT or value >> k >= RICE_LIMIT, "a longer word than needed")
        difference = value // 2 + 1 if value % 2 == 0 else -(value // 2 + 1)
        number = (_number(words[place], bits, floating) + difference) % (1 << bits)
        words[place] = _word(number, bits, floating)
    require((stream.at + 7) // 8 == len(stream.data), "bytes behind the last word")
    stream.zeros_to_the_end()
    return len(marks)


def _changed(body, record, before):
    size = min(record["element_bytes"], 4)
    floating = record["floating"] == 1 and record["element_bytes"] < 8
    letter = {1: "B", 2: "H", 4: "I"}[size]
    words = list(struct.unpack(f"<{len(before) // size}{letter}", before))
    reader = ByteReader(body)
    lengths = [reader.field("I") for _ in range(-(-len(words) // BLOCK_WORDS))]
    made = []
    for b, length in enumerate(lengths):
        part = words[b * BLOCK_WORDS:(b + 1) * BLOCK_WORDS]
        _change_block(reader.take(length), part, 8 * size, floating)
        made += part
    reader.end()
    return struct.pack(f"<{len(made)}{letter}", *made)


def _open(patch):
    reader = ByteReader(patch)
    require(reader.take(8) == b"ATMPATCH" and reader.field("I") == 1, "no patch of version 1")
    tensors, head_bytes = reader.field("I"), reader.field("Q")
    require(reader.field("Q") == len(patch), "the length")
    note_bytes = reader.field("I")
    require(reader.field("I") == 0, "a field is not zero")
    note = reader.take(note_bytes)
    reader.zeros_until_multiple_of(8)
    records = [_read_record(reader) for _ in range(tensors)]
    require(reader.field("Q") == body_checksum(patch[:head_bytes - 8]) and reader.at == head_bytes, "the head")
    return note, records, reader


def apply(patch, before):
    """{name: (type, shape, bytes)} of the new state, from that of the state before."""
    _, records, reader = _open(patch)
    made = {}
    for record in records:
        body = reader.take(record["body_bytes"])
        require(body_checksum(body) == record["body"], "a body's checksum")
        if record["form"] == WHOLE:
            data = body
        else:
            data = before[record["name"]][2]
            require(len(data) == record["bytes"] and body_checksum(data) == record["before"], "another tensor")
            if record["form"] == CHANGES:
                data = _changed(body, record, data)
        require(body_checksum(data) == record["after"], "the new state")
        made[record["name"]] = (record["type"], record["shape"], data)
    reader.end()
    return made


def note_bytes(patch):
    return len(_open(patch)[0])


def _resealed(patch):
    """The patch, its head changed, with the checksum to it."""
    (head_bytes,) = struct.unpack_from("<Q", patch, 16)
    struct.pack_into("<Q", patch, head_bytes - 8, body_checksum(bytes(patch[:head_bytes - 8])))
    return bytes(patch)


def with_note(patch, note):
    """The patch with another note of as many bytes."""
    patch = bytearray(patch)
    patch[40:40 + len(note)] = note
    return _resealed(patch)


def with_record(patch, number, **fields):
    """The patch with other values in a record, and the head's checksum to it."""
    note, records, _ = _open(patch)
    at = 40 + -(-len(note) // 8) * 8
    for record in records[:number]:
        names = 8 * record["dimensions"] + record["name_bytes"] + record["type_bytes"]
        at += RECORD.size + -(-names // 8) * 8
    values = {**records[number], **fields}
    patch = bytearray(patch)
    RECORD.pack_into(patch, at, *(values[name] for name in FIELDS))
    return _resealed(patch)
