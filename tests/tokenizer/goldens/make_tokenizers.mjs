// Writes the small tokenizer.json files of this folder: vocabularies trained by
// Hugging Face's engine on a page of text, with the parts that real families
// use. Run after `npm install tokenizers@0.23.2` in a folder of your own:
//   NODE_MODULES=/path/to/node_modules node make_tokenizers.mjs
import { createRequire } from 'node:module';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';

const require = createRequire(process.env.NODE_MODULES + '/');
const hf = require('tokenizers');
const here = path.dirname(new URL(import.meta.url).pathname);

const sample = `
The quick brown fox jumps over the lazy dog. The bucket brigade passes buckets hand to hand; so does a ring
all-reduce. "It's what they've said: I'll, we're, you'd," she didn't answer. Numbers: 1 12 123 1234 12345, 3.14159, 2026-11-21.
def main(args):\n    for i in range(10):\n        print(f"{i}: {args[i]}")\n    return {"key": [1, 2, 3]}\n
int32_t next(const std::vector<int>& v, size_t at) { return at + 1 < v.size() ? v[at + 1] : -1; } // comment
naïve café résumé über straße façade Ångström. Привет, мир! Γειά σου Κόσμε. 你好，世界。日本語のテキスト。 안녕하세요 세계
שלום עולם مرحبا بالعالم नमस्ते दुनिया สวัสดีชาวโลก 😀 👩‍🚀 🇩🇪 ½ ² Ⅻ ﬁ
gradients are summed, gradients are averaged, the gradient of the loss; tokens, tokenizers, tokenization.
`.repeat(3);
const corpus = path.join(os.tmpdir(), `brigade-goldens-${process.pid}.txt`);
fs.writeFileSync(corpus, sample);

// Trains on text as `normalizer` and `preTokenizer` give it. Returns the model.
function train(vocabSize, special, preTokenizer, normalizer, alphabet) {
  const tokenizer = new hf.Tokenizer(hf.BPE.empty());
  if (normalizer) tokenizer.setNormalizer(normalizer);
  if (preTokenizer) tokenizer.setPreTokenizer(preTokenizer);
  tokenizer.train([corpus]);
  const trained = path.join(os.tmpdir(), `brigade-goldens-${process.pid}.json`);
  tokenizer.save(trained, false);
  const model = JSON.parse(fs.readFileSync(trained)).model;
  fs.unlinkSync(trained);
  // The trainer takes no options here: keep the first merges only.
  const chars = [...new Set([...alphabet, ...Object.keys(model.vocab).filter((t) => [...t].length === 1)])].sort();
  const vocab = {};
  for (const token of [...special, ...chars]) vocab[token] = Object.keys(vocab).length;
  const merges = [];
  for (const [a, b] of model.merges) {
    if (Object.keys(vocab).length >= vocabSize) break;
    if (!(a in vocab) || !(b in vocab)) continue;
    merges.push([a, b]);
    if (!(a + b in vocab)) vocab[a + b] = Object.keys(vocab).length;
  }
  return { vocab, merges };
}

