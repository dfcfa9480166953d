#!/usr/bin/env python3
"""What Brigade writes, read by the Python ecosystem, and the other way round.

    ecosystem_test.py BRIGADE          # see scripts/test_ecosystem.sh
"""
import json
import math
import shutil
import unittest

import numpy
import safetensors.torch
import tokenizers
import torch
import transformers
from tensorboard.backend.event_processing.event_accumulator import (
    EventAccumulator,
)

from support import LAYOUTS, TEXT, TestInFolder, run


SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "initializer_range": 0.2,
}
DEEPSEEK = {
    "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2,
    "n_group": 4, "topk_group": 2, "moe_intermediate_size": 32,
    "norm_topk_prob": True, "routed_scaling_factor": 1.5}
MODELS = {
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama",
              "tie_word_embeddings": False},
    "llama_tied": {"architectures": ["LlamaForCausalLM"],
                   "model_type": "llama", "tie_word_embeddings": True},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
              "head_dim": 16},
    "gemma2": {"architectures": ["Gemma2ForCausalLM"],
               "model_type": "gemma2", "head_dim": 16,
               "query_pre_attn_scalar": 16, "sliding_window": 32,
               "attn_logit_softcapping": 20.0,
               "final_logit_softcapping": 15.0},
    "gemma3": {"architectures": ["Gemma3ForCausalLM"],
               "model_type": "gemma3_text", "head_dim": 16,
               "query_pre_attn_scalar": 16, "sliding_window": 32},
    "qwen3_moe": {"architectures": ["Qwen3MoeForCausalLM"],
                  "model_type": "qwen3_moe", "head_dim": 16,
                  "num_experts": 4, "num_experts_per_tok": 2,
                  "moe_intermediate_size": 32, "norm_topk_prob": True},
    "mixtral": {"architectures": ["MixtralForCausalLM"],
                "model_type": "mixtral", "num_local_experts": 4,
                "num_experts_per_tok": 2},
    "qwen2_moe": {"architectures": ["Qwen2MoeForCausalLM"],
                  "model_type": "qwen2_moe", "num_experts": 4,
                  "num_experts_per_tok": 2, "moe_intermediate_size": 32,
                  "shared_expert_intermediate_size": 48},
    "olmoe": {"architectures": ["OlmoeForCausalLM"], "model_type": "olmoe",
              "num_experts": 4, "num_experts_per_tok": 2},
    "dots1": {"architectures": ["Dots1ForCausalLM"], "model_type": "dots1",
              "head_dim": 16, "first_k_dense_replace": 1, **DEEPSEEK},
    "glm4_moe": {"architectures": ["Glm4MoeForCausalLM"],
                 "model_type": "glm4_moe", "head_dim": 16,
                 "attention_bias": True, "use_qk_norm": True, **DEEPSEEK},
}
OTHER_LAYOUTS = {
    "olmoe": LAYOUTS | {"pp2_ep2": ["--nproc", "4", "distributed.pp_size=2",
                                    "distributed.ep_size=2"]},
}


