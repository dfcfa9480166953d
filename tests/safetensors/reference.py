"""An independent reader and writer of safetensors, straight from its format.

  reference.py rewrite IN OUT   reads IN strictly, writes the same tensors to
                                OUT in another order and with escaped names
"""
import json
import struct
import sys

BITS = {"BOOL": 8, "U8": 8, "I8": 8, "I16": 16, "U16": 16, "F16": 16,
        "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "F64": 64, "I64": 64,
        "U64": 64}


def read(path):
    with open(path, "rb") as file:
        blob = file.read()
    (length,) = struct.unpack("<Q", blob[:8])
    assert length % 8 == 0, "data are not aligned"
    assert blob[8:9] == b"{", "the header begins with white space"
    header = json.loads(blob[8:8 + length].decode("utf-8"))
    metadata = header.pop("__metadata__", {})
    tensors, end, widths = {}, 0, []
    for name, info in sorted(header.items(),
                             key=lambda item: item[1]["data_offsets"]):
        begin, stop = info["data_offsets"]
        bits = BITS[info["dtype"]]
        for dim in info["shape"]:
            bits *= dim
        assert begin == end and (stop - begin) * 8 == bits, name
        if stop > begin:
            widths.append(BITS[info["dtype"]])
        tensors[name] = (info["dtype"], info["shape"],
                         blob[8 + length + begin:8 + length + stop])
        end = stop
    assert 8 + length + end == len(blob), "wrong total"
    assert widths == sorted(widths, reverse=True), "not widest dtype first"
    return tensors, metadata


def write(path, tensors, metadata):
    header, data = {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"data_offsets": [len(data), len(data) + len(raw)],
                        "shape": shape, "dtype": dtype}
        data += raw
    header["__metadata__"] = metadata
    text = json.dumps(header, indent=1).encode("ascii")
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


if __name__ == "__main__":
    assert sys.argv[1] == "rewrite"
    tensors, metadata = read(sys.argv[2])
    write(sys.argv[3], dict(reversed(list(tensors.items()))), metadata)