const byteTokens = Array.from({ length: 256 }, (_, i) => `<0x${i.toString(16).toUpperCase().padStart(2, '0')}>`);
const byteAlphabet = (() => {
  const printable = [];
  for (let b = 0; b < 256; ++b) if ((b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174) printable.push(b);
  let next = 256;
  return Array.from({ length: 256 }, (_, b) => String.fromCodePoint(printable.includes(b) ? b : next++));
})();

function bpe({ vocab, merges }, options = {}) {
  return {
    type: 'BPE', dropout: null, unk_token: null, continuing_subword_prefix: null, end_of_word_suffix: null,
    fuse_unk: false, byte_fallback: false, ignore_merges: false, vocab,
    merges: options.legacy_merges ? merges.map((m) => m.join(' ')) : merges,
    ...Object.fromEntries(Object.entries(options).filter(([k]) => k !== 'legacy_merges')),
  };
}
function added(id, content, options = {}) {
  return { id, content, single_word: false, lstrip: false, rstrip: false, normalized: false, special: true, ...options };
}
function write(name, parts) {
  const file = {
    version: '1.0', truncation: null, padding: null, added_tokens: [], normalizer: null, pre_tokenizer: null,
    post_processor: null, decoder: null, ...parts,
  };
  fs.writeFileSync(path.join(here, name + '.json'), JSON.stringify(file) + '\n');
  hf.Tokenizer.fromFile(path.join(here, name + '.json'));
}
const byteLevel = { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: true };
const rawByteLevel = { ...byteLevel, use_regex: false };
const size = (m) => Object.keys(m.vocab).length;
const split = (pattern, behavior, invert = false) => ({ type: 'Split', pattern, behavior, invert });
const byteModel = (n) => train(n, [], hf.byteLevelPreTokenizer(false), null, byteAlphabet);
const meta = (n, special, alphabet = []) =>
  train(n, special, hf.metaspacePreTokenizer('▁', 'always'), null, ['▁', ...alphabet]);

// Llama 3: a regex and raw bytes; whole words before merges.
{
  const m = byteModel(700);
  const n = size(m);
  write('llama3_like', {
    added_tokens: [added(n, '<|begin_of_text|>'), added(n + 1, '<|end_of_text|>'), added(n + 2, '<|eot_id|>')],
    pre_tokenizer: { type: 'Sequence', pretokenizers: [
      split({ Regex: "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+" }, 'Isolated'),
      rawByteLevel] },
    post_processor: { type: 'Sequence', processors: [
      { ...byteLevel, add_prefix_space: true },
      { type: 'TemplateProcessing',
        single: [{ SpecialToken: { id: '<|begin_of_text|>', type_id: 0 } }, { Sequence: { id: 'A', type_id: 0 } }],
        pair: [{ Sequence: { id: 'A', type_id: 0 } }, { Sequence: { id: 'B', type_id: 1 } }],
        special_tokens: { '<|begin_of_text|>': { id: '<|begin_of_text|>', ids: [n], tokens: ['<|begin_of_text|>'] } } }] },
    decoder: { ...byteLevel, add_prefix_space: true },
    model: bpe(m, { ignore_merges: true }),
  });
}
// Qwen 2: NFC, possessive regex, legacy merges.
{
  const m = byteModel(600);
  const n = size(m);
  write('qwen2_like', {
    added_tokens: [added(n, '<|endoftext|>'), added(n + 1, '<|im_start|>'), added(n + 2, '<|im_end|>'),
      added(n + 3, '<tool_call>', { special: false })],
    normalizer: { type: 'NFC' },
    pre_tokenizer: { type: 'Sequence', pretokenizers: [
      split({ Regex: "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+" }, 'Isolated'),
      rawByteLevel] },
    post_processor: byteLevel, decoder: byteLevel, model: bpe(m, { legacy_merges: true, unk_token: null, continuing_subword_prefix: '', end_of_word_suffix: '' }),
  });
}
// RoBERTa: a space in front, added tokens that take white space along.
{
  const m = byteModel(500);
  const n = size(m);
  write('roberta_like', {
    added_tokens: [added(n, '<s>'), added(n + 1, '</s>'), added(n + 2, '<mask>', { lstrip: true, rstrip: true }),
      added(n + 3, 'fox', { single_word: true, special: false, normalized: true }),
      added(n + 4, '[L]', { lstrip: true }), added(n + 5, '[R]', { rstrip: true, normalized: true, special: false })],
    pre_tokenizer: { ...byteLevel, add_prefix_space: true },
    post_processor: { type: 'RobertaProcessing', sep: ['</s>', n + 1], cls: ['<s>', n], trim_offsets: true, add_prefix_space: true },
    decoder: byteLevel, model: bpe(m),
  });
}
// StarCoder and SmolLM: digits apart, then GPT-2's regex.
{
  const m = byteModel(600);
  write('smollm_like', {
    added_tokens: [added(size(m), '<|endoftext|>')],
    pre_tokenizer: { type: 'Sequence', pretokenizers: [{ type: 'Digits', individual_digits: true }, byteLevel] },
    decoder: byteLevel, model: bpe(m),
  });
}
// DeepSeek: several regexes one after the other, then bytes.
{
  const m = byteModel(600);
  const n = size(m);
  write('deepseek_like', {
    added_tokens: [added(n, '<｜begin▁of▁sentence｜>'), added(n + 1, '<｜end▁of▁sentence｜>')],
    normalizer: { type: 'Sequence', normalizers: [] },
    pre_tokenizer: { type: 'Sequence', pretokenizers: [
      split({ Regex: '\\p{N}{1,3}' }, 'Isolated'),
      split({ Regex: '[一-龥぀-ゟ゠-ヿ]+' }, 'Isolated'),
      split({ Regex: '\\p{Han}+\\p{^Greek}' }, 'Isolated'),
      split({ Regex: "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+" }, 'Isolated'),
      rawByteLevel] },
    post_processor: { type: 'TemplateProcessing',
      single: [{ SpecialToken: { id: 'bos', type_id: 0 } }, { Sequence: { id: 'A', type_id: 0 } }, { SpecialToken: { id: 'eos', type_id: 0 } }],
      pair: [{ Sequence: { id: 'A', type_id: 0 } }, { Sequence: { id: 'B', type_id: 1 } }],
      special_tokens: { bos: { id: 'bos', ids: [n], tokens: ['x'] }, eos: { id: 'eos', ids: [n + 1, n], tokens: ['y', 'z'] } } },
    decoder: byteLevel, model: bpe(m),
  });
}
const llamaDecoder = { type: 'Sequence', decoders: [
  { type: 'Replace', pattern: { String: '▁' }, content: ' ' }, { type: 'ByteFallback' }, { type: 'Fuse' },
  { type: 'Strip', content: ' ', start: 1, stop: 0 }] };
// Mistral, newer Llama 2 conversions: Metaspace in front of the first piece only.
write('mistral_like', {
  added_tokens: [added(0, '<unk>'), added(1, '<s>'), added(2, '</s>')],
  pre_tokenizer: { type: 'Metaspace', replacement: '▁', prepend_scheme: 'first', split: false },
  decoder: llamaDecoder,
  model: bpe(meta(800, ['<unk>', '<s>', '</s>', ...byteTokens]), { unk_token: '<unk>', fuse_unk: true, byte_fallback: true }),
});
// Llama 2's older conversion with added tokens of every kind: the whole text is one word.
{
  const m = meta(900, ['<unk>', '<s>', '</s>', ...byteTokens]);
  const n = size(m);
  write('llama2_like', {
    added_tokens: [added(0, '<unk>', { normalized: true }), added(1, '<s>'), added(2, '</s>', { normalized: true }),
      added(n, '<pad>', { special: false, normalized: true, rstrip: true }), added(n + 1, '  ', { special: false })],
    normalizer: { type: 'Sequence', normalizers: [
      { type: 'Prepend', prepend: '▁' }, { type: 'Replace', pattern: { String: ' ' }, content: '▁' }] },
    decoder: llamaDecoder,
    model: bpe(m, { unk_token: '<unk>', fuse_unk: true, byte_fallback: true }),
  });
}
// Gemma: spaces replaced, split behind them.
write('gemma_like', {
  added_tokens: [added(0, '<pad>'), added(1, '<eos>'), added(2, '<bos>'), added(3, '<unk>')],
  normalizer: { type: 'Replace', pattern: { String: ' ' }, content: '▁' },
  pre_tokenizer: split({ String: '▁' }, 'MergedWithPrevious'),
  decoder: { type: 'Sequence', decoders: [{ type: 'Replace', pattern: { String: '▁' }, content: ' ' }, { type: 'ByteFallback' }, { type: 'Fuse' }] },
  model: bpe(meta(700, ['<pad>', '<eos>', '<bos>', '<unk>', ...byteTokens]), { unk_token: '<unk>', fuse_unk: true, byte_fallback: true }),
});
// Metaspace in front of every piece, NFKC, unknown characters fused.
write('metaspace_unk', {
  added_tokens: [added(0, '<unk>', { special: true, normalized: true })],
  normalizer: { type: 'Sequence', normalizers: [{ type: 'NFKC' }, { type: 'Strip', strip_left: true, strip_right: true },
    { type: 'Replace', pattern: { Regex: ' {2,}' }, content: ' ' }] },
  pre_tokenizer: { type: 'Sequence', pretokenizers: [{ type: 'Metaspace', replacement: '▁', prepend_scheme: 'always', split: true },
    { type: 'Punctuation', behavior: 'MergedWithPrevious' }, { type: 'Digits', individual_digits: false }] },
  decoder: { type: 'Metaspace', replacement: '▁', prepend_scheme: 'always', split: true },
  model: bpe(meta(400, ['<unk>']), { unk_token: '<unk>', fuse_unk: true }),
});
// Some bytes have tokens and some do not; unknown characters are not fused.
write('partial_bytes', {
  added_tokens: [],
  normalizer: { type: 'Sequence', normalizers: [{ type: 'NFD' }, { type: 'Lowercase' }] },
  decoder: { type: 'Sequence', decoders: [{ type: 'ByteFallback' }, { type: 'Fuse' }, { type: 'Strip', content: 'e', start: 2, stop: 0 }] },
  model: bpe(meta(500, ['<unk>', ...byteTokens.filter((_, i) => i < 128 || i % 3 !== 0)], [' ']), { unk_token: '<unk>', byte_fallback: true }),
});
// Words of letters, lower-cased and decomposed; characters without a token vanish; no decoder.
write('whitespace', {
  added_tokens: [],
  normalizer: { type: 'Sequence', normalizers: [{ type: 'NFKD' }, { type: 'Lowercase' }] },
  pre_tokenizer: { type: 'Whitespace' },
  model: bpe(train(350, [], hf.whitespacePreTokenizer(), null, [])),
});
write('whitespace_split', {
  added_tokens: [],
  pre_tokenizer: { type: 'Sequence', pretokenizers: [{ type: 'WhitespaceSplit' },
    { type: 'Punctuation' }, { type: 'Digits', individual_digits: true }] },
  decoder: { type: 'Fuse' },
  model: bpe(train(350, ['[UNK]'], hf.whitespaceSplitPreTokenizer(), null, []), { unk_token: '[UNK]' }),
});
// Every behavior of Split, by string and by regex, inverted and not.
{
  const m = byteModel(400);
  const behaviors = ['Removed', 'Isolated', 'MergedWithPrevious', 'MergedWithNext', 'Contiguous'];
  for (const behavior of behaviors) {
    for (const invert of [false, true]) {
      write(`split_${behavior.toLowerCase()}${invert ? '_inverted' : ''}`, {
        pre_tokenizer: { type: 'Sequence', pretokenizers: [
          split({ String: 'e' }, behavior, invert),
          split({ Regex: '[aeiou\\s]{1,2}|\\w\\d*(?=.)|\\b' }, behavior, invert), rawByteLevel] },
        decoder: byteLevel, model: bpe({ vocab: m.vocab, merges: m.merges.slice(0, 60) }),
      });
    }
  }
}
fs.unlinkSync(corpus);
