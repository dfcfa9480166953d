// Writes texts.json and goldens.json: what Hugging Face's own engine makes of
// the texts with each tokenizer of this folder and of ../shared/data/tokenizers.
//   NODE_MODULES=/path/to/node_modules node make_goldens.mjs
// with the npm package tokenizers 0.23.2 in node_modules.
//
// That engine refuses llama2.json: three of its merges, written "left right",
// are of tokens that hold spaces themselves. There is one way to read each, and
// load() hands them over as ["left", "right"].
//
// A text's digest is 32-bit FNV-1a over: the ids without template, the ids with
// it, the decoded text of the latter with special tokens and without; ids and
// bytes as little-endian u32 with their count in front. The digest of several
// texts goes on over them.
import { createRequire } from 'node:module';
import fs from 'node:fs';
import path from 'node:path';

const require = createRequire(process.env.NODE_MODULES + '/');
const hf = require('tokenizers');
const here = path.dirname(new URL(import.meta.url).pathname);
const shared = path.resolve(here, '../../../../../shared/data');
const blockTexts = 50;

let state = 12345;
const random = (n) => { // 0 .. n-1; the high bits of a linear congruence
  state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
  return Math.floor((state / 4294967296) * n);
};
const pick = (list) => list[random(list.length)];

const names = fs.readdirSync(here).filter((f) => f.endsWith('.json') && !['texts.json', 'goldens.json'].includes(f))
  .map((f) => ({ name: f.slice(0, -5), file: path.join(here, f), shared: false }));
for (const name of ['llama2', 'phi2']) {
  const file = path.join(shared, 'tokenizers', name + '.json');
  if (fs.existsSync(file)) names.push({ name, file, shared: true });
}

// Ranges of code points, weighted by repetition. None holds characters assigned
// after Unicode 14, on which regex engines differ by their age.
const ascii = [0x20, 0x7e], space = [0x20, 0x20];
const ranges = [ascii, ascii, ascii, ascii, space, space, [0x0, 0x1f], [0x7f, 0x9f], [0xa0, 0xff], [0x100, 0x24f], [0x250, 0x2af],
  [0x300, 0x36f], [0x300, 0x36f], [0x391, 0x3c9], [0x400, 0x45f], [0x531, 0x556], [0x5d0, 0x5ea], [0x600, 0x6ff], [0x904, 0x939],
  [0x93e, 0x94d], [0xe01, 0xe3a], [0xe40, 0xe4e], [0x10a0, 0x10c5], [0x1100, 0x1112], [0x1161, 0x1175], [0x11a8, 0x11c2], [0x1680, 0x1680],
  [0x1780, 0x17b3], [0x1e00, 0x1eff], [0x1f00, 0x1f15], [0x2000, 0x200f], [0x2010, 0x206f], [0x2070, 0x209c], [0x20ac, 0x20ac],
  [0x20d0, 0x20f0], [0x2100, 0x218b], [0x2190, 0x21ff], [0x2200, 0x22ff], [0x2460, 0x24ff], [0x2500, 0x25ff], [0x2600, 0x26ff],
  [0x2700, 0x27bf], [0x2581, 0x2581], [0x3000, 0x3029], [0x3041, 0x3096], [0x309b, 0x30ff], [0x4e00, 0x9fa5], [0x4e00, 0x9fa5],
  [0xac00, 0xd7a3], [0xe000, 0xe010], [0xf900, 0xfa6d], [0xfb00, 0xfb06], [0xfb1d, 0xfb36], [0xfe00, 0xfe0f], [0xfe10, 0xfe19],
  [0xff01, 0xff9f], [0xfffc, 0xffff], [0x10000, 0x1000b], [0x10400, 0x1044f], [0x1d400, 0x1d454], [0x1f1e6, 0x1f1ff], [0x1f300, 0x1f5ff],
  [0x1f600, 0x1f64f], [0x1f3fb, 0x1f3ff], [0x20000, 0x20020], [0x2f800, 0x2fa1d], [0xe0100, 0xe0110], [0x10fffd, 0x10ffff], [0x378, 0x379]];
