// llama.cpp's tokens and log-probabilities of texts, for scripts/test_llama_cpp.sh.
//
//   llama_cpp_oracle MODEL.gguf tokens  < JSONL   one JSON string per line
//   llama_cpp_oracle MODEL.gguf plain   < JSONL   special tokens as text
//   llama_cpp_oracle MODEL.gguf scores  < LINES   token ids, separated by spaces
//   llama_cpp_oracle MODEL.gguf logits  < LINES   the same
//
// Prints per line the ids (special tokens in the text are recognised and the
// template's added), or the log-probability of each id but the first; or writes
// the logits of each of these as float32.
#include <ggml-backend.h>
#include <llama.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

namespace {

// A JSON string with the escapes \n, \t, \r, \", \\ and \u00XX alone.
std::string unquoted(const std::string& line) {
  std::string text;
  for (size_t i = 1; i + 1 < line.size(); ++i) {
    if (line[i] != '\\') {
      text += line[i];
      continue;
    }
    const char kind = line[++i];
    if (kind == 'u') {
      text += static_cast<char>(std::stoi(line.substr(i + 1, 4), nullptr, 16));
      i += 4;
    } else {
      const std::string from = "nrtbf";
      const std::string to = "\n\r\t\b\f";
      const size_t known = from.find(kind);
      text += known == std::string::npos ? kind : to[known];
    }
  }
  return text;
}

void print_tokens(const llama_vocab* vocab, bool finds_special) {
  std::string line;
  while (std::getline(std::cin, line)) {
    const std::string text = unquoted(line);
    std::vector<llama_token> ids(text.size() + 16);
    const int count = llama_tokenize(
        vocab,
        text.data(),
        static_cast<int>(text.size()),
        ids.data(),
        static_cast<int>(ids.size()),
        true,
        finds_special);
    for (int i = 0; i < count; ++i)
      std::printf("%s%d", i == 0 ? "" : " ", ids[i]);
    std::printf("\n");
  }
}

void print_score(
    const float* logits,
    int vocabulary,
    llama_token id,
    bool first) {
  double largest = logits[0];
  for (int other = 1; other < vocabulary; ++other)
    largest = std::max<double>(largest, logits[other]);
  double sum = 0;
  for (int other = 0; other < vocabulary; ++other)
    sum += std::exp(logits[other] - largest);
  std::printf("%s%.9g", first ? "" : " ", logits[id] - largest - std::log(sum));
}

void print_predictions(
    llama_model* model,
    int vocabulary,
    const std::string& what) {
  const bool scores = what == "scores";
  auto parameters = llama_context_default_params();
  parameters.n_ctx = 2048;
  parameters.n_batch = 2048;
  parameters.n_ubatch = 2048;
  parameters.n_threads = 1;
  parameters.n_threads_batch = 1;
  parameters.type_k = GGML_TYPE_F32;
  parameters.type_v = GGML_TYPE_F32;
  parameters.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  llama_context* context = llama_init_from_model(model, parameters);
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream numbers(line);
    std::vector<llama_token> ids;
    for (llama_token id = 0; numbers >> id;)
      ids.push_back(id);
    llama_memory_clear(llama_get_memory(context), true);
    llama_batch batch = llama_batch_init(static_cast<int>(ids.size()), 0, 1);
    for (size_t i = 0; i < ids.size(); ++i) {
      batch.token[i] = ids[i];
      batch.pos[i] = static_cast<llama_pos>(i);
      batch.n_seq_id[i] = 1;
      batch.seq_id[i][0] = 0;
      batch.logits[i] = 1;
    }
    batch.n_tokens = static_cast<int>(ids.size());
    if (llama_decode(context, batch) != 0)
      std::exit(1);
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const float* logits = llama_get_logits_ith(context, static_cast<int>(i));
      if (scores)
        print_score(logits, vocabulary, ids[i + 1], i == 0);
      else
        std::fwrite(
            logits, sizeof *logits, static_cast<size_t>(vocabulary), stdout);
    }
    if (scores)
      std::printf("\n");
    llama_batch_free(batch);
  }
  llama_free(context);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3)
    return 2;
  llama_log_set(
      [](ggml_log_level level, const char* text, void*) {
        if (level == GGML_LOG_LEVEL_ERROR)
          std::fputs(text, stderr);
      },
      nullptr);
  ggml_backend_load_all();
  const std::string what = argv[2];
  auto parameters = llama_model_default_params();
  const bool is_plain = what == "plain";
  parameters.vocab_only = is_plain || what == "tokens";
  llama_model* model = llama_model_load_from_file(argv[1], parameters);
  if (model == nullptr)
    return 1;
  const llama_vocab* vocab = llama_model_get_vocab(model);
  if (parameters.vocab_only)
    print_tokens(vocab, !is_plain);
  else
    print_predictions(model, llama_vocab_n_tokens(vocab), what);
  llama_model_free(model);
  return 0;
}
