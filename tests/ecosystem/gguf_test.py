#!/usr/bin/env python3
"""Brigade's GGUF files, read by PyPI's gguf and by llama.cpp.

    gguf_test.py BRIGADE               # see scripts/test_ecosystem.sh
"""
import json
import pathlib
import random
import shutil
import subprocess
import unittest

import gguf
import numpy
import safetensors.numpy
import sentencepiece
import tokenizers
import torch
import transformers
from sentencepiece import sentencepiece_model_pb2

from support import BRIGADE, TestInFolder, run

# Where scripts/test_llama_cpp.sh has llama.cpp.
ROOT = pathlib.Path("/var/cache/brigade-debian/forky")
SOURCE = pathlib.Path(__file__).resolve().parents[2]
# A fixed text, since results depend on it.
TEXT = (SOURCE / "LICENSE").read_text()
SHAPE = {
    "vocab_size": 608, "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 4, "num_attention_heads": 4, "head_dim": 16,
    "num_key_value_heads": 2, "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5, "initializer_range": 0.2}
GEMMA = {"query_pre_attn_scalar": 16, "sliding_window": 32}

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2,
           "moe_intermediate_size": 64}
# DeepSeek-V3's router.
DEEPSEEK = {"n_routed_experts": 8, "num_experts_per_tok": 2,
            "moe_intermediate_size": 64, "n_shared_experts": 1,
            "first_k_dense_replace": 1, "norm_topk_prob": True,
            "routed_scaling_factor": 2.5}


def rope(kind, **more):
    return {"rope_parameters": {
        "rope_type": kind, "rope_theta": 10000.0, "factor": 4.0, **more}}


MODELS = {
    "llama": (transformers.LlamaConfig,
              {"attention_bias": True, "mlp_bias": True}),
    "llama3": (transformers.LlamaConfig,
               {"tie_word_embeddings": True,
                **rope("llama3", low_freq_factor=1.0, high_freq_factor=4.0,
                       original_max_position_embeddings=64)}),
    "linear": (transformers.LlamaConfig, rope("linear")),
    "yarn": (transformers.LlamaConfig,
             rope("yarn", original_max_position_embeddings=64,
                  beta_fast=16.0, attention_factor=1.3)),
    "mistral": (transformers.MistralConfig, {"sliding_window": None}),
    "qwen2": (transformers.Qwen2Config, {"tie_word_embeddings": True}),
    "qwen3": (transformers.Qwen3Config, {}),
    "mixtral": (transformers.MixtralConfig,
                {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2_moe": (transformers.Qwen2MoeConfig,
                  {**EXPERTS, "shared_expert_intermediate_size": 128}),
    "qwen3_moe": (transformers.Qwen3MoeConfig,
                  {**EXPERTS, "norm_topk_prob": True}),
    "olmoe": (transformers.OlmoeConfig,
              {"num_experts": 4, "num_experts_per_tok": 2,
               "num_key_value_heads": 4}),
    "dots1": (transformers.Dots1Config,
              {**DEEPSEEK, "num_key_value_heads": 4, "n_shared_experts": 2,
               "n_group": 4, "topk_group": 2}),
    "glm4_moe": (transformers.Glm4MoeConfig,
                 {**DEEPSEEK, "attention_bias": True, "use_qk_norm": True,
                  "partial_rotary_factor": 0.5}),
    "glm4_moe_air": (transformers.Glm4MoeConfig,
                     {**DEEPSEEK, "norm_topk_prob": False,
                      "tie_word_embeddings": True}),
    "gemma2": (transformers.Gemma2Config, GEMMA),
    "gemma3": (transformers.Gemma3TextConfig,
               {**GEMMA, "num_hidden_layers": 7}),
}
GPT2 = {"add_prefix_space": False, "use_regex": True}
WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
         r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
MARKS = (WORDS.replace(r"{1,3}", "").replace(r"?\p{L}+", r"?[\p{L}\p{M}]+")
         .replace(r"\s\p{L}\p{N}]", r"\s\p{L}\p{M}\p{N}]"))
PRE_TOKENIZERS = {
    "gpt-2": None, "smollm": None, "llama-bpe": WORDS, "smaug-bpe": WORDS,
    "qwen2": WORDS.replace(r"{1,3}", ""), "qwen35": MARKS}


def byte_level(name):
    """A tokenizer with a family's pre-tokenizer, by Hugging Face's trainer."""
    parts = tokenizers.pre_tokenizers
    regex = PRE_TOKENIZERS[name]
    if name == "gpt-2":
        cut = parts.ByteLevel(**GPT2)
    elif name == "smollm":
        cut = parts.Sequence(
            [parts.Digits(individual_digits=True), parts.ByteLevel(**GPT2)])
    else:
        cut = parts.Sequence(
            [parts.Split(tokenizers.Regex(regex), "isolated"),
             parts.ByteLevel(add_prefix_space=False, use_regex=False)])
    made = tokenizers.Tokenizer(
        tokenizers.models.BPE(ignore_merges=name == "llama-bpe"))
    made.pre_tokenizer = cut
    made.decoder = tokenizers.decoders.ByteLevel()
    if name.startswith("qwen"):
        made.normalizer = tokenizers.normalizers.NFC()
    made.train_from_iterator([TEXT], tokenizers.trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=parts.ByteLevel.alphabet()))
    return made


