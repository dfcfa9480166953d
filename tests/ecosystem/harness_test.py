#!/usr/bin/env python3
"""`brigade evaluate` against lm-evaluation-harness: its own task classes on
tasks of our own, four families of tiny models, offline; and transformers' loss.

    harness_test.py BRIGADE          # see scripts/test_ecosystem.sh
"""
import json
import math
import os
import pathlib
import sys
import tempfile
import unittest

SCRATCH = tempfile.TemporaryDirectory()
os.environ["HF_DATASETS_CACHE"] = SCRATCH.name + "/datasets"
os.environ["HF_HUB_OFFLINE"] = "1"

try:
    import tokenizers
    import torch
    import transformers
    from lm_eval import evaluator
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager
    from tokenizers import decoders, normalizers, pre_tokenizers, processors
except ImportError as error:
    print(f"harness_test: skipped: {error}", file=sys.stderr)
    sys.exit(0)

from support import run

POSITIONS = 48
TEXT = " ".join(
    f"{a} {b} the {c}, naïve.\n"
    for a in ("Once", "Then", "Here", "Now")
    for b in ("upon", "walked", "stood", "slept", "sang")
    for c in ("fox", "river", "old mill", "lantern", "quiet town"))
SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": POSITIONS,
    "initializer_range": 0.2,
}
GEMMA = {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 16,
         "final_logit_softcapping": 15.0, "attn_logit_softcapping": 20.0}
# Name: the architecture, its own keys, the tokenizer, its begin and end tokens.
FAMILIES = {
    "llama": ("llama", {"tie_word_embeddings": False}, "spaces",
              "<s>", "</s>"),
    "mistral": ("mistral", {"sliding_window": 16}, "bytes", "<s>", "</s>"),
    "gemma": ("gemma2", GEMMA, "spaces", "<bos>", "<eos>"),
    "qwen": ("qwen2", {}, "bytes", None, "<|endoftext|>"),
    # Both tokens are one, and nothing stands before a text.
    "gpt": ("llama", {"tie_word_embeddings": True}, "bytes",
            "<|endoftext|>", "<|endoftext|>"),
}
WITH_TEMPLATE = {"llama", "mistral", "gemma"}

LONG = TEXT[:400]
CHOICES = [
    {"context": "Once upon the", "choices": ["fox", "old mill", "river"],
     "gold": 0},
    {"context": "Then walked the \t", "choices": ["lantern", "town"],
     "gold": 1},
    {"context": "", "choices": ["Once upon", "Now", "naïve"], "gold": 2},
    {"context": "Here stood\u00a0\u3000", "choices": ["日本語", "fox", "é"],
     "gold": 0},
    {"context": LONG, "choices": ["fox", "quiet town, naïve.\nNow", "x"],
     "gold": 0},
    {"context": LONG[:150], "choices": ["a", LONG[150:220], "river."],
     "gold": 1},
    {"context": "Now sang the quiet", "choices": ["town", "t", "towns!"],
     "gold": 0},
    {"context": "a\nb", "choices": ["c", "dddd dddd", "ee"], "gold": 2},
    {"context": "START once", "choices": ["upon", "the"], "gold": 1},
] + [
    {"context": TEXT[i:i + 30], "choices": [
        TEXT[i + 30:i + 36].strip() or "x", "fox the", "é", "walked slept"],
     "gold": i % 4}
    for i in range(0, 900, 31)
]
LAST_WORDS = [
    {"context": c["context"], "choices": [c["choices"][0]], "gold": 0}
    for c in CHOICES]
TEXTS = [
    TEXT, "Once", "naïve 日本語 \u3000 fox\n", LONG, "  two  spaces  ",
    "START upon the fox", LONG[:90]]


