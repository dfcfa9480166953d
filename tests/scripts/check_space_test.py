#!/usr/bin/env python3
"""scripts/check_space.sh refuses what the disk cannot hold, and nothing else."""
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/check_space.sh"


class CheckSpace(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.build = pathlib.Path(self.folder.name) / "build"

    def tearDown(self):
        self.folder.cleanup()

    def check(self, megabytes):
        return subprocess.run([SCRIPT, self.build, str(megabytes)],
                              capture_output=True, text=True, check=False)

    def test_what_fits_is_let_through(self):
        result = self.check(1)
        self.assertEqual((result.returncode, result.stderr), (0, ""))

    def test_what_does_not_fit_is_refused_with_what_to_do(self):
        disk = shutil.disk_usage(self.folder.name)
        needed = 2 * (disk.total >> 20)
        result = self.check(needed)
        self.assertEqual(result.returncode, 1)
        self.assertIn(f"{self.build} takes {needed} MB", result.stderr)
        self.assertIn("MB left; free ", result.stderr)
        self.assertIn("ln -s", result.stderr)
        self.assertFalse(self.build.exists())

    def test_a_link_to_another_disk_is_followed(self):
        other = pathlib.Path(self.folder.name) / "disk"
        (other / "release").mkdir(parents=True)
        (other / "release" / "whole").write_bytes(os.urandom(5 << 19))
        self.build.symlink_to(other)
        self.build = self.build / "release"
        result = self.check(2 * (shutil.disk_usage(other).total >> 20))
        self.assertIn("MB and has 3, but", result.stderr)


if __name__ == "__main__":
    unittest.main()
