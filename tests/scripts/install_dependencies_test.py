#!/usr/bin/env python3
"""scripts/install_dependencies.sh where another apt holds the lock: it waits,
says so, and goes on. With an apt-get of our own."""

import os
import pathlib
import subprocess
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).parents[2] / "scripts/install_dependencies.sh"

# The first two calls find the lock taken; each call is noted.
APT = """#!/bin/bash
echo "$@" >>"$FAKE/calls"
if [ "$(wc -l <"$FAKE/calls")" -le 2 ]; then
  echo "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 7" >&2
  exit 100
fi
"""


class WaitsForTheLock(unittest.TestCase):
    def run_with(self, apt):
        with tempfile.TemporaryDirectory() as folder:
            fake = pathlib.Path(folder)
            for name, text in [
                ("apt-get", apt),
                ("dpkg-query", "#!/bin/bash\nexit 1\n"),
                ("sudo", '#!/bin/bash\nexec "$@"\n'),
            ]:
                (fake / name).write_text(text)
                (fake / name).chmod(0o755)
            result = subprocess.run(
                ["bash", str(SCRIPT), "run"],
                env={
                    **os.environ,
                    "PATH": f"{folder}:{os.environ['PATH']}",
                    "FAKE": folder,
                    "APT_RETRY_SECONDS": "0",
                },
                capture_output=True,
                text=True,
            )
            calls = (fake / "calls").read_text().splitlines()
        return result, calls

    def test_another_apt_is_waited_for(self):
        result, calls = self.run_with(APT)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(len(calls), 4, calls)  # update three times, install
        self.assertIn("install", calls[-1])
        self.assertEqual(result.stderr.count("Another apt is at work"), 2)

    def test_another_failure_is_none_to_wait_for(self):
        failing = '#!/bin/bash\necho "$@" >>"$FAKE/calls"\necho E: no >&2\nexit 100\n'
        result, calls = self.run_with(failing)
        self.assertEqual(result.returncode, 100)
        self.assertEqual(len(calls), 2, calls)


if __name__ == "__main__":
    unittest.main()