SPACE = "\u2581"
RUNS = [SPACE * length for length in
        (2, 4, 8, 5, 16, 6, 12, 13, 10, 14, 3, 9, 7, 11, 15)]


def sentencepiece_model(path, runs, **more):
    """Llama 2's kind, with runs of spaces of one score, as its protobuf."""
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(TEXT.splitlines()), model_type="bpe",
        model_prefix=str(path), vocab_size=580, byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False,
        minloglevel=2, **more)
    model = sentencepiece_model_pb2.ModelProto()
    file = path.with_suffix(".model")
    model.ParseFromString(file.read_bytes())
    pieces = list(model.pieces)
    del model.pieces[:]
    begin = max(i for i, piece in enumerate(pieces) if piece.type == 6) + 1
    model.pieces.extend(pieces[:begin])
    for run_of_spaces in runs:
        model.pieces.add(piece=run_of_spaces, score=-1e9)
    model.pieces.extend(pieces[begin:])
    return model


def llama2_json(model, normalized=False):
    """The tokenizer.json of a model as transformers 4 converted Llama 2's:
    where pieces have one score, the merges are in the order of their parts."""
    vocabulary = {p.piece: i for i, p in enumerate(model.pieces)}
    normal = {p.piece: p.score for p in model.pieces if p.type == 1}
    merges = [(left, right) for left in vocabulary for right in vocabulary
              if left + right in normal]
    merges.sort(key=lambda merge: -normal["".join(merge)])
    made = tokenizers.Tokenizer(tokenizers.models.BPE(
        vocabulary, merges, byte_fallback=True, fuse_unk=True,
        unk_token="<unk>"))
    made.add_special_tokens([
        tokenizers.AddedToken(text, special=True, normalized=normalized)
        for text in ("<unk>", "<s>", "</s>")])
    parts = tokenizers.normalizers
    made.normalizer = parts.Sequence(
        [parts.Prepend(SPACE), parts.Replace(" ", SPACE)])
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)])
    return made


def interleaved(weight, heads):
    """The rows as llama.cpp's "llama" rotates them: neighbours, not halves."""
    rows = weight.reshape(heads, 2, -1, *weight.shape[1:])
    return rows.swapaxes(1, 2).reshape(weight.shape)


class GeluOfATable(torch.nn.Module):
    """ggml's GELU, a table from float16 to float16 numbers."""

    def forward(self, x):
        key = x.half().float()
        found = torch.nn.functional.gelu(key, approximate="tanh").half()
        found = torch.where(x >= 10, x, found.to(x.dtype))
        return torch.where(x <= -10, torch.zeros_like(x), found)


