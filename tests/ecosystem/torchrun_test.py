#!/usr/bin/env python3
"""Brigade's ranks under torchrun of PyTorch 2.x.

    torchrun_test.py BRIGADE...        # see scripts/test_ecosystem.sh

Each BRIGADE is a program to test: one built on Debian's libtorch is a client of
another libtorch's store, one built on PyTorch's own is a client of the same.
The oracle is `brigade train --nproc 2`: losses must be equal bit for bit.
"""
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAMS = [pathlib.Path(path).resolve() for path in sys.argv[1:]]
del sys.argv[1:]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
TIMEOUT_S = 180


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def losses(run):
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


def processes_of(run):
    """Process ids of the ranks whose command line names `run`."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if words[1:2] == ["train"] and f"logging.run_dir={run}" in words:
            found.append(int(entry.name))
    return sorted(found)


def parent_of(process):
    status = pathlib.Path(f"/proc/{process}/status").read_text()
    return int(status.split("PPid:")[1].split()[0])


class Torchrun(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.scratch.name)
        text = cls.folder / "text.txt"
        text.write_text("the quick brown fox jumps over the lazy dog. " * 400)
        subprocess.run(
            [PROGRAMS[0], "prepare", "-i", text, "--tokenizer", "bytes",
             "--out", cls.folder / "data"],
            check=True, capture_output=True)
        cls.config = cls.folder / "config.json"
        cls.config.write_text(json.dumps({
            "model": {"config": {
                "architectures": ["LlamaForCausalLM"], "vocab_size": 259,
                "hidden_size": 64, "intermediate_size": 96,
                "num_hidden_layers": 2, "num_attention_heads": 4,
                "num_key_value_heads": 2, "max_position_embeddings": 128,
                "rms_norm_eps": 1e-5}},
            "training": {"seq_length": 64, "total_train_steps": 6,
                         "micro_batch_size": 2},
            "dataset": {"name": str(cls.folder / "data")},
            "distributed": {"use_cpu": True, "timeout_seconds": 60}}))
        cls.expected = {}
        for program in PROGRAMS:
            run = cls.folder / f"expected-{len(cls.expected)}"
            subprocess.run(
                [program, *cls.arguments(run), "--nproc", "2"],
                check=True, capture_output=True)
            cls.expected[program] = losses(run)

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    @classmethod
    def arguments(cls, run, *more):
        return ["train", "--config", str(cls.config),
                f"logging.run_dir={run}", *more]

    def start(self, program, run, options, *more, output=subprocess.PIPE,
              **variables):
        environment = dict(os.environ, OMP_NUM_THREADS="1", **variables)
        return subprocess.Popen(
            [*TORCHRUN, *options, "--no-python", str(program),
             *self.arguments(run, *more)],
            stdout=output, stderr=subprocess.STDOUT, text=True,
            env=environment)

    def end(self, agent):
        output, _ = agent.communicate(timeout=TIMEOUT_S)
        self.assertEqual(agent.returncode, 0, output)
        return output

    def each_program(self, name):
        for i, program in enumerate(PROGRAMS):
            with self.subTest(program=str(program)):
                yield program, self.folder / f"{name}-{i}"

    def test_standalone(self):
        for program, run in self.each_program("standalone"):
            self.end(self.start(
                program, run, ["--standalone", "--nproc-per-node", "2"]))
            self.assertEqual(losses(run), self.expected[program])

    def test_two_agents_that_meet_at_a_c10d_rendezvous(self):
        for program, run in self.each_program("agents"):
            options = [
                "--nnodes", "2", "--nproc-per-node", "1",
                "--rdzv-backend", "c10d", "--rdzv-id", "brigade",
                "--rdzv-endpoint", f"127.0.0.1:{free_port()}",
                "--local-addr", "127.0.0.1"]
            agents = [self.start(program, run, options) for _ in range(2)]
            for agent in agents:
                self.end(agent)
            self.assertEqual(losses(run), self.expected[program])

    def test_a_static_rendezvous(self):
        for program, run in self.each_program("static"):
            self.end(self.start(
                program, run,
                ["--nnodes", "1", "--nproc-per-node", "2",
                 "--master-addr", "127.0.0.1",
                 "--master-port", str(free_port())]))
            self.assertEqual(losses(run), self.expected[program])

    def test_a_killed_rank_is_restarted_and_the_run_continues(self):
        steps = 1500
        more = [f"training.total_train_steps={steps}",
                "checkpoint.load_path=auto", "checkpoint.save_frequency=100",
                "checkpoint.keep_last=2", "logging.log_frequency=500"]
        for program, run in self.each_program("restart"):
            agent = self.start(
                program, run,
                ["--standalone", "--nproc-per-node", "2",
                 "--max-restarts", "3"], *more)
            deadline = time.monotonic() + TIMEOUT_S
            checkpoints = run / "checkpoints"
            while not (checkpoints.is_dir() and any(
                    entry.name.isdigit() for entry in checkpoints.iterdir())):
                self.assertIsNone(agent.poll(), "ended before a checkpoint")
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.02)
            ranks = processes_of(run)
            self.assertEqual(len(ranks), 2)
            os.kill(ranks[1], signal.SIGKILL)
            output = self.end(agent)
            self.assertIn("continuing", output)
            rows = losses(run)
            self.assertEqual(len(rows), steps)
            self.assertEqual(rows[:6], self.expected[program])

    def wait_for(self, agent, what, is_reached):
        deadline = time.monotonic() + TIMEOUT_S
        while not is_reached():
            self.assertIsNone(agent.poll(), f"ended before {what}")
            self.assertLess(time.monotonic(), deadline, what)
            time.sleep(0.02)

    def test_a_group_leaves_and_another_joins(self):
        """Low-communication training over an elastic number of agents."""
        local_steps = 10
        more = ["training.total_train_steps=1000000",
                f"distributed.local_steps={local_steps}",
                f"checkpoint.save_frequency={local_steps}",
                "checkpoint.load_path=auto", "checkpoint.keep_last=2"]
        for program, run in self.each_program("elastic"):
            options = [
                "--nnodes", "1:2", "--nproc-per-node", "1",
                "--max-restarts", "5",
                "--rdzv-backend", "c10d", "--rdzv-id", "brigade",
                "--rdzv-endpoint", f"127.0.0.1:{free_port()}",
                "--rdzv-conf", "last_call_timeout=3,keep_alive_interval=1",
                "--local-addr", "127.0.0.1"]

            def join():
                # Their output is not read while they run. Without the variable,
                # agents of 2.14 that another one joins wait forever for an
                # address that none of them writes.
                return self.start(program, run, options, *more,
                                  output=subprocess.DEVNULL,
                                  TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")

            def groups():
                """For each step: its tokens over those of one group."""
                path = run / "metrics.jsonl"
                if not path.exists():
                    return []
                rows = [json.loads(line) for line in
                        path.read_text().splitlines(keepends=True)
                        if line.endswith("\n")]
                self.assertEqual([row["step"] for row in rows],
                                 list(range(1, len(rows) + 1)))
                totals = [0] + [row["tokens"] for row in rows]
                return [(b - a) // 128 for a, b in zip(totals, totals[1:])]

            first = join()
            self.wait_for(first, "one group", lambda: groups()[-1:] == [1])
            second = join()
            self.wait_for(first, "two groups",
                          lambda: groups()[-30:] == [2] * 30)
            # The host is lost: the agent and its rank end without a message.
            second.kill()
            for rank in processes_of(run):
                if parent_of(rank) == second.pid:
                    os.kill(rank, signal.SIGKILL)
            second.wait()
            self.wait_for(first, "one group again",
                          lambda: groups()[-30:] == [1] * 30)
            third = join()
            self.wait_for(first, "two groups again",
                          lambda: groups()[-30:] == [2] * 30)
            seen = groups()
            changes = [i for i in range(1, len(seen)) if seen[i] != seen[i - 1]]
            self.assertEqual(len(changes), 3, changes)
            for agent in (first, third):
                agent.terminate()
            for agent in (first, third):
                agent.wait(timeout=TIMEOUT_S)
            self.assertEqual(processes_of(run), [])


if __name__ == "__main__":
    unittest.main()
