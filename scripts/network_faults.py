#!/usr/bin/env python3
"""Two ranks on two hosts, and what may happen to the network between them.

  scripts/network_faults.py BUILD_FOLDER [CASE...]

The hosts are network namespaces joined by a cable (veth). In each case training
runs until the fault comes; then either both ranks end within the deadline, with
an error that names the operation or the peer, or the run goes on and ends with
the losses of an undisturbed one. Needs root and Debian's iproute2; exits 77
with the reason where something is missing.
"""
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

TAG = f"bn{os.getpid()}"
HOSTS = [f"{TAG}-a", f"{TAG}-b"]
ADDRESSES = ["10.78.0.1", "10.78.0.2"]
PORT = 29577
TIMEOUT_SECONDS = 8
# How long after the fault all ranks must be gone: the collectives' deadline, a
# second to find out who was lost, and what a busy machine takes.
PATIENCE_SECONDS = TIMEOUT_SECONDS + 8
COMM_ERROR = 3


def sh(*words, check=True, **options):
    return subprocess.run(
        [str(word) for word in words], check=check,
        capture_output=True, text=True, **options)


def on(host, *words, **options):
    return sh("ip", "netns", "exec", HOSTS[host], *words, **options)


def make_network():
    for host in HOSTS:
        sh("ip", "netns", "add", host)
    sh("ip", "link", "add", "eth0", "netns", HOSTS[0], "type", "veth",
       "peer", "name", "eth0", "netns", HOSTS[1])
    for host, address in enumerate(ADDRESSES):
        sh("ip", "-n", HOSTS[host], "addr", "add", f"{address}/24", "dev", "eth0")
        for device in "lo", "eth0":
            sh("ip", "-n", HOSTS[host], "link", "set", device, "up")


def remove_network():
    for host in HOSTS:
        for pid in sh("ip", "netns", "pids", host, check=False).stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), 9)
        sh("ip", "netns", "delete", host, check=False)


class Skipped(Exception):
    """What this machine cannot do."""


class Run:
    """One rank per host."""

    def __init__(self, brigade, folder, steps, size="distributed.dp_size=2"):
        self.folder = folder
        folder.mkdir()
        self.ranks = []
        for rank in range(2):
            environment = dict(
                os.environ, RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK="0",
                LOCAL_WORLD_SIZE="1", MASTER_ADDR=ADDRESSES[0],
                MASTER_PORT=str(PORT), OMP_NUM_THREADS="1")
            self.ranks.append(subprocess.Popen(
                ["ip", "netns", "exec", HOSTS[rank], brigade, "train",
                 "--config", str(folder.parent / "run.json"), size,
                 f"training.total_train_steps={steps}",
                 f"logging.run_dir={folder / 'run'}"],
                env=environment, stdout=open(folder / f"out{rank}", "w"),
                stderr=open(folder / f"err{rank}", "w")))

    def losses(self):
        path = self.folder / "run" / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line)["loss"] for line in lines]

    def wait_for_step(self, step, seconds=60):
        deadline = time.monotonic() + seconds
        while len(self.losses()) < step:
            if time.monotonic() > deadline or None not in self.codes():
                raise AssertionError(
                    f"step {step} was not reached: {self.errors()}")
            time.sleep(0.05)

    def codes(self):
        return [rank.poll() for rank in self.ranks]

    def wait(self, seconds):
        deadline = time.monotonic() + seconds
        while None in self.codes() and time.monotonic() < deadline:
            time.sleep(0.05)
        codes = self.codes()
        for rank in self.ranks:
            rank.kill()
            rank.wait()
        return codes

    def errors(self):
        return [(self.folder / f"err{rank}").read_text() for rank in range(2)]


