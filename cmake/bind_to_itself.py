#!/usr/bin/env python3
"""Copies a shared library so that it uses its own definitions first.

    bind_to_itself.py LIBRARY COPY

A PyTorch of Python has another oneDNN inside, and exports some templates that
both define. The loader takes the first definition for all: our oneDNN then
initialises libtorch's tables instead of its own, and its fallback kernels
fail. With DF_SYMBOLIC set, a library's own definitions come first for it.
"""
import struct
import sys

DT_NULL, DT_FLAGS, DF_SYMBOLIC = 0, 30, 2
PT_DYNAMIC = 2


def main():
    source, target = sys.argv[1:]
    image = bytearray(open(source, "rb").read())
    if image[:6] != b"\x7fELF\x02\x01":
        sys.exit(f"{source}: not a little-endian 64-bit ELF file")
    (headers,) = struct.unpack_from("<Q", image, 32)
    size, count = struct.unpack_from("<HH", image, 54)
    for i in range(count):
        at = headers + i * size
        kind, _, offset = struct.unpack_from("<IIQ", image, at)
        if kind == PT_DYNAMIC:
            break
    else:
        sys.exit(f"{source}: no dynamic section")
    while True:
        tag, value = struct.unpack_from("<QQ", image, offset)
        if tag == DT_FLAGS:
            struct.pack_into("<QQ", image, offset, tag, value | DF_SYMBOLIC)
            break
        if tag == DT_NULL:
            # An entry to spare stands behind the last one, or none can be added.
            if struct.unpack_from("<Q", image, offset + 16)[0] != DT_NULL:
                sys.exit(f"{source}: no place for DT_FLAGS")
            struct.pack_into("<QQ", image, offset, DT_FLAGS, DF_SYMBOLIC)
            break
        offset += 16
    with open(target, "wb") as copy:
        copy.write(image)


main()