def make_tokenizer(kind, begin, end, has_template):
    """A tokenizer like those of Llama 2 and Gemma (spaces), or of GPT-2,
    Llama 3 and Qwen (bytes)."""
    specials = list(dict.fromkeys(t for t in ("<unk>", begin, end) if t))
    if kind == "spaces":
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(
            unk_token="<unk>", byte_fallback=True, fuse_unk=True))
        tokenizer.normalizer = normalizers.Sequence([
            normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        tokenizer.decoder = decoders.Sequence([
            decoders.Replace("▁", " "), decoders.ByteFallback(),
            decoders.Fuse(), decoders.Strip(" ", 1, 0)])
        # Only while training, so that no token spans a space.
        tokenizer.pre_tokenizer = pre_tokenizers.Split(
            "▁", "merged_with_next")
        specials += [f"<0x{byte:02X}>" for byte in range(256)]
        alphabet = []
    else:
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
            add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        specials.remove("<unk>")
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator([TEXT], tokenizers.trainers.BpeTrainer(
        vocab_size=420, special_tokens=specials, initial_alphabet=alphabet,
        show_progress=False))
    if kind == "spaces":
        file = json.loads(tokenizer.to_str())
        file["pre_tokenizer"] = None
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(file))
    byte_level = processors.ByteLevel(trim_offsets=False)
    if has_template:
        template = processors.TemplateProcessing(
            single=f"{begin} $A", pair=f"{begin} $A {begin} $B",
            special_tokens=[(begin, tokenizer.token_to_id(begin))])
        tokenizer.post_processor = (
            template if kind == "spaces"
            else processors.Sequence([byte_level, template]))
    elif kind == "bytes":
        tokenizer.post_processor = byte_level
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=begin, eos_token=end,
        model_max_length=POSITIONS)


