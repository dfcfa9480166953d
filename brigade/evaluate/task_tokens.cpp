#include "brigade/evaluate/task_tokens.h"

#include <fmt/format.h>

#include <algorithm>

#include "brigade/base/error.h"
#include "brigade/base/utf8.h"
#include "brigade/generate/text_tokens.h"
#include "brigade/tokenizer/unicode.h"

namespace brigade {
namespace {

using Ids = std::vector<int64_t>;

int64_t require_start_token(const Tokenizer& tokenizer, const char* of) {
  const auto start = start_token(tokenizer);
  if (!start)
    throw DataError(fmt::format(
        "[task] {}, and the tokenizer has neither a token that begins a text "
        "nor one that ends it",
        of));
  return *start;
}

Ids encode_plain(const Tokenizer& tokenizer, const std::string& text) {
  const auto ids = tokenizer.encode(text);
  return {ids.begin(), ids.end()};
}

// With the template, unless the text says itself what stands before it.
Ids encode(const Tokenizer& tokenizer, const std::string& text) {
  const auto start = start_token(tokenizer);
  const auto start_text =
      start ? tokenizer.token_text(static_cast<int32_t>(*start)) : std::nullopt;
  return start_text && text.starts_with(*start_text)
             ? encode_plain(tokenizer, text)
             : encode_text(tokenizer, text);
}

// The length of `text` without the white space at its end.
size_t stripped_length(const std::string& text) {
  size_t end = text.size();
  while (end > 0) {
    const size_t begin = utf8_character_before(text, end);
    if (!is_python_space(utf8_code_point(text, begin)))
      break;
    end = begin;
  }
  return end;
}

void add_choice(
    Ids ids,
    const std::string& choice,
    int64_t most_tokens,
    Continuations& result) {
  if (ids.empty())
    throw DataError(fmt::format(
        "[task] the choice '{}' adds no token to its context", choice));
  if (static_cast<int64_t>(ids.size()) > most_tokens)
    throw DataError(fmt::format(
        "[task] the choice '{}' has {} tokens, more than the {} that the model "
        "sees at once",
        choice.substr(0, 40),
        ids.size(),
        most_tokens));
  result.choices.push_back(std::move(ids));
}

}  // namespace

Continuations tokenize(
    const TaskRequest& request,
    const Tokenizer& tokenizer,
    int64_t most_tokens) {
  Continuations result;
  const auto text_of = [&](const std::string& choice) {
    return request.target_delimiter + choice;
  };
  if (request.context.empty()) {
    const int64_t start = require_start_token(tokenizer, "a context is empty");
    result.context = {start};
    for (const std::string& choice : request.choices) {
      Ids ids = encode_plain(tokenizer, text_of(choice));
      if (!ids.empty() && ids.front() == start)
        ids.erase(ids.begin());
      add_choice(std::move(ids), choice, most_tokens, result);
    }
    return result;
  }
  const size_t kept = stripped_length(request.context);
  result.context = encode(tokenizer, request.context.substr(0, kept));
  const size_t shared = result.context.size();
  for (const std::string& choice : request.choices) {
    const Ids whole = encode(tokenizer, request.context + text_of(choice));
    add_choice(
        {whole.begin() +
             static_cast<std::ptrdiff_t>(std::min(shared, whole.size())),
         whole.end()},
        choice,
        most_tokens,
        result);
  }
  if (result.context.empty())
    result.context = {
        require_start_token(tokenizer, "a context is white space")};
  return result;
}

std::vector<ScoredWindow> rolling_windows(
    const std::string& text,
    const Tokenizer& tokenizer,
    int64_t most_tokens) {
  Ids ids = {require_start_token(tokenizer, "a text needs a token before it")};
  const Ids tokens = encode(tokenizer, text);
  ids.insert(ids.end(), tokens.begin(), tokens.end());
  const auto count = static_cast<int64_t>(tokens.size());
  std::vector<ScoredWindow> windows;
  for (int64_t done = 0; done < count;) {
    const int64_t predicted = std::min(count - done, most_tokens);
    const int64_t end = done + predicted + 1;  // in ids
    const int64_t begin = std::max<int64_t>(0, end - most_tokens - 1);
    windows.push_back(
        {.tokens = {ids.begin() + begin, ids.begin() + end},
         .predicted = predicted});
    done += predicted;
  }
  return windows;
}

}  // namespace brigade
