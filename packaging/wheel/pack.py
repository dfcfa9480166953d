#!/usr/bin/env python3
"""Packs a folder into a wheel that auditwheel completes.

    pack.py TREE OUTPUT_FOLDER VERSION TORCH_VERSION

TREE holds what site-packages gets: the folder brigade. Prints the wheel's path.
"""
import base64
import hashlib
import os
import pathlib
import platform
import sys
import zipfile

METADATA = """Metadata-Version: 2.1
Name: brigade
Version: {version}+torch{torch}
Summary: 4D-parallel pre-training of Llama-like models on libtorch
License: Apache-2.0
Requires-Python: >=3.9
Requires-Dist: torch=={torch}
Description-Content-Type: text/plain

The program `brigade` for PyTorch {torch}, and its C++ library: headers, static
libraries and CMake package (`brigade --cmake-dir`). There is no Python binding.
"""
WHEEL = """Wheel-Version: 1.0
Generator: brigade
Root-Is-Purelib: false
Tag: {tag}
"""
ENTRY_POINTS = "[console_scripts]\nbrigade = brigade:main\n"


def pack(tree, output, version, torch):
    tag = f"py3-none-linux_{platform.machine()}"
    name = f"brigade-{version}+torch{torch}"
    info = f"{name}.dist-info"
    path = output / f"{name}-{tag}.whl"
    contents = [(p.relative_to(tree).as_posix(), p.read_bytes(),
                 os.access(p, os.X_OK))
                for p in sorted(tree.rglob("*")) if p.is_file()]
    contents += [
        (f"{info}/METADATA", METADATA.format(version=version, torch=torch)
         .encode(), False),
        (f"{info}/WHEEL", WHEEL.format(tag=tag).encode(), False),
        (f"{info}/entry_points.txt", ENTRY_POINTS.encode(), False)]
    record = ""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        def add(name, data, executable):
            entry = zipfile.ZipInfo(name)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if executable else 0o100644) << 16
            wheel.writestr(entry, data)

        for name, data, executable in contents:
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
            record += (f"{name},sha256={digest.decode().rstrip('=')},"
                       f"{len(data)}\n")
            add(name, data, executable)
        add(f"{info}/RECORD", (record + f"{info}/RECORD,,\n").encode(), False)
    return path


def main():
    tree, output, version, torch = sys.argv[1:]
    print(pack(pathlib.Path(tree), pathlib.Path(output), version, torch))


main()