class Harness(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(SCRATCH.name)
        transformers.logging.set_verbosity_error()

    def make_model(self, family):
        folder = self.folder / family
        architecture, more, kind, begin, end = FAMILIES[family]
        tokenizer = make_tokenizer(
            kind, begin, end, family in WITH_TEMPLATE)
        tokenizer.save_pretrained(folder)
        torch.manual_seed(len(family))
        config = transformers.AutoConfig.for_model(
            architecture, **{**SHAPE, **more}, vocab_size=len(tokenizer),
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id)
        model = transformers.AutoModelForCausalLM.from_config(
            config, attn_implementation="eager")
        # Norms that are not all 1.
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "norm" in name:
                    weight.normal_(0 if "gemma" in architecture else 1, 0.2)
        model.to(torch.bfloat16).save_pretrained(folder)
        return folder

    @staticmethod
    def task(name, kind, file, **more):
        return {
            "task": name, "dataset_path": "json", "output_type": kind,
            "dataset_kwargs": {"data_files": {"test": str(file)}},
            "test_split": "test", **more}

    def write(self, name, lines):
        path = self.folder / name
        path.write_text("".join(
            json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
        return path

    def harness(self, folder, tasks):
        model = HFLM(
            pretrained=str(folder), dtype="float32", device="cpu",
            batch_size=3)
        return evaluator.simple_evaluate(
            model=model, tasks=tasks, bootstrap_iters=0, log_samples=True,
            task_manager=TaskManager(include_defaults=False))

    def brigade(self, folder, *arguments):
        return json.loads(run(
            "evaluate", "--run", folder, "--dtype", "float32", "--json",
            *arguments))

    def check(self, family):
        folder = self.make_model(family)
        begin = FAMILIES[family][3] or FAMILIES[family][4]

        def own(text):
            return text.replace("START", begin)

        texts = [own(text) for text in TEXTS]
        delimiter = " "
        words = LAST_WORDS + self.greedy_words(folder)
        files = {}
        for name, requests in (("choices", CHOICES), ("words", words)):
            files[name] = self.write(f"{family}-{name}.jsonl", [
                {**r, "context": own(r["context"]),
                 "target_delimiter": delimiter} for r in requests])
        files["texts"] = self.write(
            f"{family}-texts.jsonl", [{"text": text} for text in texts])
        tasks = [
            self.task(
                "choices", "multiple_choice", files["choices"],
                doc_to_text="{{context}}", doc_to_choice="choices",
                doc_to_target="gold", target_delimiter=delimiter),
            # The harness adds no delimiter before this target.
            self.task(
                "words", "loglikelihood", files["words"],
                doc_to_text="{{context}}",
                doc_to_target=delimiter + "{{choices[0]}}",
                metric_list=[{"metric": "acc"}, {"metric": "perplexity"}]),
            self.task(
                "texts", "loglikelihood_rolling", files["texts"],
                doc_to_text="", doc_to_target="{{text}}",
                metric_list=[{"metric": m} for m in (
                    "word_perplexity", "byte_perplexity", "bits_per_byte")])]
        theirs = self.harness(folder, tasks)
        scores = self.folder / "scores.jsonl"
        arguments = [x for f in files.values() for x in ("--task", f)]
        mine = self.brigade(folder, *arguments, "--scores", scores)
        self.compare_scores(theirs, scores)
        for name, metrics in {
                "choices": {"acc": "accuracy",
                            "acc_norm": "accuracy_normalized"},
                "words": {"acc": "accuracy", "perplexity": "perplexity"},
                "texts": {m: m for m in ("word_perplexity", "byte_perplexity",
                                         "bits_per_byte")}}.items():
            found = mine[str(files[name])]
            self.assertEqual(
                set(found) - {"requests", "texts"}, set(metrics.values()))
            for theirs_name, mine_name in metrics.items():
                expected = theirs["results"][name][theirs_name + ",none"]
                self.assertTrue(
                    math.isclose(found[mine_name], expected, rel_tol=1e-6),
                    f"{name} {mine_name}: {found[mine_name]}, not {expected}")
        self.assertGreater(mine[str(files["words"])]["accuracy"], 0)
        self.check_loss(folder)

    @staticmethod
    def greedy_words(folder):
        """Contexts with what the model would write next."""
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32).eval()
        requests = []
        for begin in range(0, 1500, 7):
            context = TEXT[begin:begin + 20].strip()
            ids = tokenizer(context)["input_ids"]
            with torch.no_grad():
                token = model(torch.tensor([ids])).logits[0, -1].argmax()
            whole = ids + [token.item()]
            text = tokenizer.decode(whole, skip_special_tokens=True)
            if (text.startswith(context + " ")
                    and text[len(context) + 1:].strip()
                    and tokenizer(text)["input_ids"] == whole):
                requests.append({
                    "context": context, "gold": 0,
                    "choices": [text[len(context) + 1:]]})
        return requests[:5]

    def compare_scores(self, theirs, scores):
        lines = [json.loads(line) for line in scores.read_text().splitlines()]
        at = 0
        for name in ("choices", "words", "texts"):
            for sample in sorted(
                    theirs["samples"][name], key=lambda s: s["doc_id"]):
                found = lines[at]
                at += 1
                expected = [r[0] for r in sample["resps"]]
                self.assertEqual(len(found), len(expected))
                for mine, their in zip(found, expected):
                    if name == "texts":
                        self.assertLess(
                            abs(mine["log_likelihood"] - their),
                            2e-5 * max(1, abs(their) / 100), sample["doc"])
                        continue
                    self.assertLess(
                        abs(mine["log_likelihood"] - their[0]), 2e-5,
                        sample["doc"])
                    self.assertEqual(mine["is_greedy"], their[1])
        self.assertEqual(at, len(lines))

    def check_loss(self, folder):
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32).eval()
        text = TEXT[:70]
        path = self.folder / "text.txt"
        path.write_text(text)
        ids = torch.tensor([tokenizer(text)["input_ids"]])
        self.assertLess(ids.shape[1], POSITIONS)
        with torch.no_grad():
            expected = model(ids, labels=ids).loss.item()
        mine = self.brigade(folder, "--text", path)[str(path)]
        self.assertEqual(mine["tokens"], ids.shape[1] - 1)
        self.assertTrue(
            math.isclose(mine["loss"], expected, rel_tol=1e-6),
            f"{mine['loss']}, not {expected}")
        self.assertTrue(math.isclose(
            mine["bits_per_byte"],
            expected * mine["tokens"] / math.log(2) / len(text.encode()),
            rel_tol=1e-6))

    def test_llama(self):
        self.check("llama")

    def test_mistral(self):
        self.check("mistral")

    def test_gemma(self):
        self.check("gemma")

    def test_qwen(self):
        self.check("qwen")

    def test_gpt(self):
        self.check("gpt")


if __name__ == "__main__":
    unittest.main()