class Cases:
    def __init__(self, brigade, folder):
        self.brigade = brigade
        self.folder = folder
        self.reference = None

    def start(self, name, steps=1_000_000, **options):
        return Run(self.brigade, self.folder / name, steps, **options)

    def expect_failure(self, run, since):
        """Both ranks end in time, with one line that says what was lost."""
        codes = run.wait(PATIENCE_SECONDS - (time.monotonic() - since))
        assert None not in codes, f"still running: {codes}, {run.errors()}"
        assert COMM_ERROR in codes and set(codes) <= {COMM_ERROR, 1}, codes
        for error in run.errors():
            lines = [line for line in error.splitlines() if "error:" in line]
            assert len(lines) == 1, f"expected one line: {error}"
            assert "rank" in lines[0], lines
            assert "terminate" not in error and "frame #" not in error, error

    def expect_success(self, run, steps, seconds):
        codes = run.wait(seconds)
        assert codes == [0, 0], f"{codes}: {run.errors()}"
        if self.reference is None:
            whole = self.start("reference", steps)
            assert whole.wait(120) == [0, 0], whole.errors()
            self.reference = whole.losses()
        assert run.losses() == self.reference, "the losses differ"

    def link_down(self):
        run = self.start("link_down")
        run.wait_for_step(5)
        since = time.monotonic()
        sh("ip", "-n", HOSTS[1], "link", "set", "eth0", "down")
        self.expect_failure(run, since)

    def one_way(self):
        run = self.start("one_way")
        run.wait_for_step(5)
        since = time.monotonic()
        # What host b sends goes to nobody.
        sh("ip", "-n", HOSTS[1], "neigh", "replace", ADDRESSES[0], "lladdr",
           "02:00:00:00:00:99", "nud", "permanent", "dev", "eth0")
        self.expect_failure(run, since)

    def cut_of_3_seconds(self):
        run = self.start("cut", 40)
        run.wait_for_step(5)
        sh("ip", "-n", HOSTS[1], "link", "set", "eth0", "down")
        time.sleep(3)
        sh("ip", "-n", HOSTS[1], "link", "set", "eth0", "up")
        self.expect_success(run, 40, 90)

    def slow_and_lossy(self):
        for host in range(2):
            added = on(host, "tc", "qdisc", "add", "dev", "eth0", "root",
                       "netem", "loss", "5%", "delay", "25ms", "rate", "20mbit",
                       check=False)
            if added.returncode != 0:
                raise Skipped("this kernel has no netem: "
                              + added.stderr.strip().splitlines()[0])
        self.expect_success(self.start("lossy", 40), 40, 180)

    def sockets_reset(self):
        """ss -K of the connections between the ranks, the store's left out."""
        run = self.start("reset")
        run.wait_for_step(5)
        since = time.monotonic()
        self.kill_sockets(f"( sport != :{PORT} and dport != :{PORT} )")
        self.expect_failure(run, since)

    def store_reset(self):
        """Nobody asks the store while the ranks train: nothing may happen, or
        each rank ends with one line."""
        run = self.start("store", 40)
        run.wait_for_step(5)
        since = time.monotonic()
        self.kill_sockets(f"( sport = :{PORT} or dport = :{PORT} )")
        codes = run.wait(60)
        if codes != [0, 0]:
            self.expect_failure(run, since)

    def kill_sockets(self, which):
        for host in range(2):
            on(host, "ss", "-K", "state", "established", *which.split())

    def garbage_at_the_store(self):
        """Another program speaks to the store's port while ranks meet."""
        stop = time.monotonic() + 5
        run = self.start("garbage", 40)
        script = (
            "import os, socket, time\n"
            f"end = time.time() + {stop - time.monotonic()}\n"
            "while time.time() < end:\n"
            "    try:\n"
            f"        s = socket.create_connection(('{ADDRESSES[0]}', {PORT}), 1)\n"
            "        s.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n')\n"
            "        s.close()\n"
            "    except OSError:\n"
            "        pass\n"
            "    time.sleep(0.2)\n")
        on(1, sys.executable, "-c", script)
        codes = run.wait(90)
        if codes == [0, 0]:
            return
        for error in run.errors():
            assert "frame #" not in error and "terminate" not in error, error
            assert "error:" in error, error

    def port_taken(self):
        script = (
            "import socket, time\n"
            "s = socket.socket()\n"
            "s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
            f"s.bind(('0.0.0.0', {PORT}))\n"
            "s.listen()\n"
            "time.sleep(120)\n")
        squatter = subprocess.Popen(
            ["ip", "netns", "exec", HOSTS[0], sys.executable, "-c", script])
        try:
            time.sleep(1)
            run = self.start("taken")
            codes = run.wait(40)
        finally:
            squatter.kill()
            squatter.wait()
        assert codes[0] not in (None, 0), (codes, run.errors())
        assert str(PORT) in run.errors()[0], run.errors()

    def rank_missing(self):
        run = self.start("missing")
        run.ranks[1].kill()
        codes = run.wait(PATIENCE_SECONDS)
        assert codes[0] == COMM_ERROR, (codes, run.errors())
        assert "rank 1" in run.errors()[0], run.errors()


def main():
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    missing = [tool for tool in ("ip", "tc", "ss") if not shutil.which(tool)]
    if os.geteuid() != 0 or missing:
        print("skipped: this needs root"
              if not missing else f"skipped: {missing[0]} is not installed "
              "(iproute2)")
        return 77
    brigade = str(pathlib.Path(sys.argv[1]).resolve() / "brigade")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="brigade_network_"))
    (folder / "text.txt").write_text("the quick brown fox jumps over it. " * 800)
    sh(brigade, "prepare", "--input", folder / "text.txt", "--tokenizer", "bytes",
       "--out", folder / "tokens")
    (folder / "run.json").write_text(json.dumps({
        "distributed": {"use_cpu": True, "timeout_seconds": TIMEOUT_SECONDS},
        "model": {"config": {
            "model_type": "llama", "hidden_size": 64, "intermediate_size": 192,
            "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "vocab_size": 259,
            "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0, "tie_word_embeddings": False}},
        "training": {"seq_length": 64, "micro_batch_size": 2,
                     "learning_rate": 1e-3},
        "dataset": {"name": str(folder / "tokens")}}))
    names = sys.argv[2:] or [
        "link_down", "one_way", "cut_of_3_seconds", "slow_and_lossy",
        "sockets_reset", "store_reset", "garbage_at_the_store", "port_taken",
        "rank_missing"]
    try:
        make_network()
    except subprocess.CalledProcessError as error:
        print(f"skipped: no network namespaces here: {error.stderr.strip()}")
        return 77
    finally:
        remove_network()
    failed = []
    cases = Cases(brigade, folder)
    for name in names:
        make_network()
        begin = time.monotonic()
        try:
            getattr(cases, name)()
            print(f"passed  {name} ({time.monotonic() - begin:.1f} s)")
        except Skipped as reason:
            print(f"skipped {name}: {reason}")
        except AssertionError as error:
            print(f"FAILED  {name}: {error}")
            failed.append(name)
        finally:
            remove_network()
        sys.stdout.flush()
    if failed:
        print(f"{len(failed)} of {len(names)} failed; see {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
