// How fast Hugging Face's engine encodes on one thread:
//   node tokenizers.mjs TOKENIZER.json TEXT
// prints seconds a pass over the text's documents (cut as bench_tokenizer cuts
// them: at blank lines, at least 4096 bytes each), the best of several, and the
// number of tokens. Needs the npm package tokenizers
// 0.23.2, in NODE_MODULES or where node looks from the current folder.
process.env.TOKENIZERS_PARALLELISM = 'false';
import { createRequire } from 'node:module';
import fs from 'node:fs';

const folder = process.env.NODE_MODULES ?? process.cwd() + '/node_modules';
const hf = createRequire(folder + '/')('tokenizers');
const [, , file, textFile] = process.argv;

// Its reader refuses merges of tokens that hold spaces; see
// tests/tokenizer/goldens/make_goldens.mjs.
const json = JSON.parse(fs.readFileSync(file));
const has = (token) => Object.hasOwn(json.model.vocab, token);
json.model.merges = json.model.merges.map((merge) => {
  if (Array.isArray(merge)) return merge;
  for (let i = 0; i < merge.length; ++i) {
    const [a, b] = [merge.slice(0, i), merge.slice(i + 1)];
    if (merge[i] === ' ' && has(a) && has(b) && has(a + b)) return [a, b];
  }
  throw new Error(`merge "${merge}"`);
});
const tokenizer = hf.Tokenizer.fromString(JSON.stringify(json));
const bytes = fs.readFileSync(textFile);
const documents = [];
for (let begin = 0; begin < bytes.length;) {
  const blank = bytes.indexOf('\n\n', begin + 4096);
  const end = blank < 0 ? bytes.length : blank + 2;
  documents.push(bytes.toString('utf8', begin, end));
  begin = end;
}
let best = Infinity;
let tokens = 0;
for (const begin = performance.now(); performance.now() - begin < 4000;) {
  const start = performance.now();
  tokens = 0;
  for (const document of documents) {
    const encoding = await tokenizer.encode(document, null, { addSpecialTokens: false });
    tokens += encoding.getLength();
  }
  best = Math.min(best, (performance.now() - start) / 1000);
}
console.log(`${best} ${tokens}`);