def log_probs(folder, windows, dtype, gelu=None):
    """transformers', of each token of the windows but the first."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager").to(dtype).eval()
    for layer in model.model.layers if gelu else ():
        layer.mlp.act_fn = gelu
    ids = torch.tensor(windows)
    with torch.no_grad():
        scores = model(ids).logits[:, :-1].double().log_softmax(-1)
    return scores.gather(-1, ids[:, 1:, None]).flatten()


def same_values(folder, expected):
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    return set(tensors) == set(expected) and all(
        numpy.array_equal(tensors[name], expected[name]) for name in expected)


class Gguf(TestInFolder):
    def model(self, name, pre="gpt-2"):
        """A Hugging Face folder with random weights and a tokenizer."""
        folder = self.folder / f"{name}-{pre}"
        if folder.exists():
            return folder
        kind, more = MODELS[name]
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(
            kind(**{**SHAPE, **more})).float()
        for weight in model.parameters():
            if weight.dim() == 1:
                weight.data.add_(0.1 * torch.randn_like(weight))
        for name, bias in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                bias.copy_(0.2 * torch.randn_like(bias))
        model.save_pretrained(folder)
        byte_level(pre).save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text(json.dumps(
            {"eos_token": "<|endoftext|>", "chat_template": "{{ messages }}"}))
        return folder

    def export(self, folder, kind):
        path = folder.with_suffix(f".{kind}.gguf")
        run("export", "--run", folder, "--gguf", path, "--type", kind)
        return path

    def check_llama_cpp(self, path, model=""):
        result = subprocess.run(
            [SOURCE / "scripts" / "test_llama_cpp.sh", path, model],
            capture_output=True, text=True,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
                 "BRIGADE": str(BRIGADE)})
        if result.returncode == 77:
            self.skipTest(result.stderr.strip())
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_pypis_gguf_reads_the_same_values(self):
        folder = self.model("llama")
        weights = safetensors.numpy.load_file(folder / "model.safetensors")
        name = "model.layers.1.self_attn.k_proj.weight"
        expected = interleaved(weights[name], 2)
        for kind, tolerance in (("f32", 0), ("f16", 1e-3), ("bf16", 8e-3)):
            reader = gguf.GGUFReader(self.export(folder, kind))
            tensor = next(
                t for t in reader.tensors if t.name == "blk.1.attn_k.weight")
            read = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            self.assertLessEqual(
                numpy.abs(read.reshape(expected.shape) - expected).max(),
                tolerance * numpy.abs(expected).max())
        reader = gguf.GGUFReader(self.export(folder, "q8_0"))
        tensor = next(
            t for t in reader.tensors if t.name == "blk.1.attn_k.weight")
        self.assertEqual(
            tensor.data.tobytes(),
            gguf.quants.quantize(
                expected, gguf.GGMLQuantizationType.Q8_0).tobytes())

    def test_experts_are_stacked_as_transformers_has_them(self):
        for name in ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "dots1",
                     "glm4_moe"):
            with self.subTest(model=name):
                folder = self.model(name)
                reader = gguf.GGUFReader(self.export(folder, "f32"))
                found = {t.name: t for t in reader.tensors}
                arch = gguf.MODEL_ARCH(next(
                    key for key, value in gguf.MODEL_ARCH_NAMES.items()
                    if value == reader.fields[
                        "general.architecture"].contents()))
                names = gguf.get_tensor_name_map(arch, 4)
                for tensor in found:  # as llama.cpp's own converter names it
                    stem = tensor.rsplit(".", 1)[0]
                    self.assertIn(
                        stem, {v for _, v in names.mapping.values()})
                layer = transformers.AutoModelForCausalLM.from_pretrained(
                    folder).model.layers[1].mlp
                gate, up = layer.experts.gate_up_proj.detach().chunk(2, 1)
                for part, expected in (
                        ("gate", gate), ("up", up),
                        ("down", layer.experts.down_proj.detach())):
                    tensor = found[f"blk.1.ffn_{part}_exps.weight"]
                    numpy.testing.assert_array_equal(
                        tensor.data.reshape(expected.shape), expected)
                router = found["blk.1.ffn_gate_inp.weight"]
                numpy.testing.assert_array_equal(
                    router.data, layer.gate.weight.detach())
                if name in ("dots1", "glm4_moe"):
                    numpy.testing.assert_array_equal(
                        found["blk.1.exp_probs_b.bias"].data,
                        layer.gate.e_score_correction_bias)

    def test_the_tokenizer_and_its_template_come_along(self):
        reader = gguf.GGUFReader(self.export(self.model("llama"), "f16"))
        self.assertEqual(
            reader.fields["tokenizer.ggml.pre"].contents(), "gpt-2")
        self.assertEqual(
            reader.fields["tokenizer.chat_template"].contents(),
            "{{ messages }}")
        self.assertEqual(
            reader.fields["tokenizer.ggml.eos_token_id"].contents(), 0)
        self.assertEqual(
            len(reader.fields["tokenizer.ggml.tokens"].contents()),
            SHAPE["vocab_size"])

    def test_f32_files_come_back_bit_for_bit(self):
        for name in MODELS:
            with self.subTest(model=name):
                folder = self.model(name)
                back = folder.with_suffix(".back")
                run("import", "--gguf", self.export(folder, "f32"), "--out",
                    back)
                expected = safetensors.numpy.load_file(
                    folder / "model.safetensors")
                if not name.startswith("gemma"):  # stores 1 + w
                    self.assertTrue(same_values(back, expected))
                transformers.AutoModelForCausalLM.from_pretrained(back)
                read = tokenizers.Tokenizer.from_file(
                    str(back / "tokenizer.json"))
                self.assertEqual(
                    read.encode(TEXT).ids, byte_level("gpt-2").encode(TEXT).ids)

    def test_llama_cpp_computes_the_same(self):
        for name in MODELS:
            for kind in ("f32", "q8_0"):
                with self.subTest(model=name, kind=kind):
                    folder = self.model(name)
                    self.check_llama_cpp(self.export(folder, kind), folder)

    def test_what_gemma_differs_by_is_ggmls_table_of_gelu(self):
        """llama.cpp is at least four times as close to the table's GELU as to
        the exact one, and at most 1.5 times as far from it as float32 is."""
        for name in ("gemma2", "gemma3"):
            with self.subTest(model=name):
                folder = self.model(name)
                path = self.export(folder, "f32")
                self.check_llama_cpp(path, folder)
                ids = byte_level("gpt-2").encode(TEXT).ids[:1280]
                windows = [ids[at:at + 128] for at in range(0, 1280, 128)]
                inside = ROOT / "tmp" / "gelu.gguf"
                shutil.copyfile(path, inside)
                printed = subprocess.run(
                    ["chroot", ROOT, "/tmp/llama_cpp_oracle",
                     "/tmp/gelu.gguf", "scores"], capture_output=True,
                    check=True, text=True, input="".join(
                        " ".join(map(str, window)) + "\n"
                        for window in windows)).stdout
                inside.unlink()
                theirs = torch.tensor(
                    list(map(float, printed.split())), dtype=torch.double)
                table = GeluOfATable()
                rounded = log_probs(folder, windows, torch.double, table)
                exact = log_probs(folder, windows, torch.double)
                single = log_probs(folder, windows, torch.float, table)
                self.assertLess(
                    (theirs - rounded).norm() * 4, (theirs - exact).norm())
                self.assertLess(
                    (theirs - rounded).norm(), (single - rounded).norm() * 1.5)

    def test_llama_cpp_cuts_the_same_words(self):
        for pre in PRE_TOKENIZERS:
            with self.subTest(pre_tokenizer=pre):
                folder = self.model("linear", pre)
                self.check_llama_cpp(self.export(folder, "f32"), folder)

    def test_llama_cpp_has_the_tokens_of_a_tokenizer_of_our_own(self):
        folder = self.folder / "own"
        folder.mkdir()
        (folder / "text.txt").write_text(TEXT)
        run("prepare", "-i", folder / "text.txt", "--train-tokenizer", 600,
            "--out", folder / "data")
        config = {
            "model": {"config": {
                **SHAPE, "architectures": ["LlamaForCausalLM"],
                "vocab_size": 600}},
            "training": {"seq_length": 64, "total_train_steps": 2},
            "dataset": {"name": str(folder / "data")},
            "logging": {"run_dir": str(folder / "run")}}
        (folder / "run.json").write_text(json.dumps(config))
        run("train", "--config", folder / "run.json")
        path = folder / "own.gguf"
        run("export", "--run", folder / "run", "--gguf", path, "--type", "f32")
        self.check_llama_cpp(path, folder / "run")
        self.check_llama_cpp(path)

    def sentencepiece_folder(self, name, runs=RUNS, **more):
        """The model of a folder with a .model, and the .model's protobuf."""
        folder = self.folder / f"sentencepiece-{name}"
        shutil.copytree(self.model("llama"), folder)
        for path in folder.glob("tokenizer*"):
            path.unlink()
        proto = sentencepiece_model(self.folder / name, runs, **more)
        (folder / "tokenizer.model").write_bytes(proto.SerializeToString())
        return folder, proto

    def check_sentencepiece(self, folder):
        self.check_llama_cpp(self.export(folder, "f32"), folder)

    def test_llama_cpp_has_the_tokens_of_a_sentencepiece_model(self):
        for name, more in (("model", {}),
                           ("bare", {"add_dummy_prefix": False}),
                           ("symbols", {"add_dummy_prefix": False,
                                        "user_defined_symbols": "the,\u4e2d"})):
            with self.subTest(model=name):
                self.check_sentencepiece(
                    self.sentencepiece_folder(name, **more)[0])

    def test_llama_cpp_has_the_tokens_of_a_model_with_files_beside(self):
        for prefix in (False, True):
            folder, _ = self.sentencepiece_folder(
                f"beside-{prefix}", add_dummy_prefix=prefix)
            (folder / "added_tokens.json").write_text(
                json.dumps({"<|im_start|>": 595, "<|im_end|>": 596}))
            if prefix:  # Brigade puts spaces as transformers does.
                self.assertIn("the pre-tokenizer Metaspace never does",
                              self.notes(folder))
            else:
                self.check_sentencepiece(folder)

    def test_llama_cpp_has_the_tokens_of_llama_2s_tokenizer_json(self):
        folder, proto = self.sentencepiece_folder("json")
        (folder / "tokenizer.model").unlink()
        for normalized in (False, True):
            with self.subTest(special_tokens_are_normalized=normalized):
                made = llama2_json(proto, normalized)
                made.save(str(folder / "tokenizer.json"))
                self.check_sentencepiece(folder)
                self.check_tokens_of_tokenizers(folder, made)
        self.assertIn(
            'within words too: "<unk>", "<s>", "</s>"', self.notes(folder))

    def test_llama_cpp_has_the_tokens_of_gemmas_tokenizer_json(self):
        runs = [sign * n for sign in ("\n", SPACE) for n in range(2, 32)]
        folder, _ = self.sentencepiece_folder(
            "gemma", [], add_dummy_prefix=False, pad_id=0, eos_id=1, bos_id=2,
            unk_id=3, pad_piece="<pad>", eos_piece="<eos>", bos_piece="<bos>",
            user_defined_symbols=["<start_of_turn>", *runs])
        (folder / "tokenizer_config.json").write_text(json.dumps(
            {"tokenizer_class": "GemmaTokenizer", "bos_token": "<bos>",
             "eos_token": "<eos>"}))
        made = transformers.AutoTokenizer.from_pretrained(folder)
        made.save_pretrained(folder)
        (folder / "tokenizer.model").unlink()
        self.check_sentencepiece(folder)

    def check_tokens_of_tokenizers(self, folder, made):
        """The tokens of 2,000 texts; </s> ends each of them in the dataset."""
        draw = random.Random(1)
        pieces = TEXT.split() + [
            "<s>", "<unk>", " ", "  ", " " * 9, " " * 40, "\n", "\n\n", "\t",
            "\u00a0", SPACE, "中文", "é", "🚒", "e\u0301", "<0x41>", "\x00"]
        texts = ["".join(draw.choice(pieces) + draw.choice(("", " "))
                         for _ in range(draw.randint(1, 20)))
                 for _ in range(2000)]
        (folder / "texts.jsonl").write_text("".join(
            json.dumps({"text": text}) + "\n" for text in texts))
        run("prepare", "-i", folder / "texts.jsonl", "--tokenizer", folder,
            "--out", folder / "texts", "--overwrite")
        self.assertEqual(
            numpy.fromfile(folder / "texts.bin", numpy.uint16).tolist(),
            [i for text in texts
             for i in made.encode(text, add_special_tokens=False).ids + [2]])

    def notes(self, folder):
        return run("export", "--run", folder, "--gguf", folder / "out.gguf")

    def test_the_export_names_what_llama_cpp_does_with_symbols(self):
        folder, _ = self.sentencepiece_folder(
            "prefixed", user_defined_symbols="the")
        self.assertIn(
            "puts a space behind the user's symbols", self.notes(folder))


if __name__ == "__main__":
    unittest.main(verbosity=2)
