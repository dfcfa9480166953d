#!/usr/bin/env python3
"""packaging/start.sh, with which programs of the wheel and of the portable folder
start: what it finds, and what it says of a machine or a PyTorch that does not
fit. The program is a shell script that prints how it was called."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).parents[2] / "packaging/start.sh"
PROGRAM = """#!/bin/sh
echo "$LD_LIBRARY_PATH"
printf '<%s>' "$@"
"""


class Starts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.package = self.folder / "brigade"
        (self.package / "bin").mkdir(parents=True)
        shutil.copy(SCRIPT, self.package)
        program = self.package / "bin/program"
        program.write_text(PROGRAM)
        program.chmod(0o755)
        self.needs = {
            "torch": "2.15.0+cu132",
            "cuda": "yes",
            "machine": os.uname().machine,
            "glibc": "2.17",
            "cpu_flags": "",
            "torch_beside": "no",
        }
        self.torch = self.folder / "elsewhere/torch"

    def install_torch(self, version, cuda=True):
        (self.torch / "lib").mkdir(parents=True)
        (self.torch / "version.py").write_text(f"__version__ = '{version}'\n")
        if cuda:
            (self.torch / "lib/libtorch_cuda.so").touch()

    def start(self, *arguments, torch=None):
        (self.package / "needs").write_text(
            "".join(f"needs_{k}='{v}'\n" for k, v in self.needs.items())
        )
        return subprocess.run(
            ["sh", str(self.package / "start.sh"), "program", *arguments],
            env={
                "PATH": "/usr/bin:/bin",
                "BRIGADE_TORCH": str(self.torch if torch is None else torch),
            },
            capture_output=True,
            text=True,
        )

    def fails(self, *words, torch=None):
        result = self.start(torch=torch)
        self.assertEqual(result.returncode, 1, result.stdout)
        for word in words:
            self.assertIn(word, result.stderr)

    def test_the_program_gets_its_arguments_and_the_torch_elsewhere(self):
        self.install_torch("2.15.0+cu132")
        result = self.start("a b", "*", "")
        self.assertEqual(result.stdout, f"{self.torch}/lib\n<a b><*><>", result)

    def test_a_wheel_takes_the_torch_beside_it_and_no_library_path(self):
        self.torch = self.folder / "torch"
        self.install_torch("2.15.0")
        self.needs["torch_beside"] = "yes"
        self.assertEqual(self.start("x", torch="/nowhere").stdout, "\n<x>")

    def test_a_wheel_whose_torch_is_elsewhere_takes_that(self):
        self.install_torch("2.15.0")
        self.needs["torch_beside"] = "yes"
        self.assertEqual(self.start("x").stdout, f"{self.torch}/lib\n<x>")

    def test_a_folder_named_torch_beside_a_portable_folder_is_none(self):
        self.install_torch("2.15.0")
        (self.folder / "torch").mkdir()
        self.assertEqual(self.start("x").stdout, f"{self.torch}/lib\n<x>")

    def test_an_unpacked_libtorch_will_do(self):
        (self.torch / "lib").mkdir(parents=True)
        (self.torch / "lib/libtorch_cuda.so").touch()
        (self.torch / "build-version").write_text("2.15.0+cu130\n")
        self.assertEqual(self.start().returncode, 0)

    def test_another_pytorch_is_refused_with_both_versions(self):
        self.install_torch("2.14.1+cu130")
        self.fails(
            "2.14.1+cu130", "2.15.0+cu132", "pip install torch==2.15.0", "BRIGADE_TORCH"
        )

    def test_a_pytorch_without_cuda_is_refused(self):
        self.install_torch("2.15.0+cpu", cuda=False)
        self.fails("2.15.0+cpu, without CUDA", "2.15.0+cu132")

    def test_a_folder_that_is_no_pytorch_is_named(self):
        self.fails("'/tmp' (BRIGADE_TORCH) is no PyTorch", torch="/tmp")

    def test_an_older_glibc_is_refused_with_both_versions(self):
        self.install_torch("2.15.0")
        found = os.confstr("CS_GNU_LIBC_VERSION").split()[1]
        for needed in ("9.0", "2.99"):
            self.needs["glibc"] = needed
            self.fails(f"glibc {found}, but this build needs {needed} or later")
        for needed in ("1.99", found):
            self.needs["glibc"] = needed
            self.assertEqual(self.start().returncode, 0, needed)

    @unittest.skipUnless(os.uname().machine == "x86_64", "flags of x86")
    def test_what_the_processor_lacks_is_named(self):
        self.install_torch("2.15.0")
        self.needs["cpu_flags"] = "sse2 sse9 fpu fp"
        self.fails("lacks sse9 fp, which x86-64-v2 has")

    def test_another_machine_is_named(self):
        self.needs["machine"] = "riscv64"
        self.fails("is for riscv64", os.uname().machine)


if __name__ == "__main__":
    unittest.main()
