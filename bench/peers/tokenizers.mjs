// How fast Hugging Face's engine encodes on one thread:
//   node tokenizers.mjs TOKENIZER.json TEXT
// prints seconds a pass, the best of several. Needs the npm package tokenizers
// 0.23.2, in NODE_MODULES or where node looks from the current folder.
process.env.TOKENIZERS_PARALLELISM = 'false';
import { createRequire } from 'node:module';
import fs from 'node:fs';

const folder = process.env.NODE_MODULES ?? process.cwd() + '/node_modules';
const hf = createRequire(folder + '/')('tokenizers');
const [, , file, textFile] = process.argv;

// Its reader refuses merges of tokens that hold spaces; see
// tests/data/goldens/tokenizers/make_goldens.mjs.
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
const text = fs.readFileSync(textFile, 'utf8');
let best = Infinity;
let tokens = 0;
for (const begin = performance.now(); performance.now() - begin < 4000;) {
  const start = performance.now();
  const encoding = await tokenizer.encode(text, null, { addSpecialTokens: false });
  best = Math.min(best, (performance.now() - start) / 1000);
  tokens = encoding.getLength();
}
console.log(`${best} ${tokens}`);