class Ecosystem(TestInFolder):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.text = cls.folder / "text.txt"
        cls.text.write_text(TEXT)
        cls.tokenizer = cls.train_tokenizer()
        run("prepare", "-i", cls.text, "--tokenizer", cls.tokenizer,
            "--out", cls.folder / "tokens")
        cls.tokens = torch.from_numpy(numpy.fromfile(
            cls.folder / "tokens.bin", dtype=numpy.uint16).astype("int64"))

    @classmethod
    def train_tokenizer(cls):
        """A byte-level BPE by Hugging Face's own trainer."""
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
            add_prefix_space=False)
        tokenizer.decoder = tokenizers.decoders.ByteLevel()
        tokenizer.train_from_iterator(
            [TEXT],
            tokenizers.trainers.BpeTrainer(
                vocab_size=320,
                special_tokens=["<|endoftext|>"],
                initial_alphabet=tokenizers.pre_tokenizers.ByteLevel
                .alphabet()))
        path = cls.folder / "tokenizer.json"
        tokenizer.save(str(path))
        cls.vocabulary = tokenizer.get_vocab_size()
        return path

    def train(self, model, layout):
        name = f"{model}-{layout}"
        run_folder = self.folder / name
        if run_folder.exists():
            return run_folder
        config = {
            "model": {"config": {**SHAPE, **MODELS[model],
                                 "vocab_size": self.vocabulary}},
            "training": {"seq_length": 64, "total_train_steps": 2,
                         "gradient_accumulation_steps": 2,
                         "learning_rate": 1e-2},
            "dataset": {"name": str(self.folder / "tokens")},
            "logging": {"run_dir": str(run_folder), "tensorboard": True},
        }
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps(config))
        layouts = OTHER_LAYOUTS.get(model, LAYOUTS)
        run("train", "--config", path, *layouts[layout])
        return run_folder

    def evaluate(self, folder):
        return json.loads(run(
            "evaluate", "--run", folder, "--text", self.text, "--tokenizer",
            self.tokenizer, "--seq-length", 64, "--json"))[str(self.text)]

    def loss_of(self, model):
        """transformers' loss over the same windows."""
        ids = tokenizers.Tokenizer.from_file(str(self.tokenizer)).encode(
            TEXT).ids
        nats, count = 0.0, 0
        with torch.no_grad():
            for begin in range(0, len(ids) - 1, 64):
                window = torch.tensor(ids[begin:begin + 65])
                logits = model(window[None, :-1]).logits[0].double()
                nats += torch.nn.functional.cross_entropy(
                    logits, window[1:], reduction="sum").item()
                count += len(window) - 1
        return nats / count, count

    def log_probabilities(self, folder):
        """Brigade's [tokens of the dataset - 1, vocabulary], in windows."""
        file = self.folder / "whole.topk"
        run("evaluate", "--run", folder, "--dataset", self.folder / "tokens",
            "--seq-length", 64, "--top-k", file, "--k", self.vocabulary)
        # A record is so many ids, log-probabilities and a checksum
        # (brigade/data/teacher_file.h); the first token has none.
        count = len(self.tokens) - 1
        records = numpy.frombuffer(
            file.read_bytes()[-count * (8 * self.vocabulary + 4):],
            dtype=[("ids", "<u4", self.vocabulary),
                   ("logs", "<f4", self.vocabulary), ("sum", "<u4")])
        return torch.empty(count, self.vocabulary).scatter_(
            1, torch.from_numpy(records["ids"].astype("int64")),
            torch.from_numpy(records["logs"].copy()))

    def check_logits(self, folder, model):
        """Compares the logits of all tokens: each operation in float32 rounds
        by up to 6e-8, relative to the largest, some 8."""
        with torch.no_grad():
            logits = torch.cat([
                model(self.tokens[None, begin:begin + 64]).logits[0]
                for begin in range(0, len(self.tokens) - 1, 64)])[
                    :len(self.tokens) - 1]
        differences = (self.log_probabilities(folder)
                       - logits.double().log_softmax(-1)).abs()
        self.assertLess(
            differences.max().item(), 1e-5 * logits.abs().max().item())

    def check(self, model, layout):
        run_folder = self.train(model, layout)
        exported = self.folder / f"{model}-{layout}-hf"
        if not exported.exists():
            run("export", "--checkpoint", run_folder, "--out", exported)
        mine = self.evaluate(run_folder)
        theirs = transformers.AutoModelForCausalLM.from_pretrained(
            exported, dtype=torch.float32).eval()
        loss, count = self.loss_of(theirs)
        self.assertEqual(mine["tokens"], count)
        self.assertLess(abs(mine["loss"] - loss), 1e-5)
        self.check_logits(run_folder, theirs)
        # What transformers saves is read back.
        saved = self.folder / f"{model}-{layout}-saved"
        theirs.save_pretrained(saved, max_shard_size="100KB")
        self.assertLess(
            abs(self.evaluate(saved)["loss"] - mine["loss"]), 1e-6)
        self.check_export_of_folder(saved, theirs)
        if "num_experts_per_tok" in MODELS[model]:
            self.check_fused_experts(run_folder, exported, theirs)
        return exported, theirs, run_folder

    def check_export_of_folder(self, saved, model):
        """What transformers saved, exported: the same weights, bit for bit,
        and rounded as torch rounds."""
        for dtype in ("float32", "bfloat16"):
            out = saved.with_name(f"{saved.name}-{dtype}")
            if out.exists():
                continue
            run("export", "--run", saved, "--out", out, "--dtype", dtype)
            again = transformers.AutoModelForCausalLM.from_pretrained(
                out, dtype="auto")
            self.assertEqual(again.dtype, getattr(torch, dtype))
            expected = model.state_dict()
            for name, weight in again.state_dict().items():
                # A router's bias is float32 beside bfloat16.
                self.assertTrue(torch.equal(
                    weight, expected[name].to(weight.dtype)), name)
                self.assertEqual(
                    weight.dtype == again.dtype,
                    dtype == "float32" or not name.endswith(
                        "e_score_correction_bias"), name)

    def check_fused_experts(self, run_folder, exported, model):
        """A layer's experts together: the tensors that transformers has in
        memory, which it loads, and the same model."""
        fused = exported.with_name(f"{exported.name}-fused")
        run("export", "--run", run_folder, "--out", fused, "--experts",
            "fused")
        memory = exported.with_name(f"{exported.name}-memory")
        model.save_pretrained(memory, save_original_format=False)
        mine, theirs = (
            safetensors.torch.load_file(folder / "model.safetensors")
            for folder in (fused, memory))
        self.assertEqual(mine.keys(), theirs.keys())
        self.assertTrue(any(name.endswith(".experts.gate_up_proj")
                            for name in mine))
        for name, weight in theirs.items():
            self.assertTrue(torch.equal(mine[name], weight), name)
        loaded, report = transformers.AutoModelForCausalLM.from_pretrained(
            fused, dtype=torch.float32, output_loading_info=True)
        self.assertFalse(any(report.values()), report)
        ids = torch.arange(64)[None]
        with torch.no_grad():
            self.assertTrue(torch.equal(
                loaded.eval()(ids).logits, model(ids).logits))
        self.assertEqual(self.evaluate(fused), self.evaluate(exported))

    def test_exported_models_have_transformers_losses(self):
        for model in MODELS:
            for layout in OTHER_LAYOUTS.get(model, LAYOUTS):
                with self.subTest(model=model, layout=layout):
                    self.check(model, layout)

    def test_the_tokenizer_comes_along(self):
        exported, model, _ = self.check("llama", "one")
        tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
        expected = tokenizers.Tokenizer.from_file(str(self.tokenizer))
        self.assertEqual(
            tokenizer(TEXT)["input_ids"], expected.encode(TEXT).ids)
        self.assertEqual(tokenizer.eos_token, "<|endoftext|>")
        self.assertEqual(model.config.eos_token_id, tokenizer.eos_token_id)

    def test_choices_have_transformers_log_likelihoods(self):
        exported, model, run_folder = self.check("llama", "one")
        requests = [
            {"context": "Once upon the", "choices": [" fox", " old mill"],
             "gold": 0},
            {"context": "Then walked", "choices": [" the lantern."],
             "gold": 0}]
        task = self.folder / "task.jsonl"
        task.write_text("".join(json.dumps(r) + "\n" for r in requests))
        scores = self.folder / "scores.jsonl"
        run("evaluate", "--run", run_folder, "--tokenizer", self.tokenizer,
            "--task", task, "--scores", scores)
        encode = tokenizers.Tokenizer.from_file(str(self.tokenizer)).encode
        for request, line in zip(
                requests, scores.read_text().splitlines(), strict=True):
            for choice, score in zip(
                    request["choices"], json.loads(line), strict=True):
                context = encode(request["context"]).ids
                whole = torch.tensor(encode(request["context"] + choice).ids)
                with torch.no_grad():
                    logs = torch.log_softmax(
                        model(whole[None]).logits[0].double(), -1)
                expected = sum(
                    logs[i - 1, whole[i]].item()
                    for i in range(len(context), len(whole)))
                self.assertLess(
                    abs(score["log_likelihood"] - expected), 1e-4)

    def test_safetensors_and_tensorboard_read_our_files(self):
        run_folder = self.train("llama_tied", "one")
        file = run_folder / "checkpoints" / "2" / "model.safetensors"
        if not file.exists():
            file = run_folder / "checkpoints" / "2" / "model-rank-0.safetensors"
        tensors = safetensors.torch.load_file(file)
        self.assertEqual(
            tensors["model.embed_tokens.weight"].shape,
            (self.vocabulary, SHAPE["hidden_size"]))
        rows = [json.loads(line) for line in
                (run_folder / "metrics.jsonl").read_text().splitlines()]
        events = EventAccumulator(str(run_folder))
        events.Reload()
        for event, row in zip(
                events.Scalars("train/loss"), rows, strict=True):
            self.assertEqual(event.step, row["step"])
            self.assertTrue(math.isclose(
                event.value, row["loss"], rel_tol=1e-6))

    def test_texts_begin_the_same_with_a_tokenizer_of_our_own(self):
        """Compares training, generation, evaluation and transformers."""
        folder = self.folder / "own"
        folder.mkdir()
        run("prepare", "-i", self.text, "--train-tokenizer", 330,
            "--out", folder / "data")
        config = {
            "model": {"config": {**SHAPE, **MODELS["llama"],
                                 "vocab_size": 330}},
            "training": {"seq_length": 64, "total_train_steps": 1},
            "dataset": {"name": str(folder / "data")},
            "logging": {"run_dir": str(folder / "run")},
        }
        (folder / "run.json").write_text(json.dumps(config))
        run("train", "--config", folder / "run.json")
        run("export", "--checkpoint", folder / "run", "--out",
            folder / "exported")
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            folder / "exported")
        ids = tokenizer(TEXT)["input_ids"]
        self.assertEqual(ids[0], tokenizer.bos_token_id)
        trained = numpy.fromfile(folder / "data.bin", dtype=numpy.uint16)
        self.assertEqual(trained.tolist(), ids + [tokenizer.eos_token_id])
        for model in (folder / "run", folder / "exported"):
            evaluated = json.loads(run(
                "evaluate", "--run", model, "--text", self.text, "--json"))
            self.assertEqual(
                evaluated[str(self.text)]["tokens"], len(ids) - 1)
            generated = json.loads(run(
                "generate", "--run", model, "--prompt", "Once upon",
                "--max-tokens", 1, "--json"))
            self.assertEqual(
                generated["prompt_tokens"],
                len(tokenizer("Once upon")["input_ids"]))

    def test_tensorboard_shows_each_step_of_a_continued_run_once(self):
        run_folder = self.folder / "continued"
        config = {
            "model": {"config": {**SHAPE, **MODELS["llama"],
                                 "vocab_size": self.vocabulary}},
            "training": {"seq_length": 64, "total_train_steps": 6},
            "dataset": {"name": str(self.folder / "tokens")},
            "checkpoint": {"save_frequency": 2},
            "logging": {"run_dir": str(run_folder), "tensorboard": True},
        }
        path = self.folder / "continued.json"
        path.write_text(json.dumps(config))

        def train(load_path, steps):
            run("train", "--config", path,
                f"checkpoint.load_path={load_path}",
                f"training.total_train_steps={steps}")
            events = EventAccumulator(str(run_folder))
            events.Reload()
            for tag in events.Tags()["scalars"]:
                self.assertEqual(
                    [event.step for event in events.Scalars(tag)],
                    list(range(1, steps + 1)))

        train("", 6)
        train(run_folder / "checkpoints" / "4", 8)
        train(run_folder / "checkpoints" / "2", 5)
        # After a kill: steps after the last checkpoint, and half a record.
        newest = sorted(run_folder.glob("events.out.tfevents.*"))[-1]
        newest.write_bytes(newest.read_bytes()[:-20])
        shutil.rmtree(run_folder / "checkpoints" / "5")
        train("auto", 6)


if __name__ == "__main__":
    unittest.main()