const character = ([low, high]) => String.fromCodePoint(low + random(high - low + 1));
const words = ['the', ' the', 'a', "'s", "'LL", "'re", ' gradient', 'tokens', '\n', '\n\n', '\r\n', '  ', '   ', '\t', '\t\t', '123', '12345', ' 7',
  'é', 'é', '👩‍🚀', '🇩🇪', 'Ａ', 'ſ', 'K', 'ß', 'İ', 'ﬁ', '한국', '한', '中文', '日本', '▁', '▁▁', '<s>', '</s>', '<unk>',
  '<0x0A>', '<|endoftext|>', '\u0000', '\u00a0', '\u2028', '\ufeff', '...', '!?', '_', 'x_1'];
function randomText() {
  const mode = random(4);
  const length = 1 + random(mode === 3 ? 30 : 14);
  const few = Array.from({ length: 3 }, () => pick(ranges));
  let text = '';
  for (let i = 0; i < length; ++i) {
    if (mode === 0) text += character(pick(ranges));
    else if (mode === 1) text += character(pick(few));
    else if (mode === 2) text += random(3) ? pick(words) : character(pick(few));
    else text += character(random(6) ? ascii : pick(few));
  }
  return text;
}

const named = [
  '', ' ', '  ', 'a', 'Hello, world!', ' Hello  world ', 'The quick brown fox jumps over the lazy dog.',
  "It's what they've said: I'll, we're, you'd; she didn't. IT'S THEY'VE 'tis",
  'def f(x):\n    if x > 0:\n\treturn {"a": [1, 2], \'b\': x ** 2}\n\n\n# end\n',
  '#include <vector>\nint main() { return std::vector<int>{1,2,3}.size() >= 0x1F ? 0 : -1; }\r\n\r\n',
  'Привет, мир! Γειά σου Κόσμε. שלום עולם مرحبا بالعالم नमस्ते दुनिया สวัสดีชาวโลก 안녕하세요 你好，世界。日本語のテキスト。',
  '😀 👩‍🚀👨‍👩‍👧‍👦 🇩🇪🇫🇷 ❤️ ☕︎ 👍🏽', 'é é Å ạ̈ q̣̇ ℌ ﬁ ½ ²³ Ⅻ １２３ ①',
  '\u0000\u0001\u001f\u007f\u0080\u009f', '\u00a0\u1680\u2003\u2028\u2029\u202f\u205f\u3000\u200b\ufeff\u2060x',
  'a\n\n\nb\n \n c\r\n\r\nd\t\te \t f', 'x' + ' '.repeat(40) + 'y' + '\t'.repeat(12) + 'z' + '\n'.repeat(9),
  '1 12 123 1234 12345 123456 3.14159e-10 1,000,000 ٣٤٥ ௧௨௩ Ⅷ', '____ --- *** ... !!! ??? $$$ %%% === //// \\\\\\\\ <<>> [[]] {{}}',
  'https://example.com/a?b=c&d=%20#frag user@example.org C:\\path\\file.txt', 'ſtraße İstanbul ǅ ΣΑΣ ŒUVRE \u1e9e',
  "don'ſ 'ſ 'K 'RE're", '▁a▁▁b ▁c', '<s>a</s> <unk> <0x0A><0x41>', '  fox foxes fox_ _fox fox, (fox) fox', 'a <mask> b<mask>c  <mask>  <mask>',
  'x [L] y [R] z  [L][R]  [R] [L] ', '\ud55c\uae00 한글 \uac01\u11a8', '\u0344\u0958\u2126\u212b\u1ffe\ufb4f', 'a\u0315\u0300\u05ae\u0062 x\u0327\u0301',
  'e'.repeat(300), 'ab'.repeat(200), ' '.repeat(257), '▁'.repeat(100), '\n'.repeat(100), '日'.repeat(90), '😀'.repeat(50), '\u0301'.repeat(60),
  'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa the the the', '\ufffd\ufffe\uffff\u{10ffff}\u{378}\ue000',
];
const marks = new Set();
for (const { file } of names)
  for (const token of JSON.parse(fs.readFileSync(file)).added_tokens) marks.add(token.content);
for (const mark of marks) named.push(`one${mark}two ${mark} three${mark}${mark} ${mark}\n${mark}`);
const texts = { named, random: Array.from({ length: 10000 }, randomText) };
fs.writeFileSync(path.join(here, 'texts.json'), JSON.stringify(texts));

function load(file) {
  const json = JSON.parse(fs.readFileSync(file));
  const has = (token) => Object.hasOwn(json.model.vocab, token);
  json.model.merges = json.model.merges.map((merge) => {
    if (Array.isArray(merge) || merge.split(' ').length === 2) return merge.split ? merge.split(' ') : merge;
    const ways = [...merge].map((_, i) => [merge.slice(0, i), merge.slice(i + 1)])
      .filter(([a, b]) => merge[a.length] === ' ' && has(a) && has(b) && has(a + b));
    if (ways.length !== 1) throw new Error(`${file}: merge "${merge}" can be read in ${ways.length} ways`);
    return ways[0];
  });
  return hf.Tokenizer.fromString(JSON.stringify(json));
}

class Digest {
  hash = 0x811c9dc5;
  byte(b) { this.hash = Math.imul(this.hash ^ b, 0x01000193) >>> 0; }
  u32(n) { for (let i = 0; i < 4; ++i) this.byte((n >>> (8 * i)) & 255); }
  ids(ids) { this.u32(ids.length); for (const id of ids) this.u32(id); }
  text(text) { const bytes = Buffer.from(text, 'utf8'); this.u32(bytes.length); for (const b of bytes) this.byte(b); }
  hex() { return this.hash.toString(16).padStart(8, '0'); }
}
async function run(tokenizer, texts) {
  const plain = (await tokenizer.encodeBatch(texts, { addSpecialTokens: false })).map((e) => e.getIds());
  const full = (await tokenizer.encodeBatch(texts, { addSpecialTokens: true })).map((e) => e.getIds());
  const kept = await tokenizer.decodeBatch(full, false);
  const skipped = await tokenizer.decodeBatch(full, true);
  return texts.map((_, i) => ({ plain: plain[i], full: full[i], kept: kept[i], skipped: skipped[i] }));
}
function digest(results) {
  const d = new Digest();
  for (const r of results) { d.ids(r.plain); d.ids(r.full); d.text(r.kept); d.text(r.skipped); }
  return d.hex();
}

const goldens = {};
for (const { name, file, shared: isShared } of names) {
  const tokenizer = load(file);
  const golden = { shared: isShared };
  const onNamed = await run(tokenizer, texts.named);
  golden.ids = onNamed.slice(0, 30).map((r) => r.full);
  golden.named = onNamed.map((r) => digest([r]));
  const onRandom = await run(tokenizer, texts.random);
  golden.random = [];
  for (let i = 0; i < onRandom.length; i += blockTexts) golden.random.push(digest(onRandom.slice(i, i + blockTexts)));
  // Ids that no text gives: the same linear congruence, 400 runs of 1 to 12.
  state = 777;
  const vocab = Math.max(...Object.values(tokenizer.getVocab(true))) + 1;
  const runs = Array.from({ length: 400 }, () => Array.from({ length: 1 + random(12) }, () => random(vocab)));
  const d = new Digest();
  for (const skip of [false, true]) for (const text of await tokenizer.decodeBatch(runs, skip)) d.text(text);
  golden.decoded = d.hex();
  golden.vocab_size = vocab;
  if (isShared) {
    const text = fs.readFileSync(path.join(shared, 'tinyshakespeare.txt'), 'utf8').slice(0, 300000);
    golden.shakespeare = digest(await run(tokenizer, [text]));
  }
  goldens[name] = golden;
}
fs.writeFileSync(path.join(here, 'goldens.json'), JSON.stringify(goldens).replaceAll('},"', '},\n"') + '\n');
